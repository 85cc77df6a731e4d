"""The report of an experiment: what each cell scored, what pre-training bought, how sure that is, and what it cost.

    report = build(cells, [facts(splits)], title="...", protocol={"learning rate": "1e-3"})
    report_files.write(report, "runs/demo")      # report.html, report.md, report.json, predictions.npz, plots/*.png

Every (task, network, labels) has a pre-trained and a random-start cell for the same seeds; the difference is taken
seed by seed on the task's main metric. Where TF-IDF cells are there, the pre-trained arm is held against them too. An
interval that includes zero is called that and decides nothing.
"""

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eval import metrics, statistics
from eval.cells import ARM_WORDS, ARMS, Cell, CellKey, by_key
from eval.plots import LossCurve
from eval.statistics import Interval, PairedDifference
from eval.tasks import Splits
from zoo.errors import InputError, nearest

RULES = {
    "pairing": "within a seed, every arm has the same labelled examples; budgets of one seed are nested",
    "score": "mean over seeds on the test examples that the protocol names, +- half of the 95 % Student t interval",
    "difference": "by seed, on the task's main metric; its 95 % Student t interval decides (zero excluded or not)",
    "p (t), p (flip)": "paired t-test; exact sign-flip test, at least 0.25 with three seeds and 0.0625 with five",
    "test-set interval": "95 % paired bootstrap over test examples and seeds, 1,000 draws; too narrow if seeds are few",
    "many comparisons": "not corrected for: of 20 comparisons with nothing in them, about one excludes zero by chance",
}


@dataclass(frozen=True)
class TaskFacts:
    """What a report says of a task; `gold` are the [E] test labels."""

    name: str
    title: str
    main_metric: str
    labels: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    gold: tuple[int, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    licence: str = ""
    reference: str = ""
    source: str = ""

    def size(self, split: str) -> int:
        """Examples of a split."""
        return sum(self.counts[split].values())

    def metrics_shown(self, report: "Report") -> tuple[str, ...]:
        """The main metric, then the others that the cells have."""
        names = dict.fromkeys(name for r in report.results if r.task == self.name for name in r.metrics)
        return (self.main_metric, *(name for name in names if name != self.main_metric))


@dataclass(frozen=True)
class Result:
    """One row and budget of a task's table: scores over seeds, and mean seconds a cell."""

    task: str
    network: str
    arm: str
    labels: int
    seeds: tuple[int, ...]
    metrics: Mapping[str, Interval]
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """The pre-trained arm minus another at one budget.

    Attributes:
        against: "random" or "tf-idf".
        metric: the task's main one.
        difference: over seeds.
        test_interval: bootstrap over test examples and seeds; None where predictions were not kept.
        verdict: "better", "worse" or "undecided", by the interval over seeds alone.
    """

    task: str
    network: str
    labels: int
    against: str
    metric: str
    difference: PairedDifference
    test_interval: Interval | None
    verdict: str

    @property
    def words(self) -> str:
        """The verdict as a sentence's end."""
        interval, test = self.difference.interval, self.test_interval
        if interval.low is None:
            why = "one seed" if interval.n == 1 else "no spread between seeds"
            return f"no interval ({why}): undecided"
        said = f"excludes zero: {self.verdict}" if interval.excludes_zero else "includes zero: undecided"
        if test is not None and test.excludes_zero != interval.excludes_zero:
            said += f"; over test examples it {'excludes' if test.excludes_zero else 'includes'} zero"
        return said


@dataclass(frozen=True)
class Report:
    """All that the files are made from."""

    title: str
    created: str
    headline: tuple[str, str, str]
    protocol: Mapping[str, str]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    tasks: tuple[TaskFacts, ...]
    cells: tuple[Cell, ...]
    results: tuple[Result, ...]
    comparisons: tuple[Comparison, ...]
    pretraining: tuple[LossCurve, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def networks(self) -> tuple[str, ...]:
        """Networks in the order of their cells, without the baseline: the order of colours."""
        return tuple(dict.fromkeys(cell.key.network for cell in self.cells if cell.key.arm != "tf-idf"))

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(sorted({cell.key.seed for cell in self.cells}))

    @property
    def seconds(self) -> float:
        """Of all cells."""
        return sum(cell.seconds for cell in self.cells)


def facts(splits: Splits) -> TaskFacts:
    """A task's part of a report."""
    task = splits.task
    return TaskFacts(
        name=task.name,
        title=task.title,
        main_metric=task.main_metric,
        labels=task.labels,
        counts=splits.counts(),
        gold=tuple(example.label for example in splits.test),
        dropped=splits.dropped,
        licence=task.licence,
        reference=task.reference,
        source=task.source,
    )


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
    """Computes a report from finished cells.

    Args:
        cells: all of the experiment, in the order in which networks and tasks are to be shown.
        tasks: one `facts` for each task that a cell names.
        title: of the page.
        protocol: how the cells were run (rate, batch, epochs, length, pooling ...), name -> value; the rules of this
            module are added to it.
        machine, versions: None for `machine_facts()` and `version_facts()`.
        pretraining: loss curves of the networks that were pre-trained here.
        notes: what must be known before any number is read; too few seeds are noted here.
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
    _check_complete(table)
    comparisons = _compare(table, named)
    results = _results(table)
    return Report(
        title=title,
        created=created or datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        headline=_headline(results, comparisons, cells),
        protocol={**protocol, **RULES},
        machine=machine_facts() if machine is None else machine,
        versions=version_facts() if versions is None else versions,
        tasks=tuple(task for task in tasks if any(cell.key.task == task.name for cell in cells)),
        cells=tuple(cells),
        results=results,
        comparisons=comparisons,
        pretraining=tuple(pretraining),
        notes=(*notes, *_few_seeds(cells)),
    )


def machine_facts() -> dict[str, str]:
    """The processor and the system, without names of people or hosts."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": model or platform.machine(),
        "cores": str(cores),
        "system": f"{platform.system()} {platform.machine()}",
    }


def version_facts() -> dict[str, str]:
    """Python's version and those of the packages that decide numbers."""
    versions = {"python": platform.python_version()}
    for name in ("oneblock", "jax", "flax", "optax", "numpy", "scikit-learn"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _check(cell: Cell, tasks: Mapping[str, TaskFacts]) -> None:
    if cell.key.task not in tasks:
        raise InputError(f"{cell.key}: the report was given no facts of this task{nearest(cell.key.task, tasks)}")
    task = tasks[cell.key.task]
    if task.main_metric not in cell.metrics:
        raise InputError(f"{cell.key}: no {task.main_metric} among its metrics ({', '.join(cell.metrics) or 'none'})")
    if cell.predictions is not None and len(cell.predictions) != len(task.gold):
        raise InputError(f"{cell.key}: {len(cell.predictions)} predictions for {len(task.gold)} test examples")


def _check_complete(table: Mapping[CellKey, Cell]) -> None:
    """Both arms of a network have the same budgets and seeds; the baseline, where a task has it, has all of them."""
    keys = list(table)
    for task in dict.fromkeys(key.task for key in keys):
        here = [key for key in keys if key.task == task and key.arm != "tf-idf"]
        for network in dict.fromkeys(key.network for key in here):
            for labels in sorted({key.labels for key in here if key.network == network}):
                at = [key for key in here if key.network == network and key.labels == labels]
                for seed in sorted({key.seed for key in at}):
                    for arm in ("pretrained", "random"):
                        _require(table, CellKey(task, network, arm, labels, seed))
        baseline = next((key for key in keys if key.task == task and key.arm == "tf-idf"), None)
        for key in here if baseline else ():
            _require(table, CellKey(task, baseline.network, "tf-idf", key.labels, key.seed))


def _require(table: Mapping[CellKey, Cell], key: CellKey) -> None:
    if key not in table:
        raise InputError(f"missing cell: {key}; run it, or leave out the cells that it is compared with")


def _results(table: Mapping[CellKey, Cell]) -> tuple[Result, ...]:
    rows: dict[tuple, list[Cell]] = {}
    for key, cell in table.items():
        rows.setdefault((key.task, key.network, key.arm, key.labels), []).append(cell)
    out = []
    for task, network, arm, labels in _in_order(rows):
        cells = sorted(rows[task, network, arm, labels], key=lambda cell: cell.key.seed)
        names = [name for name in cells[0].metrics if all(name in cell.metrics for cell in cells)]
        scores = {name: statistics.mean_interval([cell.metrics[name] for cell in cells]) for name in names}
        seconds = sum(cell.seconds for cell in cells) / len(cells)
        out.append(Result(task, network, arm, labels, tuple(cell.key.seed for cell in cells), scores, seconds))
    return tuple(out)


def _in_order(places: Iterable[tuple]) -> list[tuple]:
    """Distinct (task, network, [arm,] labels): tasks and networks as they first come, then ARMS, then rising labels."""
    distinct = list(dict.fromkeys(places))
    tasks, networks = ({name: i for i, name in reversed(list(enumerate(p[k] for p in distinct)))} for k in (0, 1))
    arms = {arm: i for i, arm in enumerate(ARMS)}
    return sorted(distinct, key=lambda p: (tasks[p[0]], networks[p[1]], arms.get(p[2], 0), p[-1]))


def _compare(table: Mapping[CellKey, Cell], tasks: Mapping[str, TaskFacts]) -> tuple[Comparison, ...]:
    out = []
    pretrained = [key for key in table if key.arm == "pretrained"]
    for against in ("random", "tf-idf"):
        for task, network, labels in _in_order((key.task, key.network, key.labels) for key in pretrained):
            seeds = sorted(k.seed for k in pretrained if (k.task, k.network, k.labels) == (task, network, labels))
            others = {k.seed: k for k in table if (k.task, k.arm, k.labels) == (task, against, labels)}
            if against == "random":
                others = {seed: CellKey(task, network, "random", labels, seed) for seed in seeds}
            if not others:
                continue
            ours = [table[CellKey(task, network, "pretrained", labels, seed)] for seed in seeds]
            theirs = [table[others[seed]] for seed in seeds]
            out.append(_comparison(tasks[task], network, labels, against, ours, theirs))
    return tuple(out)


def _comparison(
    task: TaskFacts, network: str, labels: int, against: str, ours: Sequence[Cell], theirs: Sequence[Cell]
) -> Comparison:
    name = task.main_metric
    difference = statistics.paired_difference([c.metrics[name] for c in ours], [c.metrics[name] for c in theirs])
    test_interval = None
    if name in metrics.METRICS and all(cell.predictions is not None for cell in (*ours, *theirs)):
        test_interval = statistics.paired_bootstrap(
            task.gold,
            [c.predictions for c in ours],
            [c.predictions for c in theirs],
            metrics.metric(name),
            len(task.labels),
        )
    interval = difference.interval
    verdict = ("better" if interval.mean > 0 else "worse") if interval.excludes_zero else "undecided"
    return Comparison(task.name, network, labels, against, name, difference, test_interval, verdict)


def _headline(
    results: Sequence[Result], comparisons: Sequence[Comparison], cells: Sequence[Cell]
) -> tuple[str, str, str]:
    """The three lines that matter: the largest gain shown, the whole tally, the baseline and the cost."""
    over_random = [c for c in comparisons if c.against == "random"]
    gains = [c for c in over_random if c.verdict == "better"]
    if gains:
        best = max(gains, key=lambda c: c.difference.interval.mean)
        pretrained, random = (
            next(
                r.metrics[best.metric].mean
                for r in results
                if (r.task, r.network, r.arm, r.labels) == (best.task, best.network, arm, best.labels)
            )
            for arm in ("pretrained", "random")
        )
        first = (
            f"Largest gain: {best.network} on {best.task} with {best.labels:,} labels, {best.metric} "
            f"{pretrained:.3f} pre-trained against {random:.3f} from random start: "
            f"{spoken(best.difference.interval)}; the interval {best.words}."
        )
    elif over_random:
        first = "No gain is shown: no 95 % interval of pre-trained minus random start lies above zero."
    else:
        first = "No network was compared with its random start."
    second = f"Pre-trained against random start, all {len(over_random)}: {_tally(over_random)}."
    minutes = sum(cell.seconds for cell in cells) / 60
    over_tfidf = [c for c in comparisons if c.against == "tf-idf"]
    baseline = f"all {len(over_tfidf)}: {_tally(over_tfidf)}" if over_tfidf else "not run"
    return first, second, f"Pre-trained against TF-IDF, {baseline}. {len(cells)} cells took {minutes:.1f} minutes."


def _few_seeds(cells: Sequence[Cell]) -> list[str]:
    count = len({cell.key.seed for cell in cells})
    if count > 2:
        return []
    seeds, why = ("one seed", "there is no interval") if count == 1 else ("two seeds", "their intervals are very wide")
    return [f"Only {seeds}: {why}, and next to nothing can be decided; three or more are needed."]


def _tally(comparisons: Sequence[Comparison]) -> str:
    counts = {verdict: sum(c.verdict == verdict for c in comparisons) for verdict in ("better", "worse", "undecided")}
    return ", ".join(f"{verdict} in {count}" for verdict, count in counts.items())


def spoken(interval: Interval) -> str:
    """`+0.220 (95 % interval +0.180 to +0.260, 3 seeds)`."""
    seeds = f"{interval.n} seed{'s' if interval.n > 1 else ''}"
    if interval.low is None:
        return f"{interval.mean:+.3f} (no interval, {seeds})"
    level = f"{100 * interval.level:.0f} % interval"
    return f"{interval.mean:+.3f} ({level} {interval.low:+.3f} to {interval.high:+.3f}, {seeds})"


def difference_name(c: Comparison) -> str:
    """How a table names a difference: `minilm pre-trained minus random start`."""
    return f"{c.network} {ARM_WORDS['pretrained']} minus {ARM_WORDS[c.against]}"


def arm_name(network: str, arm: str) -> str:
    """How a table names a row: `minilm, pre-trained`; `TF-IDF`."""
    return ARM_WORDS[arm] if arm == "tf-idf" else f"{network}, {ARM_WORDS[arm]}"
