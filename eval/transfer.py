"""What pre-training bought: one network, adapted from its checkpoint and trained from a random start, cell by cell.

    trial = Trial("bert", "runs/demo/bert", tasks.load("20newsgroups"), FinetuneConfig(), (100, 400), (0, 1, 2))
    outcome = run([trial], "runs/transfer")

A cell is one run: (task, network, arm, way, labels, seed). Within a seed all arms and ways have the same labelled
examples, in the same order, under the same initial head and the same dropout. Each finished cell is written at once and
whole, so that a run that was killed goes on where it stopped; a cell whose config has changed is run again. A cell that
fails (a loss that is not finite) keeps its failure, and the others are run.

The learning rate may be chosen from a grid: for each arm and way by itself, on the validation split alone, with the
largest budget of labels and the first seed. The test set is never looked at for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax

from eval.experiment.cells import ARM_WORDS, FULL, WAY_WORDS, Cell
from eval.experiment.folder_lock import only_here
from eval.experiment.live import Live
from eval.experiment.trial import (
    PRETRAINED,
    RANDOM,
    SHUFFLED,
    Trial,
    baseline_keys,
    cell_keys,
    check,
    shown_order,
    tuning_keys,
)
from eval.experiment.workbench import CLOSED_FORM, Workbench, baseline_cell, same_length, tokenizer_of
from eval.ways.protocol import POOLED, chosen, pooling_words, training, way_words
from zoo.checkpoints import load_config
from zoo.errors import InputError

Row = tuple[str, str]


@dataclass(frozen=True)
class Outcome:
    """A finished experiment.

    Attributes:
        cells: in the order of the trials, the baselines' last.
        rates: (task, network, arm, way) -> the learning rate used.
        truncated: (task, network) -> share of test texts that were longer than max_length.
    """

    cells: tuple[Cell, ...]
    rates: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    truncated: dict[tuple[str, str], float] = field(default_factory=dict)


def run(
    trials: Sequence[Trial],
    folder: str | Path,
    *,
    with_baseline: bool = True,
    devices: Sequence[jax.Device] | None = None,
    live: Live | None = None,
) -> Outcome:
    """Runs the cells that are missing and returns all.

    Args:
        trials: what to run; each (task, network) once.
        folder: cells go to folder/cells, those that chose a learning rate to folder/tuning.
        with_baseline: also the baseline of each task's kind on the same labelled examples (eval.experiment.baselines).
        devices: rows are spread over them; None takes all.
        live: where progress is shown; None for a new one.

    Raises:
        InputError: a checkpoint or tokenizer that is not there, what eval.experiment.trial.check refuses, another
            process at work in the folder.
    """
    folder, live = Path(folder), live or Live()
    require(trials, with_baseline=with_baseline)
    baselines = baseline_keys(trials) if with_baseline else {}
    queue = [key for trial in trials for key in [*tuning_keys(trial), *cell_keys(trial)]] + list(baselines)
    live.expect([same_length(key) for key in queue])
    done: list[Cell] = []
    outcome = Outcome((), {}, {})
    with only_here(folder / "cells"):
        try:
            for trial in trials:
                done += _run_trial(trial, Workbench(trial, folder, devices, live), outcome)
            for key, splits in baselines.items():
                done.append(baseline_cell(key, splits, folder / "cells", live))
        finally:
            live.stop()
    order = {key: place for place, key in enumerate(shown_order(trials, list(baselines)))}
    return replace(outcome, cells=tuple(sorted(done, key=lambda cell: order[cell.key])))


def require(trials: Sequence[Trial], *, with_baseline: bool) -> None:
    """Raises InputError for what `run` cannot do, before it loads anything."""
    check(trials, with_baseline=with_baseline)
    for source in dict.fromkeys(trial.source for trial in trials):
        load_config(source)
        tokenizer_of(source)


def _run_trial(trial: Trial, bench: Workbench, outcome: Outcome) -> list[Cell]:
    task, done, failed = trial.splits.task.name, [], {}
    for arm, way in trial.rows:
        try:
            outcome.rates[task, trial.network, arm, way] = bench.choose_rate(arm, way)
        except InputError as error:
            if not trial.splits.validation:
                raise
            failed[arm, way] = str(error)
    for key in cell_keys(trial):
        row = (PRETRAINED if key.arm == SHUFFLED else key.arm, key.way)
        if row in failed:
            done.append(Cell(key, {}, 0.0, failure=failed[row]))
            bench.live.skip(same_length(key))
        else:
            done.append(bench.cell(key, outcome.rates[task, trial.network, *row]))
    outcome.truncated[task, trial.network] = bench.test.truncated / len(bench.test)
    return done


def protocol(trials: Sequence[Trial], outcome: Outcome) -> dict[str, str]:
    """How each network was adapted, in words for a report."""
    said = {}
    for trial in trials:
        task, config = trial.splits.task, trial.config
        longer = f"{outcome.truncated.get((task.name, trial.network), 0.0):.0%} of test texts are longer"
        words = [_ways(trial), _rates(trial, outcome)]
        words += [training(config)] if _stepped(trial) else []
        words += [pooling_words(config.pooling)] if task.kind in POOLED else []
        words += [f"at most {config.max_length} tokens ({longer})"]
        words += [chosen(config)] if _stepped(trial) else []
        said[f"{trial.network} on {task.name}"] = "; ".join([*words, f"seeds {', '.join(map(str, trial.seeds))}"])
    return said


def _ways(trial: Trial) -> str:
    words = [way_words(trial.config, way) for way in trial.ways]
    scratch = "" if not trial.scratch or trial.ways == (FULL,) else "; random start: all parameters"
    return "pre-trained: " + ", ".join(words) + scratch if trial.ways != (FULL,) else words[0] + scratch


def _stepped(trial: Trial) -> list[Row]:
    """The rows that are trained by steps, at a rate: all but the closed form."""
    return [row for row in trial.rows if row[1] != CLOSED_FORM]


def _rates(trial: Trial, outcome: Outcome) -> str:
    rows = _stepped(trial)
    if not rows:
        return "closed form, no rate and no steps"
    without = "" if len(rows) == len(trial.rows) else "the linear probe is a closed form, without rate or steps"
    if len(trial.rates) < 2:
        rate = trial.rates[0] if trial.rates else trial.config.learning_rate
        arms = " for both arms" if len(trial.rows) == 2 and trial.scratch else " for all" if len(trial.rows) > 1 else ""
        return f"learning rate {rate:g}" + (f"; {without}" if without else arms)
    told = []
    for arm, way in rows:
        rate = outcome.rates.get((trial.splits.task.name, trial.network, arm, way))
        name = ARM_WORDS[arm] if arm == PRETRAINED else "from random start"
        name += "" if arm == RANDOM or trial.ways == (FULL,) else f" by {WAY_WORDS.get(way, way)}"
        told.append(f"{'none that trains' if rate is None else format(rate, 'g')} {name}")
    grid = ", ".join(f"{rate:g}" for rate in trial.rates)
    return (
        f"learning rate {' and '.join(told)}, each the best of {grid} on the validation split with "
        f"{max(trial.labels):,} labels and seed {trial.seeds[0]}" + (f"; {without}" if without else "")
    )
