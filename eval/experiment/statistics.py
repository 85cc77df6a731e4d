"""What a few seeds allow one to say: intervals over seeds, paired tests, and a bootstrap over test examples.

A comparison has two sources of chance. The *seed* picks the labelled examples, the initial weights and the order; the
*test set* is a sample of the texts that one cares about. Each is answered by its own interval:

1. **Student's t on the differences by seed** (primary). With d_s = a_s - b_s, where both arms of seed s had the same
   labelled examples, mean(d) +- t(0.975, n - 1) sd(d) / sqrt(n). With three seeds t is 4.30, so the interval is wide:
   the honest price of three seeds. It answers: would other seeds show the same, on this test set? It assumes
   differences that are near normal, which three numbers cannot show; the exact sign-flip test beside it assumes only
   that they are symmetric about zero if nothing was bought, and with n seeds its p-value cannot fall below 2 / 2^n
   (0.25 for three, 0.0625 for five).
2. **Paired bootstrap over test examples, crossed with seeds** (secondary). Examples are drawn with replacement, the
   same for both arms and all seeds, and seeds are drawn with replacement too. It answers: would another test set show
   the same? A draw of n seeds from n understates the spread between seeds by (n - 1) / n, which is put right by a
   factor; but its quantiles stay those of a large sample, so with few seeds it is too narrow to stand alone.

Where a report makes many comparisons, some exclude zero by chance: `holm` corrects a family of p-values for that.

One seed gives no interval (None), and no spread between seeds gives none either: never an interval of width zero.

References: Student 1908, Biometrika 6; Fisher 1935, The Design of Experiments, section 21 (sign flips); Efron and
Tibshirani 1993, An Introduction to the Bootstrap, chapter 13; Davison and Hinkley 1997, Bootstrap Methods, section 3.8
(nested samples and their bias); Dror et al. 2018, The Hitchhiker's Guide to Testing Statistical Significance in NLP,
ACL.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zoo.errors import InputError

# A score as a function of how often each test example counts (None: once each); see eval.experiment.rescore.
Score = Callable[..., float]
LEVEL = 0.95
EXACT_LIMIT = 16
NO_SPREAD = 1e-12


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its confidence interval; None for both where there is none.

    Attributes:
        mean: the point.
        low, high: the ends.
        n: how many values it rests on.
        level: of confidence.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    level: float = LEVEL

    @property
    def half_width(self) -> float | None:
        return None if self.low is None else (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside; False without an interval."""
        return self.low is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class PairedDifference:
    """A difference between two arms over shared seeds.

    Attributes:
        interval: Student's t interval of the mean difference.
        p_t: two-sided p-value of the paired t-test; None without an interval.
        p_flip: two-sided p-value of the sign-flip test; None for one seed.
        p_flip_least: the smallest p_flip that so many seeds can give.
    """

    interval: Interval
    p_t: float | None
    p_flip: float | None
    p_flip_least: float | None


def mean_interval(
    values: Sequence[float], level: float = LEVEL, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """mean +- t((1 + level) / 2, n - 1) sd / sqrt(n), with sd over n - 1.

    Args:
        values: one number a seed.
        level: of confidence, between 0 and 1.
        bounds: between which the mean must lie, as accuracies do between 0 and 1: the interval is cut off there.

    Raises:
        InputError: no value, or one that is not finite.
    """
    array = _finite(values, "values")
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must be between 0 and 1")
    mean, error = float(array.mean()), _standard_error(array)
    if error is None:
        return Interval(mean, None, None, len(array), level)
    from scipy import stats

    half = float(stats.t.ppf((1 + level) / 2, len(array) - 1)) * error
    return Interval(mean, max(mean - half, bounds[0]), min(mean + half, bounds[1]), len(array), level)


def paired_difference(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> PairedDifference:
    """Mean of a - b over seeds, with the interval and both tests of the module's head.

    Args:
        a, b: scores of the two arms, in the same order of seeds.
        level: of confidence.

    Raises:
        InputError: lengths that differ, no value, a value that is not finite.
    """
    left, right = _finite(a, "the first arm"), _finite(b, "the second arm")
    if left.shape != right.shape:
        raise InputError(f"{len(left)} scores against {len(right)}: paired seeds need as many on both sides")
    difference = left - right
    interval, p_t = mean_interval(difference, level), None
    error = _standard_error(difference)
    if error is not None:
        from scipy import stats

        p_t = float(2 * stats.t.sf(abs(interval.mean) / error, len(difference) - 1))
    n = len(difference)
    if n == 1:
        return PairedDifference(interval, None, None, None)
    return PairedDifference(interval, p_t, sign_flip_p(difference), 2 / 2**n if n <= EXACT_LIMIT else 1 / 100_001)


def sign_flip_p(differences: Sequence[float], draws: int = 100_000) -> float:
    """The share of sign patterns whose |sum| is at least the one seen: exact for up to 16 differences.

    Beyond that, (1 + hits) / (1 + draws) over random patterns from a fixed generator (Phipson and Smyth 2010).

    Args:
        differences: one a seed.
        draws: random patterns beyond 16 differences.
    """
    d = _finite(differences, "differences")
    seen = abs(d.sum()) - NO_SPREAD * max(1.0, np.abs(d).sum())
    if len(d) <= EXACT_LIMIT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(d))))
        return float(np.mean(np.abs(signs @ d) >= seen))
    random = np.random.default_rng(0)
    hits = sum(np.abs(random.choice((-1.0, 1.0), (1000, len(d))) @ d >= seen).sum() for _ in range(draws // 1000))
    return float((1 + hits) / (1 + draws))


def paired_bootstrap(
    a: Sequence[Score],
    b: Sequence[Score],
    num_examples: int,
    *,
    resample_seeds: bool = True,
    replicates: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Percentile interval of mean_s a_s - b_s under redrawn test examples and seeds.

    Args:
        a, b: [S] scores of the two arms in the same order of seeds, as functions of how often each example counts
            (`eval.experiment.rescore.scorer`).
        num_examples: E.
        resample_seeds: redraw seeds as well; False keeps them, so that only the test set's chance is in the interval.
        replicates: bootstrap draws.
        level: of confidence.
        seed: of the draws.

    Returns:
        Interval whose mean is the difference on the examples as they are and whose n is E.

    Raises:
        InputError: another number of seeds on either side, or no example.
    """
    if len(a) != len(b) or not a or num_examples < 1:
        raise InputError(f"{len(a)} scores against {len(b)} on {num_examples} examples: nothing to pair")

    def differences(counts: np.ndarray | None) -> np.ndarray:
        return np.array([left(counts) - right(counts) for left, right in zip(a, b, strict=True)])

    num_seeds = len(a)
    random = np.random.default_rng(seed)
    inflate = math.sqrt(num_seeds / (num_seeds - 1)) if resample_seeds and num_seeds > 1 else 0.0
    seen = float(differences(None).mean())
    drawn = np.empty(replicates)
    for r in range(replicates):
        chosen = random.integers(num_examples, size=num_examples)
        by_seed = differences(np.bincount(chosen, minlength=num_examples))
        redrawn = by_seed[random.integers(num_seeds, size=num_seeds)].mean()
        drawn[r] = by_seed.mean() + inflate * (redrawn - by_seed.mean())
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(seen, float(low), float(high), num_examples, level)


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """p-values of a family of m tests, adjusted so that a false finding anywhere in it has the stated probability.

        p(1) <= ... <= p(m):    adjusted p(i) = max over j <= i of min(1, (m - j + 1) p(j))

    Args:
        p_values: in any order; None where a comparison has no test, which is then no member of the family.

    Returns:
        Adjusted values in the same order, None where there was none.

    Raises:
        InputError: a value outside [0, 1].

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics.
    """
    given = [(p, place) for place, p in enumerate(p_values) if p is not None]
    for p, _ in given:
        if not 0 <= p <= 1:
            raise InputError(f"{p} is no p-value; they are from 0 to 1")
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(sorted(given)):
        highest = max(highest, min(1.0, (len(given) - rank) * p))
        adjusted[place] = highest
    return tuple(adjusted)


@dataclass(frozen=True)
class McNemar:
    """Two classifiers on the same examples.

    Attributes:
        only_a, only_b: examples that one of them alone got right.
        p: two-sided p-value of the exact test: 1 where neither has any.
    """

    only_a: int
    only_b: int
    p: float


def mcnemar(right_a: Sequence[bool], right_b: Sequence[bool]) -> McNemar:
    """McNemar's exact test: of the n examples that one alone got right, each side would get half.

        p = min(1, 2 P(X <= min(only_a, only_b))),    X ~ Binomial(n, 1/2)

    Args:
        right_a, right_b: [E] whether each example is right.

    Raises:
        InputError: lengths that differ.

    Reference: McNemar 1947, "Note on the sampling error of the difference between correlated proportions".
    """
    a, b = np.asarray(right_a, bool), np.asarray(right_b, bool)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"{a.shape} answers against {b.shape}: both must be of the same examples")
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    from scipy import stats

    p = 2 * float(stats.binom.cdf(min(only_a, only_b), only_a + only_b, 0.5))
    return McNemar(only_a, only_b, min(1.0, p))


def _standard_error(array: np.ndarray) -> float | None:
    if len(array) < 2:
        return None
    spread = float(array.std(ddof=1))
    return None if spread <= NO_SPREAD * max(1.0, float(np.abs(array).max())) else spread / math.sqrt(len(array))


def _finite(values: Sequence[float], name: str) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not array.size:
        raise InputError(f"{name}: one number a seed is needed, at least one; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(f"{name}: {array[~np.isfinite(array)][0]} is not finite; a run went wrong")
    return array
