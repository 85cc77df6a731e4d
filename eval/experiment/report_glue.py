"""GLUE in a report: the scores of each row on its tasks beside published ones, and the averages (WNLI left out)."""

from collections.abc import Sequence
from dataclasses import dataclass

from eval.experiment.comparisons import Result
from eval.experiment.report_facts import TaskFacts
from eval.scores.glue_scores import MNLI_SETS, SCORED, GlueTable


@dataclass(frozen=True)
class Average:
    """One row of the report on GLUE's tasks.

    Attributes:
        network, arm, way: which row.
        words: the averages with what they leave out, or why there is none.
        table: our scores beside published ones, in Markdown.
        once, twice: the averages in percent with MNLI as one task and as two; None where tasks are missing.
    """

    network: str
    arm: str
    way: str
    words: str
    table: str
    once: float | None
    twice: float | None


def averages(results: Sequence[Result], tasks: Sequence[TaskFacts]) -> tuple[Average, ...]:
    """One for each row that ran on a task of GLUE, from the means over seeds at its largest budget."""
    glue = {task.name: task for task in tasks if task.benchmark == "GLUE"}
    rows: dict[tuple[str, str, str], dict[str, Result]] = {}
    for result in results:
        if result.task in glue and _scored(result) and result.arm != "shuffled":
            found = rows.setdefault((result.network, result.arm, result.way), {})
            if result.task not in found or result.labels > found[result.task].labels:
                found[result.task] = result
    return tuple(_average(row, found, glue) for row, found in rows.items())


def _scored(result: Result) -> bool:
    """Whether all scores are there that GLUE's table needs: of MNLI those of both sets."""
    needed = SCORED.get(result.task, ())
    if result.task == "mnli":
        needed = (*needed, *(f"{MNLI_SETS[1]}/{name}" for name in needed))
    return bool(needed) and all(name in result.metrics for name in needed)


def _average(row: tuple[str, str, str], found: dict[str, Result], glue: dict[str, TaskFacts]) -> Average:
    scores = {}
    for name, result in found.items():
        means = {metric: interval.mean for metric, interval in result.metrics.items()}
        if name == "mnli":
            other = {metric.partition("/")[2]: value for metric, value in means.items() if "/" in metric}
            means = dict(zip(MNLI_SETS, ({m: v for m, v in means.items() if "/" not in m}, other), strict=True))
        scores[name] = means
    table = GlueTable.of(scores)
    few = [f"{name} with {r.labels:,} labels" for name, r in found.items() if r.labels < glue[name].size("train")]
    budget = f"; not with all labels: {', '.join(few)}" if few else ""
    name = f"{row[0]}, {row[1]}"
    if missing := table.missing():
        return Average(*row, f"no average without {', '.join(missing)}{budget}", table.text(name), None, None)
    once, twice = table.average(), table.average(mnli_twice=True)
    words = (
        f"average of 8 scores {once:.1f} (MNLI as the mean of its two sets), of 9 with MNLI twice {twice:.1f}; "
        f"WNLI is left out, as is usual{budget}"
    )
    return Average(*row, words, table.text(name), once, twice)
