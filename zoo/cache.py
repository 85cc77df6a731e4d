"""The key-value cache: an argument and a result, never hidden state.

Slots fill from the left. A slot remembers whether its token was real, which segment it belonged to and how many real
tokens of that segment came before it, so ragged prompts, padded on either side, go on as if each were alone.
"""

import jax
import jax.numpy as jnp
from flax import struct

from zoo.config import ModelConfig
from zoo.errors import InputError


@struct.dataclass
class Cache:
    """What the decoder remembers.

    Attributes:
        keys, values: [L', B, S, K, H] stacked for scanned models (L' = repeats, one entry of the tuple a pattern slot,
            then one [B, S, K, H] for each layer of a repeat cut short), or a tuple of L arrays [B, S, K, H].
        valid: bool [B, S], real tokens.
        order: int32 [B, S], count of real tokens before this one in its segment.
        segments: int32 [B, S].
        length: int32 scalar, slots filled.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    valid: jax.Array
    order: jax.Array
    segments: jax.Array
    length: jax.Array

    @property
    def capacity(self) -> int:
        """S: how many slots there are."""
        return self.valid.shape[1]


def init_cache(config: ModelConfig, batch: int, length: int, dtype: str | None = None) -> Cache:
    """An empty cache for `batch` rows of up to `length` tokens, prompt included.

    Args:
        dtype: of keys and values; None for the config's.

    Raises:
        InputError: the model sees both ways, or `length` exceeds its positions.
    """
    if config.visibility == "full":
        raise InputError('a cache serves causal models; this one has visibility "full": run it on whole rows')
    if length < 1:
        raise InputError(f"cache length is {length}; it must be at least 1")
    if config.positions == "learned" and length > config.max_positions:
        raise InputError(f"cache length {length} exceeds the model's {config.max_positions} positions")
    shape = (batch, length, config.num_kv_heads, config.head_dim)
    shapes = [shape] * config.num_layers
    if config.scan:
        shapes = [(config.num_repeats, *shape)] * len(config.layer_pattern) + [shape] * config.num_tail

    def empty():
        return tuple(jnp.zeros(one, dtype or config.dtype) for one in shapes)

    return Cache(
        keys=empty(),
        values=empty(),
        valid=jnp.zeros((batch, length), bool),
        order=jnp.zeros((batch, length), jnp.int32),
        segments=jnp.zeros((batch, length), jnp.int32),
        length=jnp.zeros((), jnp.int32),
    )


def write(buffer: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
    """buffer [B, S, ...] with new [B, T, ...] at slots start..start+T-1."""
    return jax.lax.dynamic_update_slice_in_dim(buffer, new.astype(buffer.dtype), start, axis=1)


def take_rows(cache: Cache, rows: jax.Array) -> Cache:
    """The cache of other rows: row i of the new one is row rows[i] of the old one. Scanned buffers have rows second."""

    def buffer(x):
        return jnp.take(x, rows, axis=x.ndim - 4)

    return cache.replace(
        keys=jax.tree.map(buffer, cache.keys),
        values=jax.tree.map(buffer, cache.values),
        valid=cache.valid[rows],
        order=cache.order[rows],
        segments=cache.segments[rows],
    )


def repeat_rows(cache: Cache, times: int) -> Cache:
    """Each row `times` times, next to each other."""
    return take_rows(cache, jnp.repeat(jnp.arange(cache.valid.shape[0]), times))
