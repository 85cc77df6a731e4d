"""Intervals and tests against scipy and against tables; a bootstrap against the variance that it should have."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eval.experiment import rescore
from eval.experiment.statistics import (
    Interval,
    McNemar,
    holm,
    mcnemar,
    mean_interval,
    paired_bootstrap,
    paired_difference,
    sign_flip_p,
)
from zoo.errors import InputError


def test_three_seeds_by_hand():
    """t(0.975, 2) = 4.30265; sd of 0.70, 0.72, 0.74 is 0.02."""
    interval = mean_interval([0.70, 0.72, 0.74])
    assert interval.mean == pytest.approx(0.72)
    assert interval.half_width == pytest.approx(4.30265273 * 0.02 / math.sqrt(3), rel=1e-7)
    assert (interval.n, interval.level) == (3, 0.95)


@given(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=12), st.floats(0.5, 0.99))
def test_interval_equals_scipy(values, level):
    interval, spread = mean_interval(values, level), np.std(values, ddof=1)
    if spread <= 1e-9:
        return
    low, high = stats.t.interval(level, len(values) - 1, np.mean(values), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-9)


# Multiples of 1/64, so that sums which ought to be equal are: rounding is not what is compared.
@given(st.lists(st.tuples(*[st.integers(0, 64).map(lambda k: k / 64)] * 2), min_size=2, max_size=9))
def test_paired_tests_equal_scipy(pairs):
    a, b = np.array(pairs, np.float64).T
    if np.std(a - b, ddof=1) <= 1e-6:
        return
    got = paired_difference(a, b)
    assert got.p_t == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=1e-9)
    expected = stats.permutation_test(
        (a - b,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    # scipy doubles the smaller tail; with all signs at hand the distribution is symmetric, so both count |sum|.
    assert got.p_flip == pytest.approx(expected.pvalue, abs=1e-9)
    assert got.interval.excludes_zero == (got.p_t < 0.05) or abs(got.p_t - 0.05) < 1e-9


def test_sign_flips_by_hand():
    assert sign_flip_p([0.1, 0.2, 0.3]) == 2 / 8, "three seeds cannot give less"
    assert sign_flip_p([0.1] * 5) == 2 / 32
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0
    assert sign_flip_p([0.3, -0.1, 0.2]) == 0.5  # |0.4|: +++, +-+ and their mirrors
    many = sign_flip_p(np.full(20, 0.1) + np.linspace(0, 0.01, 20))
    assert many == 1 / 100_001 == sign_flip_p(np.full(20, 0.1) + np.linspace(0, 0.01, 20))
    assert paired_difference([0.5, 0.6, 0.7], [0.4, 0.4, 0.4]).p_flip_least == 0.25


def test_where_there_is_no_interval():
    one = mean_interval([0.7])
    assert (one.mean, one.low, one.high, one.half_width, one.excludes_zero) == (0.7, None, None, None, False)
    single = paired_difference([0.7], [0.6])
    assert (single.interval.low, single.p_t, single.p_flip) == (None, None, None)
    same = paired_difference([0.3, 0.5, 0.7], [0.1, 0.3, 0.5])
    assert same.interval.mean == pytest.approx(0.2) and same.interval.low is None and same.p_t is None
    assert same.p_flip == 0.25 and not same.interval.excludes_zero


@pytest.mark.parametrize("bad", [[], [0.1, math.nan], [0.1, math.inf], [[0.1]]])
def test_bad_values_are_refused(bad):
    with pytest.raises(InputError):
        mean_interval(bad)


def test_seeds_must_pair():
    with pytest.raises(InputError, match="2 scores against 3"):
        paired_difference([0.1, 0.2], [0.1, 0.2, 0.3])
    with pytest.raises(InputError, match="level"):
        mean_interval([0.1, 0.2], level=95)


def test_excludes_zero():
    assert Interval(0.2, 0.1, 0.3, 3).excludes_zero and Interval(-0.2, -0.3, -0.1, 3).excludes_zero
    assert not Interval(0.2, 0.0, 0.4, 3).excludes_zero and not Interval(0.2, -0.1, 0.5, 3).excludes_zero


def bootstrap(labels, a, b, name, classes, **settings):
    """`paired_bootstrap` on predicted classes."""
    task = SimpleNamespace(kind="classification", labels=("a", "b", "c")[:classes])
    sides = ([rescore.scorer(task, labels, row, name) for row in side] for side in (a, b))
    return paired_bootstrap(*sides, len(labels), **settings)


def arms(rng, seeds=4, examples=400, right_a=0.8, right_b=0.7):
    labels = rng.integers(0, 3, examples)
    wrong = (labels + 1) % 3
    a = [np.where(rng.random(examples) < right_a, labels, wrong) for _ in range(seeds)]
    b = [np.where(rng.random(examples) < right_b, labels, wrong) for _ in range(seeds)]
    return labels, np.array(a), np.array(b)


def test_bootstrap_over_examples_has_the_variance_of_paired_differences(rng):
    labels, a, b = arms(rng)
    paired = ((a == labels).astype(float) - (b == labels)).mean(axis=0)
    got = bootstrap(labels, a, b, "accuracy", 3, resample_seeds=False)
    assert got.mean == pytest.approx(paired.mean()) and got.n == 400
    assert got.half_width == pytest.approx(1.96 * paired.std() / 20, rel=0.12)


def test_bootstrap_over_seeds_adds_their_unbiased_variance(rng):
    """Both arms right or wrong everywhere alike within a seed: the test set adds nothing, seeds are all there is."""
    labels = np.zeros(50, int)
    a, b = np.repeat([[0], [0], [1], [1]], 50, axis=1), np.ones((4, 50), int)
    got = bootstrap(labels, a, b, "accuracy", 2, replicates=4000)
    by_seed = np.array([1.0, 1.0, 0.0, 0.0])
    assert got.mean == 0.5
    # Draws of 4 from (1, 1, 0, 0) have mean 0.5 + k/4; those at the 2.5 % ends are +-0.5, widened by sqrt(4/3).
    assert got.half_width == pytest.approx(0.5 * math.sqrt(4 / 3))
    assert by_seed.std(ddof=1) / 2 == pytest.approx(0.25 * math.sqrt(4 / 3))
    kept = bootstrap(labels, a, b, "accuracy", 2, resample_seeds=False)
    assert (kept.low, kept.high) == (0.5, 0.5)


def test_bootstrap_is_deterministic_pairs_examples_and_takes_any_metric(rng):
    labels, a, b = arms(rng, seeds=2, examples=150)
    first = bootstrap(labels, a, b, "macro_f1", 3, replicates=300)
    assert first == bootstrap(labels, a, b, "macro_f1", 3, replicates=300)
    assert first != bootstrap(labels, a, b, "macro_f1", 3, replicates=300, seed=1)
    mirrored = bootstrap(labels, b, a, "macro_f1", 3, replicates=300)
    assert mirrored.mean == pytest.approx(-first.mean)
    equal = bootstrap(labels, a, a, "macro_f1", 3, replicates=50)
    assert (equal.low, equal.high) == (0.0, 0.0), "the same examples are drawn for both arms"
    with pytest.raises(InputError, match="149 test examples"):
        bootstrap(labels[:-1], a, b, "accuracy", 3)
    with pytest.raises(InputError, match="nothing to pair"):
        paired_bootstrap([], [], 3)


def test_holms_correction_by_hand():
    """Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1; then none below the one before it."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx((0.06, 0.04, 0.06, 0.06))
    # Holm's own kind of example: 0.005 x 4, 0.011 x 3, 0.02 x 2, 0.3.
    assert holm([0.3, 0.005, 0.02, 0.011]) == pytest.approx((0.3, 0.02, 0.04, 0.033))
    assert holm([0.5, 0.9]) == (1.0, 1.0) and holm([0.03]) == (0.03,) and holm([]) == ()
    assert holm([None, 0.02, None, 0.04]) == (None, 0.04, None, 0.04), "what is not tested is no member of the family"
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="is no p-value"):
            holm([0.5, bad])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.randoms())
def test_holms_correction_lies_between_none_and_bonferronis_and_keeps_the_order(values, random):
    adjusted = holm(values)
    for p, q in zip(values, adjusted, strict=True):
        assert p <= q <= min(1.0, len(values) * p) + 1e-12
    assert min(adjusted) == pytest.approx(min(1.0, len(values) * min(values)))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert all(adjusted[i] <= adjusted[j] for i, j in zip(order, order[1:], strict=False))
    mixed = list(range(len(values)))
    random.shuffle(mixed)
    assert holm([values[i] for i in mixed]) == tuple(adjusted[i] for i in mixed)


def test_mcnemar_by_hand():
    """2 P(X <= k) of n fair coins: 5 and 1 give 2 (1 + 6) / 64; 8 and 0 give 2 / 256."""
    a = [True] * 5 + [False] + [True] * 3 + [False]
    b = [False] * 5 + [True] + [True] * 3 + [False]
    assert mcnemar(a, b) == McNemar(5, 1, pytest.approx(14 / 64))
    assert mcnemar([True] * 8, [False] * 8) == McNemar(8, 0, pytest.approx(2 / 256))
    assert mcnemar([True, False], [True, False]) == McNemar(0, 0, 1.0)
    assert mcnemar([True, False], [False, True]).p == 1.0
    with pytest.raises(InputError, match="of the same examples"):
        mcnemar([True], [True, False])
