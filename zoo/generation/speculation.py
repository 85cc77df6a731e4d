"""Speculative decoding: a small model drafts, the large one checks all drafts in one pass; the texts stay its own.

With p the large model's distribution and q the small one's, both after the same bias, penalties, temperature and
filters (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318):

    d_1 .. d_n  drawn from q, one after the other             n passes of the small model
    p_0 .. p_n  after the text, and after each draft          one pass of the large model
    d_i is taken with probability min(1, p(d_i) / q(d_i)); at the first that is not, one is drawn from
    max(p - q, 0) / sum of it, and after the last that is, from p_n

Each token is then distributed as p, whatever q is: q(x) min(1, p/q) + (1 - sum_y min(p, q)) max(p - q, 0) / (1 - sum
min(p, q)) = min(p, q) + max(p - q, 0) = p(x). Greedy rows put all on the likeliest token, and keep the drafts that are
it. Rows take as many as they take: each stands at a place of its own in the caches, which are cut back to it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from zoo.cache import Cache, cut, grow, repeat_rows
from zoo.errors import InputError
from zoo.generation.decoding import Rules, allowed, ends, forced, log_prob_of
from zoo.generation.prompts import left_padded
from zoo.generation.sampling import Memory, Parts, Sampling, probabilities
from zoo.generation.text_batch import TextBatch, check_room, longest_text, read_chunks, require_decoder
from zoo.given_numbers import whole_number
from zoo.model import Model

MOST_DRAFTS = 16


@struct.dataclass
class Drafted:
    """Texts at work, each as far as it is.

    Attributes:
        made: int32 [B], tokens so far, a stop token among them.
        tokens, log_probs, lengths, done, keys, memory: as in zoo.generation.decoding.Progress.
        before, last: int32 [B], the two newest tokens.
        cache: the large model's, of all but `last`.
        draft_cache: the small one's, of all but `before` and `last`.
        tried, taken: int32 [B], drafts; those after a text's end are not counted.
    """

    made: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    lengths: jax.Array
    done: jax.Array
    keys: jax.Array
    memory: Memory
    before: jax.Array
    last: jax.Array
    cache: Cache
    draft_cache: Cache
    tried: jax.Array
    taken: jax.Array


class DraftedBatch(TextBatch):
    """A TextBatch with a draft model; `draft` and `drafts` as in zoo.generate, the rest as in TextBatch."""

    def __init__(
        self,
        model: Model,
        params: Any,
        rows: list[list[int]],
        samplings: list[Sampling],
        *,
        draft: Sequence[Any],
        drafts: int,
        tokenizer: Any = None,
        **asked: Any,
    ):
        small, small_params = _checked(model, tokenizer, draft, drafts)
        new, samples = asked["max_new_tokens"], asked.get("samples", 1)
        check_room(small.config, max(len(row) for row in rows), new, drafts)
        # Both caches have the same slots, which are positions of both models.
        longest = min(longest_text(model.config), longest_text(small.config))
        super().__init__(model, params, rows, samplings, beyond=drafts, longest=longest, **asked)
        begun = self.now
        self._small, self._small_params, self._drafts = small, small_params, drafts
        slots, size = begun.cache.capacity, begun.tokens.shape[0]
        tokens, mask = left_padded(rows, self._width)
        cache = small.init_cache(len(rows), slots, asked.get("cache_dtype"))
        cache = read_chunks(small, small_params, tokens, mask, cache, self._width)
        if samples > 1:
            cache = repeat_rows(cache, samples)
        made = jnp.ones((size,), jnp.int32)
        self.now = Drafted(
            made=made,
            tokens=begun.tokens,
            log_probs=begun.log_probs,
            lengths=begun.lengths,
            done=begun.done,
            keys=begun.keys,
            memory=begun.memory,
            before=jnp.repeat(jnp.asarray(tokens[:, -1]), samples),
            last=begun.last,
            cache=cut(begun.cache, made + self._width - 1),
            draft_cache=cut(cache, made + self._width - 2),
            tried=jnp.zeros_like(made),
            taken=jnp.zeros_like(made),
        )

    @property
    def step(self) -> int:
        """Tokens of the row that goes on and has fewest."""
        return int(jnp.min(jnp.where(self.now.done, self._most, self.now.made)))

    def _run(self, until: int) -> None:
        # A row that has come so far waits for more slots: its last round and one that it takes no part in need room.
        far = self.capacity - self._width - 2 * self._drafts - 1
        self.now = advance(
            self._params,
            self._small_params,
            self.now,
            self._rules,
            jnp.int32(until),
            jnp.int32(self._most),
            jnp.int32(self._most if self.capacity == self._slots else far),
            model=self._model,
            small=self._small,
            parts=self._parts,
            drafts=self._drafts,
            width=self._width,
        )

    def _grow(self, slots: int) -> None:
        pairs = (self.now.cache, self._model), (self.now.draft_cache, self._small)
        large, small = (grow(cache, config=model.config, length=slots) for cache, model in pairs)
        self.now = self.now.replace(cache=large, draft_cache=small)

    def _made(self) -> np.ndarray:
        return np.asarray(self.now.made)

    @property
    def acceptance(self) -> np.ndarray:
        """float64 [B], the share of drafts that were taken; nan where none was needed."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.now.taken, np.float64) / np.asarray(self.now.tried)


def _checked(model: Model, tokenizer: Any, draft: Sequence[Any], drafts: int) -> tuple[Model, Any]:
    if not isinstance(draft, tuple | list) or len(draft) not in (2, 3) or not isinstance(draft[0], Model):
        raise InputError("draft must be (model, params) or (model, params, tokenizer)")
    small, small_params, *rest = draft
    require_decoder(small.config)
    if not 1 <= whole_number("draft_tokens", drafts) <= MOST_DRAFTS:
        raise InputError(f"draft_tokens is {drafts}; it must be from 1 to {MOST_DRAFTS}")
    sizes = small.config.vocab_size, model.config.vocab_size
    if sizes[0] != sizes[1]:
        raise InputError(f"the draft's vocabulary has {sizes[0]} ids and the model's {sizes[1]}; they must be the same")
    prints = [getattr(one, "fingerprint", None) for one in (tokenizer, *rest)]
    if rest and None not in prints and prints[0] != prints[1]:
        raise InputError("the draft's tokenizer is another than the model's: their ids mean different pieces")
    for one in (model, small):
        scaling = one.config.rotary_scaling
        if scaling is not None and scaling.by_length:
            raise InputError(f'drafts do not go with "{scaling.kind}" rotary scaling, whose angles go by the length')
    return small, small_params


@functools.partial(
    jax.jit, static_argnames=("model", "small", "parts", "drafts", "width"), donate_argnames=("now",)
)
def advance(
    params: Any,
    small_params: Any,
    now: Drafted,
    rules: Rules,
    until: jax.Array,
    most: jax.Array,
    far: jax.Array,
    *,
    model: Model,
    small: Model,
    parts: Parts,
    drafts: int,
    width: int,
) -> Drafted:
    """Rounds of drafts and checks, until each row has `until` tokens or has ended; none has more than `most`.

    Args:
        far: a row of more tokens waits: the caches have no room for its rounds.
        drafts: n above.
        width: slots of the prompts.
    """

    def running(now):
        return jnp.any(~now.done & (now.made < until) & (now.made <= far))

    def share(logits, step, memory):
        shares = probabilities(allowed(logits, step, rules), parts, rules.settings, memory)
        if not rules.forced.shape[0]:
            return shares
        must = forced(step, rules, -1)[:, None]
        return jnp.where(must >= 0, jnp.arange(shares.shape[1]) == must, shares)

    def one_round(now):
        keys = jax.vmap(lambda key, made: jax.random.split(jax.random.fold_in(key, made), drafts + 2))(
            now.keys, now.made
        )
        # The drafts. Two tokens go in first: the last draft that was taken has not been read.
        def draft(cache, memory, fed, i):
            last = jnp.full_like(fed[:, :1], fed.shape[1] - 1)
            out = small.apply(small_params, fed, cache=cache, logits_at=last)
            shares = share(out.logits[:, 0], now.made + i, memory)
            token = _drawn(shares, keys[:, i])
            return (out.cache, memory.add(token), token[:, None]), (token, shares)

        state, first = draft(now.draft_cache, now.memory, jnp.stack([now.before, now.last], axis=1), 0)
        (draft_cache, _, _), others = jax.lax.scan(lambda state, i: draft(*state, i), state, jnp.arange(1, drafts))
        said, asked = (  # [B, n], [B, n, V]
            jnp.moveaxis(jnp.concatenate([one[None], more]), 0, 1) for one, more in zip(first, others, strict=True)
        )

        out = model.apply(params, jnp.concatenate([now.last[:, None], said], axis=1), cache=now.cache)
        logits, memory, given = out.logits, now.memory, []
        for i in range(drafts + 1):
            given.append(share(logits[:, i], now.made + i, memory))
            memory = memory.add(said[:, i]) if i < drafts else memory
        given = jnp.stack(given, axis=1)  # [B, n + 1, V]

        ours, theirs = (
            jnp.take_along_axis(x[:, :drafts], said[..., None], axis=2)[..., 0] for x in (given, asked)
        )
        luck = jax.vmap(lambda key: jax.random.uniform(key, (drafts,)))(keys[:, drafts])
        count = jnp.cumprod(luck * theirs < ours, axis=1).sum(axis=1)  # of drafts taken, 0 to n
        asked = jnp.concatenate([asked, jnp.zeros_like(asked[:, :1])], axis=1)
        here = jnp.take_along_axis(given, count[:, None, None], axis=1)[:, 0]
        rest = jnp.maximum(here - jnp.take_along_axis(asked, count[:, None, None], axis=1)[:, 0], 0.0)
        # Of equal distributions nothing is left, and only rounding refuses a draft.
        rest = jnp.where(rest.sum(axis=1, keepdims=True) > 0, rest, here)
        final = _drawn(rest, keys[:, drafts + 1])
        place = jnp.arange(drafts + 1)
        line = jnp.where(place < count[:, None], jnp.pad(said, ((0, 0), (0, 1))), final[:, None])  # [B, n + 1]
        return _joined(now, line, count, logits, draft_cache, out.cache)

    def _joined(now, line, count, logits, draft_cache, cache):
        place = jnp.arange(drafts + 1)
        stops = ends(line, now.made[:, None] + place, rules)
        first = jnp.where(stops.any(axis=1), jnp.argmax(stops, axis=1), drafts + 1)
        active = ~now.done & (now.made < most) & (now.made <= far)
        new = jnp.minimum(jnp.minimum(count + 1, first + 1), most - now.made) * active
        ended = active & (first < new)
        tried = jnp.where(first < count, first + 1, drafts)  # what comes after a stop token, or the last, is no draft
        made, memory = now.made + new, now.memory
        for i in range(drafts + 1):
            memory = memory.add(line[:, i], i < new)
        at = jnp.arange(now.tokens.shape[1]) - now.made[:, None]  # the place in `line` of each place of the text

        def put(buffer, values):
            values = jnp.take_along_axis(values, jnp.clip(at, 0, drafts), axis=1)
            return jnp.where((at >= 0) & (at < new[:, None]), values, buffer)

        both = jnp.concatenate([now.before[:, None], now.last[:, None], line], axis=1)
        before, last = (jnp.take_along_axis(both, (new + i)[:, None], axis=1)[:, 0] for i in (0, 1))
        return Drafted(
            made=made,
            tokens=put(now.tokens, line),
            log_probs=put(now.log_probs, log_prob_of(logits, line)),
            lengths=jnp.where(active, made - ended, now.lengths),
            done=now.done | ended,
            keys=now.keys,
            memory=memory,
            before=before,
            last=last,
            cache=cut(cache, made + width - 1),
            draft_cache=cut(draft_cache, made + width - 2),
            tried=now.tried + jnp.minimum(tried, most - now.made) * active,
            taken=now.taken + jnp.minimum(count, new) * active,
        )

    return jax.lax.while_loop(running, one_round, now)


def _drawn(shares: jax.Array, keys: jax.Array) -> jax.Array:
    """int32 [B]: a token a row from shares [B, V] that need not add up to one; those of share 0 never come."""
    noise = jax.vmap(lambda key: jax.random.gumbel(key, shares.shape[1:]))(keys)
    return jnp.argmax(jnp.where(shares > 0, jnp.log(shares), -jnp.inf) + noise, axis=1).astype(jnp.int32)
