"""The bigram language model: the next token given the current one alone, and nothing of what came before it.

One table [V, V], row i the logits after token i. Maximum likelihood has a closed form, the empirical frequencies

    p(j | i) = count(i, j) / count(i, anything)

and gradient descent on the cross-entropy, which is convex in the table, goes to the same place.
Reference: Jurafsky and Martin, Speech and Language Processing, chapter 3.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from zoo.embedding import look_up
from zoo.errors import InputError

Params = dict[str, jax.Array]


def pairs(symbols: Sequence[Any], ends: tuple[Any, Any] | None = None) -> list[tuple[Any, Any]]:
    """What a bigram model learns from a sequence: (symbol, next symbol), in order.

    Args:
        symbols: ids, or the characters of a str.
        ends: (begin, end) symbols to put around the sequence; without them its first and last stand at no edge.
    """
    around = [*symbols] if ends is None else [ends[0], *symbols, ends[1]]
    return list(zip(around[:-1], around[1:], strict=True))


def init(vocab_size: int) -> Params:
    """A table of zeros, {"table": [V, V]}: every token equally likely after every other."""
    if vocab_size < 1:
        raise InputError(f"vocab_size is {vocab_size}; it must be 1 or more")
    return {"table": jnp.zeros((vocab_size, vocab_size), jnp.float32)}


def apply(params: Params, tokens: jax.Array) -> jax.Array:
    """Logits of the next token: row tokens[...] of the table.

    Args:
        params: {"table": [V, V]}.
        tokens: int [...]; ids outside 0..V-1 give NaN.

    Returns:
        [..., V]; position t knows tokens[..., t] alone.
    """
    return look_up(params["table"], tokens)


def loss(params: Params, tokens: jax.Array, segment_ids: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Next-token cross-entropy as (sum, number of pairs).

    Args:
        params: {"table": [V, V]}.
        tokens: int [B, T].
        segment_ids: int [B, T]: a pair counts where both tokens are of one segment above 0; None counts all.
    """
    current, following, counts = _pairs_of(tokens, segment_ids)
    log_p = jax.nn.log_softmax(apply(params, current))
    own = jnp.take_along_axis(log_p, following[..., None], axis=-1)[..., 0]
    # An impossible pair that carries no weight has an infinite loss, which a product with 0 would turn into NaN.
    return jnp.sum(jnp.where(counts > 0, -own, 0.0)), jnp.sum(counts)


def count(tokens: jax.Array, vocab_size: int, segment_ids: jax.Array | None = None) -> jax.Array:
    """How often j follows i: [V, V] float32; arguments as in `loss`.

    Raises:
        InputError: an id outside 0..vocab_size-1.
    """
    tokens = jnp.asarray(tokens)
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        worst = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
        raise InputError(f"token id {worst} is outside the vocabulary: 0 to {vocab_size - 1}")
    current, following, counts = _pairs_of(tokens, segment_ids)
    return jnp.zeros((vocab_size, vocab_size), jnp.float32).at[current, following].add(counts)


def closed_form(counts: jax.Array, smoothing: float = 0.0) -> Params:
    """The table of greatest likelihood: logits log p(j | i), -inf for pairs that were never seen.

    Args:
        counts: [V, V], from `count`.
        smoothing: added to every count (Laplace); above 0 every pair is possible.

    Returns:
        {"table": [V, V]}; a token that nothing followed has a row of zeros (all equally likely).
    """
    counts = counts + smoothing
    total = counts.sum(axis=1, keepdims=True)
    return {"table": jnp.where(total > 0, jnp.log(counts / jnp.where(total > 0, total, 1.0)), 0.0)}


@partial(jax.jit, static_argnames="steps")
def fit(
    params: Params,
    tokens: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    steps: int = 1000,
    learning_rate: float = 4.0,
) -> tuple[Params, jax.Array]:
    """Gradient descent on the mean loss over all pairs.

    Args:
        params: where to start, such as init(V).
        tokens, segment_ids: as in `loss`.
        steps: of descent, each on all tokens.
        learning_rate: up to 4 the loss never rises, since no curvature of it exceeds 1 / 2.

    Returns:
        the fitted params, and the loss before each step [steps].
    """

    def mean_loss(params):
        total, weight = loss(params, tokens, segment_ids)
        return total / jnp.maximum(weight, 1.0)

    def step(params, _):
        value, gradient = jax.value_and_grad(mean_loss)(params)
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient), value

    return jax.lax.scan(step, params, length=steps)


def _pairs_of(tokens, segment_ids):
    """Current and following tokens [B, T - 1], and 1.0 where the pair counts."""
    current, following = tokens[..., :-1], tokens[..., 1:]
    if segment_ids is None:
        return current, following, jnp.ones(current.shape, jnp.float32)
    segments, next_segments = segment_ids[..., :-1], segment_ids[..., 1:]
    return current, following, ((segments == next_segments) & (next_segments > 0)).astype(jnp.float32)
