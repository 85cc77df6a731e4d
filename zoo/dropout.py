"""Dropout whose mask is a pure function of (row, layer, site, element), whatever the mesh, kernel or block size.

Each row of the batch carries two 32-bit seeds. A layer and a site are folded in, then every element hashes its index
with them: two rounds of a 32-bit multiply-xorshift mixer (constants from the search of C. Wellons, "Prospecting for
hash functions", 2018). One comparison an element, no generator state: on a CPU about a tenth of the cost of threefry.
"""

import jax
import jax.numpy as jnp
from flax import struct

from zoo.errors import InputError

SITES = {"embed": 0, "attention": 1, "attention_weights": 2, "mlp": 3, "cross": 4, "cross_weights": 5, "head": 6}


@struct.dataclass
class Dropout:
    """Dropout at one site of one layer: a rate, and uint32 seeds [B, 2] into which both have been folded."""

    seeds: jax.Array
    rate: float = struct.field(pytree_node=False, default=0.0)


def row_seeds(key: jax.Array, batch: int) -> jax.Array:
    """uint32 [B, 2] from one key (folded by row number) or from an array of B keys.

    Raises:
        InputError: the array of keys is not one a row.
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if key.ndim == 0:
        key = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))
    if key.shape != (batch,):
        raise InputError(f"dropout_key has shape {key.shape}; give one key, or one a row: ({batch},)")
    return jax.random.key_data(key).reshape(batch, -1)[:, :2].astype(jnp.uint32)


def at_site(seeds: jax.Array | None, rate: float, layer: jax.Array | int, site: str) -> Dropout | None:
    """The Dropout of a named site in a layer, or None in evaluation (seeds None) and at rate 0."""
    if seeds is None or rate == 0.0:
        return None
    place = jnp.asarray(layer, jnp.uint32) * jnp.uint32(len(SITES)) + jnp.uint32(SITES[site])
    mixed = _mix(place + jnp.uint32(0x9E3779B9))
    first = _mix(seeds[:, 0] ^ mixed)
    second = _mix(seeds[:, 1] + first + mixed)
    return Dropout(seeds=jnp.stack([first, second], axis=1), rate=rate)


def keep(dropout: Dropout, index: jax.Array) -> jax.Array:
    """Which elements survive: bool [B, *index.shape], each True with probability 1 - rate.

    Args:
        dropout: from at_site.
        index: uint32, the element's number within its row; equal numbers give equal answers.
    """
    shape = (-1,) + (1,) * index.ndim
    first = dropout.seeds[:, 0].reshape(shape)
    second = dropout.seeds[:, 1].reshape(shape)
    bits = _mix(_mix(index.astype(jnp.uint32)[None] + first) ^ second)
    return bits < jnp.uint32(min(round((1.0 - dropout.rate) * 2**32), 2**32 - 1))


def drop(x: jax.Array, dropout: Dropout | None) -> jax.Array:
    """x with elements zeroed at the rate and the rest divided by 1 - rate; x itself where dropout is None.

    Args:
        x: [B, ...].
    """
    if dropout is None:
        return x
    index = jnp.arange(x[0].size, dtype=jnp.uint32).reshape(x.shape[1:])
    # In float32: 0.9 rounded to bfloat16 would shift the mean by 0.2 %.
    return jnp.where(keep(dropout, index), x.astype(jnp.float32) / (1.0 - dropout.rate), 0.0).astype(x.dtype)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
