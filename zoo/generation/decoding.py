"""Two compiled programs that continue texts: the prompt in one pass, then a loop on the device, one token a step.

    begin      prompts -> cache, first token                        cost: one pass over the prompt
    advance    token -> key-value cache -> logits -> next token     until a step, or until every row has ended

Both give a Progress back, and `advance` goes on from one: text that is streamed step by step and text that is made in
one call come from the same program.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from zoo.cache import Cache, repeat_rows
from zoo.generation.sampling import Memory, Parts, Settings, choose, empty_memory
from zoo.model import Model


@struct.dataclass
class Progress:
    """Texts at work.

    Attributes:
        step: int32 scalar, tokens chosen so far in each row.
        tokens: int32 [B, N]; after a row has ended, its stop token.
        log_probs: float32 [B, N], under the model before bias, temperature and filters; 0 after the end.
        lengths: int32 [B], tokens of each row, the stop token not counted.
        done: bool [B].
        last: int32 [B], the token that the next step reads.
        keys: [B] random keys.
        cache: keys and values of prompt and tokens, all but `last`.
        memory: what penalties look back on.
    """

    step: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    lengths: jax.Array
    done: jax.Array
    last: jax.Array
    keys: jax.Array
    cache: Cache
    memory: Memory


@struct.dataclass
class Rules:
    """What decides tokens, as data.

    Attributes:
        settings: of sampling, a value a row.
        stops: int32 [n], ids that end a row.
        least: int32 scalar, tokens before which no row ends.
        forced: int32 [m], what each row begins with.
    """

    settings: Settings
    stops: jax.Array
    least: jax.Array
    forced: jax.Array


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("cache",))
def read(params: Any, tokens: jax.Array, mask: jax.Array, cache: Cache, *, model: Model) -> Cache:
    """A part of the prompts [B, C] into the cache, without logits: for prompts that are read in chunks."""
    return model.apply(params, tokens, padding_mask=mask, cache=cache, logits_at=False).cache


def _last_logits(params: Any, tokens: jax.Array, mask: jax.Array, cache: Cache, *, model: Model):
    """The prompts' (last) tokens [P, C], padded on the left, in one pass: logits [P, V] of what follows, and the cache.

    The cache holds what was read before, and is written where it is.
    """
    last = jnp.full((tokens.shape[0], 1), tokens.shape[1] - 1)
    out = model.apply(params, tokens, padding_mask=mask, cache=cache, logits_at=last)
    return out.logits[:, 0], out.cache


def _start(
    logits: jax.Array,
    cache: Cache,
    keys: jax.Array,
    rules: Rules,
    whole: tuple[jax.Array, jax.Array],
    *,
    parts: Parts,
    steps: int,
    samples: int = 1,
) -> Progress:
    """The first token of each row.

    Args:
        logits, cache: after the prompts, P rows.
        keys: [P samples] random keys.
        rules: of P samples rows.
        whole: all tokens of the prompts and their mask, [P, T]: what the repetition penalty looks back on.
        steps: N, room for tokens.
        samples: rows a prompt.
    """
    memory = empty_memory(parts, *whole, logits.shape[-1])
    if samples > 1:
        logits, memory = jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), (logits, memory))
        cache = repeat_rows(cache, samples)
    rows = logits.shape[0]
    progress = Progress(
        step=jnp.int32(0),
        tokens=jnp.zeros((rows, steps), jnp.int32),
        log_probs=jnp.zeros((rows, steps), jnp.float32),
        lengths=jnp.zeros((rows,), jnp.int32),
        done=jnp.zeros((rows,), bool),
        last=jnp.zeros((rows,), jnp.int32),
        keys=keys,
        cache=cache,
        memory=memory,
    )
    return _chosen(progress, logits, cache, rules, parts)


last_logits = jax.jit(_last_logits, static_argnames=("model",), donate_argnames=("cache",))
_repeat = jax.jit(_start, static_argnames=("parts", "steps", "samples"))


@functools.partial(jax.jit, static_argnames=("model", "parts", "steps"), donate_argnames=("cache",))
def begin(
    params: Any,
    tokens: jax.Array,
    mask: jax.Array,
    cache: Cache,
    keys: jax.Array,
    rules: Rules,
    whole: tuple[jax.Array, jax.Array],
    *,
    model: Model,
    parts: Parts,
    steps: int,
) -> Progress:
    """The prompts' (last) tokens in one pass, and the first token of each row: `last_logits`, and arguments of it."""
    logits, cache = _last_logits(params, tokens, mask, cache, model=model)
    return _start(logits, cache, keys, rules, whole, parts=parts, steps=steps)


def begin_samples(params, tokens, mask, cache, keys, rules, whole, *, model, parts, steps, samples) -> Progress:
    """As `begin`, several rows a prompt: the pass writes the prompts' cache where it is, and then it is copied."""
    logits, cache = last_logits(params, tokens, mask, cache, model=model)
    return _repeat(logits, cache, keys, rules, whole, parts=parts, steps=steps, samples=samples)


@functools.partial(jax.jit, static_argnames=("model", "parts"), donate_argnames=("progress",))
def advance(
    params: Any, progress: Progress, rules: Rules, until: jax.Array, *, model: Model, parts: Parts
) -> Progress:
    """Goes on to step `until`, or until every row has ended."""

    def running(now):
        return (now.step < until) & ~jnp.all(now.done)

    def one_step(now):
        out = model.apply(params, now.last[:, None], cache=now.cache)
        return _chosen(now, out.logits[:, 0], out.cache, rules, parts)

    return jax.lax.while_loop(running, one_step, progress)


def allowed(logits: jax.Array, step: jax.Array, rules: Rules) -> jax.Array:
    """Logits [B, V] without the stop ids in rows that are too short to end; step is a scalar or [B]."""
    stops = rules.stops
    if not stops.shape[0]:
        return logits
    early = jnp.reshape(step < rules.least, (-1, 1))
    return logits.at[:, stops].set(jnp.where(early, -jnp.inf, logits[:, stops]))


def forced(step: jax.Array, rules: Rules, otherwise: jax.Array) -> jax.Array:
    """The token that a row must have at this step, [B]; `otherwise` where it is free."""
    count = rules.forced.shape[0]
    if not count:
        return otherwise
    return jnp.where(step < count, rules.forced[jnp.minimum(step, count - 1)], otherwise)


def ends(token: jax.Array, step: jax.Array, rules: Rules) -> jax.Array:
    """bool, as `token`: whether it ends its row at this step."""
    return jnp.any(token[..., None] == rules.stops, axis=-1) & (step >= rules.least)


def log_prob_of(logits: jax.Array, token: jax.Array) -> jax.Array:
    """log p of tokens [...] under logits [..., V], float32."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), token[..., None], axis=-1)[..., 0]


def _chosen(now: Progress, logits: jax.Array, cache: Cache, rules: Rules, parts: Parts) -> Progress:
    keys = jax.vmap(lambda key: jax.random.fold_in(key, now.step))(now.keys)
    token = choose(allowed(logits, now.step, rules), keys, parts, rules.settings, now.memory)
    token = forced(now.step, rules, token)
    log_prob = log_prob_of(logits, token)
    ended = ends(token, now.step, rules)
    token = jnp.where(now.done, now.last, token)
    done = now.done | ended
    return Progress(
        step=now.step + 1,
        tokens=now.tokens.at[:, now.step].set(token),
        log_probs=now.log_probs.at[:, now.step].set(jnp.where(now.done, 0.0, log_prob)),
        lengths=jnp.where(done, now.lengths, now.step + 1),
        done=done,
        last=token,
        keys=now.keys,
        cache=cache,
        memory=now.memory.add(token, ~now.done),
    )
