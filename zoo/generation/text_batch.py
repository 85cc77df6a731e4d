"""A batch of texts at work: what the compiled programs of zoo.generation.decoding get, and where they stand.

Prompts are padded on the left to one of a few lengths, and the cache has one of a few capacities, so that calls of
like size share their programs. Neither changes a text: padding is not seen and not counted.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import Cache, grow, take_rows
from zoo.call_checks import require_key
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.generation.decoding import Progress, Rules, advance, begin, begin_samples, last_logits, read
from zoo.generation.prompts import left_padded
from zoo.generation.sampling import Parts, Sampling, Settings, for_rows
from zoo.given_numbers import whole_number, whole_numbers
from zoo.model import Model

# Ids of a prompt that are read in one pass: the memory of a pass grows with it, and longer prompts share its program.
CHUNK = 512
# Slots that the cache of a long text has at first, at most; from there on it doubles when it is full, since a step
# attends to all slots, filled or not.
SLOTS = 512


class _Unread(NamedTuple):
    """Prompts of which `at` columns are in the cache."""

    tokens: np.ndarray
    mask: np.ndarray
    keys: jax.Array
    room: int
    samples: int
    chunk: int
    cache: Cache
    at: int = 0


class TextBatch:
    """Texts between two advances; arguments as in zoo.generation.generate, one Sampling a prompt.

    Further arguments:
        beyond: tokens that a step may write past the end of a text, and take back.
        longest: positions of the texts; None for the model's.
        parts: of the sampling, where more rows than these are to share programs; None for those that the rows need.
        chunk: ids of a prompt that are read in one pass; None for CHUNK.
        in_turns: the prompts are read by calls of `read`, and not here.

    `now` is None until the prompts are read.
    """

    def __init__(
        self,
        model: Model,
        params: Any,
        rows: list[list[int]],
        samplings: list[Sampling],
        *,
        max_new_tokens: int,
        key: Any = None,
        stop_ids: tuple[int, ...] = (),
        samples: int = 1,
        least: int = 0,
        forced: Sequence[int] = (),
        cache_dtype: str | None = None,
        beyond: int = 0,
        longest: int | None = None,
        parts: Parts | None = None,
        chunk: int | None = None,
        in_turns: bool = False,
    ):
        config = model.config
        vocabulary, length = config.vocab_size, max(len(row) for row in rows)
        check_room(config, length, max_new_tokens, beyond)
        if whole_number("samples", samples) < 1:
            raise InputError(f"samples is {samples}; it must be at least 1")
        whole_number("min_new_tokens", least)
        if not 0 <= least <= max_new_tokens:
            raise InputError(f"min_new_tokens is {least}; it must be from 0 to max_new_tokens, {max_new_tokens}")
        for sampling in samplings:
            sampling.check(vocabulary)
            if sampling.temperature > 0 and key is None:
                raise InputError("sampling above temperature 0 needs a key, such as jax.random.key(0)")
        check_ids("stop_ids", stop_ids, vocabulary)
        forced = check_ids("forced_ids", forced, vocabulary)
        keys = _row_keys(jax.random.key(0) if key is None else key, len(rows))
        if samples > 1:
            fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
            keys = fold(keys, jnp.arange(samples)).reshape(-1)
        self._model, self._params, self._most = model, params, max_new_tokens
        self._parts, settings = for_rows([one for one in samplings for _ in range(samples)], vocabulary, parts)
        if least and not np.isfinite(_without(settings.offsets, stop_ids)).any(axis=-1).all():
            raise InputError("min_new_tokens asks for more where all but the stop ids are banned")
        self._rules = Rules(
            settings,
            jnp.asarray(stop_ids, jnp.int32),
            jnp.int32(least),
            jnp.asarray(forced[:max_new_tokens], jnp.int32),
        )
        room, wide = sizes(config, length, max_new_tokens + beyond, longest=longest)
        tokens, mask = left_padded(rows, wide)
        # What goes back is no ring.
        self._ring, self._width, self._slots, self._beyond = not beyond, wide, wide + room, beyond
        cache = model.init_cache(len(rows), first_slots(config, wide, room), cache_dtype, ring=self._ring)
        self._unread = _Unread(tokens, mask, keys, room, samples, chunk or CHUNK, cache)
        self.now: Progress | None = None
        while not in_turns and self.now is None:
            self.read()

    def read(self) -> None:
        """Reads one chunk of the prompts; with the last of them comes the first token of each row."""
        todo = self._unread
        last = todo.at + todo.chunk >= todo.tokens.shape[1]
        part = slice(todo.at, None if last else todo.at + todo.chunk)
        tokens, mask = todo.tokens[:, part], todo.mask[:, part]
        if not last:
            cache = read(self._params, tokens, mask, todo.cache, model=self._model)
            self._unread = todo._replace(cache=cache, at=todo.at + todo.chunk)
            return
        several = {} if todo.samples == 1 else {"samples": todo.samples}
        self.now = (begin_samples if several else begin)(
            self._params,
            jnp.asarray(tokens),
            jnp.asarray(mask),
            todo.cache,
            todo.keys,
            self._rules,
            (jnp.asarray(todo.tokens), jnp.asarray(todo.mask)),
            model=self._model,
            parts=self._parts,
            steps=todo.room,
            **several,
        )
        self._unread = None

    @property
    def step(self) -> int:
        """Tokens a row so far."""
        return int(self.now.step)

    @property
    def finished(self) -> bool:
        """No row goes on."""
        return self.step >= self._most or bool(self.now.done.all())

    def _made(self) -> np.ndarray:
        """int [B]: tokens that each row has."""
        return np.full(len(self.now.done), self.step)

    @property
    def capacity(self) -> int:
        """Slots of the cache as it is now, a row."""
        return self.now.cache.capacity

    def advance(self, until: int) -> None:
        """Goes on to step `until`, with a larger cache where this one is full before."""
        until = min(until, self._most)
        self._run(until)
        while self.capacity < self._slots and self._wants(until):
            longer = min(2 * self.capacity, self._slots)
            self._grow(longer)
            self._run(until)

    def _run(self, until: int) -> None:
        last = jnp.int32(min(until, self.capacity - self._width))
        self.now = advance(self._params, self.now, self._rules, last, model=self._model, parts=self._parts)

    def _wants(self, until: int) -> bool:
        """Whether rows that go on have not come to `until`."""
        return self.step < until and not self.finished

    def _grow(self, slots: int) -> None:
        cache = grow(self.now.cache, config=self._model.config, length=slots, ring=self._ring)
        self.now = self.now.replace(cache=cache)

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these rows alone, in this order: those that have ended cost no more.

        Args:
            rows: numbers below the rows there are. One that is there twice goes on twice, unless it is ended (`end`).
        """
        chosen = jnp.asarray(list(rows), jnp.int32)
        if self.now is None:  # while prompts are read, one row a prompt
            todo, places = self._unread, np.asarray(chosen)
            settings = _settings_of(self._rules.settings, chosen, len(todo.tokens))
            cache = take_rows(todo.cache, chosen)
            tokens, mask, keys = todo.tokens[places], todo.mask[places], todo.keys[chosen]
            self._unread = todo._replace(tokens=tokens, mask=mask, keys=keys, cache=cache)
        else:
            self.now, settings = rows_of(self.now, self._rules.settings, chosen)
        self._rules = self._rules.replace(settings=settings)

    def end(self, rows: Sequence[bool]) -> None:
        """Ends these rows here."""
        self.now = self.now.replace(done=self.now.done | jnp.asarray(rows))

    def result(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(tokens, lengths, log_probs, ended) as in zoo.generation.generate.Generation."""
        now = self.now
        tokens, lengths, log_probs, ended = (np.array(x) for x in (now.tokens, now.lengths, now.log_probs, now.done))
        finite(log_probs)
        for i, made in enumerate(self._made()):  # the buffer has room beyond max_new_tokens, and a run may end early
            tokens[i, made:] = tokens[i, lengths[i]] if ended[i] and lengths[i] < made else 0
        return tokens[:, : self._most], lengths, log_probs[:, : self._most], ended


def read_chunks(model: Model, params: Any, tokens: np.ndarray, mask: np.ndarray, cache: Cache, until: int) -> Cache:
    """The cache with the prompts' tokens [B, T] up to `until`, a chunk a pass."""
    for start in range(0, until, CHUNK):
        part = slice(start, min(start + CHUNK, until))
        cache = read(params, tokens[:, part], mask[:, part], cache, model=model)
    return cache


def read_prompts(
    model: Model, params: Any, tokens: np.ndarray, mask: np.ndarray, cache: Cache
) -> tuple[jax.Array, Cache]:
    """Logits [B, V] of what follows prompts [B, T] that are padded on the left, and the cache with them."""
    head = (tokens.shape[1] - 1) // CHUNK * CHUNK
    cache = read_chunks(model, params, tokens, mask, cache, head)
    return last_logits(params, tokens[:, head:], mask[:, head:], cache, model=model)


def check_room(config: ModelConfig, length: int, new: int, beyond: int = 0) -> None:
    """Raises InputError unless so many new tokens follow a prompt of `length`.

    Args:
        beyond: tokens that are tried past the last one (drafts).
    """
    longest = longest_text(config)
    if whole_number("max_new_tokens", new) < 1:
        raise InputError(f"max_new_tokens is {new}; it must be at least 1")
    most, drafts = longest - length - beyond, f" with {beyond} drafts" if beyond else ""
    if most < 1:
        raise InputError(
            f"a prompt of {length} tokens leaves no room{drafts} in the model's {longest} positions; shorten it by "
            f"{1 - most} at least"
        )
    if new > most:
        raise InputError(
            f"a prompt of {length} tokens and {new} new ones{drafts} exceed the model's {longest} positions; ask for "
            f"at most {most} new tokens"
        )


def check_ids(name: str, ids: Sequence[int], limit: int) -> list[int]:
    """The ids as ints. Raises InputError for one that is no whole number or outside a vocabulary of `limit`."""
    found = whole_numbers(name, ids)
    for token in found:
        if not 0 <= token < limit:
            raise InputError(f"{name} holds id {token}, outside the vocabulary: 0 to {limit - 1}")
    return found


def end_ids(given: Sequence[int] | None, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a text: those given, or else the tokenizer's stop_ids, or its EOS."""
    if given is None:
        last = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
        given = getattr(tokenizer, "stop_ids", last)
    return tuple(whole_numbers("stop_ids", given))


def finite(log_probs: np.ndarray) -> np.ndarray:
    """The same. Raises InputError where one is no number: so are those of a model with such weights."""
    if np.isnan(log_probs).any():
        raise InputError(
            "the model gives numbers that are not finite: its weights hold such, or its number type is too small for it"
        )
    return log_probs


def require_decoder(config: ModelConfig) -> None:
    """Raises InputError unless the model is a causal language model."""
    if config.image_size:
        raise InputError("generation continues texts, and this model reads images")
    if config.head == "lm" and config.visibility == "prefix":
        raise InputError(
            'generation reads a prompt from left to right, and this model sees a prefix both ways (visibility "prefix")'
            '; to go on so all the same, give zoo.Model(model.config.replace(visibility="causal"))'
        )
    if config.head != "lm" or config.visibility == "full":
        raise InputError(
            f'generation needs a causal language model; this one has visibility "{config.visibility}" and head '
            f'"{config.head}"'
        )


def longest_text(config: ModelConfig) -> int:
    """Tokens of a text: max_positions, or what a rotary scaling stretches the trained length to.

    Folders keep the trained length in max_position_embeddings where the scaling is dynamic, and often where it is
    linear or YaRN.
    """
    scaling = config.rotary_scaling
    if config.positions != "rotary" or scaling is None:
        return config.max_positions
    trained = config.max_positions if scaling.kind == "linear" else scaling.original_max_positions
    return max(config.max_positions, int(scaling.factor * trained))


@jax.jit
def rows_of(now: Progress, settings: Settings, rows: jax.Array) -> tuple[Progress, Settings]:
    """Some rows of a batch at work, int32 [R], and their settings."""
    whole = dict(step=now.step, cache=take_rows(now.cache, rows))
    others = jax.tree.map(lambda x: x[rows], now.replace(step=None, cache=None))
    return others.replace(**whole), _settings_of(settings, rows, now.done.shape[0])


def _settings_of(settings: Settings, rows: jax.Array, batch: int) -> Settings:
    """Those of some rows; offsets that all rows share stay."""
    return jax.tree.map(lambda x: x if x.shape[0] == 1 < batch else x[rows], settings)


def first_slots(config: ModelConfig, width: int, room: int) -> int:
    """Slots to begin with, of `width` for the prompts and `room` for what follows."""
    if config.rotary_scaling is not None and config.rotary_scaling.by_length:
        return width + room
    slots = SLOTS
    while slots < width + min(room, SLOTS // 4):
        slots *= 2
    return min(slots, width + room)


def sizes(
    config: ModelConfig, length: int, new: int, whole: bool = False, longest: int | None = None
) -> tuple[int, int]:
    """(room for new tokens, width of the prompts), rounded up to few values where that changes no number.

    Args:
        length: of the longest prompt.
        new: tokens that follow it.
        whole: where the rounded room would pass the model's positions, take all that are left, and not `new`: few
            values there, too.
        longest: positions of a text; None for the model's.
    """
    if config.rotary_scaling is not None and config.rotary_scaling.by_length:
        return new, length  # there the capacity is what the angles go by
    width = _up(length, 32 if length <= CHUNK else CHUNK)
    capacity = _up(width + new, 128 if width + new <= 1024 else 512)
    longest = longest or longest_text(config)
    if capacity <= longest:
        return capacity - width, width
    width = width if width + new <= longest else length
    return longest - width if whole else new, width


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def _without(offsets: jax.Array | None, ids: tuple[int, ...]) -> np.ndarray:
    if offsets is None:
        return np.zeros(1)
    left = np.array(offsets)
    left[:, list(ids)] = -np.inf
    return left


def _row_keys(key: jax.Array, batch: int) -> jax.Array:
    require_key("key", key)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(jnp.asarray(key))
    if key.ndim == 0:
        return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))
    if key.shape != (batch,):
        raise InputError(f"key has shape {key.shape}; give one key, or one a row: ({batch},)")
    return key
