"""TrainState: all that a training run carries from step to step. Shapes are the same under every driver."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct


@struct.dataclass
class TrainState:
    """Attributes:
    step: int32 scalar, updates done; also the number of the next batch.
    params: nested dict, float32.
    opt_state: optax's, moments in float32.
    key: uint32 key data of the run's seed. It never changes: a step folds its number in.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key: jax.Array


def make_state(params: Any, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """The state before the first step.

    Args:
        params: initial parameters.
        optimizer: its state is initialised on them, in float32 whatever their type, as the gradients are.
        seed: of masks and dropout.
    """
    moments = optimizer.init(jax.tree.map(lambda p: p.astype(jnp.float32), params))
    return TrainState(jnp.zeros((), jnp.int32), params, moments, jax.random.key_data(jax.random.key(seed)))


def initial_state(
    init: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation, seed: int
) -> Callable[[], TrainState]:
    """A function of nothing that makes the state, for a driver to trace: the parameters are born where they will live.

    Args:
        init: model.init.
        optimizer: see make_state.
        seed: of the parameters too, from another stream than masks and dropout.
    """
    return lambda: make_state(init(jax.random.fold_in(jax.random.key(seed), 1)), optimizer, seed)


def row_keys(key_data: jax.Array, step: jax.Array, row_ids: jax.Array) -> jax.Array:
    """One key a row: fold_in(fold_in(seed's key, step), row id). They depend on no mesh and on no micro-batch.

    Args:
        key_data: uint32, of a TrainState.
        step: int32 scalar.
        row_ids: [B] int32, a row's number in the global batch.

    Returns:
        [B] keys.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(key_data), step)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(row_ids)
