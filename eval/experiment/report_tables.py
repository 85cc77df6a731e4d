"""A report in words and tables: what the page and the Markdown file print, cell by cell."""

from collections.abc import Sequence

from eval.experiment.cells import FULL, WAY_WORDS
from eval.experiment.comparisons import Comparison, Control, Result, Saving, difference_name, other_name, row_name
from eval.experiment.statistics import Interval
from eval.metrics import spoken_name
from eval.report import Report

DIFFERENCE_HEAD = ["difference", "labels", "mean", "95 % over seeds", "p (t)", "p (flip)", "p (Holm)"]
DIFFERENCE_HEAD += ["95 % over test set", "verdict"]
SAVING_HEAD = ["this", "with labels", "is worth, of", "labels (95 % over seeds)", "times as many"]
CONTROL_HEAD = ["shuffled labels", "labels", "score", "chance", "score minus chance", "verdict"]


def markdown(report: Report) -> str:
    """Tables for a README or an issue."""
    lines = [f"# {report.title}", ""]
    lines += [part for note in report.notes for part in (f"**{note}**", "")]
    lines += [*(f"- {line}" for line in report.headline), ""]
    for task in report.tasks:
        budgets, rows = table(report, task.name)
        lines += [f"## {task.title}: {spoken_name(task.main_metric)}", ""]
        lines += [task.overlap[:1].upper() + task.overlap[1:] + ".", ""] if task.overlap else []
        head = ["", *(f"{budget:,} labels" for budget in budgets)]
        lines += _table(head, [[name, *(score(r, task.main_metric) for r in found)] for name, found in rows])
        compared = [c for c in report.comparisons if c.task == task.name]
        lines += _table(DIFFERENCE_HEAD, [comparison_row(c) for c in compared])
        lines += _table(SAVING_HEAD, [saving_row(s) for s in report.savings if s.task == task.name])
        lines += _table(CONTROL_HEAD, [control_row(c) for c in report.controls if c.task == task.name])
        lines += ["Mean cost of a cell, training and prediction:", ""]
        lines += _table(head, [[name, *(spent(r) for r in found)] for name, found in rows])
    if report.averages:
        lines += ["## GLUE", "", *(f"- {row_name(a.network, a.arm, a.way)}: {a.words}" for a in report.averages), ""]
        lines += [part for a in report.averages for part in (a.table, "")]
    if report.failures:
        lines += ["## Failed cells", "", *(f"- {cell.key}: {cell.failure}" for cell in report.failures), ""]
    lines += ["## Protocol", "", *(f"- {name}: {value}" for name, value in report.protocol.items()), ""]
    machine = ", ".join(report.machine.values())
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines += [f"{report.created}; {machine}; {versions}."]
    return "\n".join(lines) + "\n"


def table(report: Report, task: str) -> tuple[list[int], list[tuple[str, list[Result | None]]]]:
    """Budgets, and a (name, result at each budget) for every network, arm and way of a task; None where a cell was not
    planned."""
    results = {(r.network, r.arm, r.way, r.labels): r for r in report.results if r.task == task}
    budgets = sorted({labels for *_, labels in results})
    rows = dict.fromkeys(place[:3] for place in results)
    return budgets, [(row_name(*row), [results.get((*row, budget)) for budget in budgets]) for row in rows]


def comparison_row(c: Comparison) -> list[str]:
    """Under DIFFERENCE_HEAD."""
    d = c.difference
    numbers = [signed(d.interval.mean), ends(d.interval), p(d.p_t), p(d.p_flip), p(c.p_holm), ends(c.test_interval)]
    return [difference_name(c), f"{c.labels:,}", *numbers, c.words]


def saving_row(s: Saving) -> list[str]:
    """Under SAVING_HEAD."""
    factor = s.worth.factor
    times = "" if factor is None else f"{factor:.1f}"
    way = "" if s.way == FULL else f", {WAY_WORDS.get(s.way, s.way)}"
    return [f"{s.network}{way}", f"{s.worth.labels:,}", other_name(s), s.worth.words, times]


def control_row(c: Control) -> list[str]:
    """Under CONTROL_HEAD."""
    name = row_name(c.network, "shuffled", c.way).replace(", shuffled labels", "")
    difference = signed(c.difference.mean) + (f" ({ends(c.difference)})" if c.difference.low is not None else "")
    return [name, f"{c.labels:,}", interval(c.score), f"{c.chance:.3f}", difference, c.verdict]


def score(result: Result | None, metric: str) -> str:
    """`0.810 ± 0.025`, and how many cells failed."""
    if result is None:
        return ""
    failed = f"{result.failed} failed" if result.failed else ""
    found = interval(result.metrics.get(metric))
    return f"{found} ({failed})" if found and failed else found or failed


def spent(result: Result | None) -> str:
    """`12.3 s, 4.1 TFLOP`."""
    if result is None:
        return ""
    flops = sum(result.cost.get(f"{part}_flops", 0.0) for part in ("training", "prediction"))
    return f"{result.seconds:.1f} s" + (f", {flop_words(flops)}" if flops else "")


def flop_words(flops: float) -> str:
    """`4.1 TFLOP`."""
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"


def interval(found: Interval | None) -> str:
    """`0.810 ± 0.025`."""
    if found is None:
        return ""
    return f"{found.mean:.3f}" + ("" if found.half_width is None else f" ± {found.half_width:.3f}")


def signed(value: float) -> str:
    """`+0.205`."""
    return f"{value:+.3f}"


def ends(found: Interval | None) -> str:
    """`+0.183 to +0.227`."""
    return "" if found is None or found.low is None else f"{found.low:+.3f} to {found.high:+.3f}"


def p(value: float | None) -> str:
    """`0.032`, `<0.001`."""
    if value is None:
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)] + [""]
