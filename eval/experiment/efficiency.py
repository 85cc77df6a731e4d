"""Label efficiency: how many labels another arm needs for the score that an arm reaches with few.

The other arm's mean score over seeds is taken as a curve over budgets, straight in log labels between them:

    s(n) = s_i + (s_(i+1) - s_i) log(n / n_i) / log(n_(i+1) / n_i),    n_i <= n <= n_(i+1)

"Worth N labels" is the smallest n at which this curve reaches the score. Beyond the largest budget nothing is known,
and below the smallest neither: then it is only said that N is more than the one, or at most the other. The interval is
the percentile bootstrap over seeds (drawn with replacement, the same ones for both arms); with few seeds it is too
narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.experiment.statistics import LEVEL
from zoo.errors import InputError

REPLICATES = 2000


@dataclass(frozen=True)
class Worth:
    """How many labels of the other arm a score is worth.

    Attributes:
        labels: n, at which the score was reached.
        needed: N of the other arm; infinity where its largest budget does not reach the score, 0 where its smallest
            does already.
        low, high: ends of the interval, the same in meaning; None with one seed.
        smallest, largest: budgets of the other arm.
        seeds: how many the means rest on.
    """

    labels: int
    needed: float
    low: float | None
    high: float | None
    smallest: int
    largest: int
    seeds: int
    level: float = LEVEL

    @property
    def factor(self) -> float | None:
        """N / n, None where N is beyond the budgets."""
        return self.needed / self.labels if 0 < self.needed < math.inf else None

    @property
    def words(self) -> str:
        """`630 labels (410 to more than 2,000)`."""
        if self.low is None or self.high is None:
            return f"{self._count(self.needed)} labels (no interval, one seed)"
        needed, low, high = (self._count(value) for value in (self.needed, self.low, self.high))
        return f"{needed} labels" + ("" if needed == low == high else f" ({low} to {high})")

    def _count(self, labels: float) -> str:
        if labels == math.inf:
            return f"more than {self.largest:,}"
        return f"at most {self.smallest:,}" if labels == 0 else f"{labels:,.0f}"


def labels_needed(budgets: Sequence[int], scores: Sequence[float], score: float) -> float:
    """The smallest number of labels at which the curve reaches `score`.

    Args:
        budgets: rising, one at least.
        scores: at each; they need not rise.
        score: to be reached.

    Returns:
        Labels between the smallest and the largest budget; 0 where the smallest reaches it, infinity where none does.

    Raises:
        InputError: budgets that do not rise, or another number of scores.
    """
    if not budgets or len(budgets) != len(scores) or any(b <= a for a, b in zip(budgets, budgets[1:], strict=False)):
        raise InputError(f"budgets {list(budgets)} with {len(scores)} scores; they must rise, with one score each")
    if scores[0] >= score:
        return 0.0
    for i in range(1, len(budgets)):
        if scores[i] >= score:
            share = (score - scores[i - 1]) / (scores[i] - scores[i - 1])
            return float(budgets[i - 1] * (budgets[i] / budgets[i - 1]) ** share)
    return math.inf


def worth(
    labels: int,
    scores: Sequence[float],
    budgets: Sequence[int],
    other: Sequence[Sequence[float]],
    *,
    higher_is_better: bool = True,
    replicates: int = REPLICATES,
    level: float = LEVEL,
    seed: int = 0,
) -> Worth:
    """How many labels of the other arm the mean of `scores` is worth.

    Args:
        labels: n.
        scores: [S] of the arm at n, one a seed.
        budgets: [B] of the other arm, rising.
        other: [S, B] its scores, in the same order of seeds.
        higher_is_better: False for errors.
        replicates, level, seed: of the bootstrap.

    Raises:
        InputError: shapes that do not fit, values that are not finite.
    """
    sign = 1.0 if higher_is_better else -1.0
    own, curve = sign * np.asarray(scores, np.float64), sign * np.asarray(other, np.float64)
    if own.ndim != 1 or not own.size or curve.shape != (len(own), len(budgets)):
        raise InputError(f"scores {own.shape} against {curve.shape}; (S,) and (S, {len(budgets)}) are needed")
    if not (np.isfinite(own).all() and np.isfinite(curve).all()):
        raise InputError("a score is not finite; a run went wrong")
    needed = labels_needed(budgets, curve.mean(axis=0).tolist(), float(own.mean()))
    low = high = None
    if len(own) > 1:
        random = np.random.default_rng(seed)
        drawn = np.empty(replicates)
        for r in range(replicates):
            chosen = random.integers(len(own), size=len(own))
            drawn[r] = labels_needed(budgets, curve[chosen].mean(axis=0).tolist(), float(own[chosen].mean()))
        drawn.sort()  # the ends are drawn values themselves: between a number and infinity there is nothing
        outside = int((1 - level) / 2 * replicates)
        low, high = float(drawn[outside]), float(drawn[replicates - 1 - outside])
    return Worth(labels, needed, low, high, budgets[0], budgets[-1], len(own), level)
