"""AdamW with weight decay by parameter path, clipping by global norm, and plain SGD: optax pieces in one chain.

One update, on gradients g already divided by their weight:

    g <- g min(1, clip_norm / |g|)
    m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
    p <- p - rate (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p)

Decay is on the leaves alone whose paths match; moments are float32, as the parameters are.
"""

from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from train.config import TrainConfig
from train.schedule import make_schedule
from zoo.errors import InputError
from zoo.partition import path_string, platform


class RateState(NamedTuple):
    """State of the last link of the chain: the number of the next update, and the rate that the last one used."""

    count: jax.Array
    learning_rate: jax.Array


def matches(params: Any, patterns: tuple[str, ...]) -> Any:
    """A tree of booleans: which leaves' paths match one of `patterns` (fnmatch; `*` also crosses '/').

    Scanned and unscanned trees get the same answer, since a leaf's number of axes plays no part.

    Raises:
        InputError: a pattern that matches no leaf.
    """
    names = [path_string(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f'pattern "{pattern}" matches no parameter; paths look like "{names[0] if names else ""}"')
    return jax.tree_util.tree_map_with_path(
        lambda path, _: any(fnmatchcase(path_string(path), pattern) for pattern in patterns), params
    )


def scale_by_rate(schedule: optax.Schedule) -> optax.GradientTransformation:
    """Multiplies updates by -schedule(count), and keeps the rate in its state: what is logged is what was applied."""

    def init(params):
        del params
        return RateState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def update(updates, state, params=None):
        del params
        rate = jnp.asarray(schedule(state.count), jnp.float32)
        updates = jax.tree.map(lambda u: -rate.astype(u.dtype) * u, updates)
        return updates, RateState(optax.safe_increment(state.count), rate)

    return optax.GradientTransformation(init, update)


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """g min(1, most / |g|), |g| over all leaves: optax.clip_by_global_norm, by one factor for all and no quotients."""

    def update(updates, state, params=None):
        del params
        norm = optax.tree.norm(updates)
        factor = jnp.where(norm < most, 1.0, most / norm)
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_adam(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """optax.scale_by_adam with float32 moments, and its state; made for few passes over memory.

    XLA for CPUs would compute the new moments once to keep them and once more for the update, from copies of the old.
    """
    plain = optax.scale_by_adam(beta1, beta2, eps, mu_dtype=jnp.float32)

    def update(updates, state, params=None):
        del params
        mu = optax.tree.update_moment(updates, state.mu, beta1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, beta2, 2)
        if platform() == "cpu":
            mu, nu = jax.lax.optimization_barrier((mu, nu))
        count = optax.safe_increment(state.count)
        first, second = (1 / (1 - beta ** count.astype(jnp.float32)) for beta in (beta1, beta2))
        updates = jax.tree.map(lambda m, v: m * first / (jnp.sqrt(v * second) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(plain.init, update)


def make_optimizer(config: TrainConfig, schedule: optax.Schedule | None = None) -> optax.GradientTransformation:
    """The optimizer of a run.

    Args:
        config: optimizer, clip_norm, beta1, beta2, eps, weight_decay, decay; and the schedule's fields.
        schedule: rates by update number, in place of the config's own.

    Returns:
        An optax transformation. `learning_rate(opt_state)` reads the rate of the last update.
    """
    links = [clip_by_norm(config.clip_norm)] if config.clip_norm is not None else []
    if config.optimizer == "adamw":
        links.append(scale_by_adam(config.beta1, config.beta2, config.eps))
        if config.weight_decay:
            links.append(optax.add_decayed_weights(config.weight_decay, lambda params: matches(params, config.decay)))
    links.append(scale_by_rate(make_schedule(config) if schedule is None else schedule))
    return optax.chain(*links)


def learning_rate(opt_state: Any) -> jax.Array:
    """The rate that the last update used, or NaN where the optimizer is none of `make_optimizer`'s."""
    states = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, RateState))
    rates = [state.learning_rate for state in states if isinstance(state, RateState)]
    return rates[0] if rates else jnp.float32(jnp.nan)
