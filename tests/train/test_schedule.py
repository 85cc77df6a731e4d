"""Golden learning rates at the corners of every schedule; the rate that is logged is the one that was applied."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.config import TrainConfig
from train.optimizer import learning_rate, make_optimizer
from train.schedule import make_schedule
from zoo.errors import InputError

W, T = 4, 20
STEPS = (0, 1, W - 1, W, W + 1, T - 1, T, T + 1)
GOLDEN = {
    # peak 1, floor 0.1, and s = 3: x(4) = 1/16, x(5) = 2/16
    "constant": (0.25, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    "linear": (0.25, 0.5, 1.0, 0.94375, 0.8875, 0.1, 0.1, 0.1),
    "cosine": (0.25, 0.5, 1.0, 0.99135338, 0.96574581, 0.1, 0.1, 0.1),
    "warmup_stable_decay": (0.25, 0.5, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1),
}


def config(schedule="cosine", **changes):
    defaults = {"steps": T, "warmup_steps": W, "learning_rate": 1.0, "final_fraction": 0.1}
    if schedule == "warmup_stable_decay":
        defaults["decay_steps"] = 5
    return TrainConfig(schedule=schedule, **(defaults | changes))


@pytest.mark.parametrize("schedule", GOLDEN)
def test_golden_rates(schedule):
    rate = make_schedule(config(schedule))
    np.testing.assert_allclose([rate(n) for n in STEPS], GOLDEN[schedule], rtol=0, atol=1e-6)


def test_the_stable_part_lasts_until_the_decay():
    rate = make_schedule(config("warmup_stable_decay"))
    np.testing.assert_allclose(
        [rate(n) for n in (13, 14, 15, 16, 17, 18, 19)], [1, 1, 0.82, 0.64, 0.46, 0.28, 0.1], atol=1e-6
    )


@pytest.mark.parametrize("schedule", GOLDEN)
def test_without_warm_up_the_first_update_is_at_the_peak(schedule):
    rate = make_schedule(config(schedule, warmup_steps=0))
    assert float(rate(0)) == 1.0


@given(
    st.sampled_from(sorted(GOLDEN)),
    st.integers(1, 60),
    st.integers(0, 59),
    st.floats(1e-6, 1.0),
    st.floats(0.0, 1.0),
)
def test_never_negative_never_above_the_peak_and_ends_at_the_floor(schedule, total, warmup, peak, fraction):
    warmup = min(warmup, total - 1)
    made = config(
        schedule,
        steps=total,
        warmup_steps=warmup,
        learning_rate=peak,
        final_fraction=fraction,
        decay_steps=min(5, total - warmup) if schedule == "warmup_stable_decay" else 0,
    )
    rates = np.asarray(make_schedule(made)(jnp.arange(64)))  # one shape, one compilation
    assert rates[0] > 0
    assert np.all(rates >= 0) and np.all(rates <= np.float32(peak))
    if schedule != "constant" and total - 1 > max(warmup - 1, 0):
        assert np.all(rates[total - 1 :] == np.float32(peak * fraction))


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(InputError, match="warmup_steps is 20 but the run has 20 steps"):
        make_schedule(config(warmup_steps=T))
    with pytest.raises(InputError, match="decay_steps may be at most 16"):
        make_schedule(config("warmup_stable_decay", decay_steps=17))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_logged_is_applied(optimizer):
    made = config("linear", optimizer=optimizer, weight_decay=0.0, clip_norm=None, eps=1e-12)
    transform = make_optimizer(made)
    params = {"kernel": jnp.zeros(())}
    state = transform.init(params)
    for n in range(T):
        updates, state = transform.update({"kernel": jnp.float32(1)}, state, params)
        # A constant gradient of 1 makes Adam's direction 1 as well, so the update is the rate itself.
        np.testing.assert_allclose(-updates["kernel"], learning_rate(state), rtol=1e-5)
        assert float(learning_rate(state)) == float(make_schedule(made)(n))
