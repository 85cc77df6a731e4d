"""Cross-entropy of token predictions in float32, and the chunked form in which the logits of a batch never all exist.

loss(z, y) = (1 - e) (log Z - z_y) + e (log Z - mean z) + c (log Z)^2,      log Z = log sum exp z
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from zoo import partition
from zoo.sharded_product import summed_parts


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
    chunk_bytes: int = 1 << 26
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
    axis, within each device's part of it, so that rows and tokens stay where a mesh put them. Under a mesh the
    read-out's parameters are gathered once, for all chunks; each device adds up its own gradients of them, in float32,
    and these are summed over devices once.

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
    named, structure = jax.tree_util.tree_flatten_with_path(params)
    paths, leaves = [partition.path_string(path) for path, _ in named], [leaf for _, leaf in named]
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    used = _read_out_leaves(model, params, hidden)

    def unembed(chosen, states):
        # Leaves that the read-out does not touch are stood in for by zeros, which the compiler drops.
        given = dict(zip(used, chosen, strict=True))
        filled = [given[i] if i in given else jnp.zeros(*shape) for i, shape in enumerate(shapes)]
        return model.unembed(jax.tree.unflatten(structure, filled), states)

    vocab = jax.eval_shape(model.unembed, params, hidden[:, :1]).shape[-1]
    layout = _spread(hidden.shape, vocab, options, tuple(paths[index] for index in used))
    return _sums(unembed, layout, options, [leaves[index] for index in used], hidden, labels, weights)


@dataclass(frozen=True)
class _Spread:
    """How positions are cut: over devices, and each device's part into chunks.

    Attributes:
        rows, tokens: axes of a mesh over which [B, T] lies; () and () without one.
        ways: devices of each.
        count, size: chunks, and tokens of a device in each.
        paths: of the read-out's parameters.
    """

    rows: tuple[str, ...]
    tokens: tuple[str, ...]
    ways: tuple[int, int]
    count: int
    size: int
    paths: tuple[str, ...]

    @property
    def parts(self) -> int:
        """Devices with positions of their own."""
        return self.ways[0] * self.ways[1]

    def pin(self, x: jax.Array, path: str = "", *, before: int = 0) -> jax.Array:
        """x [(before), parts, ...], each device's part on it; of a parameter's gradient the rest as it is used."""
        if self.parts == 1:
            return x
        spec = (None,) * (x.ndim - before - 1)
        if path:
            mesh = partition.auto_mesh()
            spec = partition.used_spec(partition.leaf_spec(path, x.shape[1:], mesh.shape), path)
        spread = (*self.rows, *self.tokens)
        return jax.lax.with_sharding_constraint(x, PartitionSpec(*(None,) * before, spread, *spec))


def _spread(shape, vocab, options, paths):
    batch, length, _ = shape
    mesh = partition.auto_mesh()
    rows = () if mesh is None else partition.row_axes(mesh)
    rows = rows if rows and batch % partition.ways_of(rows, mesh.shape) == 0 else ()
    tokens = ("sequence",) if rows and "sequence" in mesh.shape and length % mesh.shape["sequence"] == 0 else ()
    ways = (1, 1) if mesh is None else (partition.ways_of(rows, mesh.shape), partition.ways_of(tokens, mesh.shape))
    part = length // ways[1]
    count = -(-part // max(1, options.chunk_bytes // (4 * batch * vocab)))
    return _Spread(rows, tokens, ways, count, -(-part // count), paths)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _sums(unembed, spread, options, leaves, hidden, labels, weights):
    leaves = _gathered(spread, leaves, hidden.dtype)

    def body(carry, chunk):
        sums = _each(spread, partial(_chunk_sums, unembed, options, leaves))(*chunk)
        return (carry[0] + sums[0], carry[1] + sums[1]), None

    zero = jnp.zeros((spread.parts,), jnp.float32)
    sums = jax.lax.scan(body, (zero, zero), _chunks(spread, hidden, labels, weights))[0]
    return jnp.sum(sums[0]), jnp.sum(sums[1])


def _sums_forward(unembed, spread, options, leaves, hidden, labels, weights):
    given, leaves = leaves, _gathered(spread, leaves, hidden.dtype)

    def slopes(states, labels, weights):
        def sums(leaves, states):
            return _chunk_sums(unembed, options, leaves, states, labels, weights)

        return jax.value_and_grad(sums, argnums=(0, 1), has_aux=True)(leaves, states)

    def body(carry, chunk):
        (loss, correct), (leaf_grads, grad) = _each(spread, slopes)(*chunk)
        grads = [
            spread.pin(total + new, path)
            for total, new, path in zip(carry[2], leaf_grads, spread.paths, strict=True)
        ]
        return (carry[0] + loss, carry[1] + correct, grads), grad

    zero = jnp.zeros((spread.parts,), jnp.float32)
    chunks = _chunks(spread, hidden, labels, weights)
    if spread.count == 1:  # nothing to add up
        (loss, correct), (leaf_grads, grad) = _each(spread, slopes)(*(x[0] for x in chunks))
        leaf_grads = [spread.pin(new, path) for new, path in zip(leaf_grads, spread.paths, strict=True)]
        return (jnp.sum(loss), jnp.sum(correct)), _kept(spread, given, leaf_grads, grad[None], hidden.shape)
    begun = [
        spread.pin(jnp.zeros((spread.parts, *leaf.shape), leaf.dtype), path)
        for leaf, path in zip(given, spread.paths, strict=True)
    ]
    (loss, correct, leaf_grads), grads = jax.lax.scan(body, (zero, zero, begun), chunks)
    return (jnp.sum(loss), jnp.sum(correct)), _kept(spread, given, leaf_grads, grads, hidden.shape)


def _kept(spread, given, leaf_grads, grads, shape):
    """Gradients of the loss sum: of the read-out's parameters, summed over devices, and of the hidden states."""
    if spread.parts == 1:
        summed = [grad[0] for grad in leaf_grads]
    else:
        summed = [
            summed_parts(path, grad, spread.rows, spread.tokens).astype(leaf.dtype)
            for grad, path, leaf in zip(leaf_grads, spread.paths, given, strict=True)
        ]
    return summed, _whole(spread, grads, shape)


def _sums_backward(unembed, spread, options, kept, cotangents):
    leaf_grads, grads = kept
    scale = cotangents[0]
    return [scale.astype(g.dtype) * g for g in leaf_grads], scale.astype(grads.dtype) * grads, None, None


_sums.defvjp(_sums_forward, _sums_backward)


def _each(spread, function):
    """The function of every part; of a single one without the dimension of parts, which would cost CPUs time."""
    if spread.parts > 1:
        return jax.vmap(function)
    return lambda *arrays: jax.tree.map(lambda x: x[None], function(*(x[0] for x in arrays)))


def _gathered(spread, leaves, dtype):
    """The read-out's parameters as they are used: matrices in the dtype of activations."""
    if spread.parts == 1:
        return leaves
    mesh = partition.auto_mesh()

    def gathered(path, leaf):
        used = partition.used_spec(partition.leaf_spec(path, leaf.shape, mesh.shape), path)
        sent = leaf.astype(dtype) if leaf.ndim > 1 else leaf
        return jax.lax.with_sharding_constraint(sent, used)

    return [gathered(path, leaf) for path, leaf in zip(spread.paths, leaves, strict=True)]


def _chunk_sums(unembed, options, leaves, states, labels, weights):
    losses, credit = _loss_and_credit(unembed(leaves, states), labels, options)
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


def _chunks(spread, hidden, labels, weights):
    """[count, parts, b, size, ...] of each: from every device's part of the tokens an equal piece, so none travel."""
    batch, length, _ = hidden.shape
    (rows, tokens), count, size = spread.ways, spread.count, spread.size
    part = length // tokens

    def cut(x):
        rest = x.shape[2:]
        x = x.reshape(rows, batch // rows, tokens, part, *rest)
        x = jnp.pad(x, [(0, 0)] * 3 + [(0, count * size - part)] + [(0, 0)] * len(rest))
        x = x.reshape(rows, batch // rows, tokens, count, size, *rest)
        x = jnp.transpose(x, (3, 0, 2, 1, 4, *range(5, x.ndim)))
        return spread.pin(x.reshape(count, rows * tokens, batch // rows, size, *rest), before=1)

    return cut(hidden), cut(labels), cut(weights)


def _whole(spread, chunks, shape):
    """The inverse of the cut: [count, parts, b, size, D] as [B, T, D]."""
    batch, length, width = shape
    (rows, tokens), count, size = spread.ways, spread.count, spread.size
    x = spread.pin(chunks, before=1).reshape(count, rows, tokens, batch // rows, size, width)
    x = jnp.transpose(x, (1, 3, 2, 0, 4, 5)).reshape(rows, batch // rows, tokens, count * size, width)
    return x[:, :, :, : length // tokens].reshape(shape)


def _read_out_leaves(model, params, hidden):
    jaxpr = jax.make_jaxpr(model.unembed)(params, hidden[:, :1]).jaxpr
    read = {id(v) for equation in jaxpr.eqns for v in equation.invars} | {id(v) for v in jaxpr.outvars}
    count = len(jax.tree.leaves(params))
    return tuple(index for index, v in enumerate(jaxpr.invars[:count]) if id(v) in read)
