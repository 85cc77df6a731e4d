"""Attention in blocks with a running maximum and a running sum: the T x S array is never stored.

For each block of queries the keys pass by in blocks; m is the running maximum, l the running sum, a the running output:

    m' = max(m, max s)    l' = l e^(m - m') + sum e^(s - m')    a' = a e^(m - m') + e^(s - m') V    out = a / l

The backward pass recomputes each block. Memory is linear in the length; the arithmetic is not.
References: Milakov and Gimelshein 2018 (online softmax), Rabe and Staats 2021, Dao et al. 2022.
"""

import functools

import jax
import jax.numpy as jnp

from zoo.dropout import Dropout, keep
from zoo.masks import Mask, visible

BLOCK = 512


def blockwise_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    bias: jax.Array | None,
    scale: float,
    soft_cap: float | None,
    dropout: Dropout | None,
    block: int = BLOCK,
) -> jax.Array:
    """The out of zoo.attention.attend, from the same arguments, `block` queries and keys at a time: [B, T, N, H]."""
    batch, length, heads, head_dim = query.shape
    key_length, kv_heads = key.shape[1:3]
    groups = heads // kv_heads
    query_block, key_block = min(block, length), min(block, key_length)
    queries = _blocks(query, query_block).reshape(-1, batch, query_block, kv_heads, groups, head_dim)
    keys, values = _blocks(key, key_block), _blocks(value, key_block)
    query_count, key_count = queries.shape[0], keys.shape[0]
    # Slots past the end are clamped for the gathers and hidden by `inside`.
    if bias is not None:
        bias = jnp.broadcast_to(bias, (bias.shape[0], heads, length, key_length))

    def scores_of(q, k, query_slots, key_slots):
        scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * scale
        scores = scores.reshape(batch, heads, query_block, key_block)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        if bias is not None:
            scores = scores + bias[:, :, query_slots[:, None], key_slots[None, :]]
        return scores

    def one_key_block(q, query_start, carry, step):
        top, total, out = carry
        k, v, key_start = step
        query_slots = jnp.minimum(query_start + jnp.arange(query_block), length - 1)
        key_slots = jnp.minimum(key_start + jnp.arange(key_block), key_length - 1)
        inside = key_start + jnp.arange(key_block) < key_length
        seen = visible(mask, query_slots, key_slots) & inside
        scores = scores_of(q, k, query_slots, key_slots)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1, where=seen, initial=-1e30))
        new_top = jax.lax.stop_gradient(new_top)
        powers = jnp.where(seen, jnp.exp(jnp.where(seen, scores - new_top[..., None], 0.0)), 0.0)
        shrink = jnp.exp(top - new_top)
        total = total * shrink + powers.sum(axis=-1)
        if dropout is not None:
            head = jnp.arange(heads, dtype=jnp.uint32)[:, None, None]
            row = query_slots.astype(jnp.uint32)[None, :, None]
            index = (head * jnp.uint32(length) + row) * jnp.uint32(key_length) + key_slots.astype(jnp.uint32)
            powers = jnp.where(keep(dropout, index), powers / (1.0 - dropout.rate), 0.0)
        grouped = powers.astype(value.dtype).reshape(batch, kv_heads, groups, query_block, key_block)
        mixed = jnp.einsum("bkgts,bskh->bkgth", grouped, v, preferred_element_type=jnp.float32)
        out = out * shrink[..., None] + mixed.reshape(batch, heads, query_block, head_dim)
        return (new_top, total, out), None

    @jax.checkpoint
    def one_query_block(q, query_start):
        start = (
            jnp.full((batch, heads, query_block), -1e30, jnp.float32),
            jnp.zeros((batch, heads, query_block), jnp.float32),
            jnp.zeros((batch, heads, query_block, head_dim), jnp.float32),
        )
        step = jax.checkpoint(functools.partial(one_key_block, q, query_start))
        steps = (keys, values, jnp.arange(key_count) * key_block)
        (_, total, out), _ = jax.lax.scan(step, start, steps)
        return (out / jnp.where(total == 0, 1.0, total)[..., None]).astype(value.dtype)

    starts = jnp.arange(query_count) * query_block
    out = jax.lax.map(lambda block_and_start: one_query_block(*block_and_start), (queries, starts))
    out = jnp.moveaxis(out, 0, 2).reshape(batch, heads, query_count * query_block, head_dim)
    return jnp.swapaxes(out[:, :, :length], 1, 2)


def _blocks(x: jax.Array, block: int) -> jax.Array:
    """[B, T, ...] zero-padded to a multiple of block, as [T / block, B, block, ...]."""
    batch, length = x.shape[:2]
    padded = jnp.pad(x, [(0, 0), (0, -length % block)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(padded.reshape(batch, -1, block, *x.shape[2:]), 1, 0)
