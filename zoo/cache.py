"""The key-value cache: an argument and a result, never hidden state.

Heads stand before slots, as the products of attention read them: in the other order a CPU writes out all keys and
values anew for every token.

Slots fill from the left. A slot remembers whether its token was real, which segment it belonged to and how many real
tokens of that segment came before it, so ragged prompts, padded on either side, go on as if each were alone.

| dtype    | bytes a token, layer and head | error                                                                    |
|----------|-------------------------------|--------------------------------------------------------------------------|
| float32  | 8 H                           | none                                                                     |
| bfloat16 | 4 H                           | 2^-9 of each number, at most                                             |
| int8     | 2 H + 8                       | 1/254 of the largest number of a token's head, at most: symmetric, one   |
|          |                               | float32 scale for each token and head, read back as floats for attention |

An attention's output moves by at most max|v| (r + e^(2 e) - 1), e = |q|_1 max|k| score_scale r, r = 1/254 with int8 and
2^-9 with bfloat16.

In a ring cache a layer of window w keeps w slots and no more: token s lies in slot s mod w, over the one that has just
left the window. What is kept of a slot (valid, order, segments: 9 bytes) is kept for all of them in any case.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.masks import Mask
from zoo.partition import auto_mesh, row_axes, ways_of

CACHE_DTYPES = ("float32", "bfloat16", "float16", "int8")


@struct.dataclass
class Quantised:
    """Numbers as int8 times a scale: numbers int8 [..., B, K, S, H], scales float32 [..., B, K, S, 1]."""

    numbers: jax.Array
    scales: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def dtype(self) -> Any:
        return self.numbers.dtype


@struct.dataclass
class Cache:
    """What the decoder remembers.

    Attributes:
        keys, values: [L', B, K, S, H] stacked for scanned models (L' = repeats, one entry of the tuple a pattern slot,
            then one [B, K, S, H] for each layer of a repeat cut short), or a tuple of L arrays [B, K, S, H]; Quantised
            where they are int8. S is the window of a layer that keeps a ring.
        valid: bool [B, S], real tokens.
        order: int32 [B, S], count of real tokens before this one in its segment.
        segments: int32 [B, S].
        length: int32, slots filled: a scalar, or [B] where rows go on from places of their own.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    valid: jax.Array
    order: jax.Array
    segments: jax.Array
    length: jax.Array

    @property
    def capacity(self) -> int:
        """S: how many slots there are."""
        return self.valid.shape[1]

    @property
    def ring(self) -> bool:
        """Whether some layer keeps fewer slots than there are."""
        return any(keys.shape[-2] < self.capacity for keys in self.keys)


def init_cache(config: ModelConfig, batch: int, length: int, dtype: str | None = None, ring: bool = False) -> Cache:
    """An empty cache for `batch` rows of up to `length` tokens, prompt included.

    Under jax.set_mesh its rows are spread over the axes of a batch and its heads over `tensor`, where they divide.

    Args:
        dtype: of keys and values, one of CACHE_DTYPES; None for the config's.
        ring: layers whose window is below `length` keep so many slots alone. Such a cache serves rows of one text each,
            padded on the left alone. (Models of relative positions keep all slots.)

    Raises:
        InputError: the model sees both ways, `length` exceeds its positions, an unknown dtype.
    """
    if config.visibility == "full":
        raise InputError('a cache serves causal models; this one has visibility "full": run it on whole rows')
    if length < 1:
        raise InputError(f"cache length is {length}; it must be at least 1")
    if config.positions == "learned" and length > config.max_positions:
        raise InputError(f"cache length {length} exceeds the model's {config.max_positions} positions")
    dtype = config.dtype if dtype is None else jnp.dtype(dtype).name if hasattr(dtype, "dtype") else str(dtype)
    if dtype not in CACHE_DTYPES:
        raise InputError(f'cache dtype "{dtype}" is none of {", ".join(CACHE_DTYPES)}{nearest(dtype, CACHE_DTYPES)}')
    slots = _slots(config, length, ring)
    shapes = [(batch, config.num_kv_heads, slots[i % len(slots)], config.head_dim) for i in range(config.num_layers)]
    if config.scan:
        stacked = [(config.num_repeats, *shapes[i]) for i in range(len(slots))]
        shapes = stacked + shapes[config.num_layers - config.num_tail :]

    def empty() -> tuple[Any, ...]:
        if dtype != "int8":
            return tuple(jnp.zeros(shape, dtype) for shape in shapes)
        ones = [(*shape[:-1], 1) for shape in shapes]
        return tuple(
            Quantised(jnp.zeros(shape, jnp.int8), jnp.zeros(one, jnp.float32))
            for shape, one in zip(shapes, ones, strict=True)
        )

    return spread(
        Cache(
            keys=empty(),
            values=empty(),
            valid=jnp.zeros((batch, length), bool),
            order=jnp.zeros((batch, length), jnp.int32),
            segments=jnp.zeros((batch, length), jnp.int32),
            length=jnp.zeros((), jnp.int32),
        )
    )


def _slots(config: ModelConfig, length: int, ring: bool) -> list[int]:
    """Slots of each layer of the pattern."""
    ring = ring and config.positions != "relative"
    return [min(length, layer.window) if ring and layer.window else length for layer in config.layer_pattern]


@functools.partial(jax.jit, static_argnames=("config", "length", "ring"))
def grow(cache: Cache, *, config: ModelConfig, length: int, ring: bool = False) -> Cache:
    """The same cache with room for `length` tokens: the new slots are empty, and all that was in it stays.

    Attention costs what the slots cost, filled or not: a text that may become long starts in few.

    Args:
        cache: of this config.
        length: slots, at least those there are.
        ring: as the cache was made; layers that have not yet filled their window get slots up to it.

    Raises:
        InputError: what init_cache refuses; fewer slots than there are; a rotary scaling by length, whose angles go by
            the capacity.
    """
    if length < cache.capacity:
        raise InputError(f"a cache of {cache.capacity} slots does not shrink to {length}")
    if config.positions == "learned" and length > config.max_positions:
        raise InputError(f"cache length {length} exceeds the model's {config.max_positions} positions")
    if config.rotary_scaling is not None and config.rotary_scaling.by_length:
        kind = config.rotary_scaling.kind
        raise InputError(f'the angles of "{kind}" rotary scaling go by the cache\'s length: make it whole at once')
    slots = _slots(config, length, ring)
    places = range(len(slots) + config.num_tail) if config.scan else range(config.num_layers)

    def longer(x, axis, count):
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, count - x.shape[axis])
        return jnp.pad(x, widths)

    def buffers(held):
        return tuple(
            jax.tree.map(lambda x, i=i: longer(x, x.ndim - 2, slots[i % len(slots)]), one)
            for i, one in zip(places, held, strict=True)
        )

    wider = {name: longer(getattr(cache, name), 1, length) for name in ("valid", "order", "segments")}
    return spread(cache.replace(keys=buffers(cache.keys), values=buffers(cache.values), **wider))


def spread(cache: Cache) -> Cache:
    """The cache pinned to the mesh of jax.set_mesh: rows as a batch's, heads over `tensor`; as given without one."""
    mesh = auto_mesh()
    if mesh is None:
        return cache
    rows, batch = row_axes(mesh), cache.valid.shape[0]
    rows = rows if rows and batch % ways_of(rows, mesh.shape) == 0 else None

    def placed(x):
        if x.ndim < 4:
            spec = (rows, None)
        else:
            heads = "tensor" if "tensor" in mesh.shape and x.shape[-3] % mesh.shape["tensor"] == 0 else None
            spec = (*(None,) * (x.ndim - 4), rows, heads, None, None)
        return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))

    parts = {name: jax.tree.map(placed, getattr(cache, name)) for name in ("keys", "values")}
    return cache.replace(**parts, **{name: placed(getattr(cache, name)) for name in ("valid", "order", "segments")})


def write(buffer: jax.Array, new: jax.Array, start: jax.Array, axis: int = 1) -> jax.Array:
    """buffer with `new` at slots start..start+T-1 of its `axis`; start is a scalar, or [B]: one a row."""
    new = new.astype(buffer.dtype)
    if jnp.ndim(start):
        return jax.vmap(lambda row, part, at: jax.lax.dynamic_update_slice_in_dim(row, part, at, axis=axis - 1))(
            buffer, new, start
        )
    return jax.lax.dynamic_update_slice_in_dim(buffer, new, start, axis=axis)


def remember(held: tuple[Any, Any], key: jax.Array, value: jax.Array, start: jax.Array, mask: Mask):
    """One layer's buffers with new keys and values, and what the call attends to.

    Args:
        held: (keys, values) of the layer, [B, K, S, H] or of a ring [B, K, R, H]; Quantised or not.
        key, value: [B, T, K, H].
        start: slots filled before.
        mask: of the call, over all slots, those of the call among them.

    Returns:
        the new buffers; keys and values to attend to, [B, S, K, H] in the dtype of `key`; the mask over these.
    """
    by_heads = (jnp.swapaxes(x, 1, 2) for x in (key, value))
    new = tuple(_stored(x, buffer) for x, buffer in zip(by_heads, held, strict=True))
    slots, ring, count = mask.key_valid.shape[1], held[0].shape[2], key.shape[1]
    if ring == slots:
        held = _written(held, new, start)
        return held, *_floats(held, key.dtype), mask
    if count == 1:
        held = _written(held, new, start % ring)
        return held, *_floats(held, key.dtype), _ring_mask(mask, _ring_slots(ring, start + 1))
    # A query of a call of many tokens may see what a later one of the same call takes the place of.
    both = jax.tree.map(lambda buffer, x: jnp.concatenate([buffer, x], axis=2), held, new)
    seen = jnp.concatenate([_ring_slots(ring, start), start + jnp.arange(count)])
    newest = _ring_slots(ring, start + count) - start
    source = jnp.where(newest >= 0, ring + newest, jnp.arange(ring))
    held = jax.tree.map(lambda x: jnp.take(x, source, axis=2), both)
    return held, *_floats(both, key.dtype), _ring_mask(mask, seen)


def _written(held, new, start):
    # Kept apart from what reads it: XLA on CPUs would write once for the cache and once for attention, which takes a
    # copy of the whole buffer each.
    return jax.lax.optimization_barrier(jax.tree.map(lambda buffer, x: write(buffer, x, start, 2), held, new))


def _ring_slots(ring: int, filled: jax.Array) -> jax.Array:
    """int32 [R]: the slot that lies in each place of a ring after so many are filled; below 0 for none."""
    return filled - 1 - (filled - 1 - jnp.arange(ring)) % ring


def _ring_mask(mask: Mask, slots: jax.Array) -> Mask:
    at = jnp.maximum(slots, 0)

    def those(x):
        return None if x is None else jnp.take(x, at, axis=1)

    return mask.replace(
        key_slots=slots,
        key_valid=those(mask.key_valid) & (slots >= 0),
        key_order=those(mask.key_order),
        key_segments=those(mask.key_segments),
        prefix_keys=those(mask.prefix_keys),
    )


def _stored(x: jax.Array, buffer: Any) -> Any:
    if not isinstance(buffer, Quantised):
        return x.astype(buffer.dtype)
    scales = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=-1, keepdims=True) / 127
    numbers = jnp.round(x / jnp.where(scales > 0, scales, 1.0))
    # A broken number stays one: int8 would hide it, the scale does not.
    return Quantised(numbers.astype(jnp.int8), scales)


def _floats(held: tuple[Any, Any], dtype: Any) -> tuple[jax.Array, jax.Array]:
    floats = ((x.numbers * x.scales if isinstance(x, Quantised) else x).astype(dtype) for x in held)
    return tuple(jnp.swapaxes(x, 1, 2) for x in floats)


def late_padding(cache: Cache, padding_mask: jax.Array) -> jax.Array:
    """bool [B]: padding after a real token, which would take the place of what a window still sees in a ring."""
    real = padding_mask != 0
    begun = (jnp.cumsum(real, axis=1) > 0) | jnp.any(cache.valid, axis=1)[:, None]
    return jnp.any(~real & begun, axis=1)


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
        length=cache.length[rows] if jnp.ndim(cache.length) else cache.length,
    )


def repeat_rows(cache: Cache, times: int) -> Cache:
    """Each row `times` times, next to each other."""
    return take_rows(cache, jnp.repeat(jnp.arange(cache.valid.shape[0]), times))


def cut(cache: Cache, lengths: jax.Array) -> Cache:
    """The cache as it was when each row had so many slots filled, int32 [B]; what came after is forgotten.

    A ring cannot go back: what lay in its places is gone.
    """
    if cache.ring:
        raise InputError("a ring cache cannot go back; make it with init_cache(..., ring=False)")
    return cache.replace(valid=cache.valid & (jnp.arange(cache.capacity) < lengths[:, None]), length=lengths)
