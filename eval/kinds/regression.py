"""A number for each text, or pair of texts: similarity, a rating.

    loss = sum over examples of (y - label)^2 / number of examples,    y the single output of the head

Labels stay floating-point numbers in the scale of the task (STS-B: 0 to 5). To train from a head that begins near zero,
the model predicts the number itself; Devlin et al. 2018 fine-tune STS-B so.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval import metrics
from eval.encode import Encoded, encode
from eval.kinds.kind import Evaluation, Kind, mean_loss, read
from eval.sources.rows import LARGEST
from train.metrics import Pair
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.tokenizer import Tokenizer


def encode_ratings(
    examples: Sequence[Any], tokenizer: Tokenizer, config: ModelConfig, max_length: int = 128
) -> Encoded:
    """`eval.encode.encode` for examples whose labels are finite numbers: [E] float32."""
    labels = np.array([example.label for example in examples], np.float64)
    bad = np.flatnonzero(~(np.abs(labels) <= LARGEST))
    if len(bad):
        what = "a rating too large to learn" if np.isfinite(labels[bad[0]]) else "no finite number"
        raise InputError(f"example {bad[0]} has {what} as its label: {labels[bad[0]]:g}")
    framed = encode([dataclasses.replace(e, label=0) for e in examples], tokenizer, config, max_length)
    return dataclasses.replace(framed, labels=labels.astype(np.float32))


def outputs(model: Any, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """[B] numbers; [R, S] for packed rows."""
    return read(model, params, batch)[..., 0]


def loss(
    model: Any, params: Any, batch: Mapping[str, jax.Array], keys: jax.Array, *, train: bool = True
) -> tuple[Pair, dict[str, Pair]]:
    """The objective: (sum of squared errors, number of examples); see eval.kinds.classification.loss for arguments."""
    found = read(model, params, batch, keys if train else None)[..., 0]
    labels, weights = batch["labels"], batch["weights"]
    if found.shape != labels.shape:  # (B,) against (B,1) would broadcast to B x B
        raise InputError(f"outputs have shape {found.shape} and labels {labels.shape}; both must be (B,)")
    errors = jnp.where(weights > 0, found.astype(jnp.float32) - labels, 0.0)
    return (jnp.sum(errors**2), jnp.sum(weights)), {"absolute_error": (jnp.sum(jnp.abs(errors)), jnp.sum(weights))}


def score(encoded: Encoded, outputs: np.ndarray, names: Sequence[str], label_names: Sequence[str] = ()) -> Evaluation:
    """The numbers, against the labels."""
    errors = outputs.astype(np.float64) - encoded.labels
    return Evaluation(outputs, outputs, mean_loss(errors**2), metrics.score_ratings(outputs, encoded.labels, names))


REGRESSION = Kind(
    name="regression",
    head="classifier",
    per_token=False,
    width=lambda labels: 1,
    encode=encode_ratings,
    loss=loss,
    outputs=outputs,
    score=score,
    metrics=("pearson", "spearman", "mean_absolute_error"),
    packs=True,
)
