"""`python -m eval glue`: development-set scores of fine-tuned runs as GLUE's table, beside published figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval import tasks
from eval.scores.glue_scores import MNLI_SETS, SCORED, GlueTable
from eval.sources import strict_json
from eval.ways.finetune_config import FinetuneConfig
from eval.ways.protocol import protocol as spoken_protocol
from zoo.atomic_file import write_atomically
from zoo.errors import InputError


def show(runs: tuple[str, ...], /, name: str = "this model", out: Path | None = None) -> None:
    """Print GLUE's table of fine-tuned runs, its averages, and published figures of BERT beside them.

    Several runs of one task (seeds) count as their mean. An average stands where all tasks but WNLI are there.

    Args:
        runs: folders that finetune --out made on tasks of GLUE.
        name: the head of the column.
        out: a Markdown file to write too.

    Examples:
        python -m eval glue runs/glue/cola runs/glue/rte --name "MiniLM"
    """
    seen: dict[Path, str] = {}
    for run in runs:
        if (place := Path(run).resolve()) in seen:
            raise InputError(f"{run} is {seen[place]} once more; a mean takes each run once")
        seen[place] = run
    if not runs:
        raise InputError("which runs? Name one folder or more that finetune --out made on a task of GLUE")
    text = f"{table(runs).text(name)}\n{protocol(runs)}\n"
    if out is not None:
        write_atomically(out, text)
    print(text, end="")


def table(runs: Sequence[str | Path]) -> GlueTable:
    """The scores of runs; the mean where several are of one task.

    Raises:
        InputError: a folder that finetune did not make, a run on no task of GLUE, a metric that is missing.
    """
    found: dict[str, list[GlueTable]] = {}
    for run in runs:
        task, scores = read(run)
        try:
            found.setdefault(task, []).append(GlueTable.of({task: scores}))
        except InputError as error:
            raise InputError(f"{run}: {error}") from None
    return GlueTable(
        {
            task: tuple(sum(values) / len(values) for values in zip(*(t.figures[task] for t in tables), strict=True))
            for task, tables in found.items()
        }
    )


def read(run: str | Path) -> tuple[str, Mapping[str, Any]]:
    """The task of a run and its test scores: metric -> value; for MNLI by test set."""
    settings, measured = (_json(Path(run) / file) for file in ("config.json", "metrics.json"))
    made = settings.get("finetune")
    task = made.get("task") if isinstance(made, dict) else None
    if task not in SCORED:
        raise InputError(f"{run}: a run on {task or 'a file of its own'}, which is no task of GLUE")
    if not isinstance(measured.get("test"), dict):
        raise InputError(f"{run}: metrics.json holds no test scores")
    if task != "mnli":
        return task, measured["test"]
    matched, mismatched = MNLI_SETS
    if mismatched not in measured:
        raise InputError(f"{run}: metrics.json holds no scores of {mismatched}; MNLI is scored on both sets")
    return task, {matched: measured["test"], mismatched: measured[mismatched]}


def protocol(runs: Sequence[str | Path]) -> str:
    """A line for each run: how it was fine-tuned."""
    lines = []
    for run in runs:
        whole = _json(Path(run) / "config.json")
        settings, model = whole["finetune"], whole.get("model")
        try:
            config = FinetuneConfig.from_dict(settings["config"])
        except (InputError, LookupError, TypeError) as error:
            raise InputError(f"{run}: config.json does not say how it was fine-tuned: {error}") from None
        task, labels = settings["task"], settings.get("labels")
        pooling = str(model.get("pooling") or "") if isinstance(model, dict) else ""
        start = ", random start" if settings.get("random_start") else ""
        said = spoken_protocol(config, kind=tasks.get(task).kind, pooling=pooling)
        few = f"{labels:,} labels" if labels else "all labels"
        lines.append(f"- {task}: {settings.get('checkpoint')}{start}; {said}; {few}.")
    return "\n".join(["Ours:", "", *lines])


def _json(path: Path) -> dict[str, Any]:
    return strict_json.read_object(path, "a folder is wanted that finetune --out made")
