"""Label efficiency: interpolation by hand, what lies beyond the budgets, an interval over seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.experiment.efficiency import labels_needed, worth
from zoo.errors import InputError


def test_interpolation_is_straight_in_log_labels():
    """Half of the way in score is half of the way in log labels: the geometric mean."""
    assert labels_needed([100, 400], [0.5, 0.7], 0.6) == pytest.approx(200)
    assert labels_needed([100, 400], [0.5, 0.7], 0.55) == pytest.approx(100 * 4**0.25)
    assert labels_needed([10, 100, 1000], [0.2, 0.4, 0.8], 0.6) == pytest.approx(math.sqrt(100 * 1000))
    assert labels_needed([10, 100, 1000], [0.2, 0.4, 0.8], 0.4) == pytest.approx(100)
    assert labels_needed([10, 100, 1000], [0.2, 0.4, 0.8], 0.8) == pytest.approx(1000)


def test_beyond_the_budgets_nothing_is_known():
    assert labels_needed([100, 400], [0.5, 0.7], 0.71) == math.inf
    assert labels_needed([100, 400], [0.5, 0.7], 0.5) == labels_needed([100, 400], [0.5, 0.7], 0.1) == 0
    assert labels_needed([100], [0.5], 0.6) == math.inf


def test_a_curve_that_falls_again_is_read_at_its_first_crossing():
    assert labels_needed([10, 20, 40, 80], [0.1, 0.5, 0.3, 0.9], 0.3) == pytest.approx(10 * 2**0.5)
    assert labels_needed([10, 20, 40, 80], [0.1, 0.5, 0.3, 0.9], 0.6) == pytest.approx(40 * 2**0.5)


@given(
    st.lists(st.integers(2, 10_000), min_size=1, max_size=6, unique=True).map(sorted),
    st.data(),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_higher_score_needs_no_fewer_labels(budgets, data, one, other):
    scores = data.draw(st.lists(st.floats(0, 1), min_size=len(budgets), max_size=len(budgets)))
    low, high = (labels_needed(budgets, scores, score) for score in sorted((one, other)))
    assert low <= high * (1 + 1e-9)
    for needed in (low, high):
        assert needed in (0, math.inf) or budgets[0] * (1 - 1e-9) <= needed <= budgets[-1] * (1 + 1e-9)


def test_worth_over_seeds():
    """Means 0.6 against 0.5 and 0.7: 200 labels. Each seed by itself gives 200 as well, so there is no spread."""
    found = worth(50, [0.6, 0.7], [100, 400], [[0.5, 0.7], [0.6, 0.8]])
    assert (found.needed, found.low, found.high) == pytest.approx((200, 200, 200))
    assert found.factor == pytest.approx(4) and found.words == "200 labels"
    assert (found.labels, found.smallest, found.largest, found.seeds) == (50, 100, 400, 2)
    spread = worth(50, [0.55, 0.65], [100, 400], [[0.5, 0.7], [0.5, 0.7]])
    assert spread.needed == pytest.approx(200)
    assert (spread.low, spread.high) == pytest.approx((100 * 4**0.25, 100 * 4**0.75))
    assert spread.words == "200 labels (141 to 283)"


def test_what_is_censored_is_said():
    more = worth(50, [0.9, 0.6], [100, 2000], [[0.5, 0.7], [0.5, 0.7]])
    assert (more.needed, more.high, more.factor) == (math.inf, math.inf, None)
    assert more.words == f"more than 2,000 labels ({more.low:,.0f} to more than 2,000)"
    fewer = worth(50, [0.4, 0.3], [100, 2000], [[0.5, 0.7], [0.5, 0.7]])
    assert (fewer.needed, fewer.factor, fewer.words) == (0, None, "at most 100 labels")
    one = worth(50, [0.6], [100, 400], [[0.5, 0.7]])
    assert (one.low, one.high, one.words) == (None, None, "200 labels (no interval, one seed)")


def test_errors_are_better_when_they_are_small():
    falling = worth(50, [0.4], [100, 400], [[0.5, 0.3]], higher_is_better=False)
    assert falling.needed == pytest.approx(200)


def test_the_bootstrap_draws_the_same_seeds_for_both_arms():
    """Seeds that differ much, and alike in both arms: paired, the answer is the same in every draw."""
    shifts = np.array([0.0, 0.2, 0.5, -0.3])
    found = worth(9, 0.1 + shifts, [10, 1000], np.stack([shifts, 0.2 + shifts], axis=1))
    assert (found.low, found.high) == pytest.approx((100, 100))


@pytest.mark.parametrize(
    "arguments",
    [
        ([0.5], [10, 10], [[0.1, 0.2]]),
        ([0.5, 0.6], [10, 20], [[0.1, 0.2]]),
        ([], [10], []),
        ([math.nan], [10], [[0.5]]),
    ],
)
def test_what_does_not_fit_is_refused(arguments):
    with pytest.raises(InputError):
        worth(5, *arguments)
