"""Full fine-tuning of a checkpoint (or of a random start) on a task of any kind.

    loss = sum over examples of what eval.kinds says (-log p(label) of a class) / number of examples in the batch

The rows, the head's initial weights and the dropout of a run are decided by its seed and by nothing else, so two arms
that differ in where they start (pre-trained, random) share all three: a pair. The learning rate travels as data, so one
compiled program a row length serves all seeds, arms, budgets and rates.

References: Devlin et al. 2018, section 4 (encoders); Radford et al. 2018, section 3.2 (decoders, last token).
"""

import dataclasses
import functools
import math
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from eval.encode import Encoded, collate, training_order
from eval.kinds import CLASSIFICATION, Kind
from eval.planned_rate import make_plan, planned_optimizer
from eval.predict import data_parallel, place, whole_rows
from eval.tasks import Example
from train.config import TrainConfig
from train.mesh import Driver
from train.metrics import Pair, add, divide
from train.state import TrainState
from train.step import make_train_step
from zoo.config_checks import refuse_unknown
from zoo.errors import InputError, nearest
from zoo.model import Model, with_head
from zoo.tokenizer import Tokenizer

# Folded into the seed's key: numbers that no step of a run reaches.
HEAD_KEY, START_KEY = 2**31 - 1, 2**31 - 2
# Seconds between two looks at the loss, each of which waits for the device.
LOOK = 1.0


class NotFiniteError(InputError):
    """A loss or gradient that is not finite: the rate is too high, or the checkpoint is not sound."""


@dataclass(frozen=True)
class FinetuneConfig:
    """How a classifier is fine-tuned.

    Attributes:
        learning_rate: the peak.
        batch_size: examples an update.
        epochs: passes over the labelled examples; 0 with `steps`.
        steps: updates, in place of epochs; 0 leaves it to `epochs`.
        warmup_fraction: share of the updates in which the rate rises to its peak.
        schedule: after the warm-up, "linear" falls to 0 at the last update, "constant" stays.
        weight_decay: on every kernel, decoupled.
        clip_norm: greatest global norm of the gradient; 0 or None for no clipping.
        dropout: of embeddings, attention, residual updates and the pooled row; None keeps the checkpoint's own.
        max_length: tokens a row, special pieces included; longer texts lose their end.
        pooling: what the head reads: "cls", "mean" or "last"; "auto" is the mean for models that see both ways, else
            the last token.
        seed: of the head, the order of examples and dropout.
    """

    learning_rate: float = 1e-4
    batch_size: int = 16
    epochs: int = 10
    steps: int = 0
    warmup_fraction: float = 0.1
    schedule: Literal["linear", "constant"] = "linear"
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    dropout: float | None = 0.1
    max_length: int = 128
    pooling: Literal["auto", "cls", "mean", "last"] = "auto"
    seed: int = 0

    def __post_init__(self):
        for name, hint in typing.get_type_hints(type(self)).items():
            value, choices = getattr(self, name), typing.get_args(hint)
            if typing.get_origin(hint) is Literal and value not in choices:
                raise InputError(f'FinetuneConfig: {name} is "{value}"{nearest(value, choices)}')
            if hint is int and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InputError(f"FinetuneConfig: {name} is {value!r}; it must be a whole number from 0 on")
        _require(self.batch_size >= 1, f"batch_size is {self.batch_size}; it must be 1 or more")
        _require(self.epochs or self.steps, "epochs and steps are both 0; set one of them")
        rate, warmup = self.learning_rate, self.warmup_fraction
        _require(math.isfinite(rate) and rate > 0, f"learning_rate is {rate}; it must be above 0")
        _require(0 <= warmup < 1, f"warmup_fraction is {warmup}; it must be from 0 to below 1")
        _require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}; it must be 0 or more")
        clip, dropout = self.clip_norm, self.dropout
        _require(not clip or clip > 0, f"clip_norm is {clip}; it must be 0 or more")
        object.__setattr__(self, "clip_norm", clip or None)
        _require(dropout is None or 0 <= dropout < 1, f"dropout is {dropout}; it must be from 0 to below 1, or None")

    def replace(self, **changes: Any) -> "FinetuneConfig":
        """A copy with `changes`, validated; an unknown name raises InputError with the nearest field."""
        refuse_unknown(changes, type(self))
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain types alone, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "FinetuneConfig":
        """The inverse of `to_dict`; unknown keys raise InputError."""
        refuse_unknown(plain, cls)
        return cls(**plain)

    def total_steps(self, examples: int) -> int:
        """Updates for so many labelled examples."""
        return self.steps or self.epochs * -(-examples // self.batch_size)


@dataclass(frozen=True, eq=False)
class Finetuned:
    """The outcome of a run.

    Attributes:
        model, params: the classifier.
        history: one dict an epoch: epoch, step, loss (nats an example, while training), what else the kind's loss gives
            (accuracy), learning_rate.
        seconds: of training, compilation included.
        truncated: how many training texts were longer than max_length.
    """

    model: Model
    params: dict[str, Any]
    history: tuple[dict[str, float], ...]
    seconds: float
    truncated: int


def finetune(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    train: Sequence[Example] | Encoded,
    config: FinetuneConfig,
    num_labels: int,
    *,
    kind: Kind = CLASSIFICATION,
    label_names: Sequence[str] = (),
    devices: Sequence[jax.Device] | None = None,
    watch: Callable[[Mapping[str, float]], None] | None = None,
) -> Finetuned:
    """Trains all parameters and a fresh head.

    Args:
        model, params: the backbone; its own head, if any, is left behind. `params` stays as it is.
        tokenizer: the checkpoint's own.
        train: labelled examples, or the same encoded already with this model and config.max_length.
        config: the run.
        num_labels: C.
        kind: of the task.
        label_names: kept in the model's config.
        devices: rows are spread over them, with equal results; None takes all.
        watch: called about once a second with step, steps, epoch, loss, learning_rate, examples_per_second.

    Returns:
        Finetuned.

    Raises:
        InputError: one class only, what `encode` refuses; NotFiniteError: a loss that is not finite, with its step.
    """
    started = time.perf_counter()
    encoded = train if isinstance(train, Encoded) else kind.encode(train, tokenizer, model.config, config.max_length)
    if kind is CLASSIFICATION:
        _check_labels(encoded, num_labels)
    model, params = with_task_head(model, params, config, num_labels, label_names, kind)
    driver = data_parallel(devices)
    size, total = whole_rows(config.batch_size, driver), config.total_steps(len(encoded))
    static = TrainConfig(weight_decay=config.weight_decay, clip_norm=config.clip_norm, beta2=0.999)
    step_of, start = _compiled(model, static, driver, kind)
    plan = make_plan(config.learning_rate, total, config.warmup_fraction, config.schedule)
    state = start(place(params, driver), jax.random.key_data(jax.random.key(config.seed)), plan)
    history, step, epoch = [], 0, 0
    look = _Look(watch, config, total)
    while step < total:
        for rows in training_order(encoded, config.batch_size, config.seed, epoch)[: total - step]:
            state, metrics = step_of(state, driver.put(collate(encoded, rows, size)))
            step += 1
            look.add(step, epoch, metrics)
        history.append(look.end_epoch(epoch))
        epoch += 1
    return Finetuned(model, state.params, tuple(history), time.perf_counter() - started, encoded.truncated)


def with_task_head(
    model: Model,
    params: dict[str, Any],
    config: FinetuneConfig,
    num_labels: int,
    label_names: Sequence[str] = (),
    kind: Kind = CLASSIFICATION,
) -> tuple[Model, dict[str, Any]]:
    """The same backbone under a fresh head for the task, whose weights the seed alone decides."""
    pooling = config.pooling
    if pooling == "auto":
        pooling = "mean" if model.config.visibility == "full" else "last"
    width = kind.width(num_labels)
    names = tuple(label_names) if width == len(label_names) else ()
    changes: dict[str, Any] = {"head": kind.head, "num_labels": width, "label_names": names, "next_sentence": False}
    changes |= {"pooling": pooling, "pooler": model.config.pooler and pooling == "cls" and kind.head == "classifier"}
    if config.dropout is not None:
        changes |= dict.fromkeys(("dropout", "embed_dropout", "attention_dropout", "head_dropout"), config.dropout)
    return with_head(model, params, key=jax.random.fold_in(jax.random.key(config.seed), HEAD_KEY), **changes)


def random_start(model: Model, seed: int) -> dict[str, Any]:
    """Fresh parameters of the same network: what an arm without pre-training begins with."""
    return model.init(jax.random.fold_in(jax.random.key(seed), START_KEY))


@functools.lru_cache(maxsize=16)
def _compiled(
    model: Model, config: TrainConfig, driver: Driver, kind: Kind = CLASSIFICATION
) -> tuple[Callable[..., Any], Callable[..., TrainState]]:
    """The compiled step, and the function that makes a state of it from parameters, key data and a plan."""
    optimizer = planned_optimizer(config)

    @jax.jit
    def start(params, key, plan):
        # Copies: the step uses its state up, and the caller keeps the parameters.
        params = jax.tree.map(jnp.copy, params)
        opt_state = optimizer.init(params)._replace(plan=plan)
        return TrainState(jnp.zeros((), jnp.int32), params, opt_state, key)

    def placed_start(params, key, plan):
        return place(start(params, place(key, driver), place(plan, driver)), driver)

    return driver.compile(make_train_step(model, kind.loss, optimizer)), placed_start


class _Look:
    """Adds up metrics, looks at them now and then, and stops a run whose loss is not finite."""

    def __init__(self, watch: Callable[[Mapping[str, float]], None] | None, config: FinetuneConfig, total: int):
        self.watch, self.config, self.total = watch, config, total
        self.began = self.looked = time.perf_counter()
        self.waiting: list[tuple[int, Any]] = []
        self.sums: dict[str, Pair] = {}
        self.examples = 0.0
        self.rate = 0.0

    def add(self, step: int, epoch: int, metrics: Any) -> None:
        self.waiting.append((step, metrics))
        if time.perf_counter() - self.looked >= LOOK:
            self._settle()
            if self.watch is not None:
                seconds = time.perf_counter() - self.began
                self.watch(
                    {"step": step, "steps": self.total, "epoch": epoch, "learning_rate": self.rate}
                    | {"examples_per_second": self.examples / seconds, **divide(self.sums)}
                )

    def end_epoch(self, epoch: int) -> dict[str, float]:
        step = self.waiting[-1][0] if self.waiting else 0
        self._settle()
        entry = {"epoch": epoch, "step": step, **divide(self.sums), "learning_rate": self.rate}
        self.sums = {}
        return entry

    def _settle(self) -> None:
        for step, metrics in jax.device_get(self.waiting):
            if not metrics["finite"]:
                raise NotFiniteError(
                    f"fine-tuning: the loss is not finite at step {step} of {self.total}; lower the learning rate (now "
                    f"{self.config.learning_rate:g}), or check the checkpoint"
                )
            pairs = {name: value for name, value in metrics.items() if isinstance(value, tuple)}
            self.sums = add(self.sums, pairs)
            self.examples += float(pairs["loss"][1])
            self.rate = float(metrics["learning_rate"])
        self.waiting = []
        self.looked = time.perf_counter()


def _check_labels(encoded: Encoded, num_labels: int) -> None:
    present = sorted(set(encoded.labels.tolist()))
    if present[0] < 0 or present[-1] >= num_labels:
        raise InputError(f"labels are {present[0]} to {present[-1]}; {num_labels} classes are 0 to {num_labels - 1}")
    if len(present) < 2:
        raise InputError(f"{len(encoded)} labelled examples of one class only; two classes are needed to learn from")


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise InputError(f"FinetuneConfig: {message}")
