"""`python -m eval compare A B`: are these two experiments, or these two fine-tuned checkpoints, different?

Both sides must have answered the same test texts of the same tasks, which is checked by digests of the examples; then
differences are taken in pairs: by seed, and by test example.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.experiment import compared_files, rescore, statistics
from eval.experiment.compared_files import Answers, Side
from eval.experiment.comparisons import ALPHA
from eval.experiment.report_tables import ends, p, signed
from eval.experiment.statistics import Interval, McNemar, PairedDifference
from eval.language.screen import show_table
from eval.metrics import spoken_name
from zoo.atomic_file import write_atomically
from zoo.errors import InputError, nearest

HEAD = ["labels", "seeds", "A", "B", "A - B", "95 % over seeds", "p (t)", "p (Holm)", "95 % over test set"]
HEAD += ["right: A alone / B alone", "p (McNemar)"]


@dataclass(frozen=True)
class Pair:
    """One row of A against one of B, at one budget.

    Attributes:
        task, labels, seeds: where, and on which seeds both have answers; 0 labels for fine-tuned folders, whose rows
            say with which labels and seed they were made.
        row_a, row_b: names of the rows.
        metric: the task's main one.
        mean_a, mean_b: over the seeds.
        difference: A - B over seeds.
        p_holm: p (t) corrected for all pairs.
        test_interval: paired bootstrap over test examples and seeds; None where predictions are not at hand.
        mcnemar: one a seed, where classes are predicted.
    """

    task: str
    labels: int
    seeds: tuple[int, ...]
    row_a: str
    row_b: str
    metric: str
    mean_a: float
    mean_b: float
    difference: PairedDifference
    p_holm: float | None
    test_interval: Interval | None
    mcnemar: tuple[McNemar, ...]


def compare(a: Path, b: Path, /, row_a: str = "", row_b: str = "", out: Path | None = None) -> None:
    """Hold two experiments, or two fine-tuned folders, against each other on the same test texts.

    Args:
        a: a report.json of `transfer` (or its folder), or a folder that `finetune --out` made.
        b: another, or the same with other rows.
        row_a: which row of A, as its tables name it: "minilm, pre-trained". By default all rows of the same name on
            both sides, or the only pre-trained ones.
        row_b: which row of B.
        out: a JSON file to write.

    Examples:
        python -m eval compare runs/minilm/report.json runs/bert/report.json
        python -m eval compare runs/t runs/t --row-a "minilm, pre-trained, LoRA" --row-b "minilm, pre-trained"
        python -m eval compare runs/mine runs/mine-again
    """
    left, right = compared_files.read(a), compared_files.read(b)
    pairs, notes = compared(left, right, row_a, row_b)
    show(pairs, notes, left, right)
    if out is not None:
        content = {"a": str(a), "b": str(b), "notes": list(notes), "pairs": [asdict(pair) for pair in pairs]}
        write_atomically(out, json.dumps(content, indent=1, allow_nan=False) + "\n")
        print(f"saved {out}")


def compared(a: Side, b: Side, row_a: str = "", row_b: str = "") -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """All pairs of two sides, and notes on what was left out.

    Raises:
        InputError: other tasks, test sets, labels or metrics (named), no row in common, no budget and seed in common.
    """
    require_same(a, b)
    matched = rows_of(a, b, row_a, row_b)
    found, notes = [], []
    for task in a.tasks:
        for name_a, name_b in matched:
            ours, theirs = a.rows.get((task, name_a), {}), b.rows.get((task, name_b), {})
            budgets = sorted({labels for labels, _ in ours} & {labels for labels, _ in theirs})
            for labels in budgets:
                seeds = sorted(s for n, s in ours if n == labels and (n, s) in theirs)
                if seeds:
                    place = (task, labels, tuple(seeds), name_a, name_b)
                    left, right = ([rows[labels, seed] for seed in seeds] for rows in (ours, theirs))
                    found.append(_pair(a, place, left, right))
            alone = (ours.keys() | theirs.keys()) - (ours.keys() & theirs.keys())
            if alone:
                notes.append(f"{task}: {len(alone)} cells of {name_a} and {name_b} stand on one side alone: left out")
    if not found:
        raise InputError(f"{a.path} and {b.path} have no label budget and seed in common")
    adjusted = statistics.holm([pair.difference.p_t for pair in found])
    pairs = (Pair(**{**vars(pair), "p_holm": p}) for pair, p in zip(found, adjusted, strict=True))
    return tuple(pairs), tuple(notes)


def require_same(a: Side, b: Side) -> None:
    """Raises InputError, naming the difference, where two sides did not answer the same test texts."""
    if set(a.tasks) != set(b.tasks):
        only = [f"{', '.join(sorted(x.tasks.keys() - y.tasks.keys()))} in {x.path} alone" for x, y in ((a, b), (b, a))]
        told = "; ".join(line for line in only if not line.startswith(" in "))
        raise InputError(f"the tasks differ: {told}")
    for name, ours in a.tasks.items():
        theirs = b.tasks[name]
        for what, x, y in (
            ("kind", ours.kind, theirs.kind),
            ("main metric", ours.main_metric, theirs.main_metric),
            ("set of labels", ", ".join(ours.labels), ", ".join(theirs.labels)),
            ("test set", f"{ours.size:,} examples", f"{theirs.size:,} examples"),
        ):
            if x != y:
                raise InputError(f"{name}: another {what} on either side: {x} in {a.path}, {y} in {b.path}")
        if ours.digest != theirs.digest:
            first = next((i for i, (x, y) in enumerate(zip(ours.texts, theirs.texts, strict=False)) if x != y), None)
            where = "" if first is None else f", the first that differs is example {first + 1}"
            raise InputError(
                f"{name}: the test sets differ: {ours.size:,} examples on both sides, but other texts, labels or order "
                f"({ours.digest} in {a.path}, {theirs.digest} in {b.path}{where})"
            )


def rows_of(a: Side, b: Side, row_a: str = "", row_b: str = "") -> list[tuple[str, str]]:
    """The pairs of rows that are compared; see `compare`."""
    names_a, names_b = (list(dict.fromkeys(name for _, name in side.rows)) for side in (a, b))
    for side, row, names in ((a, row_a, names_a), (b, row_b, names_b)):
        if row and row not in names:
            raise InputError(f'{side.path}: no row "{row}"{nearest(row, names)}')
    if row_a or row_b:
        return [(row_a or row_b, row_b or row_a)] if row_a and row_b else [(_same(row_a or row_b, names_a, names_b))]
    common = [(name, name) for name in names_a if name in names_b]
    if common:
        return common
    ours, theirs = ([name for name in names if "pre-trained" in name] or names for names in (names_a, names_b))
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    raise InputError(
        f"which rows? Say --row-a and --row-b: {a.path} has {'; '.join(names_a)}, and {b.path} has {'; '.join(names_b)}"
    )


def show(pairs: Sequence[Pair], notes: Sequence[str], a: Side, b: Side) -> None:
    """Prints the table."""
    for place in dict.fromkeys((pair.task, pair.row_a, pair.row_b) for pair in pairs):
        own = [pair for pair in pairs if (pair.task, pair.row_a, pair.row_b) == place]
        metric = spoken_name(own[0].metric)
        title = f"{place[0]}, {metric}\nA: {place[1]} ({a.path})\nB: {place[2]} ({b.path})"
        show_table(title, HEAD, [_words(pair) for pair in own])
    for note in [*notes, *_rules(pairs), *protocols(a, b)]:
        print(note)


def protocols(a: Side, b: Side) -> list[str]:
    """How both sides were made, where that differs."""
    found = []
    for letter, side, other in (("A", a, b), ("B", b, a)):
        new = (name for name, value in side.protocol.items() if other.protocol.get(name) != value)
        found += [f"{letter}, {name}: {side.protocol[name]}" for name in new]
    return found


def _words(pair: Pair) -> list[str]:
    d, tests = pair.difference, pair.mcnemar
    budget = [f"{pair.labels:,}", str(len(pair.seeds))] if pair.labels else ["", ""]
    numbers = [f"{pair.mean_a:.3f}", f"{pair.mean_b:.3f}", signed(d.interval.mean), ends(d.interval), p(d.p_t)]
    alone = f"{sum(m.only_a for m in tests)} / {sum(m.only_b for m in tests)}" if tests else ""
    by_seed = f"below {ALPHA:g} in {sum(m.p < ALPHA for m in tests)} of {len(tests)}"
    exact = "" if not tests else p(tests[0].p) if len(tests) == 1 else by_seed
    return [*budget, *numbers, p(pair.p_holm), ends(pair.test_interval), alone, exact]


def _rules(pairs: Sequence[Pair]) -> list[str]:
    tested = sum(pair.difference.p_t is not None for pair in pairs)
    rules = [f"p (Holm) is corrected for all {tested} differences here."] if tested else []
    if any(len(pair.seeds) == 1 for pair in pairs):
        rules.append("One seed has no interval: the test-set interval and McNemar's test say nothing of other seeds.")
    return rules


def _pair(side: Side, place: tuple[Any, ...], a: Sequence[Answers], b: Sequence[Answers]) -> Pair:
    task = side.tasks[place[0]]
    name = task.main_metric
    scores_a, scores_b = ([answers.metrics[name] for answers in answered] for answered in (a, b))
    test_interval, tests = None, []
    kept = task.gold is not None and all(answers.predictions is not None for answers in (*a, *b))
    if kept and rescore.can(task, name):
        left, right = (
            [rescore.scorer(task, task.gold, answers.predictions, name) for answers in answered] for answered in (a, b)
        )
        test_interval = statistics.paired_bootstrap(left, right, task.size)
    if kept and task.kind in ("classification", "choice"):
        gold = np.asarray(task.gold)
        for x, y in zip(a, b, strict=True):
            tests.append(statistics.mcnemar(np.asarray(x.predictions) == gold, np.asarray(y.predictions) == gold))
    return Pair(
        *place,
        metric=name,
        mean_a=float(np.mean(scores_a)),
        mean_b=float(np.mean(scores_b)),
        difference=statistics.paired_difference(scores_a, scores_b),
        p_holm=None,
        test_interval=test_interval,
        mcnemar=tuple(tests),
    )


def _same(row: str, names_a: Sequence[str], names_b: Sequence[str]) -> tuple[str, str]:
    for names in (names_a, names_b):
        if row not in names:
            raise InputError(f'no row "{row}" on the other side{nearest(row, names)}')
    return row, row
