"""The lectures' mathematics in plain arrays: four views of one matrix product, and the backward passes written out.

Four ways to read left [M, J] times right [J, N], all the same array:

    rows              out[m]    = left[m] right                       a token meets the shared weight
    entries           out[m, n] = left[m] . right[:, n]               a query row meets a key column: one score
    weighted rows     out[m]    = sum over j of left[m, j] right[j]   probabilities mix value rows
    outer products    out       = sum over j of left[:, j] right[j]   a key's whole share in every output

The backward passes take the gradient d_y of a loss with respect to a result y and give those with respect to what y was
made of. Autodiff computes the same numbers; nothing here is used in training.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from zoo.attention import masked_softmax


def product_by_rows(left: jax.Array, right: jax.Array) -> jax.Array:
    """left right, one row after another: row m of the result depends on row m of `left` alone.

    Args:
        left: [M, J].
        right: [J, N], shared by all rows.

    Returns:
        [M, N].
    """
    return jnp.stack([row @ right for row in left])


def product_by_entries(left: jax.Array, right: jax.Array) -> jax.Array:
    """left right, each entry the dot product of a row and a column: [M, J], [J, N] -> [M, N]."""
    return jnp.stack([jnp.stack([jnp.vdot(row, column) for column in right.T]) for row in left])


def product_by_weighted_rows(left: jax.Array, right: jax.Array) -> jax.Array:
    """left right, each row the rows of `right` added up with weights left[m]: [M, J], [J, N] -> [M, N]."""
    return jnp.stack([jnp.sum(weights[:, None] * right, axis=0) for weights in left])


def outer_products(left: jax.Array, right: jax.Array) -> jax.Array:
    """The J terms left[:, j] right[j] whose sum is left right: [M, J], [J, N] -> [J, M, N]."""
    return left.T[:, :, None] * right[:, None, :]


def product_by_outer_products(left: jax.Array, right: jax.Array) -> jax.Array:
    """left right as the sum of its outer products: [M, J], [J, N] -> [M, N]."""
    return outer_products(left, right).sum(axis=0)


PRODUCT_VIEWS = {
    "rows": product_by_rows,
    "entries": product_by_entries,
    "weighted rows": product_by_weighted_rows,
    "outer products": product_by_outer_products,
}


def negative_log_likelihood(probability: jax.Array) -> jax.Array:
    """-log p, in nats: the loss where the target was given probability p; elementwise."""
    return -jnp.log(probability)


def linear_backward(x: jax.Array, weight: jax.Array, d_y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Backward of y = x W + b: dX = dY W^T, dW = X^T dY, db = sum of dY over rows.

    Args:
        x: [..., Din].
        weight: [Din, Dout].
        d_y: [..., Dout].

    Returns:
        d_x [..., Din], d_weight [Din, Dout], d_bias [Dout].
    """
    rows, d_rows = x.reshape(-1, x.shape[-1]), d_y.reshape(-1, d_y.shape[-1])
    return d_y @ weight.T, rows.T @ d_rows, d_rows.sum(axis=0)


def look_up_backward(ids: jax.Array, d_y: jax.Array, vocab_size: int) -> jax.Array:
    """Backward of y = table[ids] = onehot(ids) table: each row of the table collects the gradients of its tokens.

    Args:
        ids: int [...].
        d_y: [..., D].
        vocab_size: V.

    Returns:
        d_table [V, D] = onehot(ids)^T dY.
    """
    one_hot = jax.nn.one_hot(ids.reshape(-1), vocab_size, dtype=d_y.dtype)
    return one_hot.T @ d_y.reshape(-1, d_y.shape[-1])


def softmax_backward(weights: jax.Array, d_weights: jax.Array) -> jax.Array:
    """Backward of P = softmax(S) over the last axis: dS = P * (dP - sum(dP * P)); zero where P is zero (hidden keys).

    Args:
        weights: P [..., S].
        d_weights: dP [..., S].
    """
    return weights * (d_weights - jnp.sum(d_weights * weights, axis=-1, keepdims=True))


def cross_entropy_backward(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Backward of -log softmax(logits)[label]: softmax(logits) - onehot(label).

    Args:
        logits: [..., V].
        labels: int [...].

    Returns:
        d_logits [..., V], for each loss by itself.
    """
    return jax.nn.softmax(logits, axis=-1) - jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)


def layer_norm_backward(
    x: jax.Array, scale: jax.Array, eps: float, d_y: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Backward of y = z * scale + bias with z = (x - mean) / s, s = sqrt(var + eps), over the last axis.

        dz = dY * scale,   dX = (dz - mean(dz) - z mean(dz * z)) / s,   dscale = sum dY * z,   dbias = sum dY

    Args:
        x: [..., D].
        scale: [D].
        eps: as in the forward pass.
        d_y: [..., D].

    Returns:
        d_x [..., D], d_scale [D], d_bias [D].
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + eps)
    z, d_z = centred * inverse, d_y * scale
    d_x = inverse * (d_z - d_z.mean(axis=-1, keepdims=True) - z * jnp.mean(d_z * z, axis=-1, keepdims=True))
    rows = tuple(range(x.ndim - 1))
    return d_x, jnp.sum(d_y * z, axis=rows), jnp.sum(d_y, axis=rows)


class AttentionGradients(NamedTuple):
    """The gradients of attention, from the output back: dP, dS [..., T, S]; dQ [..., T, H]; dK, dV [..., S, H]."""

    weights: jax.Array
    scores: jax.Array
    query: jax.Array
    key: jax.Array
    value: jax.Array


def attention_backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    d_out: jax.Array,
    seen: jax.Array | None = None,
    scale: float | None = None,
) -> AttentionGradients:
    """Backward of O = P V, P = softmax(S), S = Q K^T * scale, of one head (leading axes are carried along).

        dP = dO V^T,   dV = P^T dO,   dS = P * (dP - sum(dP * P)),   dQ = dS K * scale,   dK = dS^T Q * scale

    The mask needs no rule of its own: a hidden key has P = 0, and so dS = 0.

    Args:
        query: [..., T, H].
        key, value: [..., S, H].
        d_out: [..., T, H].
        seen: bool, broadcastable to [..., T, S]; None for all visible.
        scale: None for 1 / sqrt(H).

    Returns:
        AttentionGradients.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = masked_softmax(query @ _transposed(key) * scale, seen)
    d_weights = d_out @ _transposed(value)
    d_scores = softmax_backward(weights, d_weights)
    return AttentionGradients(
        weights=d_weights,
        scores=d_scores,
        query=d_scores @ key * scale,
        key=_transposed(d_scores) @ query * scale,
        value=_transposed(weights) @ d_out,
    )


def _transposed(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)
