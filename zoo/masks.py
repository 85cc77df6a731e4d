"""Who sees whom: attention masks as structure first, booleans last.

A Mask names its structure (causal, window, segments, padding, prefix) and becomes a boolean array only where a kernel
asks for it, whole or block by block. Rows are queries, columns are keys; True means visible.
"""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Mask:
    """The visibility of keys to queries.

    A key s is visible to a query t when all that apply hold: key_valid[s]; the segments of t and s are equal; slot(s)
    <= slot(t) or s in the prefix, if causal; order(t) - order(s) < window if causal, |order(t) - order(s)| <= window //
    2 if not. Slots count places in the row or cache, order counts real tokens, so padding never widens a window.

    Attributes:
        causal: the future is hidden.
        window: width of local attention in tokens, or None.
        query_start: slot of the first query where queries continue a cache, a scalar or [B]: one a row; None for slot 0
            (said by the structure, so that it stays known under jit, scan and remat).
        key_valid: bool [B, S], False on padding and on empty cache slots; None for all True.
        query_segments, key_segments: int [B, T], [B, S]; None for one segment.
        query_order, key_order: int [B, T], [B, S]; None for slots.
        key_slots: int [S], the slot of each key where keys do not lie in order (a ring cache); None for their index.
        prefix_keys: bool [B, S], keys that even earlier queries see; None for none.
    """

    causal: bool = struct.field(pytree_node=False, default=False)
    window: int | None = struct.field(pytree_node=False, default=None)
    query_start: jax.Array | int | None = None
    key_valid: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    query_order: jax.Array | None = None
    key_order: jax.Array | None = None
    prefix_keys: jax.Array | None = None
    key_slots: jax.Array | None = None

    @property
    def only_causal(self) -> bool:
        """True where the whole mask is `slot(s) <= slot(t)` from slot 0, which kernels know by themselves."""
        return self.causal and self.window is None and self._no_arrays and self.query_start is None

    @property
    def everything_visible(self) -> bool:
        return not self.causal and self.window is None and self._no_arrays

    @property
    def _no_arrays(self) -> bool:
        return self.key_valid is None and self.query_segments is None and self.prefix_keys is None


def visible(mask: Mask, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
    """The boolean mask between some queries and some keys.

    Args:
        mask: the structure.
        query_slots: int [t], indices of queries within the call (0 is the first query, at slot mask.query_start).
        key_slots: int [s], indices of keys.

    Returns:
        bool [B or 1, 1, t, s].
    """
    start = 0 if mask.query_start is None else jnp.reshape(mask.query_start, (-1, 1))
    row = jnp.expand_dims(jnp.atleast_2d(query_slots + start), 2)
    column = jnp.expand_dims(key_slots if mask.key_slots is None else mask.key_slots[key_slots], (0, 1))
    seen = jnp.ones((1, query_slots.shape[0], key_slots.shape[0]), bool)
    if mask.causal:
        past = column <= row
        if mask.prefix_keys is not None:
            past = past | mask.prefix_keys[:, key_slots][:, None, :]
        seen = seen & past
    if mask.window is not None:
        query_order = row if mask.query_order is None else mask.query_order[:, query_slots][:, :, None]
        key_order = column if mask.key_order is None else mask.key_order[:, key_slots][:, None, :]
        distance = query_order - key_order
        near = distance < mask.window if mask.causal else jnp.abs(distance) <= mask.window // 2
        seen = seen & near
    if mask.query_segments is not None:
        same = mask.query_segments[:, query_slots][:, :, None] == mask.key_segments[:, key_slots][:, None, :]
        seen = seen & same
    if mask.key_valid is not None:
        seen = seen & mask.key_valid[:, key_slots][:, None, :]
    return seen[:, None]


def materialise(mask: Mask, query_length: int, key_length: int) -> jax.Array | None:
    """The whole boolean mask [B or 1, 1, T, S], or None where everything is visible."""
    if mask.everything_visible:
        return None
    return visible(mask, jnp.arange(query_length), jnp.arange(key_length))


def causal_mask(query_length: int, key_length: int | None = None) -> jax.Array:
    """bool [T, S] with query t seeing keys 0..t; the last query stands at the last key."""
    key_length = query_length if key_length is None else key_length
    start = key_length - query_length
    return materialise(Mask(causal=True, query_start=start), query_length, key_length)[0, 0]

