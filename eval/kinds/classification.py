"""One class for each text, or pair of texts.

    loss = sum over examples of -w(label) log p(label) / sum of w(label)

w is 1, or the weight of the label's class. References: Devlin et al. 2018, section 4 (encoders); Radford et al. 2018,
section 3.2 (decoders, last token).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval import metrics
from eval.encode import Encoded, encode
from eval.kinds.kind import Evaluation, Kind, mean_loss, read
from train.cross_entropy import cross_entropy
from train.metrics import Pair, accuracy


def loss(
    model: Any, params: Any, batch: Mapping[str, jax.Array], keys: jax.Array, *, train: bool = True
) -> tuple[Pair, dict[str, Pair]]:
    """The objective: (sum of -log p(label), number of examples).

    Args:
        model: with head "classifier".
        params: its parameters.
        batch: of eval.encode: tokens, segment_ids, token_types (if any) [B, T]; labels, weights [B]; and label_weights
            [B] where classes weigh differently.
        keys: [B] keys of dropout, one a row.
        train: False turns dropout off.

    Returns:
        ((loss sum, weight), {"accuracy": pair}).
    """
    return loss_of(read(model, params, batch, keys if train else None), batch)


def loss_of(logits: jax.Array, batch: Mapping[str, jax.Array]) -> tuple[Pair, dict[str, Pair]]:
    """`loss` of [..., C] logits that are at hand: of classes, or of the options of a question."""
    weights = batch["weights"]
    importance = weights * batch["label_weights"] if "label_weights" in batch else weights
    losses = jnp.where(weights > 0, cross_entropy(logits, batch["labels"]), 0.0)
    return (jnp.sum(losses * importance), jnp.sum(importance)), {"accuracy": accuracy(logits, batch["labels"], weights)}


def log_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """-log p(label) of [E, C] logits, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    own = wide[np.arange(len(wide)), labels]
    return np.log(np.exp(wide - top[:, None]).sum(axis=1)) + top - own


def score(encoded: Encoded, outputs: np.ndarray, names: Sequence[str], label_names: Sequence[str] = ()) -> Evaluation:
    """The class of the largest logit, against the labels."""
    predictions = outputs.argmax(axis=1).astype(np.int32)
    counts = metrics.confusion(predictions, encoded.labels, outputs.shape[1])
    found = metrics.score(counts, names)
    return Evaluation(outputs, predictions, mean_loss(log_losses(outputs, encoded.labels)), found)


CLASSIFICATION = Kind(
    name="classification",
    head="classifier",
    per_token=False,
    width=int,
    encode=encode,
    loss=loss,
    outputs=read,
    score=score,
    metrics=("accuracy", "macro_f1"),
    packs=True,
)
