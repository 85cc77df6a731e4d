"""The report of an experiment: what each cell scored, what pre-training bought, how sure that is, and what it cost.

    report = build(cells, [facts(splits)], title="...", protocol={"learning rate": "1e-3"})
    report_files.write(report, "runs/demo")      # report.html, report.md, report.json, predictions.npz, plots/*.png

Where a network has cells from random start, the pre-trained ones (one row a way of adapting) are held against them seed
by seed on the task's main metric; where a task has a baseline, against that too. An interval that includes zero is
called that and decides nothing, and p-values are corrected for all comparisons of the report together.
"""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.experiment import comparisons, report_glue
from eval.experiment.cells import BASELINE_WORDS, Cell, by_key
from eval.experiment.comparisons import ALPHA, Comparison, Control, Result, Saving, row_name
from eval.experiment.plots import LossCurve
from eval.experiment.report_facts import TaskFacts, facts, machine_facts, version_facts
from eval.experiment.statistics import Interval
from eval.experiment.trial import BASELINE, PRETRAINED, RANDOM
from eval.metrics import spoken_name
from zoo.errors import InputError, nearest

__all__ = ["Comparison", "Control", "Report", "Result", "Saving", "TaskFacts", "build", "facts", "machine_facts"]
__all__ += ["spoken", "version_facts"]

RULES = {
    "pairing": "within a seed, every arm and way has the same labelled examples; budgets of one seed are nested",
    "score": "mean over seeds on the test examples that the protocol names, +- half of the 95 % Student t interval",
    "difference": "by seed, on the task's main metric; its 95 % Student t interval decides (zero excluded or not)",
    "p (t), p (flip)": "paired t-test; exact sign-flip test, at least 0.25 with three seeds and 0.0625 with five",
    "p (Holm)": "p (t) corrected by Holm's rule for the family of all differences in this report together: every "
    "pre-trained row minus its random start and minus the baseline, on every task and budget",
    "test-set interval": "95 % paired bootstrap over test examples and seeds, 1,000 draws; too narrow if seeds are few",
    "worth": "the number of labels at which the other arm's mean curve, straight in log labels, first reaches the "
    "score; 95 % percentile bootstrap over seeds, too narrow if seeds are few; unknown beyond the budgets run",
    "baseline": "TF-IDF of words and word pairs with logistic regression (its C chosen from 1, 10, 100 by "
    "cross-validation on the labelled examples, and 10 below 50 of them), with ridge regression for ratings; for tags "
    "the most frequent one of each word",
    "FLOPs": "by formula, padding included: a forward pass a row, three for one that trains all parameters "
    "(eval.experiment.cost)",
    "shuffled labels": "the pre-trained arm on labels dealt out anew, held against what its predictions would score on "
    "permuted test labels: it must score chance",
}


@dataclass(frozen=True)
class Report:
    """All that the files are made from."""

    title: str
    created: str
    headline: tuple[str, ...]
    protocol: Mapping[str, str]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    tasks: tuple[TaskFacts, ...]
    cells: tuple[Cell, ...]
    results: tuple[Result, ...]
    comparisons: tuple[Comparison, ...]
    pretraining: tuple[LossCurve, ...] = ()
    notes: tuple[str, ...] = ()
    savings: tuple[Saving, ...] = ()
    controls: tuple[Control, ...] = ()
    averages: tuple[report_glue.Average, ...] = ()

    @property
    def networks(self) -> tuple[str, ...]:
        """Networks in the order of their cells, without the baselines: the order of colours."""
        return tuple(dict.fromkeys(cell.key.network for cell in self.cells if cell.key.arm != BASELINE))

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(sorted({cell.key.seed for cell in self.cells}))

    @property
    def seconds(self) -> float:
        """Of all cells."""
        return sum(cell.seconds for cell in self.cells)

    @property
    def flops(self) -> float:
        """Of all cells that have them."""
        return sum(cell.cost.get(f"{part}_flops", 0.0) for cell in self.cells for part in ("training", "prediction"))

    @property
    def failures(self) -> tuple[Cell, ...]:
        """Cells without scores."""
        return tuple(cell for cell in self.cells if cell.failure)

    def metrics_shown(self, task: TaskFacts) -> tuple[str, ...]:
        """The main metric, then the others that the cells have."""
        names = dict.fromkeys(name for r in self.results if r.task == task.name for name in r.metrics)
        return (task.main_metric, *(name for name in names if name != task.main_metric))


def build(
    cells: Sequence[Cell],
    tasks: Sequence[TaskFacts],
    *,
    title: str,
    protocol: Mapping[str, str],
    machine: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    pretraining: Sequence[LossCurve] = (),
    notes: Sequence[str] = (),
    created: str | None = None,
) -> Report:
    """Computes a report from finished cells, those that failed among them.

    Args:
        cells: all of the experiment, in the order in which networks and tasks are to be shown.
        tasks: one `facts` for each task that a cell names.
        title: of the page.
        protocol: how the cells were run (rate, batch, epochs, length, pooling ...), name -> value; the rules of this
            module are added to it.
        machine, versions: None for `machine_facts()` and `version_facts()`.
        pretraining: loss curves of the networks that were pre-trained here.
        notes: what must be known before any number is read; too few seeds, failed cells and data that may fool people
            are noted here.
        created: time stamp; None for now.

    Raises:
        InputError: no cells, an unknown task, a missing cell (named), two cells for one place, a missing metric,
            predictions of the wrong length.
    """
    table = by_key(cells)
    if not table:
        raise InputError("a report needs at least one cell")
    named = {task.name: task for task in tasks}
    for cell in cells:
        _check(cell, named)
    comparisons.require_complete(table)
    compared, results = comparisons.compare(table, named), comparisons.results(table)
    controls = comparisons.controls(table, named)
    shown = tuple(task for task in tasks if any(cell.key.task == task.name for cell in cells))
    return Report(
        title=title,
        created=created or datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        headline=(*_headline(results, compared, cells), *_control_line(controls)),
        protocol={**protocol, **_rules(cells, compared, controls)},
        machine=machine_facts() if machine is None else machine,
        versions=version_facts() if versions is None else versions,
        tasks=shown,
        cells=tuple(cells),
        results=results,
        comparisons=compared,
        pretraining=tuple(pretraining),
        notes=(*notes, *_few_seeds(cells), *_failed(cells), *_suspect(shown)),
        savings=comparisons.savings(table, named),
        controls=controls,
        averages=report_glue.averages(results, shown),
    )


def _check(cell: Cell, tasks: Mapping[str, TaskFacts]) -> None:
    if cell.key.task not in tasks:
        raise InputError(f"{cell.key}: the report was given no facts of this task{nearest(cell.key.task, tasks)}")
    task = tasks[cell.key.task]
    if cell.failure:
        return
    if task.main_metric not in cell.metrics:
        raise InputError(f"{cell.key}: no {task.main_metric} among its metrics ({', '.join(cell.metrics) or 'none'})")
    if cell.predictions is not None and task.gold is not None and len(cell.predictions) != len(task.gold):
        raise InputError(f"{cell.key}: {len(cell.predictions)} predictions for {len(task.gold)} test examples")


def _rules(cells: Sequence[Cell], compared: Sequence[Comparison], controls: Sequence[Control]) -> dict[str, str]:
    """The rules that this report has a use for."""
    unused = set() if controls else {"shuffled labels"}
    unused |= set() if any(cell.key.arm == BASELINE for cell in cells) else {"baseline"}
    unused |= set() if any(cell.cost.get("training_flops") for cell in cells) else {"FLOPs"}
    family = sum(c.difference.p_t is not None for c in compared)
    return {
        name: text + (f"; {family} here" if name == "p (Holm)" else "")
        for name, text in RULES.items()
        if name not in unused
    }


def _headline(results: Sequence[Result], compared: Sequence[Comparison], cells: Sequence[Cell]) -> tuple[str, str, str]:
    """The three lines that matter: the largest gain shown, the whole tally, the baseline and the cost."""
    over_random = [c for c in compared if c.against == RANDOM]
    gains = [c for c in over_random if c.verdict == "better"]
    if gains:
        best = max(gains, key=lambda c: abs(c.difference.interval.mean))
        means = {
            (r.arm, r.way): r.metrics[best.metric].mean
            for r in results
            if (r.task, r.network, r.labels) == (best.task, best.network, best.labels) and best.metric in r.metrics
        }
        pretrained = means[PRETRAINED, best.way]
        random = next(mean for (arm, _), mean in means.items() if arm == RANDOM)
        first = (
            f"Largest gain: {row_name(best.network, PRETRAINED, best.way).replace(', pre-trained', '')} on {best.task} "
            f"with {best.labels:,} labels, {spoken_name(best.metric)} {pretrained:.3f} pre-trained against "
            f"{random:.3f} from random start: {spoken(best.difference.interval)}; the interval {best.words}."
        )
    elif over_random:
        first = "No gain is shown: no 95 % interval of pre-trained minus random start lies above zero."
    else:
        first = "No network was compared with its random start."
    second = f"Pre-trained against random start, all {len(over_random)}: {_tally(over_random)}."
    minutes = sum(cell.seconds for cell in cells) / 60
    over_baseline = [c for c in compared if c.against == BASELINE]
    names = dict.fromkeys(BASELINE_WORDS.get(c.other, c.other) for c in over_baseline)
    named = " or ".join(names) if len(names) < 3 else "the baseline"
    baseline = f"{named}, all {len(over_baseline)}: {_tally(over_baseline)}" if over_baseline else "a baseline, not run"
    return first, second, f"Pre-trained against {baseline}. {len(cells)} cells took {minutes:.1f} minutes."


def _control_line(controls: Sequence[Control]) -> list[str]:
    if not controls:
        return []
    counts = Counter(c.verdict for c in controls)
    said = ", ".join(f"{verdict} in {count}" for verdict, count in counts.items())
    wrong = " Above chance means that labels reach the network by another way than through learning." * (
        "above chance" in counts
    )
    return [f"Trained on shuffled labels, all {len(controls)}: {said}.{wrong}"]


def _few_seeds(cells: Sequence[Cell]) -> list[str]:
    count = len({cell.key.seed for cell in cells})
    if count > 2:
        return []
    seeds, why = ("one seed", "there is no interval") if count == 1 else ("two seeds", "their intervals are very wide")
    return [f"Only {seeds}: {why}, and next to nothing can be decided; three or more are needed."]


def _failed(cells: Sequence[Cell]) -> list[str]:
    failed = [cell for cell in cells if cell.failure]
    if not failed:
        return []
    more = f" (and {len(failed) - 1} more, listed below)" if len(failed) > 1 else ""
    return [
        f"{len(failed)} of {len(cells)} cells failed and have no score, so means and differences rest on fewer seeds: "
        f"{failed[0].key}: {failed[0].failure}{more}"
    ]


def _suspect(tasks: Sequence[TaskFacts]) -> list[str]:
    return [f"{task.name}: {warning}" for task in tasks for warning in task.warnings]


def _tally(compared: Sequence[Comparison]) -> str:
    counts = {verdict: sum(c.verdict == verdict for c in compared) for verdict in ("better", "worse", "undecided")}
    said = ", ".join(f"{verdict} in {count}" for verdict, count in counts.items())
    decided, hold = counts["better"] + counts["worse"], sum(c.holds for c in compared)
    return f"{said}; {hold} of the {decided} decided at {ALPHA:g} after Holm's correction" if decided else said


def spoken(interval: Interval) -> str:
    """`+0.220 (95 % interval +0.180 to +0.260, 3 seeds)`."""
    seeds = f"{interval.n} seed{'s' if interval.n > 1 else ''}"
    if interval.low is None:
        return f"{interval.mean:+.3f} (no interval, {seeds})"
    level = f"{100 * interval.level:.0f} % interval"
    return f"{interval.mean:+.3f} ({level} {interval.low:+.3f} to {interval.high:+.3f}, {seeds})"
