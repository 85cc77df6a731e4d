"""Correlations and errors of predicted ratings, in float64.

    moments = moments + Moments.of(predictions, labels, weights)       # per batch
    moments.pearson(), moments.mean_absolute_error()                   # once

Moments add over batches, devices and hosts; Spearman's correlation ranks all values and needs them at once.

A correlation with values that are all the same is 0 / 0. It is 0.0 here: who always predicts one rating has ordered
nothing, and a number that is not finite would end a run or win a comparison. (scipy gives nan with a warning.)
Sums of squares hold ratings from 1e-150 to 1e150; `pearson`, which sees all at once, any.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from zoo.errors import InputError, nearest

# Deviations from the mean below this share of the values' size are rounding, not spread.
ROUNDING = 1e-13


@dataclass(frozen=True)
class Moments:
    """Sums over pairs of a predicted and a true rating, kept about the means so that they do not cancel.

    Attributes:
        count: E, pairs that count.
        mean_x, mean_y: of predictions x and labels y.
        xx, yy, xy: sums of products of deviations from the means.
        absolute, squared: sums of |x - y| and of (x - y)^2.
        size_x, size_y: largest |x| and |y|.

    Reference: Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance" (the sum of two).
    """

    count: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    absolute: float = 0.0
    squared: float = 0.0
    size_x: float = 0.0
    size_y: float = 0.0

    @classmethod
    def of(cls, predictions, labels, weights=None) -> "Moments":
        """The moments of one batch.

        Args:
            predictions, labels: [B] finite numbers.
            weights: [B] 1 for pairs that count and 0 for filler rows of a last batch; None counts all.

        Raises:
            InputError: shapes that differ or are not [B] ((B,) against (B,1) would broadcast to B x B), values that
                are not finite in a pair that counts.
        """
        x, y = ratings(predictions, labels, weights)
        if not len(x):
            return cls()
        mean_x, mean_y = float(x.mean()), float(y.mean())
        dx, dy, error = x - mean_x, y - mean_y, x - y
        sums = (float(value) for value in (dx @ dx, dy @ dy, dx @ dy, np.abs(error).sum(), error @ error))
        return cls(len(x), mean_x, mean_y, *sums, float(np.abs(x).max()), float(np.abs(y).max()))

    def __add__(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        if not count:
            return Moments()
        share = other.count / count
        step_x, step_y = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        between = self.count * share
        return Moments(
            count,
            self.mean_x + share * step_x,
            self.mean_y + share * step_y,
            self.xx + other.xx + between * step_x**2,
            self.yy + other.yy + between * step_y**2,
            self.xy + other.xy + between * step_x * step_y,
            self.absolute + other.absolute,
            self.squared + other.squared,
            max(self.size_x, other.size_x),
            max(self.size_y, other.size_y),
        )

    def pearson(self) -> float:
        """sum dx dy / sqrt(sum dx^2 sum dy^2), in [-1, 1]; 0.0 where predictions or labels are all the same."""
        self._require()
        spread_x, spread_y = np.sqrt(self.xx), np.sqrt(self.yy)
        floor = ROUNDING * np.sqrt(self.count)
        if spread_x <= floor * self.size_x or spread_y <= floor * self.size_y:
            return 0.0
        return float(np.clip(self.xy / spread_x / spread_y, -1.0, 1.0))

    def mean_absolute_error(self) -> float:
        """sum |x - y| / E, in the unit of the ratings."""
        self._require()
        return self.absolute / self.count

    def mean_squared_error(self) -> float:
        """sum (x - y)^2 / E, in the unit of the ratings, squared."""
        self._require()
        return self.squared / self.count

    def _require(self) -> None:
        if not self.count:
            raise InputError("no example was counted, so there is nothing to score")


def pearson(predictions, labels) -> float:
    """Pearson's correlation of [E] predictions and labels; see `Moments.pearson`.

    Both are first brought to size 1 by a power of two, which rounds nothing, so that squares neither overflow nor
    vanish, whatever the size of the numbers.
    """
    return Moments.of(*map(_of_size_one, ratings(predictions, labels))).pearson()


def spearman(predictions, labels) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal values sharing the mean of their ranks.

    0.0 where predictions or labels are all the same.
    """
    x, y = ratings(predictions, labels)
    return Moments.of(ranks(x), ranks(y)).pearson()


def mean_absolute_error(predictions, labels) -> float:
    """See `Moments.mean_absolute_error`."""
    return Moments.of(predictions, labels).mean_absolute_error()


def mean_squared_error(predictions, labels) -> float:
    """See `Moments.mean_squared_error`."""
    return Moments.of(predictions, labels).mean_squared_error()


def ranks(values) -> np.ndarray:
    """1 for the smallest of [E] values, E for the largest; equal ones share the mean of the ranks that they take."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


RATING_METRICS: dict[str, Callable[..., float]] = {
    "pearson": pearson,
    "spearman": spearman,
    "mean_absolute_error": mean_absolute_error,
    "mean_squared_error": mean_squared_error,
}


def score_ratings(predictions, labels, names: Iterable[str] = ("pearson", "spearman")) -> dict[str, float]:
    """Metric name -> value over [E] predictions and labels; InputError for an unknown name, shapes that differ."""
    names = tuple(names)
    for name in names:
        if name not in RATING_METRICS:
            raise InputError(f'no metric of ratings "{name}"{nearest(name, RATING_METRICS)}')
    return {name: RATING_METRICS[name](predictions, labels) for name in names}


def _of_size_one(values: np.ndarray) -> np.ndarray:
    largest = np.abs(values).max(initial=0.0)
    return np.ldexp(values, -int(np.frexp(largest)[1])) if largest else values


def ratings(predictions, labels, weights=None) -> tuple[np.ndarray, np.ndarray]:
    """The pairs that count as two float64 arrays; see `Moments.of` for what is refused."""
    x, y = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    keep = np.ones(y.shape, bool) if weights is None else np.asarray(weights)
    for name, array in (("predictions", x), ("weights", keep)):
        if array.shape != y.shape or y.ndim != 1:
            raise InputError(
                f"{name} have shape {array.shape} and labels {y.shape}; both must be one and the same (B,)"
            )
    if not np.isin(keep, (0, 1)).all():
        raise InputError("weights must be 0 or 1: they say which examples count")
    x, y = x[keep.astype(bool)], y[keep.astype(bool)]
    for name, array in (("predictions", x), ("labels", y)):
        if not np.isfinite(array).all():
            raise InputError(f"{name}: number {int(np.flatnonzero(~np.isfinite(array))[0])} is not finite")
    return x, y
