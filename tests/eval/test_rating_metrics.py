"""Correlations and errors of ratings against scipy and scikit-learn, added over any batches; constant ones are 0."""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import mean_absolute_error, mean_squared_error

from eval.metrics import higher_is_better, score_ratings
from eval.scores.rating_metrics import Moments, pearson, ranks, spearman
from zoo.errors import InputError

NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=32))


@st.composite
def pairs(draw):
    """Predictions and ratings; ties, few values and offsets that dwarf the spread are frequent."""
    size = draw(st.integers(2, 30))
    x, y = (np.array(draw(st.lists(NUMBERS, min_size=size, max_size=size))) for _ in range(2))
    return x + draw(st.sampled_from([0.0, 1e4])), y


@given(pairs(), st.integers(1, 31))
def test_equal_to_scipy_and_scikit_learn_in_batches_of_any_size(case, batch):
    x, y = case
    assume(np.ptp(x) > 1e-6 and np.ptp(y) > 1e-6)
    moments = Moments()
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        filler = np.full(2, np.nan)  # rows that only fill a batch up
        weights = np.r_[np.ones(len(x[part])), 0, 0]
        moments = moments + Moments.of(np.r_[x[part], filler], np.r_[y[part], filler], weights)
    assert moments.count == len(x)
    assert moments.pearson() == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-7)
    assert moments.mean_absolute_error() == pytest.approx(mean_absolute_error(y, x), rel=1e-9)
    assert moments.mean_squared_error() == pytest.approx(mean_squared_error(y, x), rel=1e-9)
    found = score_ratings(x, y, ("pearson", "spearman", "mean_absolute_error", "mean_squared_error"))
    assert found["spearman"] == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)
    assert found["pearson"] == pytest.approx(moments.pearson(), abs=1e-7)
    assert (ranks(x) == stats.rankdata(x)).all()


def test_literal_values():
    x, y = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0]
    assert pearson(x, y) == pytest.approx(0.6) and spearman(x, y) == pytest.approx(0.6)
    assert ranks([10.0, 20.0, 10.0, 30.0]).tolist() == [1.5, 3.0, 1.5, 4.0]
    assert pearson(x, [-2 * v + 7 for v in x]) == -1.0
    assert spearman(x, [v**5 for v in x]) == 1.0 > pearson(x, [v**5 for v in x])
    found = score_ratings(x, y, ("mean_absolute_error", "mean_squared_error"))
    assert found == {"mean_absolute_error": 1.0, "mean_squared_error": 1.0}


@given(st.floats(-1e6, 1e6, width=32), st.lists(NUMBERS, min_size=2, max_size=12), st.booleans())
def test_constant_ratings_correlate_with_nothing(value, others, swap):
    """scipy gives nan and a warning; a number that is not finite would end a run, so it is 0 here."""
    x, y = np.full(len(others), value), np.array(others)
    x, y = (y, x) if swap else (x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pearson(x, y) == 0.0 and spearman(x, y) == 0.0
        halves = Moments.of(x[:1], y[:1]) + Moments.of(x[1:], y[1:])
    assert halves.pearson() == 0.0


def test_sums_do_not_cancel_far_from_zero():
    """Sums of squares would lose all digits here: (1e8)^2 has no room for a spread of 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    y = x + rng.normal(size=50)
    halves = Moments.of(x[:20] + 1e8, y[:20]) + Moments.of(x[20:] + 1e8, y[20:])
    assert halves.pearson() == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "weights", "words"),
    [
        (np.zeros((3, 1)), np.zeros(3), None, "(3, 1) and labels (3,)"),
        (np.zeros(3), np.zeros((3, 1)), None, "(3,) and labels (3, 1)"),
        (np.zeros((3, 1)), np.zeros((3, 1)), None, "(B,)"),
        (np.zeros(2), np.zeros(3), None, "(2,) and labels (3,)"),
        (np.zeros(3), np.zeros(3), np.ones(2), "weights have shape (2,)"),
        (np.zeros(3), np.zeros(3), np.full(3, 0.5), "0 or 1"),
        (np.array([0.0, np.nan]), np.zeros(2), None, "predictions: number 1 is not finite"),
        (np.zeros(2), np.array([np.inf, 0.0]), None, "labels: number 0 is not finite"),
    ],
)
def test_what_would_broadcast_or_hide_is_refused(x, y, weights, words):
    with pytest.raises(InputError, match=None) as caught:
        Moments.of(x, y, weights)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_nothing_to_score_and_unknown_names():
    for name in ("pearson", "mean_absolute_error", "mean_squared_error"):
        with pytest.raises(InputError, match="nothing to score"):
            getattr(Moments(), name)()
    with pytest.raises(InputError, match='did you mean "spearman"'):
        score_ratings([1.0], [1.0], ("spearmann",))
    assert higher_is_better("pearson") and not higher_is_better("mean_absolute_error")


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e300, 1e-310])
def test_the_size_of_ratings_does_not_matter(size):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pearson(size * np.array([1.0, 2.0, 4.0]), [1.0, 2.0, 3.0]) == pytest.approx(0.98198, abs=1e-4)
