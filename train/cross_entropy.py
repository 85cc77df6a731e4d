"""Cross-entropy of token predictions in float32, and the chunked form in which the logits of a batch never all exist.

loss(z, y) = (1 - e) (log Z - z_y) + e (log Z - mean z) + c (log Z)^2,      log Z = log sum exp z
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from zoo.partition import auto_mesh, constrain_stream


@dataclass(frozen=True)
class LossOptions:
    """How a token's loss is computed.

    Attributes:
        label_smoothing: e above.
        z_loss: c above.
        chunk_bytes: most bytes of float32 logits at a time.
        vocab_size: ids from here on are padding of the vocabulary, with probability 0; None where every id is real.
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    chunk_bytes: int = 1 << 24
    vocab_size: int | None = None

    def plain(self) -> "LossOptions":
        """Without smoothing and z-loss: what evaluation reports."""
        return replace(self, label_smoothing=0.0, z_loss=0.0)


PLAIN = LossOptions()


def cross_entropy(logits: jax.Array, labels: jax.Array, options: LossOptions = PLAIN) -> jax.Array:
    """-log p(label), computed in float32 whatever the logits' type.

    Args:
        logits: [..., V].
        labels: [...] int32 below V.
        options: smoothing, z-loss and the real vocabulary.

    Returns:
        [...] float32.
    """
    return _loss_and_credit(logits, labels, options)[0]


def chunked_cross_entropy(
    model: Any,
    params: Any,
    hidden: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    options: LossOptions = PLAIN,
) -> tuple[jax.Array, jax.Array]:
    """Weighted sums of losses and of right guesses, read out chunk by chunk of positions.

    The gradient with respect to the hidden states and to the read-out's parameters is computed in the same pass, while
    a chunk's logits are at hand: nothing of size [B, T, V] is kept, and nothing is computed twice. Chunks cut the T
    axis, within each device's part of it, so that rows and tokens stay where a mesh put them.

    Args:
        model: anything with `unembed(params, hidden) -> float32 logits`.
        params: its parameters.
        hidden: [B, T, D].
        labels: [B, T] int32.
        weights: [B, T] float32, 0 where a position does not count.
        options: see LossOptions.

    Returns:
        (sum of weighted losses, sum of weighted right guesses), float32. A label whose logit is the largest is guessed
        right, also where another is as large: argmax would cost as much as the read-out itself.
    """
    leaves, structure = jax.tree.flatten(params)
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    used = _read_out_leaves(model, params, hidden)

    def unembed(chosen, states):
        # Leaves that the read-out does not touch are stood in for by zeros, which the compiler drops.
        given = dict(zip(used, chosen, strict=True))
        filled = [given[i] if i in given else jnp.zeros(*shape) for i, shape in enumerate(shapes)]
        return model.unembed(jax.tree.unflatten(structure, filled), states)

    vocab = jax.eval_shape(model.unembed, params, hidden[:, :1]).shape[-1]
    return _sums(unembed, vocab, options, [leaves[index] for index in used], hidden, labels, weights)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _sums(unembed, vocab, options, leaves, hidden, labels, weights):
    def body(carry, chunk):
        sums = _chunk_sums(unembed, options, leaves, *chunk)
        return (carry[0] + sums[0], carry[1] + sums[1]), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(body, (zero, zero), _chunks(vocab, options, hidden, labels, weights))[0]


def _sums_forward(unembed, vocab, options, leaves, hidden, labels, weights):
    def body(carry, chunk):
        states, *rest = chunk
        (loss, correct), (leaf_grads, grad) = jax.value_and_grad(
            lambda leaves, states: _chunk_sums(unembed, options, leaves, states, *rest), argnums=(0, 1), has_aux=True
        )(leaves, states)
        grads = [total + new for total, new in zip(carry[2], leaf_grads, strict=True)]
        return (carry[0] + loss, carry[1] + correct, grads), grad

    zero = jnp.zeros((), jnp.float32)
    carry = (zero, zero, [jnp.zeros_like(leaf) for leaf in leaves])
    (loss, correct, leaf_grads), grads = jax.lax.scan(body, carry, _chunks(vocab, options, hidden, labels, weights))
    return (loss, correct), (leaf_grads, _whole(grads, hidden.shape[1]))


def _sums_backward(unembed, vocab, options, kept, cotangents):
    leaf_grads, grads = kept
    scale = cotangents[0]
    return [scale.astype(g.dtype) * g for g in leaf_grads], scale.astype(grads.dtype) * grads, None, None


_sums.defvjp(_sums_forward, _sums_backward)


def _chunk_sums(unembed, options, leaves, states, labels, weights):
    losses, credit = _loss_and_credit(unembed(leaves, constrain_stream(states)), labels, options)
    # where, not a product: a position that does not count must not spoil the sum by being infinite.
    counted = weights > 0
    return jnp.sum(jnp.where(counted, losses, 0.0) * weights), jnp.sum(jnp.where(counted, weights, 0.0) * credit)


def _loss_and_credit(logits, labels, options):
    logits = logits.astype(jnp.float32)
    size = logits.shape[-1]
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    real = size
    if options.vocab_size is not None and options.vocab_size < size:
        real = options.vocab_size
        logits = jnp.where(ids < real, logits, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_z = jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1)) + top[..., 0]
    # A masked sum and not a gather: its gradient is a fused select, where a gather's is a scatter.
    own = jnp.sum(jnp.where(ids == labels[..., None], logits, 0.0), axis=-1)
    losses = log_z - own
    if options.label_smoothing:
        mean = jnp.sum(jnp.where(ids < real, logits, 0.0), axis=-1) / real
        losses = (1 - options.label_smoothing) * losses + options.label_smoothing * (log_z - mean)
    if options.z_loss:
        losses = losses + options.z_loss * jnp.square(log_z)
    return losses, own >= top[..., 0]


def _chunks(vocab, options, hidden, labels, weights):
    """[chunks, B, t, ..] of each: from every device's part of the tokens an equal piece, so that none are gathered."""
    batch, length, _ = hidden.shape
    ways = _token_ways(length)
    part = length // ways
    most = max(1, options.chunk_bytes // (4 * batch * vocab))
    count = -(-part // most)
    size = -(-part // count)

    def cut(x):
        rest = x.shape[2:]
        filling = [(0, 0), (0, 0), (0, count * size - part)] + [(0, 0)] * len(rest)
        x = jnp.pad(x.reshape(batch, ways, part, *rest), filling)
        x = jnp.moveaxis(x.reshape(batch, ways, count, size, *rest), 2, 0)
        return x.reshape(count, batch, ways * size, *rest)

    return cut(hidden), cut(labels), cut(weights)


def _whole(chunks, length):
    """The inverse of the cut: [chunks, B, t, D] as [B, T, D]."""
    count, batch, _, width = chunks.shape
    ways = _token_ways(length)
    x = jnp.moveaxis(chunks.reshape(count, batch, ways, -1, width), 0, 2)
    return x.reshape(batch, ways, -1, width)[:, :, : length // ways].reshape(batch, length, width)


def _token_ways(length):
    """Over how many devices a mesh splits the tokens of a row."""
    mesh = auto_mesh()
    ways = 1 if mesh is None else mesh.shape.get("sequence", 1)
    return ways if length % ways == 0 else 1


def _read_out_leaves(model, params, hidden):
    jaxpr = jax.make_jaxpr(model.unembed)(params, hidden[:, :1]).jaxpr
    read = {id(v) for equation in jaxpr.eqns for v in equation.invars} | {id(v) for v in jaxpr.outvars}
    count = len(jax.tree.leaves(params))
    return tuple(index for index, v in enumerate(jaxpr.invars[:count]) if id(v) in read)
