"""From logits to a token: bias and penalties, temperature, top-k, top-p, min-p. The likeliest token is never removed.

    l  = logits + bias                                          banned ids -inf
    l  = l / r where l > 0, l r elsewhere, at ids seen before   repetition penalty (Keskar et al. 2019: 1909.05858)
    l -= presence [count > 0] + frequency count                 count: of ids generated so far
    p  = softmax(l / temperature), the k likeliest, of these the head that reaches top_p, of these p >= min_p max p

What a program is compiled for is which of these are at work (Parts); how much travels as data, a value a row, so that
one program serves every request of the same parts and a row keeps its own settings in any batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from zoo.errors import InputError
from zoo.given_numbers import number, whole_number, whole_numbers

# Those of Sampling that need not be whole.
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
# Penalties and biases are no larger: sums and products of them are numbers in float32. At such a temperature all are
# equal.
LARGEST = 1e30


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest (the first of equals).
        top_k: draw among the k likeliest, 0 for all. Of equals at the border those with the smaller id stay.
        top_p: draw among the likeliest whose probabilities, added from the top, first reach p (Holtzman et al. 2020,
            arXiv:1904.09751); 1 for all, 0 for the likeliest alone.
        vocab_limit: ids from here on have probability 0 (a table padded beyond its tokenizer); None for no limit.
        min_p: draw among those at least so likely as this share of the likeliest (Nguyen et al. 2024,
            arXiv:2407.01082); 0 for all.
        repetition_penalty: r above; 1 for none. It counts the prompt's ids too.
        presence_penalty, frequency_penalty: taken off the logits of ids generated before, once and for each time.
        logit_bias: id -> what is added to its logit.
        banned: ids that never come.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    vocab_limit: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()

    def check(self, vocab_size: int) -> None:
        """Raises InputError for a value outside its range, naming the range, or of another kind."""
        for name in NUMBERS:
            number(name, getattr(self, name))
        whole_number("top_k", self.top_k)
        if not isinstance(self.logit_bias, Mapping):
            raise InputError(f"logit_bias is {self.logit_bias!r:.40}; give {{id: what is added to its logit}}")
        banned = whole_numbers("banned", self.banned)
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or above")
        if not 0 <= self.top_k <= vocab_size:
            raise InputError(f"top_k is {self.top_k}; it must be from 0 (off) to the vocabulary's {vocab_size}")
        if not 0 <= self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be from 0 to 1 (off)")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p is {self.min_p}; it must be from 0 (off) to 1")
        if not 1 / LARGEST <= self.repetition_penalty <= LARGEST:
            raise InputError(f"repetition_penalty is {self.repetition_penalty}; it must be above 0, 1 is off")
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) <= LARGEST:
                raise InputError(f"{name} is {getattr(self, name)}; it must be a finite number, 0 is off")
        if self.vocab_limit is not None and not 1 <= self.vocab_limit <= vocab_size:
            raise InputError(f"vocab_limit is {self.vocab_limit}; it must be from 1 to the vocabulary's {vocab_size}")
        limit = self.vocab_limit or vocab_size
        for name, ids in (("logit_bias", self.logit_bias), ("banned", banned)):
            for token in ids:
                if not (isinstance(token, int | np.integer) and 0 <= token < limit):
                    raise InputError(f"{name} names id {token!r}; ids go from 0 to {limit - 1}")
        for token, bias in dict(self.logit_bias).items():
            if not (isinstance(bias, int | float | np.number) and (abs(bias) <= LARGEST or bias == -math.inf)):
                raise InputError(f"logit_bias of id {token} is {bias!r}; it must be a number below infinity")
        if not np.isfinite(self.offsets(vocab_size)).any():
            raise InputError("every id is banned; leave at least one")

    def offsets(self, vocab_size: int) -> np.ndarray:
        """float32 [V]: what is added to the logits, -inf at ids that never come."""
        added = np.zeros(vocab_size, np.float32)
        for token, bias in dict(self.logit_bias).items():
            added[token] = bias
        added[list(self.banned)] = -np.inf
        added[self.vocab_limit or vocab_size :] = -np.inf
        return added


@dataclass(frozen=True)
class Parts:
    """What a compiled step does; everything else is data.

    Attributes:
        draws: some row has a temperature above 0.
        head: how many of the likeliest are sorted out for top-k and top-p; 0: none need be.
        min_p, repetition, counted, offset: that part is at work in some row.
    """

    draws: bool = False
    head: int = 0
    min_p: bool = False
    repetition: bool = False
    counted: bool = False
    offset: bool = False


@struct.dataclass
class Settings:
    """A value a row of each number of Sampling: [B], and offsets [B or 1, V] (None where nothing is added)."""

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition: jax.Array
    presence: jax.Array
    frequency: jax.Array
    offsets: jax.Array | None = None


@struct.dataclass
class Memory:
    """What penalties go by: seen bool [B, V] (prompt and generated), counts int32 [B, V] (generated); or None."""

    seen: jax.Array | None = None
    counts: jax.Array | None = None

    def add(self, tokens: jax.Array, rows: jax.Array | None = None) -> "Memory":
        """With one generated token a row, int32 [B], in the rows (bool [B]) that are still at work."""
        place = jnp.arange(tokens.shape[0])
        here = jnp.ones(tokens.shape, bool) if rows is None else rows
        seen = None if self.seen is None else self.seen.at[place, tokens].max(here)
        counts = None if self.counts is None else self.counts.at[place, tokens].add(here.astype(jnp.int32))
        return Memory(seen, counts)


def for_rows(rows: Sequence[Sampling], vocab_size: int, given: Parts | None = None) -> tuple[Parts, Settings]:
    """One Sampling a row as what a program is compiled for and the data that it gets.

    `given`: parts that do all that the rows need, and maybe more: what changes nothing in a row is data, too.
    """
    drawn = [row for row in rows if row.temperature > 0]
    head = 0
    if any(0 < row.top_k < vocab_size or row.top_p < 1 for row in drawn):
        most = [row.top_k or vocab_size for row in drawn]
        head = min(vocab_size, 1 << (max(most) - 1).bit_length())  # few sizes, few programs
    offsets = [row.offsets(vocab_size) for row in rows]
    if given is None and all((one == offsets[0]).all() for one in offsets[1:]):
        offsets = offsets[:1]
    parts = given or Parts(
        draws=bool(drawn),
        head=head,
        min_p=any(row.min_p > 0 for row in drawn),
        repetition=any(row.repetition_penalty != 1 for row in rows),
        counted=any(row.presence_penalty or row.frequency_penalty for row in rows),
        offset=any(one.any() for one in offsets),
    )

    def each(name, dtype=jnp.float32):
        return jnp.asarray([getattr(row, name) for row in rows], dtype)

    return parts, Settings(
        temperature=jnp.asarray([min(row.temperature, LARGEST) for row in rows], jnp.float32),
        top_k=jnp.asarray([row.top_k or vocab_size for row in rows], jnp.int32),
        top_p=each("top_p"),
        min_p=each("min_p"),
        repetition=each("repetition_penalty"),
        presence=each("presence_penalty"),
        frequency=each("frequency_penalty"),
        offsets=jnp.asarray(np.stack(offsets)) if parts.offset else None,
    )


def empty_memory(parts: Parts, tokens: jax.Array, mask: jax.Array, vocab_size: int) -> Memory:
    """Memory of the prompts alone: tokens int32 [B, T], mask [B, T] of real ones."""
    seen = counts = None
    rows = jnp.arange(tokens.shape[0])[:, None]
    if parts.repetition:
        seen = jnp.zeros((tokens.shape[0], vocab_size), bool).at[rows, tokens].max(mask != 0)
    if parts.counted:
        counts = jnp.zeros((tokens.shape[0], vocab_size), jnp.int32)
    return Memory(seen, counts)


def adjusted(logits: jax.Array, parts: Parts, settings: Settings, memory: Memory | None = None) -> jax.Array:
    """float32 [B, V]: logits after bias, bans and penalties, before the temperature."""
    logits = logits.astype(jnp.float32)
    if parts.offset:
        logits = logits + settings.offsets
    if memory is not None and memory.seen is not None:
        penalty = settings.repetition[:, None]
        logits = jnp.where(memory.seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)
    if memory is not None and memory.counts is not None:
        logits = logits - settings.presence[:, None] * (memory.counts > 0)
        logits = logits - settings.frequency[:, None] * memory.counts
    return logits


def first_largest(logits: jax.Array) -> jax.Array:
    """argmax over the last axis, int32: the first of equals, or the first NaN. Two passes take a CPU a tenth of one."""
    found = (logits == jnp.max(logits, axis=-1, keepdims=True)) | jnp.isnan(logits)
    places = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where(found, places, logits.shape[-1] - 1), axis=-1)


def choose(
    logits: jax.Array, keys: jax.Array, parts: Parts, settings: Settings, memory: Memory | None = None
) -> jax.Array:
    """One token a row, int32 [B], from logits [B, V] and random keys [B] (unread by greedy rows)."""
    logits = adjusted(logits, parts, settings, memory)
    likeliest = first_largest(logits)
    if not parts.draws:
        return likeliest
    kept, ids = _filtered(logits, parts, settings)
    # The noise belongs to an id, not to a place among the likeliest: so a row draws alike whatever its batch sorts.
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys)
    if ids is None:
        drawn = jnp.argmax(kept + noise, axis=-1)
    else:
        place = jnp.argmax(kept + jnp.take_along_axis(noise, ids, axis=1), axis=-1)
        drawn = jnp.take_along_axis(ids, place[:, None], axis=1)[:, 0]
    return jnp.where(settings.temperature > 0, drawn.astype(jnp.int32), likeliest)


def probabilities(
    logits: jax.Array, parts: Parts, settings: Settings, memory: Memory | None = None
) -> jax.Array:
    """float32 [B, V]: what `choose` draws from; all on the likeliest in greedy rows."""
    logits = adjusted(logits, parts, settings, memory)
    likeliest = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    if not parts.draws:
        return likeliest
    kept, ids = _filtered(logits, parts, settings)
    shares = jax.nn.softmax(kept, axis=-1)
    if ids is not None:
        shares = jnp.zeros(logits.shape).at[jnp.arange(logits.shape[0])[:, None], ids].set(shares)
    return jnp.where(settings.temperature[:, None] > 0, shares, likeliest)


def _filtered(logits, parts, settings):
    """Scores [B, head or V], -inf where removed, and the ids [B, head] they belong to (None: place is id)."""
    heat = jnp.where(settings.temperature > 0, settings.temperature, 1.0)[:, None]
    # Below the largest, so that no temperature, however near to 0, takes two of them to infinity.
    logits, ids = (logits - jnp.max(logits, axis=-1, keepdims=True)) / heat, None
    if parts.head:
        total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        top, ids = jax.lax.top_k(logits, parts.head)  # of equals the smaller id comes first
        place = jnp.arange(parts.head)
        kept = place < settings.top_k[:, None]
        # top_p is a share of what top-k leaves.
        total = jnp.where(settings.top_k[:, None] >= logits.shape[-1], total, _logsumexp(top, kept))
        probabilities = jnp.where(kept, jnp.exp(top - total), 0.0)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        # A share of 1 is off, whatever the running sum rounds to.
        kept = kept & ((before < settings.top_p[:, None]) | (settings.top_p[:, None] >= 1) | (place == 0))
        logits = jnp.where(kept, top, -jnp.inf)
    if parts.min_p:
        least = jnp.max(logits, axis=-1, keepdims=True) + jnp.log(settings.min_p)[:, None]
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    return logits, ids


def _logsumexp(values, kept):
    return jax.nn.logsumexp(jnp.where(kept, values, -jnp.inf), axis=-1, keepdims=True)


def filter_logits(logits: jax.Array, sampling: Sampling) -> jax.Array:
    """Logits [B, V] after offsets, temperature, top-k, top-p and min-p; removed are -inf, and the likeliest is 0.

    Greedy: after the offsets alone.
    """
    vocab_size = logits.shape[-1]
    parts, settings = for_rows([sampling] * logits.shape[0], vocab_size)
    logits = adjusted(logits, parts, settings)
    if not parts.draws:
        return logits
    kept, ids = _filtered(logits, parts, settings)
    if ids is None:
        return kept
    rows = jnp.arange(logits.shape[0])[:, None]
    return jnp.full(logits.shape, -jnp.inf).at[rows, ids].set(kept)


def draw(logits: jax.Array, keys: jax.Array, sampling: Sampling) -> jax.Array:
    """One token a row, int32 [B], from logits [B, V]; keys [B] are unread when greedy."""
    parts, settings = for_rows([sampling] * logits.shape[0], logits.shape[-1])
    return choose(logits, keys, parts, settings)
