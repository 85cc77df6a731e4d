"""Learning-rate schedules: the rate of update n, counted from 0, of a run of T updates.

With w warm-up updates, peak rate p, floor f = final_fraction * p, s = max(w - 1, 0) and x = (n - s) / (T - 1 - s):

    n < w                p (n + 1) / w       the first update trains, and update w - 1 is at the peak
    linear               p + (f - p) x
    cosine               f + (p - f) (1 + cos(pi x)) / 2              Loshchilov and Hutter 2017, arXiv:1608.03983
    constant             p
    warmup_stable_decay  p until T - 1 - decay_steps, then linear to f          Hu et al. 2024, arXiv:2404.06395

The last update, n = T - 1, is at the floor (constant: at the peak), and so is any update after it.
"""

import jax.numpy as jnp
import optax

from train.config import TrainConfig
from zoo.errors import InputError


def make_schedule(config: TrainConfig) -> optax.Schedule:
    """The schedule of `config`: a function from an update's number (int32 scalar, from 0) to its rate (float32).

    Args:
        config: schedule, steps, warmup_steps, decay_steps, learning_rate and final_fraction are read.

    Returns:
        An optax schedule; never negative.

    Raises:
        InputError: warm-up (with the decay, where there is one) is longer than the run.
    """
    total, warmup, decay = config.steps, config.warmup_steps, config.decay_steps
    peak, floor = config.learning_rate, config.learning_rate * config.final_fraction
    if warmup >= total:
        raise InputError(
            f"warmup_steps is {warmup} but the run has {total} steps; it must be below {total}: give warmup_steps too"
        )
    begin = max(warmup - 1, 0)
    if config.schedule == "warmup_stable_decay":
        if warmup + decay > total:
            raise InputError(
                f"warmup_steps {warmup} + decay_steps {decay} is more than the run's {total} steps; decay_steps may be "
                f"at most {total - warmup}"
            )
        begin = max(total - 1 - decay, begin)
    length = max(total - 1 - begin, 1)

    def rate(count):
        count = jnp.asarray(count, jnp.float32)
        progress = jnp.clip((count - begin) / length, 0.0, 1.0)
        if config.schedule == "constant":
            after = jnp.float32(peak)
        elif config.schedule == "cosine":
            after = floor + (peak - floor) * (1 + jnp.cos(jnp.pi * progress)) / 2
        else:
            after = peak + (floor - peak) * progress
        # Roundings may miss the ends by a bit: those are exact.
        if config.schedule != "constant":
            after = jnp.where(count >= begin + length, floor, jnp.clip(after, floor, peak))
        before = jnp.minimum(peak * (count + 1) / max(warmup, 1), peak)
        return jnp.where(count < warmup, before, after).astype(jnp.float32)

    return rate
