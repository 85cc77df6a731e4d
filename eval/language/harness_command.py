"""`python -m eval harness`: tasks of EleutherAI's lm-evaluation-harness on one of our models, as a plain function."""

import logging
from pathlib import Path

from eval.language.language_commands import named
from eval.language.screen import progress, show_json, show_table
from train.cli import keep_compiled
from zoo.errors import InputError


def harness(
    checkpoint: str,
    /,
    tasks: str,
    include: Path | None = None,
    shots: int | None = None,
    limit: int = 0,
    chat: bool = False,
    max_length: int | None = None,
    max_gen_toks: int = 256,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Run tasks of EleutherAI's lm-evaluation-harness on a causal checkpoint (pip install "oneblock[harness]").

    Its own tasks fetch their data from a hub; task files of one's own may read local files.

    Args:
        checkpoint: a folder, a run folder, or an embedded checkpoint's name.
        tasks: names, or paths of YAML files, with commas between.
        include: a folder of further YAML files.
        shots: examples in the prompt; by default as each task says.
        limit: how many questions of each task; 0 takes all.
        chat: write prompts by the checkpoint's chat template.
        max_length: most tokens that go in; by default the model's positions.
        max_gen_toks: tokens of an answer where a task does not say.
        seed: of examples and of answers that are drawn.
        json: print JSON in place of the table.

    Examples:
        python -m eval harness runs/mine --tasks mine.yaml --limit 100
    """
    keep_compiled()
    names = [word.strip() for word in tasks.split(",") if word.strip()]
    if not names:
        raise InputError("--tasks is empty; give one or more, with commas between")
    if limit < 0:
        raise InputError(f"limit is {limit}; it must be 0, for all, or more")
    from eval.language.harness import OneblockLM  # first of all: it says how the harness is installed

    for name in names:
        if name.endswith((".yaml", ".yml")) and not Path(name).is_file():
            raise InputError(f'no task file "{name}"')
    if len(named(checkpoint)) > 1:
        raise InputError("the harness takes one checkpoint")
    import lm_eval
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    called = [name for name in names if not name.endswith((".yaml", ".yml"))]
    # The harness's own thousands of files are read only where a name may be one of theirs.
    manager = TaskManager(include_path=None if include is None else str(include), include_defaults=bool(called))
    for name in called:
        if "*" not in name and name not in manager.all_tasks:
            raise InputError(f'the harness has no task "{name}"; name one of its tasks, or a YAML file')
    with progress(checkpoint) as watch:
        found = lm_eval.simple_evaluate(
            OneblockLM.load(checkpoint, max_length=max_length, max_gen_toks=max_gen_toks, seed=seed, watch=watch),
            tasks=names,
            num_fewshot=shots,
            limit=limit or None,
            apply_chat_template=chat,
            task_manager=manager,
            log_samples=False,
            bootstrap_iters=1000,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=None,
            fewshot_random_seed=seed,
        )
    measured = {
        name: {key: value for key, value in values.items() if isinstance(value, int | float)}
        for name, values in found["results"].items()
    }
    if json:
        show_json({"checkpoint": checkpoint, "results": measured, "shots": found.get("n-shot", {})})
        return
    rows = []
    for name, values in measured.items():
        for key, value in values.items():
            metric, _, kind = key.partition(",")
            if metric.endswith("_stderr") or not kind:
                continue
            error = values.get(f"{metric}_stderr,{kind}")
            rows.append((name, metric, f"{value:.4f}", "-" if error is None else f"{error:.4f}"))
    show_table(checkpoint, ("task", "metric", "value", "standard error"), rows)
