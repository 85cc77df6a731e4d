"""Beam search: of all continuations, those of the greatest probability that a beam of a given width finds.

    score = sum of log p of the tokens, stop token included / n^a

over n tokens, with a the length penalty (Wu et al. 2016, arXiv:1609.08144, eq. 14, without its constants).

A step takes the 2 K likeliest of the K V ways to go on from the K beams of a prompt: those that end join the K best
ended so far, the K best of the others go on. It ends when no beam can reach the worst of the ended ones, or at the
last step, where beams that have not ended count as they stand. With K no smaller than the number of beginnings there
are, it is a search of everything.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from zoo.cache import Cache, grow, repeat_rows, take_rows
from zoo.errors import InputError
from zoo.generation.prompts import continuation, left_padded, prompt_rows
from zoo.generation.text_batch import (
    check_ids,
    check_room,
    end_ids,
    finite,
    first_slots,
    read_prompts,
    require_decoder,
    sizes,
)
from zoo.given_numbers import number, whole_number
from zoo.model import Model

NEVER = -1e30


@dataclass(frozen=True)
class Beams:
    """What was found, the best first; P prompts, K beams.

    Attributes:
        tokens: int32 [P, K, N], stop token included, then 0.
        lengths: int32 [P, K], tokens, stop token included; 0 where fewer than K texts were found.
        scores: float32 [P, K].
        texts: what follows each prompt, without the stop token, or None without a tokenizer.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    texts: list[list[str]] | None = None


@struct.dataclass
class _Search:
    step: jax.Array  # int32 scalar: tokens of each live beam
    cache: Cache  # rows P K
    logits: jax.Array  # [P K, V], of what follows each live beam
    live: jax.Array  # [P, K] sum of log p
    tokens: jax.Array  # [P, K, N]
    ended: jax.Array  # [P, K] scores
    ended_tokens: jax.Array  # [P, K, N]
    ended_lengths: jax.Array  # [P, K]


def beam_search(
    model: Model,
    params: dict[str, Any],
    prompts: Sequence[str] | Sequence[Sequence[int]] | jax.Array,
    *,
    max_new_tokens: int,
    beams: int = 4,
    length_penalty: float = 1.0,
    padding_mask: jax.Array | None = None,
    tokenizer: Any = None,
    stop_ids: Sequence[int] | None = None,
    cache_dtype: str | None = None,
) -> Beams:
    """The likeliest continuations of each prompt that a beam of this width finds.

    Args:
        model, params, prompts, padding_mask, tokenizer, stop_ids, cache_dtype: as in zoo.generate.
        max_new_tokens: steps, at most.
        beams: K.
        length_penalty: a: 0 for the sum of log p, which favours short texts; 1 for the mean.

    Raises:
        InputError: what zoo.generate refuses; beams below 1 or 2 K above the vocabulary; a penalty that is no number.
    """
    config = model.config
    require_decoder(config)
    rows = prompt_rows(prompts, padding_mask, tokenizer, config.vocab_size)
    length = max(len(row) for row in rows)
    limit = config.vocab_size if tokenizer is None else min(tokenizer.vocab_size, config.vocab_size)
    check_room(config, length, max_new_tokens)
    if not 1 <= whole_number("beams", beams) <= limit // 2:
        raise InputError(f"beams is {beams}; it must be from 1 to half of the vocabulary, {limit // 2}")
    if not np.isfinite(number("length_penalty", length_penalty)):
        raise InputError(f"length_penalty is {length_penalty}; it must be a number, such as 1.0")
    stop_ids = end_ids(stop_ids, tokenizer)
    check_ids("stop_ids", stop_ids, limit)
    room, width = sizes(config, length, max_new_tokens)
    tokens, mask = left_padded(rows, width)
    cache = model.init_cache(len(rows), first_slots(config, width, room), cache_dtype, ring=True)
    logits, cache = read_prompts(model, params, tokens, mask, cache)
    now = _begin(logits, cache, beams=beams, steps=room)
    rules = dict(stops=jnp.asarray(stop_ids, jnp.int32), penalty=jnp.float32(length_penalty))
    rules["most"] = jnp.int32(max_new_tokens)
    while True:
        until = min(max_new_tokens, now.cache.capacity - width)
        now = _go_on(params, now, jnp.int32(until), **rules, model=model, limit=limit)
        if until == max_new_tokens or int(now.step) < until:
            break
        slots = min(2 * now.cache.capacity, width + room)
        now = now.replace(cache=grow(now.cache, config=config, length=slots, ring=True))
    finite(np.asarray(now.live))
    tokens, lengths, scores = (np.array(x) for x in _ended(now, rules["penalty"], rules["most"]))
    tokens, scores = tokens[..., :max_new_tokens], np.where(lengths > 0, scores, -np.inf)
    texts = None
    if tokenizer is not None:
        ends = set(stop_ids)
        texts = [
            [continuation(tokenizer, row, _without_end(line[:n].tolist(), ends)) for line, n in zip(*pair, strict=True)]
            for row, pair in zip(rows, zip(tokens, lengths, strict=True), strict=True)
        ]
    return Beams(tokens, lengths, scores, texts)


def _without_end(ids: list[int], ends: set[int]) -> list[int]:
    return ids[:-1] if ids and ids[-1] in ends else ids


@functools.partial(jax.jit, static_argnames=("beams", "steps"))
def _begin(logits, cache, *, beams, steps) -> _Search:
    """K live beams of each prompt, of which the first alone has a probability."""
    prompts = logits.shape[0]
    return _Search(
        step=jnp.int32(0),
        cache=repeat_rows(cache, beams),
        logits=jnp.repeat(logits, beams, axis=0),
        live=jnp.full((prompts, beams), NEVER).at[:, 0].set(0.0),
        tokens=jnp.zeros((prompts, beams, steps), jnp.int32),
        ended=jnp.full((prompts, beams), NEVER),
        ended_tokens=jnp.zeros((prompts, beams, steps), jnp.int32),
        ended_lengths=jnp.zeros((prompts, beams), jnp.int32),
    )


def _scaled(total: jax.Array, count: jax.Array, penalty: jax.Array) -> jax.Array:
    return total / count.astype(jnp.float32) ** penalty


@functools.partial(jax.jit, static_argnames=("model", "limit"), donate_argnames=("now",))
def _go_on(params, now: _Search, until, *, stops, penalty, most, model, limit) -> _Search:
    """To step `until`, or until no live beam can reach the ended ones in `most` steps."""
    prompts, beams, _ = now.tokens.shape

    def scaled(total, count):
        return _scaled(total, count, penalty)

    def running(now):
        # A live beam's sum only falls; what it may reach at best is that sum over the length that flatters it most.
        counts = jnp.stack([now.step + 1, most])
        hope = jnp.max(scaled(now.live.max(axis=1)[:, None], counts), axis=1)
        return (now.step < until) & jnp.any(hope > now.ended.min(axis=1))

    def one_step(now):
        log_probs = jax.nn.log_softmax(_limited(now.logits.astype(jnp.float32), limit))
        totals = now.live[..., None] + log_probs.reshape(prompts, beams, -1)
        vocabulary = totals.shape[-1]
        # Of a live beam's continuations each stop id may end one: so many are enough for K that go on.
        width = min((1 + stops.shape[0]) * beams, beams * vocabulary)
        best, places = jax.lax.top_k(totals.reshape(prompts, -1), width)
        parents, chosen = places // vocabulary, (places % vocabulary).astype(jnp.int32)
        lines = jnp.take_along_axis(now.tokens, parents[..., None], axis=1).at[:, :, now.step].set(chosen)
        ends = jnp.any(chosen[..., None] == stops, axis=-1) if stops.shape[0] else jnp.zeros(chosen.shape, bool)
        real = best > NEVER / 2
        ended = jnp.where(ends & real, scaled(best, now.step + 1), NEVER)
        now = _join(now, ended, lines, now.step + 1)
        live, kept = jax.lax.top_k(jnp.where(ends, NEVER, best), beams)
        parents = jnp.take_along_axis(parents, kept, axis=1)
        lines = jnp.take_along_axis(lines, kept[..., None], axis=1)
        chosen = jnp.take_along_axis(chosen, kept, axis=1)
        rows = (parents + beams * jnp.arange(prompts)[:, None]).reshape(-1)
        out = model.apply(params, chosen.reshape(-1, 1), cache=take_rows(now.cache, rows))
        return now.replace(step=now.step + 1, cache=out.cache, logits=out.logits[:, 0], live=live, tokens=lines)

    return jax.lax.while_loop(running, one_step, now)


@jax.jit
def _ended(now: _Search, penalty, most) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, lengths and scores; beams that have not ended count as they stand, where the last step was reached."""
    whole = (now.live > NEVER / 2) & (now.step == most)
    now = _join(now, jnp.where(whole, _scaled(now.live, now.step, penalty), NEVER), now.tokens, now.step)
    return now.ended_tokens, now.ended_lengths, now.ended


def _join(now: _Search, scores: jax.Array, lines: jax.Array, count: jax.Array) -> _Search:
    """The K best of the ended texts and of these, [P, C] scores of lines [P, C, N] of `count` tokens."""
    lengths = jnp.where(scores > NEVER / 2, count, 0)
    scores = jnp.concatenate([now.ended, scores], axis=1)
    lines = jnp.concatenate([now.ended_tokens, lines], axis=1)
    lengths = jnp.concatenate([now.ended_lengths, lengths], axis=1)
    best, kept = jax.lax.top_k(scores, now.ended.shape[1])
    return now.replace(
        ended=best,
        ended_tokens=jnp.take_along_axis(lines, kept[..., None], axis=1),
        ended_lengths=jnp.take_along_axis(lengths, kept, axis=1),
    )


def _limited(logits: jax.Array, limit: int) -> jax.Array:
    """Ids past the tokenizer's have no probability."""
    return jnp.where(jnp.arange(logits.shape[-1]) < limit, logits, -jnp.inf)
