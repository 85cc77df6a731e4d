"""Attention in blocks with a running maximum and a running sum: the T x S array is never stored.

For each block of queries the keys pass by in blocks; m is the running maximum, l the running sum, a the running output:

    m' = max(m, max z)    l' = l e^(m - m') + sum e^(z - m')    a' = a e^(m - m') + e^(z - m') V    out = a / l

The backward pass keeps out and log Z = m + log l alone, and computes each block again (d: the dropout factor, 0 or
1 / (1 - r); g: the gradient of out):

    p = e^(z - log Z)    dV += (p d)^T g    dz = p (d (g V^T) - sum(g out))    dQ += dz K    dK += dz^T Q

Blocks in which nothing is visible are passed over, so causal work is half and packed documents cost their own squares.
Memory is linear in the length. A part of the queries against a part of the keys is computed by the same two functions,
which is how zoo.ring_attention splits the length over devices.
References: Milakov and Gimelshein 2018 (online softmax), Rabe and Staats 2021, Dao et al. 2022.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from zoo.dropout import Dropout, keep
from zoo.errors import InputError
from zoo.masks import Mask, visible
from zoo.remat import mark

BLOCK = 512


@dataclass(frozen=True)
class Scoring:
    """What is fixed while tracing: score scale, soft cap or None, the whole call's (N, T, S), and the block size."""

    scale: float
    soft_cap: float | None
    whole: tuple[int, int, int]
    block: int = BLOCK

    def check(self, dropout: Dropout | None) -> None:
        """
        Raises:
            InputError: dropout over more weights than its 32-bit indices can number: masks would repeat.
        """
        heads, length, key_length = self.whole
        if dropout is not None and heads * length * key_length > 2**32:
            raise InputError(
                f"attention_dropout numbers weights with 32 bits; {heads} heads x {length} queries x {key_length} keys "
                "are more: set attention_dropout to 0"
            )


@struct.dataclass
class Part:
    """Which part of the whole call the arrays at hand are.

    Attributes:
        query_slots, key_slots: int [t], [s]: the place of each query and key in the whole row; -1 for filling.
        first_head: the place of the first query head.
    """

    query_slots: jax.Array
    key_slots: jax.Array
    first_head: jax.Array | int = 0


@struct.dataclass
class Context:
    """What decides on visibility, bias and dropout.

    Attributes:
        mask: of the whole call (arrays [B, T] and [B, S] in full).
        bias: [B or 1, N', t, S], rows as the queries at hand, columns of the whole call; None for none.
        dropout: of the weights; None in evaluation.
    """

    mask: Mask
    bias: jax.Array | None = None
    dropout: Dropout | None = None


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
    heads, length, key_length = query.shape[2], query.shape[1], key.shape[1]
    scoring = Scoring(scale, soft_cap, (heads, length, key_length), block)
    scoring.check(dropout)
    if bias is not None:
        bias = jnp.broadcast_to(bias, (bias.shape[0], heads, length, key_length))
    return _one_device(scoring, query, key, value, bias, mask, dropout)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _one_device(scoring, query, key, value, bias, mask, dropout):
    return _one_device_forward(scoring, query, key, value, bias, mask, dropout)[0]


def _one_device_forward(scoring, query, key, value, bias, mask, dropout):
    part = Part(jnp.arange(query.shape[1]), jnp.arange(key.shape[1]))
    state = forward_part(scoring, query, key, value, nothing_seen(query, value), part, Context(mask, bias, dropout))
    # Marked here, where the backward pass reads them: what keeps the result need not run the forward pass again.
    out, log_sum = (mark(x, "attention_result") for x in finish(state, value.dtype))
    return out, (query, key, value, bias, mask, dropout, out, log_sum)


def _one_device_backward(scoring, kept, gradient):
    query, key, value, bias, mask, dropout, out, log_sum = kept
    part = Part(jnp.arange(query.shape[1]), jnp.arange(key.shape[1]))
    sums = no_gradient(query, key, value, bias)
    inner = inner_product(gradient, out)
    sums = backward_part(scoring, query, key, value, gradient, log_sum, inner, sums, part, Context(mask, bias, dropout))
    return (*as_gradients(sums, query, key, value, bias), None, None)


_one_device.defvjp(_one_device_forward, _one_device_backward)


# The forward pass of a part -------------------------------------------------------------------------------------------


def nothing_seen(query: jax.Array, value: jax.Array) -> tuple[jax.Array, ...]:
    """The running (maximum [B, N, T], sum [B, N, T], output [B, T, N, H]) before any key, float32."""
    batch, length, heads = query.shape[:3]
    top = jnp.full((batch, heads, length), -1e30, jnp.float32)
    return top, jnp.zeros_like(top), jnp.zeros((batch, length, heads, value.shape[-1]), jnp.float32)


def finish(state: tuple[jax.Array, ...], dtype: Any) -> tuple[jax.Array, jax.Array]:
    """(out [B, T, N, H], log Z [B, N, T]); both 0 where no key was seen."""
    top, total, out = state
    blind = total == 0
    out = out / jnp.swapaxes(jnp.where(blind, 1.0, total), 1, 2)[..., None]
    return out.astype(dtype), jnp.where(blind, 0.0, top + jnp.log(jnp.where(blind, 1.0, total)))


def forward_part(
    scoring: Scoring,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    state: tuple[jax.Array, ...],
    part: Part,
    context: Context,
) -> tuple[jax.Array, ...]:
    """The running state of these queries after these keys.

    Args:
        scoring: see Scoring.
        query: [B, t, n, H]; key, value: [B, s, k, H], any part of the whole.
        state: from nothing_seen, or from earlier keys.
        part: which part.
        context: see Context.
    """
    return _unsplit(lambda state: _forward_part(scoring, query, key, value, state, part, context), state)


def _forward_part(scoring, query, key, value, state, part, context):
    top, total, out = state
    length = query.shape[1]
    rows, columns = _sizes(scoring, query, key)
    by_key = (_blocks(key, columns), _blocks(value, columns), _slot_blocks(part.key_slots, columns))

    def one_query_block(given):
        q, *state, slots, bias = given

        def one_key_block(state, step):
            k, v, key_slots = step
            seen = _seen(context.mask, slots, key_slots)

            def advance(state):
                top, total, out = state
                scores, _ = _scores(scoring, q, k, bias, key_slots)
                new_top = jnp.maximum(top, jnp.max(scores, axis=-1, where=seen, initial=-1e30))
                powers = jnp.where(seen, jnp.exp(jnp.where(seen, scores - new_top[..., None], 0.0)), 0.0)
                shrink = jnp.exp(top - new_top)
                total = total * shrink + powers.sum(axis=-1)
                powers = powers * _factor(scoring, context, part, slots, key_slots, powers.shape[1])
                mixed = jnp.einsum("bkgts,bskh->btkgh", _grouped(powers, k).astype(v.dtype), v, **_FLOAT32)
                out = out * jnp.swapaxes(shrink, 1, 2)[..., None] + mixed.reshape(out.shape)
                return new_top, total, out

            return jax.lax.cond(jnp.any(seen), advance, lambda state: state, state), None

        return jax.lax.scan(one_key_block, tuple(state), by_key)[0]

    given = (
        _blocks(query, rows),
        _blocks(top, rows, 2),
        _blocks(total, rows, 2),
        _blocks(out, rows),
        _slot_blocks(part.query_slots, rows),
        None if context.bias is None else _blocks(context.bias, rows, 2),
    )
    top, total, out = jax.lax.map(one_query_block, given)
    return _joined(top, length, 2), _joined(total, length, 2), _joined(out, length)


# The backward pass of a part ------------------------------------------------------------------------------------------


def inner_product(gradient: jax.Array, out: jax.Array) -> jax.Array:
    """sum over features of gradient and out, [B, T, N, H] both: float32 [B, N, T]."""
    return jnp.einsum("btnh,btnh->bnt", gradient.astype(jnp.float32), out.astype(jnp.float32))


def no_gradient(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None) -> tuple[Any, ...]:
    """Float32 zeros of all four."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (query, key, value, bias))


def as_gradients(sums: tuple[Any, ...], *arrays: jax.Array | None) -> tuple[Any, ...]:
    """Float32 sums in the dtypes of the arrays that they belong to."""
    return jax.tree.map(lambda total, x: total.astype(x.dtype), sums, arrays)


def backward_part(
    scoring: Scoring,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    gradient: jax.Array,
    log_sum: jax.Array,
    inner: jax.Array,
    sums: tuple[Any, ...],
    part: Part,
    context: Context,
) -> tuple[Any, ...]:
    """`sums`, float32 gradients of (query, key, value, bias or None), with this part's added.

    Args:
        scoring, query, key, value, part, context: as in forward_part.
        gradient: of out, [B, t, n, H].
        log_sum: log Z over all keys [B, n, t].
        inner: from inner_product, [B, n, t].
    """
    given = (query, key, value, gradient, log_sum, inner)
    return _unsplit(lambda sums: _backward_part(scoring, *given, sums, part, context), sums)


def _backward_part(scoring, query, key, value, gradient, log_sum, inner, sums, part, context):
    rows, columns = _sizes(scoring, query, key)
    by_key = (_blocks(key, columns), _blocks(value, columns), _slot_blocks(part.key_slots, columns))

    def one_query_block(key_sums, given):
        q, g, log_z, delta, q_sum, slots, bias, bias_sum = given

        def one_key_block(query_sums, step):
            k, v, key_slots, *old = step
            seen = _seen(context.mask, slots, key_slots)

            def advance(sums):
                q_sum, bias_sum, k_sum, v_sum = sums
                scores, slope = _scores(scoring, q, k, bias, key_slots)
                weights = jnp.where(seen, jnp.exp(jnp.where(seen, scores - log_z[..., None], 0.0)), 0.0)
                factor = _factor(scoring, context, part, slots, key_slots, weights.shape[1])
                g_heads = g.reshape(*q.shape[:2], k.shape[2], -1, v.shape[-1])
                dropped = _grouped(weights * factor, k).astype(v.dtype)
                v_sum = v_sum + jnp.einsum("bkgts,btkgh->bskh", dropped, g_heads, **_FLOAT32)
                back = jnp.einsum("btkgh,bskh->bkgts", g_heads, v, **_FLOAT32).reshape(weights.shape)
                back = weights * (back * factor - delta[..., None])
                if bias is not None:
                    one = back if bias.shape[0] > 1 else back.sum(axis=0, keepdims=True)
                    columns = jnp.where(key_slots < 0, bias.shape[-1], key_slots)
                    bias_sum = bias_sum.at[..., columns].add(one, mode="drop")
                back = _grouped(back * slope * scoring.scale, k).astype(k.dtype)
                q_sum = q_sum + jnp.einsum("bkgts,bskh->btkgh", back, k, **_FLOAT32).reshape(q_sum.shape)
                q_heads = q.reshape(*q.shape[:2], k.shape[2], -1, k.shape[-1])
                k_sum = k_sum + jnp.einsum("bkgts,btkgh->bskh", back, q_heads, **_FLOAT32)
                return q_sum, bias_sum, k_sum, v_sum

            sums = jax.lax.cond(jnp.any(seen), advance, lambda sums: sums, (*query_sums, *old))
            return sums[:2], sums[2:]

        query_sums, key_sums = jax.lax.scan(one_key_block, (q_sum, bias_sum), (*by_key, *key_sums))
        return key_sums, query_sums

    def split(x, axis):
        return None if x is None else _blocks(x, rows, axis)

    given = (
        split(query, 1),
        split(gradient.astype(value.dtype), 1),
        split(log_sum, 2),
        split(inner, 2),
        split(sums[0], 1),
        _slot_blocks(part.query_slots, rows),
        split(context.bias, 2),
        split(sums[3], 2),
    )
    key_sums, (q_sum, bias_sum) = jax.lax.scan(
        one_query_block, (_blocks(sums[1], columns), _blocks(sums[2], columns)), given
    )
    length, key_length = query.shape[1], key.shape[1]
    bias_sum = None if bias_sum is None else _joined(bias_sum, length, 2)
    return _joined(q_sum, length), *(_joined(x, key_length) for x in key_sums), bias_sum


def _unsplit(function, carry):
    """function(carry), as a loop of one turn.

    A scan over layers computes beforehand all that does not depend on the layer, such as who sees whom, for every block
    at once: T x S. The inside of a while loop it leaves together. (So there are no second derivatives.)
    """
    return jax.lax.while_loop(lambda turn: turn[0] < 1, lambda turn: (turn[0] + 1, function(turn[1])), (0, carry))[1]


# One block against one block ------------------------------------------------------------------------------------------

_FLOAT32 = {"preferred_element_type": jnp.float32}


def _scores(scoring, q, k, bias, key_slots):
    """Capped and biased scores float32 [B, n, t, s], and the derivative of the cap at them (1.0 without one)."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, k.shape[-1])
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, **_FLOAT32) * scoring.scale
    scores = scores.reshape(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    slope = 1.0
    if scoring.soft_cap is not None:
        bent = jnp.tanh(scores / scoring.soft_cap)
        scores, slope = scoring.soft_cap * bent, 1.0 - bent * bent
    if bias is not None:
        scores = scores + jnp.take(bias, key_slots, axis=-1, mode="clip")
    return scores, slope


def _seen(mask, query_slots, key_slots):
    filling = (query_slots < 0)[:, None] | (key_slots < 0)[None, :]
    return visible(mask, jnp.maximum(query_slots, 0), jnp.maximum(key_slots, 0)) & ~filling


def _factor(scoring, context, part, query_slots, key_slots, heads):
    """What dropout multiplies the weights by: [B, n, t, s], or 1.0 without it. As numbered by einsum_attention."""
    if context.dropout is None:
        return 1.0
    _, length, key_length = scoring.whole
    head = (jnp.asarray(part.first_head).astype(jnp.uint32) + jnp.arange(heads, dtype=jnp.uint32))[:, None, None]
    row = query_slots.astype(jnp.uint32)[None, :, None]
    index = (head * jnp.uint32(length) + row) * jnp.uint32(key_length) + key_slots.astype(jnp.uint32)
    return jnp.where(keep(context.dropout, index), 1.0 / (1.0 - context.dropout.rate), 0.0)


def _grouped(weights, key):
    """[B, n, t, s] as [B, k, n / k, t, s]."""
    return weights.reshape(weights.shape[0], key.shape[2], -1, *weights.shape[2:])


def _sizes(scoring, query, key):
    return min(scoring.block, query.shape[1]), min(scoring.block, key.shape[1])


def _blocks(x: jax.Array, block: int, axis: int = 1) -> jax.Array:
    """x with `axis` zero-padded to a multiple of block and cut: [blocks, ..., block, ...]."""
    padded = jnp.pad(x, [(0, -size % block if place == axis else 0) for place, size in enumerate(x.shape)])
    return jnp.moveaxis(padded.reshape(*x.shape[:axis], -1, block, *x.shape[axis + 1 :]), axis, 0)


def _slot_blocks(slots: jax.Array, block: int) -> jax.Array:
    return jnp.pad(slots, (0, -slots.shape[0] % block), constant_values=-1).reshape(-1, block)


def _joined(blocks: jax.Array, length: int, axis: int = 1) -> jax.Array:
    """The inverse of _blocks, cut to `length`."""
    x = jnp.moveaxis(blocks, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)
