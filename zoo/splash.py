"""TPU flash attention: jax's Pallas kernel "splash", forward and backward, told all that a Mask says.

Causality and windows are the kernel's own masks, worked out while tracing, so that hidden blocks are never visited.
Segments and padding go as segment ids: a hidden key gets an id that no query has. Rows that see no key, for which the
kernel gives the mean of V, are found by one sort and set to 0, and their gradient with them.

Under a mesh each device runs the kernel on its rows and heads; where tokens are split it gathers keys and values and,
if the call is causal, deals queries out evenly (zoo.ring_attention).

A window counts real tokens (Mask.query_order), the kernel counts slots. They agree where the real tokens of a segment
stand in one run, as packing and padding at one end leave them; a row where they do not comes out as NaN. With such a
window the queries of padding itself give 0.

Reference: jax.experimental.pallas.ops.tpu.splash_attention; Dao et al. 2022.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from zoo.blockwise import Scoring
from zoo.errors import InputError
from zoo.lowering import only_on
from zoo.masks import Mask
from zoo.partition import auto_mesh
from zoo.ring_attention import Plan, layout_of, whole_layout

LANES, BLOCK = 128, 512
SPLASH_FROM = 1024  # tokens from which "auto" takes it on a TPU
HIDDEN, FILLING = np.iinfo(np.int32).min, np.iinfo(np.int32).min + 1


def splash_refuses(query, key, mask, bias, dropout, return_weights) -> str:
    """What of a call splash does not honour, in words, or ""."""
    precision = jax.config.jax_default_matmul_precision
    fine = precision not in (None, "default", "bfloat16") and query.dtype.itemsize == 2
    refused = {
        "dropout": dropout is not None,
        "a bias": bias is not None,
        "returned weights": return_weights,
        "a prefix": mask.prefix_keys is not None,
        "queries that continue a cache": mask.query_start is not None,
        "causal attention to another sequence": mask.causal and query.shape[1] != key.shape[1],
        "a window over another sequence": mask.window is not None and query.shape[1] != key.shape[1],
        f'matmul precision "{precision}" of 16-bit arrays': fine,  # its compiler knows none
    }
    return " or ".join(name for name, asked in refused.items() if asked)


def splash_divides(query, key) -> bool:
    """Whether the mesh's parts of the tokens are multiples of what a block can be."""
    mesh = auto_mesh()
    ways = 1 if mesh is None else layout_of(query, key, mesh)[0].ways
    return ways == 1 or query.shape[1] // ways % LANES == 0


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    scale: float,
    soft_cap: float | None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """The out of zoo.attention.attend, from the same arguments: [B, T, N, H].

    Args:
        interpret: run by Pallas's interpreter, on any device.

    Raises:
        InputError: a mesh splits tokens into parts that are no multiple of 128; when lowered for anything but a TPU.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    if not interpret:
        query = only_on("tpu", "splash", query)
    length, key_length, heads = query.shape[1], key.shape[1], query.shape[2]
    mesh = auto_mesh()
    layout = whole_layout() if mesh is None else layout_of(query, key, mesh)[0]
    if not splash_divides(query, key):
        raise InputError(
            f'attention kernel "splash": {length} tokens over sequence={layout.ways} are not multiples of {LANES} on '
            'each device; choose a length that is, or kernel "ring"'
        )
    if layout.repeat > 1:
        key, value = jnp.repeat(key, layout.repeat, axis=2), jnp.repeat(value, layout.repeat, axis=2)
    query = (query.astype(jnp.float32) * scale).astype(query.dtype)
    part = length // layout.ways
    balanced = mask.causal and mask.window is None and layout.ways > 1 and part % (2 * LANES) == 0
    block = _block(part) if layout.ways == 1 else _dividing_block(part // 2 if balanced else part)
    key_block = _block(key_length)
    filling = (-part % block, -key_length % key_block)
    ids, seen, wrong = _segment_ids(mask, *query.shape[:2], key_length, any(filling))
    plan = Plan(layout, Scoring(scale, soft_cap, (heads, length, key_length)), False, balanced)
    local_heads = heads // (mesh.shape[layout.heads] if layout.heads else 1)
    # Where all sees all, every device's mask is the same.
    ways = layout.ways if mask.causal or mask.window is not None else 1
    kernel = _kernel(
        local_heads,
        part + filling[0],
        key_length + filling[1],
        mask.causal,
        mask.window,
        block,
        key_block,
        soft_cap,
        interpret,
        ways,
        balanced,
    )

    def on_device(kernel, query, key, value, ids, seen):
        query, key, value = plan.deal(query), plan.all_keys(key), plan.all_keys(value)
        arrays = (
            _head_first(x, fill) for x, fill in zip((query, key, value), filling[:1] + filling[1:] * 2, strict=True)
        )
        if ids is not None:
            ids = SegmentIds(
                jnp.pad(plan.deal(ids[0]), ((0, 0), (0, filling[0])), constant_values=FILLING),
                jnp.pad(ids[1], ((0, 0), (0, filling[1])), constant_values=HIDDEN),
            )
        out = jax.vmap(kernel)(*arrays, ids)
        out = plan.deal(jnp.swapaxes(out, 1, 2)[:, :part], back=True)
        return out if seen is None else jnp.where(seen[:, :, None, None], out, jnp.zeros((), out.dtype))

    given = (kernel, query, key, value, ids, seen)
    if mesh is None:
        out = on_device(*given)
    else:
        stream, tokens = layout.spec("rows", "tokens", "heads", None), layout.spec("rows", "tokens")
        sharding = jax.sharding.NamedSharding(mesh, PartitionSpec(None, layout.tokens if ways > 1 else None))
        specs = (
            kernel.manual_sharding_spec(sharding),
            *(stream,) * 3,
            None if ids is None else (tokens, layout.spec("rows")),
            None if seen is None else tokens,
        )
        out = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=stream, check_vma=False)(*given)
    out = out.astype(value.dtype)
    return out if wrong is None else jnp.where(wrong[:, None, None, None], jnp.asarray(jnp.nan, out.dtype), out)


def _kernel(heads, length, key_length, causal, window, block, key_block, soft_cap, interpret, ways, balanced):
    """The library's kernel for the queries of one device, of `ways` that split them."""
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    shape = (length * ways, key_length)
    if window is not None:
        sides = (window - 1, 0) if causal else (window // 2, window // 2)
        mask = library.LocalMask(shape, sides, 0)
    else:
        mask = library.CausalMask(shape) if causal else library.FullMask(shape)
    if balanced:
        halves = np.arange(shape[0], dtype=np.int32).reshape(2 * ways, -1)
        even = [(i, 2 * ways - 1 - i)[:: 1 if i % 2 == 0 else -1] for i in range(ways)]
        mask.q_sequence = halves[np.asarray(even).reshape(-1)].reshape(-1)
    return library.make_splash_mha(
        library.MultiHeadMask([mask] * heads),
        block_sizes=library.BlockSizes(
            block_q=block,
            block_kv=key_block,
            block_q_dkv=block,
            block_kv_dkv=key_block,
            block_q_dq=block,
            block_kv_dq=key_block,
        ),
        head_shards=1,
        q_seq_shards=ways,
        attn_logits_soft_cap=soft_cap,
        interpret=interpret,
        residual_checkpoint_name="attention_result",
    )


def _block(length):
    """The block that a length is cut into once it is filled up to a multiple of it."""
    return BLOCK if length >= BLOCK else -(-length // LANES) * LANES


def _dividing_block(length):
    """The largest block that divides a length."""
    return max(block for block in range(LANES, BLOCK + 1, LANES) if length % block == 0)


def _head_first(x, filling):
    """[B, T, N, H] as [B, N, T + filling, H]."""
    return jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, filling), (0, 0)))


def _segment_ids(mask, batch, length, key_length, filled):
    """((query ids, key ids) or None, bool [B, T] which queries see a key or None for all, bool [B] wrong or None)."""
    if mask.query_segments is None and mask.key_valid is None:
        ids = (jnp.zeros((batch, length), jnp.int32), jnp.zeros((batch, key_length), jnp.int32))
        return (ids if filled else None), None, None
    query_ids, key_ids = mask.query_segments, mask.key_segments
    if query_ids is None:
        query_ids, key_ids = (jnp.zeros((batch, size), jnp.int32) for size in (length, key_length))
    query_ids, key_ids = query_ids.astype(jnp.int32), key_ids.astype(jnp.int32)
    valid = jnp.ones(key_ids.shape, bool) if mask.key_valid is None else mask.key_valid
    hidden = jnp.where(valid, key_ids, HIDDEN)
    if mask.window is not None and mask.query_order is not None:
        return (query_ids, hidden), valid, _broken_runs(key_ids, valid, mask.key_order)
    slots = jnp.arange(length)
    last, following = _nearest_keys(query_ids, key_ids, valid)
    if mask.window is None:
        seen = (last >= 0) if mask.causal else (last >= 0) | (following < key_length)
    elif mask.causal:
        seen = (last >= 0) & (slots - last < mask.window)
    else:
        half = mask.window // 2
        seen = ((last >= 0) & (slots - last <= half)) | (following - slots <= half) & (following < key_length)
    return (query_ids, hidden), seen, None


def _nearest_keys(query_ids, key_ids, valid):
    """For each query the slots of the last valid key of its id up to it and of the first from it on: int32 [B, T].

    -1 and S where there is none. By sorting keys and queries together: no T x S array.
    """
    batch, length = query_ids.shape
    key_length = key_ids.shape[1]

    def both(of_keys, of_queries):
        return jnp.concatenate([jnp.broadcast_to(x, (batch, x.shape[-1])) for x in (of_keys, of_queries)], axis=1)

    slots = both(jnp.arange(key_length, dtype=jnp.int32), jnp.arange(length, dtype=jnp.int32))
    asks = both(jnp.zeros(key_length, jnp.int32), jnp.ones(length, jnp.int32))
    ids = both(key_ids, query_ids)
    real = both(valid, jnp.zeros((1, length), bool)).astype(jnp.int32)

    def nearest(direction, none):
        order = jax.lax.sort((ids, direction * slots, asks, real), num_keys=3)
        places = jnp.broadcast_to(jnp.arange(length + key_length), order[0].shape)
        first = jnp.concatenate([jnp.ones((batch, 1), bool), order[0][:, 1:] != order[0][:, :-1]], axis=1)
        start = jax.lax.cummax(jnp.where(first, places, 0), axis=1)
        at = jax.lax.cummax(jnp.where(order[3] > 0, places, -1), axis=1)
        slot = direction * jnp.take_along_axis(order[1], jnp.maximum(at, 0), axis=1)
        found = jnp.where(at >= start, slot, none)
        return jax.lax.sort((order[2], direction * order[1], found), num_keys=2)[2][:, key_length:]

    return nearest(1, -1), nearest(-1, key_length)


def _broken_runs(ids, valid, orders):
    """bool [B]: rows in which two neighbouring real tokens of one segment are not neighbours in slot and in order."""
    batch, length = ids.shape
    slots = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), ids.shape)
    orders = jnp.broadcast_to(orders, ids.shape).astype(jnp.int32)
    hidden = jnp.where(valid, 0, 1)
    hidden, ids, slots, orders = jax.lax.sort((hidden, ids, slots, orders), num_keys=3)
    same = (ids[:, 1:] == ids[:, :-1]) & (hidden[:, 1:] == 0)
    apart = (slots[:, 1:] - slots[:, :-1] != 1) | (orders[:, 1:] - orders[:, :-1] != 1)
    return jnp.any(same & apart, axis=1)
