"""What the cells of an experiment say: scores over seeds, differences in pairs, labels saved, the shuffled control.

Within a seed all arms have the same labelled examples, so differences are taken seed by seed. A cell that failed takes
its seed out of the comparisons that it is in, and is counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eval.experiment import rescore, statistics
from eval.experiment.cells import ARM_WORDS, ARMS, BASELINE_WORDS, FULL, WAY_WORDS, Cell, CellKey
from eval.experiment.efficiency import Worth, worth
from eval.experiment.report_facts import TaskFacts
from eval.experiment.statistics import Interval, PairedDifference
from eval.experiment.trial import BASELINE, PRETRAINED, RANDOM, SHUFFLED
from eval.metrics import bounds, higher_is_better
from zoo.errors import InputError

Table = Mapping[CellKey, Cell]
ALPHA = 0.05


@dataclass(frozen=True)
class Result:
    """One row and budget of a task's table: scores over seeds, and the means of what a cell cost.

    Attributes:
        seeds: those that went well; {} metrics where there is none.
        failed: how many cells failed.
        seconds: mean of a cell.
        cost: means of `Cell.cost`.
    """

    task: str
    network: str
    arm: str
    labels: int
    seeds: tuple[int, ...]
    metrics: Mapping[str, Interval]
    seconds: float
    way: str = FULL
    failed: int = 0
    cost: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """The pre-trained arm, by one way, minus another arm at one budget.

    Attributes:
        against: "random" or "baseline".
        metric: the task's main one.
        difference: over seeds; its sign is that of the metric.
        test_interval: bootstrap over test examples and seeds; None where predictions were not kept.
        verdict: "better", "worse" or "undecided", by the interval over seeds alone.
        way: of the pre-trained arm.
        other: the network of the other arm: the same one, or the baseline's name.
        p_holm: p_t corrected for all comparisons of the report; None without p_t.
    """

    task: str
    network: str
    labels: int
    against: str
    metric: str
    difference: PairedDifference
    test_interval: Interval | None
    verdict: str
    way: str = FULL
    other: str = ""
    p_holm: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the verdict also holds when all comparisons of the report are corrected for."""
        return self.verdict != "undecided" and self.p_holm is not None and self.p_holm < ALPHA

    @property
    def words(self) -> str:
        """The verdict as a sentence's end."""
        interval, test = self.difference.interval, self.test_interval
        if interval.low is None:
            why = "one seed" if interval.n == 1 else "no spread between seeds"
            return f"no interval ({why}): undecided"
        said = f"excludes zero: {self.verdict}" if interval.excludes_zero else "includes zero: undecided"
        if interval.excludes_zero and self.p_holm is not None and not self.holds:
            said += "; not once corrected for all comparisons"
        if test is not None and test.excludes_zero != interval.excludes_zero:
            said += f"; over test examples it {'excludes' if test.excludes_zero else 'includes'} zero"
        return said


@dataclass(frozen=True)
class Saving:
    """Label efficiency: the pre-trained arm at `worth.labels` labels against another arm's curve."""

    task: str
    network: str
    way: str
    against: str
    other: str
    worth: Worth


@dataclass(frozen=True)
class Control:
    """The pre-trained arm trained on shuffled labels, which must score chance.

    Attributes:
        score: over seeds.
        chance: what such predictions score by chance; see eval.experiment.rescore.
        difference: score minus chance, over seeds.
        verdict: "at chance", "above chance", "below chance" or "undecided".
    """

    task: str
    network: str
    way: str
    labels: int
    metric: str
    score: Interval
    chance: float
    difference: Interval
    verdict: str


def results(table: Table) -> tuple[Result, ...]:
    """A Result for each (task, network, arm, way, labels), in the order of a report."""
    rows: dict[tuple, list[Cell]] = {}
    for key, cell in table.items():
        rows.setdefault((key.task, key.network, key.arm, key.way, key.labels), []).append(cell)
    out = []
    for place in in_order(rows):
        cells = sorted(rows[place], key=lambda cell: cell.key.seed)
        fine = [cell for cell in cells if not cell.failure]
        names = [name for name in fine[0].metrics if all(name in cell.metrics for cell in fine)] if fine else []
        scores = {
            name: statistics.mean_interval([cell.metrics[name] for cell in fine], bounds=bounds(name)) for name in names
        }
        costs = [name for name in fine[0].cost if all(name in cell.cost for cell in fine)] if fine else []
        task, network, arm, way, labels = place
        out.append(
            Result(
                *(task, network, arm, labels, tuple(cell.key.seed for cell in fine), scores),
                seconds=sum(cell.seconds for cell in cells) / len(cells),
                way=way,
                failed=len(cells) - len(fine),
                cost={name: sum(cell.cost[name] for cell in fine) / len(fine) for name in costs},
            )
        )
    return tuple(out)


def in_order(places: Iterable[tuple]) -> list[tuple]:
    """Distinct (task, network, arm, way, labels): tasks and networks as they first come, ARMS, ways, rising labels."""
    distinct = list(dict.fromkeys(places))
    tasks, networks, ways = (
        {name: i for i, name in reversed(list(enumerate(place[k] for place in distinct)))} for k in (0, 1, 3)
    )
    return sorted(distinct, key=lambda p: (tasks[p[0]], networks[p[1]], ARMS.index(p[2]), ways[p[3]], p[4]))


def compare(table: Table, tasks: Mapping[str, TaskFacts]) -> tuple[Comparison, ...]:
    """Pre-trained minus random start, then minus the baseline; p-values corrected over all of them together."""
    out = []
    for against in (RANDOM, BASELINE):
        for task, network, way, labels in _pretrained(table):
            pairs = _pairs(table, task, network, way, labels, against)
            if pairs:
                out.append(_comparison(tasks[task], pairs, against))
    adjusted = statistics.holm([c.difference.p_t for c in out])
    return tuple(replace(c, p_holm=p) for c, p in zip(out, adjusted, strict=True))


def savings(table: Table, tasks: Mapping[str, TaskFacts]) -> tuple[Saving, ...]:
    """How many labels of a random start, and of the baseline, each pre-trained score is worth."""
    out = []
    for against in (RANDOM, BASELINE):
        for task, network, way, labels in _pretrained(table):
            metric = tasks[task].main_metric
            others = {
                (key.labels, key.seed): cell
                for key, cell in table.items()
                if (key.task, key.arm) == (task, against)
                and (against == BASELINE or key.network == network)
                and not cell.failure
            }
            budgets = sorted({budget for budget, _ in others})
            place = (task, network, PRETRAINED, labels)
            own = {
                key.seed: cell.metrics[metric]
                for key, cell in table.items()
                if (key.task, key.network, key.arm, key.labels, key.way) == (*place, way) and not cell.failure
            }
            seeds = [seed for seed in sorted(own) if all((budget, seed) in others for budget in budgets)]
            if not budgets or not seeds:
                continue
            curve = [[others[budget, seed].metrics[metric] for budget in budgets] for seed in seeds]
            found = worth(
                labels, [own[seed] for seed in seeds], budgets, curve, higher_is_better=higher_is_better(metric)
            )
            out.append(Saving(task, network, way, against, next(iter(others.values())).key.network, found))
    return tuple(out)


def controls(table: Table, tasks: Mapping[str, TaskFacts]) -> tuple[Control, ...]:
    """Whether networks trained on shuffled labels score chance.

    "at chance" where the interval over seeds of score minus chance includes zero and its mean is below a quarter of
    what the true labels gain over chance; "undecided" where it includes zero, but the mean is not that small.
    """
    out = []
    for task, network, arm, way, labels in in_order(
        (key.task, key.network, key.arm, key.way, key.labels) for key in table if key.arm == SHUFFLED
    ):
        facts = tasks[task]
        metric, fine = facts.main_metric, _fine(table, task, network, arm, way, labels)
        told = [c.details["chance"] for c in fine if "chance" in c.details]
        kept = facts.gold is not None and all(c.predictions is not None for c in fine) and rescore.can(facts, metric)
        if not fine or not (kept or len(told) == len(fine)):
            continue
        by_chance = told if not kept else [rescore.chance(facts, facts.gold, c.predictions, metric) for c in fine]
        scores = [cell.metrics[metric] for cell in fine]
        difference = statistics.mean_interval([s - c for s, c in zip(scores, by_chance, strict=True)])
        chance = sum(by_chance) / len(by_chance)
        true = _fine(table, task, network, PRETRAINED, way, labels)
        gain = sum(c.metrics[metric] for c in true) / len(true) - chance if true else 0.0
        verdict = "undecided"
        if difference.excludes_zero:
            verdict = "above chance" if difference.mean > 0 else "below chance"
        elif difference.low is not None and abs(difference.mean) < abs(gain) / 4:
            verdict = "at chance"
        out.append(
            Control(
                *(task, network, way, labels, metric, statistics.mean_interval(scores, bounds=bounds(metric))),
                chance=chance,
                difference=difference,
                verdict=verdict,
            )
        )
    return tuple(out)


def require_complete(table: Table) -> None:
    """Raises InputError for a missing cell: all rows of a network have the same budgets and seeds, and the baseline,
    where a task has it, has all of them."""
    for task in dict.fromkeys(key.task for key in table):
        here = [key for key in table if key.task == task and key.arm in (PRETRAINED, RANDOM)]
        for network in dict.fromkeys(key.network for key in here):
            own = [key for key in here if key.network == network]
            for arm, way in dict.fromkeys((key.arm, key.way) for key in own):
                for labels, seed in dict.fromkeys((key.labels, key.seed) for key in own):
                    _require(table, CellKey(task, network, arm, labels, seed, way))
        baseline = next((key for key in table if key.task == task and key.arm == BASELINE), None)
        for key in here if baseline else ():
            _require(table, CellKey(task, baseline.network, BASELINE, key.labels, key.seed))


def row_name(network: str, arm: str, way: str = FULL) -> str:
    """How a table names a row: `minilm, pre-trained`; `minilm, pre-trained, LoRA`; `TF-IDF`."""
    if arm == BASELINE:
        return BASELINE_WORDS.get(network, network)
    return f"{network}, {ARM_WORDS[arm]}" + ("" if way == FULL else f", {WAY_WORDS.get(way, way)}")


def other_name(c: Comparison | Saving) -> str:
    """What a comparison is held against: `random start`; `TF-IDF`."""
    return ARM_WORDS[RANDOM] if c.against == RANDOM else BASELINE_WORDS.get(c.other, c.other or "TF-IDF")


def difference_name(c: Comparison) -> str:
    """How a table names a difference: `minilm pre-trained minus random start`."""
    way = "" if c.way == FULL else f" ({WAY_WORDS.get(c.way, c.way)})"
    return f"{c.network} {ARM_WORDS[PRETRAINED]}{way} minus {other_name(c)}"


def _pretrained(table: Table) -> list[tuple]:
    """(task, network, way, labels) of the pre-trained arm, in order."""
    keys = (key for key in table if key.arm == PRETRAINED)
    places = in_order((key.task, key.network, key.arm, key.way, key.labels) for key in keys)
    return [(task, network, way, labels) for task, network, _, way, labels in places]


def _fine(table: Table, task: str, network: str, arm: str, way: str, labels: int) -> list[Cell]:
    """Cells of a place that went well, by seed."""
    place = (task, network, arm, way, labels)
    found = [c for k, c in table.items() if (k.task, k.network, k.arm, k.way, k.labels) == place and not c.failure]
    return sorted(found, key=lambda cell: cell.key.seed)


def _pairs(table: Table, task: str, network: str, way: str, labels: int, against: str) -> list[tuple[Cell, Cell]]:
    others = {
        key.seed: cell
        for key, cell in table.items()
        if (key.task, key.arm, key.labels) == (task, against, labels)
        and (against == BASELINE or key.network == network)
        and not cell.failure
    }
    ours = _fine(table, task, network, PRETRAINED, way, labels)
    return [(cell, others[cell.key.seed]) for cell in ours if cell.key.seed in others]


def _comparison(task: TaskFacts, pairs: Sequence[tuple[Cell, Cell]], against: str) -> Comparison:
    name, (first, other) = task.main_metric, pairs[0]
    sides = ([cell.metrics[name] for cell in side] for side in zip(*pairs, strict=True))
    difference = statistics.paired_difference(*sides)
    test_interval = None
    kept = all(cell.predictions is not None for pair in pairs for cell in pair)
    if task.gold is not None and kept and rescore.can(task, name):
        a, b = (
            [rescore.scorer(task, task.gold, cell.predictions, name) for cell in side]
            for side in zip(*pairs, strict=True)
        )
        test_interval = statistics.paired_bootstrap(a, b, len(task.gold))
    interval, verdict = difference.interval, "undecided"
    if interval.excludes_zero:
        verdict = "better" if (interval.mean > 0) == higher_is_better(name) else "worse"
    return Comparison(
        *(task.name, first.key.network, first.key.labels, against, name, difference, test_interval, verdict),
        way=first.key.way,
        other=other.key.network,
    )


def _require(table: Table, key: CellKey) -> None:
    if key not in table:
        raise InputError(f"missing cell: {key}; run it, or leave out the cells that it is compared with")
