"""Prediction that drops no example: outputs of all, in order, the same whatever the batch size and the devices."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from eval.encode import Batch, Encoded, collate, prediction_order
from eval.kinds import CLASSIFICATION, Evaluation, Kind
from eval.packing import pack, packs, prediction_length
from eval.tasks import Example
from train.mesh import Driver, JitDriver, MeshDriver, make_driver
from zoo import partition
from zoo.errors import InputError
from zoo.model import Model
from zoo.shared_rows import rows_a_batch
from zoo.tokenizer import Tokenizer

READ = ("tokens", "segment_ids", "token_types", "weights")


class NotFiniteError(InputError):
    """A loss, a gradient or an output that is not finite: the rate is too high, or the checkpoint is not sound."""


def predict(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    *,
    batch_size: int = 64,
    max_length: int = 128,
    kind: Kind = CLASSIFICATION,
    devices: Sequence[jax.Device] | None = None,
) -> Any:
    """What a fine-tuned model gives for every example: logits of a classifier, as a rule.

    Args:
        model, params: with the head of `kind`.
        tokenizer: the checkpoint's own.
        examples: E of them; labels are not read.
        batch_size: rows at a time, at most; decides speed and memory, not the result.
        max_length: most tokens a row; see eval.encode.
        kind: of the task.
        devices: rows are spread over them; None takes all.

    Returns:
        float32 in the order of the examples: [E, C] logits of classes, [E] ratings, or what the kind's outputs are; a
        tuple of E arrays [T_e, C] where every token has an answer.

    Raises:
        InputError: another head, or what `encode` refuses; NotFiniteError: outputs that are not finite.
    """
    encoded = kind.encode(examples, tokenizer, model.config, max_length)
    return predict_encoded(model, params, encoded, batch_size=batch_size, kind=kind, devices=devices)


def predict_encoded(
    model: Model,
    params: dict[str, Any],
    encoded: Encoded,
    *,
    batch_size: int = 64,
    kind: Kind = CLASSIFICATION,
    packed: bool = True,
    devices: Sequence[jax.Device] | None = None,
) -> Any:
    """`predict` for examples that are encoded already; `packed` puts several into a row where they can share one."""
    if model.config.head != kind.head:
        raise InputError(f'prediction needs head "{kind.head}", and this model has "{model.config.head}": fine-tune it')
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be 1 or more")
    driver = data_parallel(devices)
    outputs_of, params = _compiled(model, driver, kind), place(params, driver)
    found = _Outputs(len(encoded))
    waiting: list[tuple[np.ndarray, jax.Array]] = []
    for batch, order in _batches(encoded, batch_size, driver, packed and packs(kind, encoded, model.config)):
        read = {name: batch[name] for name in READ if name in batch}
        waiting.append((order, outputs_of(params, read)))
        if len(waiting) > 2:  # the next batches are prepared while these are computed
            found.store(*waiting.pop(0))
    for order, outputs in waiting:
        found.store(order, outputs)
    return found.whole(encoded.lengths if kind.per_token else None)


def evaluate(
    model: Model,
    params: dict[str, Any],
    encoded: Encoded,
    names: Sequence[str] = ("accuracy", "macro_f1"),
    *,
    batch_size: int = 64,
    kind: Kind = CLASSIFICATION,
    label_names: Sequence[str] = (),
    settled: Mapping[str, Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Evaluation:
    """Predicts encoded examples and scores the predictions against their labels.

    Args:
        model, params, encoded, batch_size, kind, devices: see `predict`.
        names: metrics of the kind.
        label_names: of the task, where the metric reads them (the entities of tagging); () for the model's own.
        settled: what `kind.settle` chose on validation examples.

    Raises:
        NotFiniteError: outputs that are not finite, which have no score: an argmax of NaN would be class 0.
    """
    outputs = predict_encoded(model, params, encoded, batch_size=batch_size, kind=kind, devices=devices)
    return kind.score(encoded, outputs, names, tuple(label_names) or model.config.label_names, **(settled or {}))


def data_parallel(devices: Sequence[jax.Device] | None = None) -> Driver:
    """One device, or a mesh over several with the rows split and the parameters on each; None for all of this host."""
    devices = list(jax.local_devices() if devices is None else devices)
    if len(devices) == 1:
        return make_driver("jit", devices=devices)
    return make_driver("mesh", f"data={len(devices)}", devices)


def whole_rows(batch_size: int, driver: Driver) -> int:
    """`batch_size`, or the next number of rows that the devices can share evenly."""
    return -(-batch_size // driver.row_shards) * driver.row_shards


def place(tree: Any, driver: Driver) -> Any:
    """A tree of arrays where the driver's programs want it; what is there already is not copied."""
    if isinstance(driver, JitDriver):
        return jax.device_put(tree, driver.device)
    assert isinstance(driver, MeshDriver)
    return jax.device_put(tree, partition.shardings(driver.mesh, tree))


@functools.lru_cache(maxsize=16)
def _compiled(model: Model, driver: Driver, kind: Kind) -> Any:
    return driver.compile_eval(functools.partial(kind.outputs, model))


def _batches(encoded: Encoded, batch_size: int, driver: Driver, packed: bool) -> Iterator[tuple[Batch, np.ndarray]]:
    """Batches of one number of rows, and which example each of their outputs belongs to (-1: none)."""
    if packed:
        length = prediction_length(encoded)
        size = whole_rows(rows_a_batch(length, batch_size), driver)
        whole, order = pack(encoded, np.arange(len(encoded)), length, unit=size)
        for start in range(0, len(order), size):
            yield {name: array[start : start + size] for name, array in whole.items()}, order[start : start + size]
        return
    size = whole_rows(batch_size, driver)
    for rows in prediction_order(encoded, batch_size):
        yield collate(encoded, rows, size), np.pad(rows, (0, size - len(rows)), constant_values=-1)


class _Outputs:
    """The outputs of E examples, as batches come in: by their numbers, of one batch's shape after the other."""

    def __init__(self, examples: int):
        self.parts: list[tuple[np.ndarray, np.ndarray]] = []
        self.examples = examples

    def store(self, order: np.ndarray, outputs: jax.Array) -> None:
        """`order` [B] or [R, S]: whose outputs these are; -1: nobody's."""
        there = order >= 0
        self.parts.append((order[there], np.asarray(outputs, np.float32)[there]))

    def whole(self, lengths: np.ndarray | None) -> Any:
        """[E, ...]; or, where there are lengths, a tuple of E arrays [T_e, ...].

        Raises:
            NotFiniteError: an output that is not finite.
        """
        bad = sum(int((~np.isfinite(part).reshape(len(part), -1).all(axis=1)).sum()) for _, part in self.parts)
        if bad:
            raise NotFiniteError(
                f"the model's outputs are not finite for {bad:,} of {self.examples:,} examples: its training diverged "
                "(lower the learning rate), or the checkpoint is not sound"
            )
        if lengths is None:
            numbers, outputs = (np.concatenate(found) for found in zip(*self.parts, strict=True))
            return outputs[np.argsort(numbers)]
        found = {int(n): row for numbers, rows in self.parts for n, row in zip(numbers, rows, strict=True)}
        return tuple(found[number][:length] for number, length in enumerate(lengths))
