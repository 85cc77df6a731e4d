"""How long an experiment will take, before it is run: FLOPs by formula, and this machine's speed, measured briefly.

    seconds of a cell = FLOPs of its training / speed + FLOPs of its prediction / speed

Each network and way is run for a moment, on its commonest row length and on the first task of each kind: first a step
that compiles, then as many as fill about SECONDS. What a program costs to compile is counted once for each shape of
batches that occurs. The baselines are measured with the smallest budget and taken to grow in proportion to the texts
that they read.

The estimate is rough: other row lengths have other speeds, a machine may be busy, and compiled programs may be at hand
from before. UNCERTAINTY says how far off it may be.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from eval.encode import Encoded
from eval.experiment import baselines, cells
from eval.experiment.cells import Cell, CellKey
from eval.experiment.comparisons import row_name
from eval.experiment.cost import Cost, cost, prediction_shapes, training_shapes
from eval.experiment.live import Live
from eval.experiment.report_tables import flop_words
from eval.experiment.trial import RANDOM, SHUFFLED, Trial, baseline_keys, cell_keys, tuning_keys
from eval.experiment.workbench import CLOSED_FORM, Workbench, baseline_settings
from eval.language.screen import show_table
from eval.predict import predict_encoded
from eval.tasks import subset
from eval.transfer import require
from train.progress import clock
from zoo.errors import InputError

# A measurement goes on for about so long, and stops after one step that took longer.
SECONDS = 1.5
# The true time lies between these times the estimate, as a rule.
UNCERTAINTY = (0.7, 1.5)


@dataclass(frozen=True)
class Speed:
    """What a network does on this machine, by one way.

    Attributes:
        training, prediction: FLOPs a second, by the formula's count.
        compiling: seconds for the program of one shape of batches.
    """

    training: float
    prediction: float
    compiling: float


@dataclass(frozen=True)
class Line:
    """Cells of one row and budget.

    Attributes:
        task, row, labels: which; `row` as in a report, or "choosing rates".
        cells: in all.
        finished: of these, found finished.
        flops: of one cell; 0 for the baseline, which is not counted so.
        seconds: of one cell; 0 where it cannot be run.
        failure: why it cannot.
    """

    task: str
    row: str
    labels: int
    cells: int
    finished: int
    flops: float
    seconds: float
    failure: str = ""

    @property
    def left(self) -> float:
        """Seconds of those that are not finished."""
        return (self.cells - self.finished) * self.seconds


@dataclass(frozen=True)
class Plan:
    """What an experiment consists of and how long it will take.

    Attributes:
        lines: of all cells.
        compiling: seconds, once.
        measured: seconds that measuring took.
    """

    lines: tuple[Line, ...]
    compiling: float
    measured: float

    @property
    def cells(self) -> int:
        """In all."""
        return sum(line.cells for line in self.lines)

    @property
    def finished(self) -> int:
        """Found finished."""
        return sum(line.finished for line in self.lines)

    @property
    def seconds(self) -> float:
        """Estimate for what is left."""
        left = sum(line.left for line in self.lines)
        return left + self.compiling if left else 0.0

    @property
    def total_words(self) -> str:
        """One line: cells, and the time with its uncertainty."""
        done = f", {self.finished:,} of them finished" if self.finished else ""
        low, high = (clock(factor * self.seconds) for factor in UNCERTAINTY)
        time_words = f"about {clock(self.seconds)} ({low} to {high})" if self.seconds else "nothing to run"
        return f"plan: {self.cells:,} cells{done}: {time_words} on this machine, measured for {clock(self.measured)}"

    def show(self) -> None:
        """Prints the table and the total."""
        rows = [
            [
                line.task,
                line.row,
                f"{line.labels:,}",
                f"{line.cells}" + (f" ({line.finished} done)" if line.finished else ""),
                flop_words(line.flops) if line.flops else "",
                f"{line.seconds:.1f}",
                "fails" if line.failure else clock(line.left),
            ]
            for line in self.lines
        ]
        head = ["task", "row", "labels", "cells", "FLOPs a cell", "s a cell", "left"]
        notes = [f"compiling: about {clock(self.compiling)}, once"] if self.compiling and self.seconds else []
        notes += [f"fails: {line.task}, {line.row}: {line.failure}" for line in self.lines if line.failure]
        show_table("Plan", head, rows, [*notes, self.total_words])


def plan(
    trials: Sequence[Trial],
    folder: str | Path,
    *,
    with_baseline: bool = True,
    devices: Sequence[jax.Device] | None = None,
    live: Live | None = None,
) -> Plan:
    """Counts the cells, finds those that are finished, and estimates the others.

    Args:
        trials, folder, with_baseline, devices: as `eval.transfer.run` takes them.
        live: where progress is shown.

    Raises:
        InputError: what `eval.transfer.run` refuses.
    """
    require(trials, with_baseline=with_baseline)
    began, folder, live = time.perf_counter(), Path(folder), live or Live()
    lines: list[Line] = []
    compiling = 0.0
    speeds: dict[tuple[str, str, str], Speed] = {}
    for trial in trials:
        found, once = _trial_lines(trial, Workbench(trial, folder, devices, live), speeds)
        lines += found
        compiling += once
    lines += _baseline_lines(trials, folder) if with_baseline else []
    return Plan(tuple(lines), compiling, time.perf_counter() - began)


def measure(bench: Workbench, key: CellKey, rate: float, known: Speed | None = None, seconds: float = SECONDS) -> Speed:
    """The speed of a cell's way on its commonest row length.

    Args:
        bench, key, rate: of the cell.
        known: of another way of the same network, whose predictions are as fast; None measures these too.
        seconds: about how long training is timed.
    """
    config, train, test = bench.config(key, rate), _commonest(bench.labelled(key), 64), _commonest(bench.test, 64)
    start = bench.start(key)

    def spent(tuning) -> Cost:
        return cost(bench.model.config, tuning, train, test, bench.kind, row_shards=bench.row_shards)

    def trained(steps: int) -> tuple[Any, float, float]:
        """What training so many steps gives, its seconds and its FLOPs."""
        short = config.replace(epochs=0, steps=steps, select="last", metric="", eval_every=0, patience=0)
        began = time.perf_counter()
        tuned = bench.tune(train, start, short)
        jax.block_until_ready(tuned.params)
        return tuned, time.perf_counter() - began, spent(short).training_flops

    def predicted(tuned: Any) -> float:
        began = time.perf_counter()
        predict_encoded(tuned.model, tuned.params, test, kind=bench.kind, devices=bench.devices)
        return time.perf_counter() - began

    tuned, first, _ = trained(1)
    _, work, flops = trained(1)
    compiling = max(0.0, first - work)
    if work < seconds / 4 and key.way != CLOSED_FORM:
        _, work, flops = trained(min(64, max(2, int(seconds / max(work, 1e-3)))))
    prediction = known.prediction if known is not None else 0.0
    if known is None:
        first, again = predicted(tuned), predicted(tuned)
        prediction = spent(config).prediction_flops / again
        compiling = (compiling + max(0.0, first - again)) / 2
    return Speed(flops / max(work, 1e-6), prediction, compiling)


def seconds_of(spent: Cost, speed: Speed) -> float:
    """Of a cell, by its formula costs."""
    return spent.training_flops / speed.training + spent.prediction_flops / speed.prediction


def _trial_lines(trial: Trial, bench: Workbench, speeds: dict[tuple[str, str, str], Speed]) -> tuple[list[Line], float]:
    """Lines of one trial, and seconds of compiling; `speeds` by checkpoint, kind of task and way, is added to."""
    rates = trial.rates or (trial.config.learning_rate,)
    tuned, keys = tuning_keys(trial), cell_keys(trial)
    groups: dict[tuple[str, int, str], list[tuple[CellKey, bool]]] = {}
    for key in tuned:
        groups.setdefault(("choosing rates", key.labels, key.way), []).append((key, True))
    for key in keys:
        groups.setdefault((row_name(key.network, key.arm, key.way), key.labels, key.way), []).append((key, False))
    network = (trial.source, bench.kind.name)
    compiled: dict[str, int] = {}
    failures: dict[str, str] = {}
    shapes: dict[str, set[tuple[str, int, int]]] = {}
    lines = []
    for (row, labels, way), members in groups.items():
        finished = sum(_is_finished(bench, key, rates, i, choosing) for i, (key, choosing) in enumerate(members))
        key, choosing = members[0]
        test = bench.validation if choosing else bench.test
        spent = cost(
            bench.model.config,
            bench.config(key, rates[0]),
            bench.labelled(key),
            test,
            bench.kind,
            row_shards=bench.row_shards,
        )
        if finished == len(members):
            lines.append(Line(trial.splits.task.name, row, labels, len(members), finished, spent.flops, 0.0))
            continue
        if (*network, way) not in speeds and way not in failures:
            known = next((speed for place, speed in speeds.items() if place[:2] == network), None)
            try:
                speeds[*network, way] = measure(bench, key, rates[0], known)
                compiled[way] = 1 if known else 2
            except InputError as error:
                failures[way] = str(error)
        if way in failures:
            task = trial.splits.task.name
            lines.append(Line(task, row, labels, len(members), finished, spent.flops, 0.0, failures[way]))
            continue
        model, tuning, labelled = bench.model.config, bench.config(key, rates[0]), bench.labelled(key)
        trained = training_shapes(model, tuning, labelled, bench.kind, bench.row_shards)
        answered = prediction_shapes(model, test, bench.kind, bench.row_shards)
        shapes.setdefault(way, set()).update({("train", *shape) for shape in trained})
        shapes[way].update(("predict", *shape) for shape in answered)
        seconds = seconds_of(spent, speeds[*network, way])
        lines.append(Line(trial.splits.task.name, row, labels, len(members), finished, spent.flops, seconds))
    # Those that measuring compiled are at hand if the run follows in this process.
    left = {way: max(0, len(used) - compiled.get(way, 0)) for way, used in shapes.items()}
    return lines, sum(speeds[*network, way].compiling * count for way, count in left.items())


def _is_finished(bench: Workbench, key: CellKey, rates: Sequence[float], place: int, choosing: bool) -> bool:
    """A cell that chose is one a rate, in their order; one whose rate will be chosen may have any of them."""
    if choosing:
        return bench.finished(key, rates[place % len(rates)], choosing=True) is not None
    if key.arm not in (RANDOM, SHUFFLED) and len(rates) == 1:
        return bench.finished(key, rates[0]) is not None
    return any(bench.finished(key, rate) is not None for rate in rates)


def _baseline_lines(trials: Sequence[Trial], folder: Path) -> list[Line]:
    found = baseline_keys(trials)
    groups: dict[tuple[str, str, int], list[CellKey]] = {}
    for key in found:
        groups.setdefault((key.task, key.network, key.labels), []).append(key)
    pace: dict[str, float] = {}
    lines = []
    for (task, network, labels), keys in groups.items():
        splits, settings = found[keys[0]], baseline_settings(found[keys[0]])
        finished = sum(_kept(folder, key, settings) is not None for key in keys)
        if finished < len(keys) and task not in pace:
            few = subset(splits.train, labels, keys[0].seed)
            began = time.perf_counter()
            try:
                baselines.fit_predict(splits.task, few, splits.test, seed=keys[0].seed)
            except InputError:
                pass  # its cells will say so
            pace[task] = (time.perf_counter() - began) / (labels + len(splits.test))
        seconds = pace.get(task, 0.0) * (labels + len(splits.test))
        lines.append(Line(task, row_name(network, "baseline"), labels, len(keys), finished, 0.0, seconds))
    return lines


def _kept(folder: Path, key: CellKey, settings: dict) -> Cell | None:
    return cells.find(folder / "cells", key, settings)


def _commonest(encoded: Encoded, most: int) -> Encoded:
    """At most so many examples of the commonest row length: one program runs them all."""
    bucket = np.searchsorted(encoded.buckets, encoded.lengths)
    chosen = np.flatnonzero(bucket == np.bincount(bucket).argmax())[:most]
    return select(encoded, chosen)


def select(encoded: Encoded, chosen: Sequence[int]) -> Encoded:
    """The examples with these numbers."""
    rows = [row * encoded.group + option for row in chosen for option in range(encoded.group)]
    labels, places = encoded.labels, np.asarray(chosen)
    return replace(
        encoded,
        ids=tuple(encoded.ids[row] for row in rows),
        token_types=None if encoded.token_types is None else tuple(encoded.token_types[row] for row in rows),
        labels=tuple(labels[i] for i in chosen) if isinstance(labels, tuple) else labels[places],
        lengths=encoded.lengths[places],
        truncated=0,
        notes=tuple(encoded.notes[i] for i in chosen) if encoded.notes else (),
        label_weights=None if encoded.label_weights is None else encoded.label_weights[places],
    )
