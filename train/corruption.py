"""Which tokens a masked-LM step hides, drawn inside the step from one key a row.

BERT (Devlin et al. 2018, section 3.1): a share `rate` of the ordinary tokens is chosen; of the chosen, 80 % become
[MASK], 10 % a random ordinary token, 10 % stay. The loss counts chosen positions alone. A fresh draw each step and
epoch; the same draw for the same (seed, step, row), so a resumed run and any mesh see the same masks.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zoo.errors import InputError

# With whole words, the last word chosen may run this many pieces over the count.
WORD_ROOM = 15


@dataclass(frozen=True)
class Vocabulary:
    """What corruption must know of a tokenizer, hashable.

    Attributes:
        size: ids are below this.
        mask_id: id of [MASK].
        special_ids: never chosen, never drawn as the random token.
        starts_word: one byte an id, 1 where the piece begins a word; empty when whole words are not asked for.
    """

    size: int
    mask_id: int
    special_ids: tuple[int, ...]
    starts_word: bytes = b""

    @classmethod
    def of(cls, tokenizer: Any, whole_words: bool = False) -> "Vocabulary":
        """Reads a zoo.tokenizer.Tokenizer.

        Raises:
            InputError: the tokenizer has no mask token.
        """
        if tokenizer.mask_id is None:
            raise InputError(
                "masked_lm needs a tokenizer with a mask token; this one has none: prepare the data with one that has"
            )
        starts = np.asarray(tokenizer.starts_word, np.uint8).tobytes() if whole_words else b""
        special = tuple(sorted({int(i) for i in (*tokenizer.special_ids, tokenizer.mask_id)}))
        return cls(int(tokenizer.vocab_size), int(tokenizer.mask_id), special, starts)


class Corrupted(NamedTuple):
    """Tokens with some hidden, and where the loss counts; K places are always reserved, some with weight 0.

    Attributes:
        tokens: [B, T] int32 inputs.
        positions: [B, K] int32 chosen positions; 0 in places not used.
        labels: [B, K] int32 original tokens there.
        weights: [B, K] float32, 1 in places used.
    """

    tokens: jax.Array
    positions: jax.Array
    labels: jax.Array
    weights: jax.Array


def places(length: int, rate: float, whole_words: bool = False) -> int:
    """K: how many positions of a row of `length` can be chosen."""
    return min(length, math.ceil(rate * length) + 1 + WORD_ROOM * whole_words)


@partial(jax.jit, static_argnames=("vocabulary", "rate"))
def corrupt(
    tokens: jax.Array, segment_ids: jax.Array, keys: jax.Array, *, vocabulary: Vocabulary, rate: float
) -> Corrupted:
    """Chooses positions row by row and hides their tokens.

    A row with n ordinary tokens gets floor(rate n + u) positions, u uniform in [0, 1): the expected share is exactly
    `rate`. With whole words, words are taken in random order until the count is reached, and the word that crosses it
    is taken with the probability that keeps the expected share at `rate`.

    Args:
        tokens: [B, T] int32.
        segment_ids: [B, T] int32; 0 is padding.
        keys: [B] keys, one a row.
        vocabulary: static.
        rate: static.

    Returns:
        Corrupted, with K = places(T, rate, whole words or not).
    """
    return jax.vmap(partial(_corrupt_row, vocabulary=vocabulary, rate=rate))(tokens, segment_ids, keys)


def _corrupt_row(tokens, segment_ids, key, *, vocabulary, rate):
    length = tokens.shape[0]
    room = places(length, rate, bool(vocabulary.starts_word))
    order_key, count_key, kind_key, token_key = jax.random.split(key, 4)
    special = jnp.asarray(vocabulary.special_ids, jnp.int32)
    ordinary = (segment_ids > 0) & ~jnp.any(tokens[:, None] == special, axis=1)
    wanted = rate * jnp.sum(ordinary, dtype=jnp.float32)
    threshold = jax.random.uniform(count_key)
    scores = jax.random.uniform(order_key, (length,))
    if vocabulary.starts_word:
        positions, used = _choose_words(tokens, segment_ids, ordinary, scores, wanted, threshold, room, vocabulary)
    else:
        # Scores are in [0, 1): positions that may not be chosen sort behind all others.
        _, positions = jax.lax.top_k(jnp.where(ordinary, scores, -1.0), room)
        used = jnp.arange(room) < jnp.floor(wanted + threshold)
    labels = tokens[positions]
    kind = jax.random.uniform(kind_key, (room,))
    table = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.asarray(vocabulary.special_ids))
    drawn = jnp.asarray(table)[jax.random.randint(token_key, (room,), 0, table.size)]
    replacement = jnp.where(kind < 0.8, vocabulary.mask_id, jnp.where(kind < 0.9, drawn, labels)).astype(tokens.dtype)
    # Places not used write out of range, which drops the write.
    hidden = tokens.at[jnp.where(used, positions, length)].set(replacement, mode="drop")
    return Corrupted(hidden, jnp.where(used, positions, 0), jnp.where(used, labels, 0), used.astype(jnp.float32))


def _choose_words(tokens, segment_ids, ordinary, scores, wanted, threshold, room, vocabulary):
    length = tokens.shape[0]
    starts = jnp.asarray(np.frombuffer(vocabulary.starts_word, np.uint8))[tokens] > 0
    before = jnp.concatenate([jnp.zeros(1, bool), ordinary[:-1]])
    crossed = jnp.concatenate([jnp.ones(1, bool), segment_ids[1:] != segment_ids[:-1]])
    word = jnp.cumsum(starts | ~ordinary | ~before | crossed) - 1
    score = jnp.where(ordinary, scores[word], 2.0)
    # Stable sort by the score that a word's pieces share: words stay whole and in order.
    order = jnp.argsort(score, stable=True)
    sizes = jnp.zeros(length, jnp.int32).at[word].add(ordinary.astype(jnp.int32))
    size = sizes[word][order].astype(jnp.float32)
    index = jnp.arange(length)
    new_word = jnp.concatenate([jnp.ones(1, bool), word[order][1:] != word[order][:-1]])
    first = jax.lax.cummax(jnp.where(new_word, index, 0)).astype(jnp.float32)
    # A word that ends within the count is always taken; one that crosses it, with the share of it that lies inside.
    taken = (first + threshold * size < wanted) & (first + size <= room) & ordinary[order]
    return order[:room], taken[:room]
