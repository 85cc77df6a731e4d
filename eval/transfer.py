"""What pre-training bought: the same network, fine-tuned from its checkpoint and from a random start, cell by cell.

    trial = Trial("bert", "runs/demo/bert", tasks.load("20newsgroups"), FinetuneConfig(), (100, 400), (0, 1, 2))
    outcome = run([trial], "runs/transfer")

A cell is one fine-tuning: (task, network, arm, labels, seed). Within a seed both arms have the same labelled examples,
in the same order, under the same initial head and the same dropout. Each finished cell is written at once and whole, so
that a run that was killed goes on where it stopped; a cell whose config has changed is run again.

The learning rate may be chosen from a grid: for each arm by itself, on the validation split alone, with the largest
budget of labels and the first seed. The test set is never looked at for it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from eval import baseline, cells, metrics
from eval.cells import ARM_WORDS, Cell, CellKey
from eval.encode import Encoded, encode
from eval.finetune import NotFiniteError, finetune, random_start
from eval.live import Live
from eval.predict import evaluate
from eval.tasks import Example, Splits, subset
from eval.trial import (
    BASELINE,
    NETWORK_ARMS,
    Trial,
    baseline_keys,
    cell_keys,
    check,
    digest,
    examples_digest,
    fingerprint,
    shown_order,
    tuning_keys,
)
from zoo.checkpoints import load, load_config
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Outcome:
    """A finished experiment.

    Attributes:
        cells: in the order of the trials, the baseline's last.
        rates: (task, network, arm) -> the learning rate used.
        truncated: (task, network) -> share of test texts that were longer than max_length.
    """

    cells: tuple[Cell, ...]
    rates: dict[tuple[str, str, str], float] = field(default_factory=dict)
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
        with_baseline: also TF-IDF with logistic regression on the same labelled examples.
        devices: rows are spread over them; None takes all.
        live: where progress is shown; None for a new one.

    Raises:
        InputError: a checkpoint or tokenizer that is not there, what `eval.trial.check` refuses, a fine-tuning that
            fails (its cell is named).
    """
    folder, live = Path(folder), live or Live()
    check(trials)
    for source in dict.fromkeys(trial.source for trial in trials):
        load_config(source)
        _tokenizer(source)
    baselines = baseline_keys(trials) if with_baseline else {}
    queue = [key for trial in trials for key in [*tuning_keys(trial), *cell_keys(trial)]] + list(baselines)
    live.expect([_kind(key) for key in queue])
    done: list[Cell] = []
    outcome = Outcome((), {}, {})
    try:
        for trial in trials:
            bench = _Bench(trial, folder, devices, live)
            for arm in NETWORK_ARMS:
                outcome.rates[trial.splits.task.name, trial.network, arm] = bench.choose_rate(arm)
            for key in cell_keys(trial):
                done.append(bench.cell(key, outcome.rates[key.task, key.network, key.arm]))
            outcome.truncated[trial.splits.task.name, trial.network] = bench.test.truncated / len(bench.test)
        for key, splits in baselines.items():
            done.append(_baseline_cell(key, splits, folder / "cells", live))
    finally:
        live.stop()
    order = {key: place for place, key in enumerate(shown_order(trials, baselines))}
    return replace(outcome, cells=tuple(sorted(done, key=lambda cell: order[cell.key])))


def protocol(trials: Sequence[Trial], outcome: Outcome) -> dict[str, str]:
    """How each network was fine-tuned, in words for a report."""
    said = {}
    for trial in trials:
        task, config = trial.splits.task.name, trial.config
        rates = [outcome.rates[task, trial.network, arm] for arm in NETWORK_ARMS]
        chosen = f"each the best of {', '.join(f'{r:g}' for r in trial.rates)} on the validation split with "
        chosen += f"{max(trial.labels):,} labels and seed {trial.seeds[0]}"
        rate = f"learning rate {rates[0]:g}"
        if len(trial.rates) > 1:
            rate += f" pre-trained and {rates[1]:g} from random start, {chosen}"
        else:
            rate += " for both arms"
        length = f"{config.steps} steps" if config.steps else f"{config.epochs} epochs"
        dropout = "the checkpoint's own dropout" if config.dropout is None else f"dropout {config.dropout:g}"
        longer = f"{outcome.truncated[task, trial.network]:.0%} of test texts are longer"
        said[f"{trial.network} on {task}"] = (
            f"all parameters, {rate}; {length} of AdamW with batches of {config.batch_size}, {config.schedule} rate "
            f"after {config.warmup_fraction:.0%} warm-up, weight decay {config.weight_decay:g}, {dropout}; "
            f"{config.pooling} pooling; at most {config.max_length} tokens ({longer})"
        )
    return said


class _Bench:
    """A trial with its network loaded and its test set encoded once."""

    def __init__(self, trial: Trial, folder: Path, devices: Sequence[jax.Device] | None, live: Live):
        self.trial, self.folder, self.devices, self.live = trial, folder, devices, live
        self.model, self.params, self.tokenizer = load_network(trial.source)
        self.task = trial.splits.task
        self.weights = fingerprint(self.params)
        self.digests = {name: examples_digest(getattr(trial.splits, name)) for name in ("train", "validation", "test")}
        self.test = self._encode(trial.splits.test)
        self._encoded: dict[tuple[int, int], Encoded] = {}

    def choose_rate(self, arm: str) -> float:
        """The rate of the best validation score, of equals the first; the only one without a run."""
        rates = self.trial.rates or (self.trial.config.learning_rate,)
        if len(rates) == 1:
            return rates[0]
        if not self.trial.splits.validation:
            raise InputError(
                f"task {self.task.name} has no validation split to choose a learning rate by; give one rate"
            )
        validation = self._encode(self.trial.splits.validation)
        key = next(key for key in tuning_keys(self.trial) if key.arm == arm)
        scores = []
        for rate in rates:
            try:
                cell = self._run(key, rate, validation, "validation", self.folder / "tuning" / f"{rate:g}")
                scores.append(cell.metrics[self.task.main_metric])
            except NotFiniteError as error:
                self.live.line(f"  rate {rate:g} is out: {error}")
                self.live.skip(_kind(key))
                scores.append(-1.0)
        if max(scores) < 0:
            raise InputError(f"{self.trial.network} on {self.task.name}: no rate of {rates} trains; try lower ones")
        return rates[int(np.argmax(scores))]

    def cell(self, key: CellKey, rate: float) -> Cell:
        """The finished cell of this key: from disk, or run now."""
        try:
            return self._run(key, rate, self.test, "test", self.folder / "cells")
        except NotFiniteError as error:
            raise InputError(f"{key}: {error}") from None

    def _run(self, key: CellKey, rate: float, target: Encoded, split: str, folder: Path) -> Cell:
        config = self.trial.config.replace(learning_rate=rate, seed=key.seed)
        settings = {
            "finetune": {name: value for name, value in config.to_dict().items() if name != "seed"},
            "model": digest(json.dumps(self.model.config.to_dict(), sort_keys=True)),
            "weights": self.weights if key.arm == "pretrained" else "random start",
            "tokenizer": self.tokenizer.fingerprint[:16],
            "train": self.digests["train"],
            split: self.digests[split],
        }
        title = f"{_title(key)}, rate {rate:g}" + (" (validation)" if split == "validation" else "")
        if found := cells.find(folder, key, settings):
            self.live.reused(title, _score(found, self.task.main_metric), _kind(key))
            return found
        self.live.start(title)
        if key.arm == "random":
            start = random_start(self.model, key.seed)
        else:
            start = self.params
        names, devices = self.task.labels, self.devices
        train = self._labelled(key.labels, key.seed)
        tuned = finetune(
            self.model, start, self.tokenizer, train, config, len(names), devices=devices, watch=self.live.watch
        )
        found = evaluate(tuned.model, tuned.params, target, self.task.metrics, devices=devices)
        cell = Cell(key, found.scores, self.live.seconds(), tuple(found.predictions.tolist()), settings)
        cells.save(folder, cell)
        self.live.finished(title, _score(cell, self.task.main_metric), _kind(key))
        return cell

    def _labelled(self, labels: int, seed: int) -> Encoded:
        """The labelled examples of a budget and seed, encoded once for both arms."""
        if (labels, seed) not in self._encoded:
            self._encoded[labels, seed] = self._encode(subset(self.trial.splits.train, labels, seed))
        return self._encoded[labels, seed]

    def _encode(self, examples: Sequence[Example]) -> Encoded:
        return encode(examples, self.tokenizer, self.model.config, self.trial.config.max_length)


def load_network(source: str) -> tuple[Model, dict[str, Any], Tokenizer]:
    """Model, parameters and tokenizer of a checkpoint.

    Raises:
        InputError: one of them is missing.
    """
    model, params = load(source)
    return model, params, _tokenizer(source)


def _tokenizer(source: str) -> Tokenizer:
    try:
        return load_tokenizer(source)
    except InputError as error:
        raise InputError(f"{source}: the checkpoint has no tokenizer to read texts with ({error})") from None


def _baseline_cell(key: CellKey, splits: Splits, folder: Path, live: Live) -> Cell:
    settings = {"train": examples_digest(splits.train), "test": examples_digest(splits.test)}
    title = _title(key)
    if found := cells.find(folder, key, settings):
        live.reused(title, _score(found, splits.task.main_metric), _kind(key))
        return found
    live.start(title)
    found = baseline.fit_predict(subset(splits.train, key.labels, key.seed), splits.test, seed=key.seed)
    counts = metrics.confusion(found.predictions, [e.label for e in splits.test], len(splits.task.labels))
    scores = metrics.score(counts, splits.task.metrics)
    cell = Cell(key, scores, live.seconds(), tuple(found.predictions.tolist()), settings)
    cells.save(folder, cell)
    live.finished(title, _score(cell, splits.task.main_metric), _kind(key))
    return cell


def _title(key: CellKey) -> str:
    network = "" if key.arm == BASELINE else f"{key.network}, "
    return f"{key.task}: {network}{ARM_WORDS[key.arm]}, {key.labels:,} labels, seed {key.seed}"


def _kind(key: CellKey) -> tuple[str, str, int]:
    """Cells that take about as long as one another."""
    return key.task, key.network, key.labels


def _score(cell: Cell, metric: str) -> str:
    return f"{metric} {cell.metrics[metric]:.3f}"
