"""A trial at work: its network loaded, its test sets encoded once, one cell run (or found) at a time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from eval import kinds
from eval.adapt import adapt
from eval.encode import Encoded
from eval.experiment import baselines, cells, rescore, span_control
from eval.experiment.cells import ARM_WORDS, BASELINE_WORDS, FULL, WAY_WORDS, Cell, CellKey
from eval.experiment.cost import cost
from eval.experiment.live import Live
from eval.experiment.trial import (
    BASELINE,
    RANDOM,
    SHUFFLED,
    Trial,
    digest,
    examples_digest,
    fingerprint,
    shuffled,
    tuning_keys,
)
from eval.experiment.trial import with_way as in_way
from eval.finetune import FinetuneConfig, NotFiniteError, random_start
from eval.metrics import higher_is_better, spoken_name
from eval.predict import data_parallel, evaluate, predict_encoded
from eval.tasks import Splits, subset
from zoo.checkpoints import load
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import Tokenizer, load_tokenizer

CLOSED_FORM = "probe"  # the way that has no learning rate and no steps


class Workbench:
    """A trial with its network loaded.

    Args:
        trial: what is run.
        folder: finished cells are in folder/cells, those that chose a learning rate in folder/tuning.
        devices: rows are spread over them; None takes all.
        live: where progress is shown.
        network: of `load_network`, where it is at hand already.
    """

    def __init__(
        self,
        trial: Trial,
        folder: Path,
        devices: Sequence[jax.Device] | None,
        live: Live,
        network: tuple[Model, dict[str, Any], Tokenizer] | None = None,
    ):
        self.trial, self.folder, self.devices, self.live = trial, folder, devices, live
        self.model, self.params, self.tokenizer = network or load_network(trial.source)
        self.task, self.kind = trial.splits.task, kinds.of(trial.splits.task)
        self.row_shards = data_parallel(devices).row_shards
        self.weights = fingerprint(self.params)
        self.digests = {name: examples_digest(getattr(trial.splits, name)) for name in ("train", "validation", "test")}
        self.test = self._encode(trial.splits.test)
        self.extra = {name: self._encode(found) for name, found in trial.splits.extra_tests.items()}
        self._validation: Encoded | None = None
        self._encoded: dict[tuple[int, int, bool], Encoded] = {}

    @property
    def validation(self) -> Encoded:
        """The validation split; InputError where there is none."""
        if not self.trial.splits.validation:
            raise InputError(
                f"task {self.task.name} has no validation split to choose a learning rate or a checkpoint by; "
                'give one rate, and select "last"'
            )
        if self._validation is None:
            self._validation = self._encode(self.trial.splits.validation)
        return self._validation

    def choose_rate(self, arm: str, way: str = FULL) -> float:
        """The rate of the best validation score, of equals the first; the only one without a run.

        Raises:
            InputError: no validation split, or no rate that trains.
        """
        rates = self.trial.rates or (self.trial.config.learning_rate,)
        if len(rates) == 1 or way == CLOSED_FORM:
            return rates[0]
        _ = self.validation
        key = next(key for key in tuning_keys(self.trial) if (key.arm, key.way) == (arm, way))
        sign = 1 if higher_is_better(self.task.main_metric) else -1
        scores = []
        for rate in rates:
            cell = self._run(key, rate, choosing=True)
            scores.append(-np.inf if cell.failure else sign * cell.metrics[self.task.main_metric])
        if max(scores) == -np.inf:
            raise InputError(
                f"{self.trial.network} on {self.task.name}: no rate of {rates} trains; of the last: {cell.failure}"
            )
        return rates[int(np.argmax(scores))]

    def cell(self, key: CellKey, rate: float) -> Cell:
        """The finished cell of this key: from disk, or run now. A run that fails by itself is a cell with a failure."""
        return self._run(key, rate)

    def finished(self, key: CellKey, rate: float, *, choosing: bool = False) -> Cell | None:
        """The cell of this key from disk, or None where it must be run."""
        return cells.find(self._place(rate, choosing), key, self._settings(key, rate, choosing))

    def config(self, key: CellKey, rate: float) -> FinetuneConfig:
        """How a cell is adapted: chosen by the task's main metric where something is chosen and no metric is named."""
        config = self.trial.config.replace(learning_rate=rate, seed=key.seed)
        if key.way == CLOSED_FORM:  # no steps, so none of them is the best
            config = config.replace(select="last", metric="", eval_every=0, patience=0)
        elif config.select == "best" and not config.metric:
            config = config.replace(metric=self.task.main_metric)
        return in_way(config, key.way)

    def labelled(self, key: CellKey) -> Encoded:
        """A cell's labelled examples, encoded once for all arms and ways."""
        place = (key.labels, key.seed, key.arm == SHUFFLED)
        if place not in self._encoded:
            examples = subset(self.trial.splits.train, key.labels, key.seed)
            self._encoded[place] = self._encode(shuffled(examples, key.seed) if place[2] else examples)
        return self._encoded[place]

    def start(self, key: CellKey) -> dict[str, Any]:
        """The parameters that a cell begins with."""
        return random_start(self.model, key.seed) if key.arm == RANDOM else self.params

    def tune(self, train: Encoded, start: dict[str, Any], config: FinetuneConfig, watch: Any = None) -> Any:
        """Adapts to encoded examples; the validation split is looked at where the config chooses by it."""
        return adapt(
            self.model,
            start,
            self.tokenizer,
            train,
            config,
            self.task.num_labels,
            label_names=self.task.labels,
            kind=self.kind,
            validation=self.validation if config.select == "best" else None,
            devices=self.devices,
            watch=watch,
        )

    def score(self, tuned: Any, encoded: Encoded) -> Any:
        """The Evaluation of a fine-tuned model; thresholds, if the kind has them, are set on the validation split."""
        settled = {}
        if self.kind.settle is not None and self.trial.splits.validation:
            outputs = predict_encoded(tuned.model, tuned.params, self.validation, kind=self.kind, devices=self.devices)
            settled = self.kind.settle(self.validation, outputs)
        return evaluate(
            tuned.model,
            tuned.params,
            encoded,
            self.task.metrics,
            kind=self.kind,
            label_names=self.task.labels,
            devices=self.devices,
            settled=settled,
        )

    def _run(self, key: CellKey, rate: float, *, choosing: bool = False) -> Cell:
        folder, settings = self._place(rate, choosing), self._settings(key, rate, choosing)
        said = title(key) + (f", rate {rate:g}" if key.way != CLOSED_FORM else "") + " (validation)" * choosing
        if found := cells.find(folder, key, settings):
            self.live.reused(said, words(found, self.task.main_metric), same_length(key))
            return found
        self.live.start(said)
        not_finite = False
        try:
            cell = self._made(key, rate, settings, choosing)
        except InputError as error:
            not_finite = isinstance(error, NotFiniteError)
            cell = Cell(key, {}, self.live.seconds(), config=settings, failure=str(error))
        # What is not finite will not be finite next time; other failures may be mended before then.
        if not cell.failure or not_finite:
            cells.save(folder, cell)
        self.live.finished(said, words(cell, self.task.main_metric), same_length(key))
        return cell

    def _made(self, key: CellKey, rate: float, settings: dict[str, Any], choosing: bool) -> Cell:
        config, train, target = self.config(key, rate), self.labelled(key), self.validation if choosing else self.test
        tuned = self.tune(train, self.start(key), config, self.live.watch)
        trained = self.live.seconds()
        found = self.score(tuned, target)
        seconds = self.live.seconds()
        steps = tuned.history[-1]["step"] if tuned.history else None
        spent = cost(self.model.config, config, train, target, self.kind, row_shards=self.row_shards, steps=steps)
        scores = dict(found.scores)
        for name, encoded in ({} if choosing else self.extra).items():
            scores |= {f"{name}/{metric}": value for metric, value in self.score(tuned, encoded).scores.items()}
        details = {}
        if key.arm == SHUFFLED and self.kind is kinds.SPANS:  # of which no predictions are kept to compute it from
            details["chance"] = span_control.chance(
                self.trial.splits.test, found.predictions, self.task.main_metric, key.seed
            )
        return Cell(
            key,
            scores,
            seconds,
            rescore.kept(self.task, found.predictions),
            settings,
            {"training_seconds": trained, "prediction_seconds": seconds - trained, **vars(spent)},
            details,
        )

    def _place(self, rate: float, choosing: bool) -> Path:
        return self.folder / "tuning" / f"{rate:g}" if choosing else self.folder / "cells"

    def _settings(self, key: CellKey, rate: float, choosing: bool) -> dict[str, Any]:
        """All that decides a cell besides its key."""
        split = "validation" if choosing else "test"
        settings = {
            "finetune": {name: value for name, value in self.config(key, rate).to_dict().items() if name != "seed"},
            "kind": self.kind.name,
            "model": digest(json.dumps(self.model.config.to_dict(), sort_keys=True, allow_nan=False)),
            "weights": "random start" if key.arm == RANDOM else self.weights,
            "tokenizer": self.tokenizer.fingerprint[:16],
            "train": self.digests["train"],
            split: self.digests[split],
        }
        if self.extra and not choosing:
            settings["further tests"] = {
                name: examples_digest(examples) for name, examples in self.trial.splits.extra_tests.items()
            }
        if settings["finetune"].get("select") == "best":
            settings["validation"] = self.digests["validation"]
        return settings

    def _encode(self, examples: Sequence[Any]) -> Encoded:
        return self.kind.encode(examples, self.tokenizer, self.model.config, self.trial.config.max_length)


def load_network(source: str) -> tuple[Model, dict[str, Any], Tokenizer]:
    """Model, parameters and tokenizer of a checkpoint.

    Raises:
        InputError: one of them is missing.
    """
    model, params = load(source)
    return model, params, tokenizer_of(source)


def tokenizer_of(source: str) -> Tokenizer:
    """A checkpoint's tokenizer; InputError where it has none."""
    try:
        return load_tokenizer(source)
    except InputError as error:
        raise InputError(f"{source}: the checkpoint has no tokenizer to read texts with ({error})") from None


def baseline_cell(key: CellKey, splits: Splits, folder: Path, live: Live) -> Cell:
    """A baseline's cell: from disk, or run now."""
    task = splits.task
    settings = baseline_settings(splits)
    if found := cells.find(folder, key, settings):
        live.reused(title(key), words(found, task.main_metric), same_length(key))
        return found
    live.start(title(key))
    try:
        extra = dict(splits.extra_tests)
        every = [example for examples in (splits.test, *extra.values()) for example in examples]
        found = baselines.fit_predict(task, subset(splits.train, key.labels, key.seed), every, seed=key.seed)
        scores, start = {}, 0
        for name, examples in {"": splits.test, **extra}.items():
            predicted = rescore.kept(task, found.predictions[start : start + len(examples)])
            gold, start = rescore.gold(task, examples), start + len(examples)
            for metric in (metric for metric in task.metrics if rescore.can(task, metric)):
                scores[f"{name}/{metric}" if name else metric] = rescore.scorer(task, gold, predicted, metric)()
        kept = rescore.kept(task, found.predictions[: len(splits.test)])
        cell = Cell(key, scores, live.seconds(), kept, settings, details=found.config)
        cells.save(folder, cell)
    except InputError as error:
        cell = Cell(key, {}, live.seconds(), config=settings, failure=str(error))
    live.finished(title(key), words(cell, task.main_metric), same_length(key))
    return cell


def baseline_settings(splits: Splits) -> dict[str, Any]:
    """All that decides a baseline's cell besides its key."""
    extra = splits.extra_tests
    further = {"further tests": {name: examples_digest(found) for name, found in extra.items()}} if extra else {}
    return {"train": examples_digest(splits.train), "test": examples_digest(splits.test), **further}


def title(key: CellKey) -> str:
    """How a line names a cell."""
    if key.arm == BASELINE:
        who = BASELINE_WORDS.get(key.network, key.network)
    else:
        way = "" if key.way == FULL else f", {WAY_WORDS.get(key.way, key.way)}"
        who = f"{key.network}, {ARM_WORDS[key.arm]}{way}"
    return f"{key.task}: {who}, {key.labels:,} labels, seed {key.seed}"


def same_length(key: CellKey) -> tuple[str, str, str, int]:
    """Cells that take about as long as one another."""
    return key.task, key.network, key.way, key.labels


def words(cell: Cell, metric: str) -> str:
    """A cell's score, or why it has none."""
    return f"failed: {cell.failure}" if cell.failure else f"{spoken_name(metric)} {cell.metrics[metric]:.3f}"
