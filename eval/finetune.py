"""Fine-tuning of a checkpoint (or of a random start) on a task of any kind, by gradient descent.

    loss = sum over examples of what eval.kinds says (-log p(label) of a class) / number of examples in the batch

FinetuneConfig.way says what is trained (eval.ways: freeze, lora); eval.adapt is the face of all ways, closed form too.
The rows, the head's initial weights and the dropout of a run are decided by its seed and by nothing else, so two arms
that differ in where they start (pre-trained, random) share all three: a pair. The learning rate travels as data, so one
compiled program a row length serves all seeds, arms, budgets and rates.

References: Devlin et al. 2018, section 4 (encoders); Radford et al. 2018, section 3.2 (decoders, last token).
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from eval.encode import Encoded, collate, training_order
from eval.kinds import CLASSIFICATION, Kind
from eval.packing import layout, pack, packs
from eval.predict import NotFiniteError, data_parallel, place, whole_rows
from eval.tasks import Example
from eval.ways import freeze, lora, read_rows
from eval.ways.class_weights import check_labels, weighed
from eval.ways.finetune_config import FinetuneConfig
from eval.ways.planned_rate import make_plan, planned_optimizer
from eval.ways.selection import Selection
from train.config import TrainConfig
from train.mesh import Driver, MeshDriver
from train.metrics import Pair, add, divide
from train.state import TrainState
from train.step import make_train_step
from zoo.errors import InputError
from zoo.int8 import require_float
from zoo.model import Model, with_head
from zoo.tokenizer import Tokenizer

__all__ = ["FinetuneConfig", "Finetuned", "NotFiniteError", "finetune", "random_start", "with_task_head"]

# Folded into the seed's key: numbers that no step of a run reaches.
HEAD_KEY, START_KEY, LORA_KEY = 2**31 - 1, 2**31 - 2, 2**31 - 3
# Seconds between two looks at the loss, each of which waits for the device.
LOOK = 1.0
# Steps that may be begun while an earlier one is at work: each has its memory from then on.
AHEAD = 1


@dataclass(frozen=True, eq=False)
class Finetuned:
    """The outcome of adapting a checkpoint.

    Attributes:
        model, params: the model under the task's head, whole: adapters are merged into their kernels.
        history: one dict an epoch: epoch, step, loss (nats an example, while training), what else the kind's loss gives
            (accuracy), learning_rate. Empty for the closed form.
        seconds: of training, compilation and evaluations included.
        truncated: how many training texts were longer than max_length.
        trainable, total: numbers that were trained, and in all (adapters are counted in both).
        evaluations: one dict for each look at the validation examples: step, epoch, loss, the metric.
        chosen: the epoch, from 0, whose parameters these are; -1 for the closed form.
        chosen_step: the same in updates.
        adapter: way "lora": the adapters; None otherwise.
        facts: what else a way has to tell, such as the probe's regulariser.
    """

    model: Model
    params: dict[str, Any]
    history: tuple[dict[str, float], ...]
    seconds: float
    truncated: int
    trainable: int = 0
    total: int = 0
    evaluations: tuple[dict[str, float], ...] = ()
    chosen: int = -1
    chosen_step: int = 0
    adapter: dict[str, Any] | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """What a compiled step depends on beside the model: settings that are no data. `part` says what is trained."""

    train: TrainConfig
    part: tuple[Any, ...] = ("full",)
    layer_decay: float = 1.0
    lora_scale: float = 0.0

    @classmethod
    def of(cls, config: FinetuneConfig) -> "Recipe":
        """The recipe of a run. Adapters decay as the kernels do that they stand for."""
        adapts = config.way == "lora"
        train = TrainConfig(
            optimizer=config.optimizer,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            beta2=0.999,
            decay=("*kernel", "*lora_a", "*lora_b") if adapts else ("*kernel",),
        )
        more = {"top": (config.top_layers,), "lora": (config.lora_rank, config.lora_targets)}
        part = (config.way, *more.get(config.way, ()))
        return cls(train, part, config.layer_decay, config.lora_alpha / config.lora_rank if adapts else 0.0)


def finetune(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    train: Sequence[Example] | Encoded,
    config: FinetuneConfig,
    num_labels: int,
    *,
    kind: Kind = CLASSIFICATION,
    validation: Sequence[Example] | Encoded | None = None,
    label_names: Sequence[str] = (),
    devices: Sequence[jax.Device] | None = None,
    watch: Callable[[Mapping[str, float]], None] | None = None,
) -> Finetuned:
    """Trains a fresh head, and of the backbone what config.way says.

    Args:
        model, params: the backbone; its own head, if any, is left behind. `params` stays as it is.
        tokenizer: the checkpoint's own.
        train: labelled examples, or the same encoded already with this model and config.max_length.
        config: the run; its way is any but "probe".
        num_labels: C.
        kind: of the task.
        validation: what config.select "best" goes by; not looked at otherwise.
        label_names: kept in the model's config.
        devices: rows are spread over them, with equal results; None takes all.
        watch: called about once a second with step, steps, epoch, loss, learning_rate, examples_per_second.

    Returns:
        Finetuned.

    Raises:
        InputError: one class only, what `encode` refuses, "best" of no validation examples; NotFiniteError: a loss that
            is not finite, with its step.
    """
    if config.way == "probe":
        raise InputError('way "probe" is a closed form, without steps: use eval.adapt.adapt')
    require_float(model.config, "fine-tuning")
    started = time.perf_counter()
    encoded = train if isinstance(train, Encoded) else kind.encode(train, tokenizer, model.config, config.max_length)
    check_labels(encoded, num_labels, kind)
    encoded = weighed(encoded, config, num_labels, kind)
    model, params = with_task_head(model, params, config, num_labels, label_names, kind)
    if validation is not None and not isinstance(validation, Encoded) and config.select == "best":
        validation = kind.encode(validation, tokenizer, model.config, config.max_length) if validation else None
    selection = Selection(config, kind, validation, label_names, devices)
    driver = data_parallel(devices)
    size, total = whole_rows(config.batch_size, driver), config.total_steps(len(encoded))
    packed = config.packing and packs(kind, encoded, model.config)
    recipe = Recipe.of(config)
    trained, frozen = freeze.split(params, model.config, config, kind.head)
    if config.way == "lora":
        key = jax.random.fold_in(jax.random.key(config.seed), LORA_KEY)
        trained = {**trained, lora.NAME: lora.create(params, config.lora_targets, config.lora_rank, key)}
    frozen = _placed(frozen, driver)
    trainable = freeze.count(trained)
    read = read_rows.rows_read(encoded, model.config, trained, total)
    small = model
    if model.config.dtype == "float32" and not model.config.matmul_dtype:
        small = Model(model.config.replace(matmul_dtype="float32"))  # gradients in the form that CPUs compute fast
    if read is not None:
        small, encoded = Model(small.config.replace(vocab_size=len(read))), read_rows.renumbered(encoded, read)
        trained = read_rows.cut(trained, read)
    step_of, start = _compiled(small, recipe, driver, kind)
    plan = make_plan(config.learning_rate, total, config.warmup_fraction, config.schedule)
    state = start(_placed(trained, driver), jax.random.key_data(jax.random.key(config.seed)), plan)

    def joined(trained: Any) -> dict[str, Any]:
        """The whole parameters, of what is trained and what is not."""
        if read is not None:
            trained = read_rows.whole(trained, params["embed"]["token"]["embedding"], read)
        return freeze.join(trained, frozen, recipe.lora_scale)

    def stop_after(step: int, epoch: int) -> bool:
        """Looks at the validation examples; True where there is nothing more to wait for."""
        if selection.seen(step):
            return False
        return selection.look(step, epoch, model, joined(state.params), state.params)

    history, step, epoch, stopped, shape = [], 0, 0, False, None
    look = _Look(watch, config, total)
    while step < total and not stopped:
        order = training_order(encoded, config.batch_size, config.seed, epoch, by_length=not packed)
        shape = shape or (layout(encoded, order) if packed else None)
        for rows in order[: total - step]:
            batch = pack(encoded, rows, *shape, driver.row_shards)[0] if shape else collate(encoded, rows, size)
            batch = driver.put(batch)
            state, metrics = step_of(state, {"batch": batch, "frozen": frozen})
            step += 1
            look.add(step, epoch, metrics)
            if config.eval_every and step % config.eval_every == 0 and stop_after(step, epoch):
                stopped = True
                break
        history.append(look.end_epoch(epoch))
        if not stopped and (step == total or not config.eval_every):
            stopped = stop_after(step, epoch)
        epoch += 1
    best = selection.best(state.params, step, epoch - 1)
    return Finetuned(
        model,
        joined(best.trained),
        tuple(history),
        time.perf_counter() - started,
        encoded.truncated,
        trainable=trainable,
        total=trainable + freeze.count(frozen),
        evaluations=tuple(selection.evaluations),
        chosen=best.epoch,
        chosen_step=best.step,
        adapter=best.trained.get(lora.NAME),
    )


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
    if config.way == "probe":  # a probe is one linear map, with a bias, whatever the family's own classifier
        changes |= {"classifier_hidden": "none", "classifier_norm": False, "classifier_bias": True}
    params = {name: tree for name, tree in params.items() if name != kind.head}  # another task's, maybe of equal shape
    if config.dropout is not None:
        changes |= dict.fromkeys(("dropout", "embed_dropout", "attention_dropout", "head_dropout"), config.dropout)
    return with_head(model, params, key=jax.random.fold_in(jax.random.key(config.seed), HEAD_KEY), **changes)


def random_start(model: Model, seed: int) -> dict[str, Any]:
    """Fresh parameters of the same network: what an arm without pre-training begins with."""
    return model.init(jax.random.fold_in(jax.random.key(seed), START_KEY))


@functools.lru_cache(maxsize=16)
def _compiled(
    model: Model, recipe: Recipe, driver: Driver, kind: Kind = CLASSIFICATION
) -> tuple[Callable[..., Any], Callable[..., TrainState]]:
    """The compiled step, and the function that makes a state of it from what is trained, key data and a plan.

    The step is called with (state, {"batch": ..., "frozen": ...}): what is frozen is data, of which nothing is copied.
    """
    scaled = [freeze.scale_by_layer(model.config, recipe.layer_decay)] if recipe.layer_decay != 1 else []
    optimizer = planned_optimizer(recipe.train, *scaled)

    def step(state, given):
        def loss(model, trained, batch, keys):
            return kind.loss(model, freeze.join(trained, given["frozen"], recipe.lora_scale), batch, keys)

        return make_train_step(model, loss, optimizer)(state, given["batch"])

    @jax.jit
    def start(trained, key, plan):
        # Copies: the step uses its state up, and the caller keeps the parameters.
        trained = jax.tree.map(jnp.copy, trained)
        opt_state = optimizer.init(trained)._replace(plan=plan)
        return TrainState(jnp.zeros((), jnp.int32), trained, opt_state, key)

    def placed_start(trained, key, plan):
        return _placed(start(trained, _placed(key, driver), _placed(plan, driver)), driver)

    return driver.compile(step), placed_start


def _placed(tree: Any, driver: Driver) -> Any:
    """As eval.predict.place, for trees with adapters too: a data-parallel mesh has every parameter on each device."""
    if isinstance(driver, MeshDriver):
        return jax.device_put(tree, NamedSharding(driver.mesh, PartitionSpec()))
    return place(tree, driver)


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
        if len(self.waiting) > AHEAD:
            jax.block_until_ready(self.waiting[-1 - AHEAD][1])
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
