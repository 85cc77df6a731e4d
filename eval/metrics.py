"""Accuracy and macro-averaged F1, from counts that add over batches, devices and hosts and are divided once.

    counts = counts + confusion(predictions, labels, num_labels, weights)      # per batch
    score(counts, ("accuracy", "macro_f1"))                                    # once

The sum of a confusion matrix's diagonal over its total is accuracy's (sum, weight) pair; F1 needs the whole matrix,
since the mean of the batches' F1 is another number.
"""

from collections.abc import Callable, Iterable

import numpy as np

from zoo.errors import InputError, nearest


def confusion(predictions, labels, num_labels: int, weights=None) -> np.ndarray:
    """Counts of (label, prediction) pairs.

    Args:
        predictions: [B] integers in [0, C).
        labels: [B] integers in [0, C).
        num_labels: C.
        weights: [B] 1 for examples that count and 0 for filler rows of a last batch; None counts all.

    Returns:
        [C, C] int64; row = label, column = prediction.

    Raises:
        InputError: shapes that differ or are not [B] ((B,) against (B,1) would broadcast to B x B), numbers that are
            not whole, a class outside [0, C) in an example that counts.
    """
    predictions, labels = _classes(predictions, "predictions"), _classes(labels, "labels")
    weights = np.ones(labels.shape, np.int64) if weights is None else np.asarray(weights)
    for name, array in (("predictions", predictions), ("weights", weights)):
        if array.shape != labels.shape or labels.ndim != 1:
            raise InputError(
                f"{name} have shape {array.shape} and labels {labels.shape}; both must be one and the same (B,)"
            )
    if not np.isin(weights, (0, 1)).all():
        raise InputError("weights must be 0 or 1: they say which examples count")
    keep = weights.astype(bool)
    predictions, labels = predictions[keep].astype(np.int64), labels[keep].astype(np.int64)
    for name, array in (("predictions", predictions), ("labels", labels)):
        if array.size and not (array.min() >= 0 and array.max() < num_labels):
            raise InputError(f"{name} hold class {array.min()} to {array.max()}; classes are 0 to {num_labels - 1}")
    flat = np.bincount(labels * num_labels + predictions, minlength=num_labels**2)
    return flat.reshape(num_labels, num_labels).astype(np.int64)


def spoken_name(metric: str) -> str:
    """How people write a metric: `macro-F1`."""
    return {"macro_f1": "macro-F1"}.get(metric, metric.replace("_", " "))


def accuracy(counts: np.ndarray) -> float:
    """Right answers over examples.

    Args:
        counts: [C, C] of `confusion`, or a sum of several.
    """
    return float(np.trace(counts) / _total(counts))


def macro_f1(counts: np.ndarray) -> float:
    """The mean over classes of F1 = 2 TP / (2 TP + FP + FN).

    Classes that occur neither as a label nor as a prediction are left out of the mean, and a class never hit has F1 0:
    the number of scikit-learn's `f1_score(average="macro", zero_division=0)`.

    Args:
        counts: [C, C] of `confusion`, or a sum of several.
    """
    _total(counts)
    denominator = counts.sum(axis=0) + counts.sum(axis=1)
    occurs = denominator > 0
    return float(np.mean(2 * np.diagonal(counts)[occurs] / denominator[occurs]))


METRICS: dict[str, Callable[[np.ndarray], float]] = {"accuracy": accuracy, "macro_f1": macro_f1}


def score(counts: np.ndarray, names: Iterable[str] = tuple(METRICS)) -> dict[str, float]:
    """Metric name -> value; InputError for an unknown name or where no example was counted."""
    return {name: metric(name)(counts) for name in names}


def metric(name: str) -> Callable[[np.ndarray], float]:
    """The metric of this name; InputError with the nearest one otherwise."""
    if name not in METRICS:
        raise InputError(f'no metric "{name}"{nearest(name, METRICS)}')
    return METRICS[name]


def _classes(values, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{name} are {array.dtype}; class indices are whole numbers (take the argmax of logits first)")
    return array


def _total(counts: np.ndarray) -> int:
    total = np.sum(counts)
    if total == 0:
        raise InputError("no example was counted, so there is nothing to score")
    return total
