"""From logits to a token: greedy, temperature, top-k, top-p. The likeliest token is never removed."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from zoo.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest (the first of equals).
        top_k: draw among the k likeliest, 0 for all. Of equals at the border those with the smaller id stay.
        top_p: draw among the likeliest whose probabilities, added from the top, first reach p (Holtzman et al. 2020,
            arXiv:1904.09751); 1 for all, 0 for the likeliest alone.
        vocab_limit: ids from here on have probability 0 (a table padded beyond its tokenizer); None for no limit.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    vocab_limit: int | None = None

    def check(self, vocab_size: int) -> None:
        """Raises InputError for a value outside its range, naming the range."""
        if not self.temperature >= 0:
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or above")
        if not (isinstance(self.top_k, int) and 0 <= self.top_k <= vocab_size):
            raise InputError(f"top_k is {self.top_k}; it must be from 0 (off) to the vocabulary's {vocab_size}")
        if not 0 <= self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be from 0 to 1 (off)")
        if self.vocab_limit is not None and not 1 <= self.vocab_limit <= vocab_size:
            raise InputError(f"vocab_limit is {self.vocab_limit}; it must be from 1 to the vocabulary's {vocab_size}")


def filter_logits(logits: jax.Array, sampling: Sampling) -> jax.Array:
    """Logits [B, V] after limit, temperature, top-k and top-p, in this order; removed ones are -inf."""
    vocab_size = logits.shape[-1]
    logits = _limited(logits.astype(jnp.float32), sampling.vocab_limit)
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < vocab_size:
        _, kept = jax.lax.top_k(logits, sampling.top_k)
        logits = jnp.where(_members(kept, vocab_size), logits, -jnp.inf)
    if sampling.top_p < 1:
        order = jnp.argsort(-logits, axis=-1, stable=True)
        probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        keep_sorted = (before < sampling.top_p).at[:, 0].set(True)
        places = jnp.argsort(order, axis=-1)
        logits = jnp.where(jnp.take_along_axis(keep_sorted, places, axis=-1), logits, -jnp.inf)
    return logits


def draw(logits: jax.Array, keys: jax.Array, sampling: Sampling) -> jax.Array:
    """One token a row.

    Args:
        logits: [B, V].
        keys: [B] random keys; unread when greedy.
        sampling: how.

    Returns:
        int32 [B].
    """
    if sampling.temperature == 0:
        return jnp.argmax(_limited(logits, sampling.vocab_limit), axis=-1).astype(jnp.int32)
    return jax.vmap(jax.random.categorical)(keys, filter_logits(logits, sampling)).astype(jnp.int32)


def _limited(logits: jax.Array, limit: int | None) -> jax.Array:
    return logits if limit is None else jnp.where(jnp.arange(logits.shape[-1]) < limit, logits, -jnp.inf)


def _members(ids: jax.Array, vocab_size: int) -> jax.Array:
    """bool [B, V], True at the ids [B, k]."""
    rows = jnp.arange(ids.shape[0])[:, None]
    return jnp.zeros((ids.shape[0], vocab_size), bool).at[rows, ids].set(True)
