"""Prediction that drops no example: logits of all, in order, the same whatever the batch size and the devices."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from eval import metrics
from eval.encode import Encoded, collate, encode, prediction_order
from eval.tasks import Example
from train.mesh import Driver, JitDriver, MeshDriver, make_driver
from zoo import partition
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a classifier does on labelled examples.

    Attributes:
        logits: [E, C] float32.
        predictions: [E] int32.
        loss: cross-entropy in nats an example: a sum divided once.
        scores: metric name -> value.
    """

    logits: np.ndarray
    predictions: np.ndarray
    loss: float
    scores: dict[str, float]


def predict(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    *,
    batch_size: int = 64,
    max_length: int = 128,
    devices: Sequence[jax.Device] | None = None,
) -> np.ndarray:
    """Logits of a classifier for every example.

    Args:
        model, params: with head "classifier".
        tokenizer: the checkpoint's own.
        examples: E of them; labels are not read.
        batch_size: rows at a time; decides speed and memory, not the result.
        max_length: most tokens a row; see eval.encode.
        devices: rows are spread over them; None takes all.

    Returns:
        [E, C] float32, in the order of the examples.

    Raises:
        InputError: another head, or what `encode` refuses.
    """
    encoded = encode(examples, tokenizer, model.config, max_length)
    return predict_encoded(model, params, encoded, batch_size=batch_size, devices=devices)


def predict_encoded(
    model: Model,
    params: dict[str, Any],
    encoded: Encoded,
    *,
    batch_size: int = 64,
    devices: Sequence[jax.Device] | None = None,
) -> np.ndarray:
    """`predict` for examples that are encoded already."""
    if model.config.head != "classifier":
        raise InputError(f'prediction needs head "classifier", and this model has "{model.config.head}": fine-tune it')
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be 1 or more")
    driver = data_parallel(devices)
    size = whole_rows(batch_size, driver)
    logits_of, params = _compiled(model, driver), place(params, driver)
    logits = np.empty((len(encoded), model.config.num_labels), np.float32)
    waiting: list[tuple[np.ndarray, jax.Array]] = []
    for rows in prediction_order(encoded, batch_size):
        batch = collate(encoded, rows, size)
        read = {name: batch[name] for name in ("tokens", "segment_ids", "token_types") if name in batch}
        waiting.append((rows, logits_of(params, read)))
        if len(waiting) > 2:  # the next batches are prepared while these are computed
            _store(logits, *waiting.pop(0))
    for rows, found in waiting:
        _store(logits, rows, found)
    return logits


def evaluate(
    model: Model,
    params: dict[str, Any],
    encoded: Encoded,
    names: Sequence[str] = ("accuracy", "macro_f1"),
    *,
    batch_size: int = 64,
    devices: Sequence[jax.Device] | None = None,
) -> Evaluation:
    """Predicts encoded examples and scores the predictions against their labels.

    Args:
        model, params, encoded, batch_size, devices: see `predict`.
        names: metrics of eval.metrics.
    """
    logits = predict_encoded(model, params, encoded, batch_size=batch_size, devices=devices)
    predictions = logits.argmax(axis=1).astype(np.int32)
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    own = wide[np.arange(len(wide)), encoded.labels]
    losses = np.log(np.exp(wide - top[:, None]).sum(axis=1)) + top - own
    counts = metrics.confusion(predictions, encoded.labels, model.config.num_labels)
    return Evaluation(logits, predictions, float(losses.sum() / len(losses)), metrics.score(counts, names))


def data_parallel(devices: Sequence[jax.Device] | None = None) -> Driver:
    """One device, or a mesh over several with the rows split and the parameters on each; None for all of this host."""
    devices = list(jax.local_devices() if devices is None else devices)
    return make_driver("jit" if len(devices) == 1 else "mesh", devices=devices)


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
def _compiled(model: Model, driver: Driver) -> Any:
    def logits_of(params, batch):
        return model.apply(
            params, batch["tokens"], padding_mask=batch["segment_ids"], token_types=batch.get("token_types")
        ).logits

    return driver.compile_eval(logits_of)


def _store(logits: np.ndarray, rows: np.ndarray, found: jax.Array) -> None:
    logits[rows] = np.asarray(found)[: len(rows)]
