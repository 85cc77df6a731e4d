"""Accuracy, F1 and Matthews' correlation, from counts that add over batches, devices and hosts and are divided once.

    counts = counts + confusion(predictions, labels, num_labels, weights)      # per batch
    score(counts, ("accuracy", "macro_f1"))                                    # once

The sum of a confusion matrix's diagonal over its total is accuracy's (sum, weight) pair; F1 and Matthews' correlation
need the whole matrix, since the mean of the batches' scores is another number. Ratings have eval.scores.rating_metrics.
"""

from collections.abc import Callable, Iterable

import numpy as np

from eval.scores.rating_metrics import RATING_METRICS, score_ratings
from zoo.errors import InputError, nearest

__all__ = ["METRICS", "RATING_METRICS", "accuracy", "confusion", "f1", "higher_is_better", "macro_f1", "matthews"]
__all__ += ["bounds", "metric", "micro_f1", "score", "score_ratings", "spoken_name"]

SPOKEN = {"f1": "F1", "macro_f1": "macro-F1", "micro_f1": "micro-F1", "pearson": "Pearson", "spearman": "Spearman"}
SPOKEN |= {"matthews": "Matthews", "entity_f1": "entity F1", "answer_f1": "answer F1"}
CORRELATIONS = ("pearson", "spearman", "matthews")
ERRORS = ("loss", "mean_absolute_error", "mean_squared_error", "perplexity", "bits_per_byte")


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
    return SPOKEN.get(metric, metric.replace("_", " "))


def higher_is_better(metric: str) -> bool:
    """False for errors and losses: what "the best checkpoint by a metric" goes by."""
    return metric not in ERRORS


def bounds(metric: str) -> tuple[float, float]:
    """The least and the greatest value that a metric can have; "SET/metric" is the metric of a further test set."""
    name = metric.rpartition("/")[2]
    if name in CORRELATIONS:
        return -1.0, 1.0
    return 0.0, float("inf") if name in ERRORS or name == "unread_words" else 1.0


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


def micro_f1(counts: np.ndarray) -> float:
    """F1 of the true and false positives of all classes together: accuracy, where each example has one class.

    Args:
        counts: [C, C] of `confusion`, or a sum of several.
    """
    return accuracy(counts)


def f1(counts: np.ndarray) -> float:
    """F1 = 2 TP / (2 TP + FP + FN) of class 1 of two, the positive one; 0 where it is neither a label nor predicted.

    The number of scikit-learn's `f1_score(zero_division=0)`, and GLUE's for MRPC and QQP.

    Args:
        counts: [2, 2] of `confusion`, or a sum of several.

    Raises:
        InputError: more or fewer classes than two.
    """
    _total(counts)
    if counts.shape != (2, 2):
        raise InputError(f"F1 of the positive class needs two classes and these are {len(counts)}; take macro_f1")
    denominator = counts[1].sum() + counts[:, 1].sum()
    return float(2 * counts[1, 1] / denominator) if denominator else 0.0


def matthews(counts: np.ndarray) -> float:
    """Matthews' correlation; for two classes (TP TN - FP FN) / sqrt((TP+FP) (TP+FN) (TN+FP) (TN+FN)).

    For any number of classes (c s - sum p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)), with c right answers of
    s, p_k predictions and t_k labels of class k: the number of scikit-learn's `matthews_corrcoef`. 0 where one class
    alone is predicted or true.

    Args:
        counts: [C, C] of `confusion`, or a sum of several.

    References: Matthews 1975; Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient".
    """
    total = int(_total(counts))
    # Python's integers: products of four counts pass 2^63 from some 55,000 examples on.
    labels, predictions = [int(n) for n in counts.sum(axis=1)], [int(n) for n in counts.sum(axis=0)]
    right = int(np.trace(counts))
    covariance = right * total - sum(p * t for p, t in zip(predictions, labels, strict=True))
    spread = (total**2 - sum(p * p for p in predictions)) * (total**2 - sum(t * t for t in labels))
    return covariance / spread**0.5 if spread else 0.0


METRICS: dict[str, Callable[[np.ndarray], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "f1": f1,
    "matthews": matthews,
}


def score(counts: np.ndarray, names: Iterable[str] = ("accuracy", "macro_f1")) -> dict[str, float]:
    """Metric name -> value; InputError for an unknown name or where no example was counted."""
    return {name: metric(name)(counts) for name in names}


def metric(name: str) -> Callable[[np.ndarray], float]:
    """The metric of counts that has this name; InputError with the nearest one otherwise."""
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
