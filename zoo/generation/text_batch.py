"""A batch of texts at work: what the compiled programs of zoo.generation.decoding get, and where they stand.

Prompts are padded on the left to one of a few lengths, and the cache has one of a few capacities, so that calls of
like size share their programs. Neither changes a text: padding is not seen and not counted.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import Cache
from zoo.call_checks import require_key
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.generation.decoding import Progress, Rules, advance, begin, begin_samples, read
from zoo.generation.prompts import left_padded
from zoo.generation.sampling import Sampling, for_rows
from zoo.model import Model

# Ids of a prompt that are read in one pass: the memory of a pass grows with it, and longer prompts share its program.
CHUNK = 512


class TextBatch:
    """Texts between two advances; arguments as in zoo.generation.generate, one Sampling a prompt.

    `beyond`: tokens that a step may write past the end of a text, and take back.
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
    ):
        config = model.config
        vocabulary, length = config.vocab_size, max(len(row) for row in rows)
        check_room(config, length, max_new_tokens, beyond)
        if samples < 1:
            raise InputError(f"samples is {samples}; it must be at least 1")
        if not 0 <= least <= max_new_tokens:
            raise InputError(f"min_new_tokens is {least}; it must be from 0 to max_new_tokens, {max_new_tokens}")
        for sampling in samplings:
            sampling.check(vocabulary)
            if sampling.temperature > 0 and key is None:
                raise InputError("sampling above temperature 0 needs a key, such as jax.random.key(0)")
        check_ids("stop_ids", stop_ids, vocabulary)
        check_ids("forced_ids", forced, vocabulary)
        keys = _row_keys(jax.random.key(0) if key is None else key, len(rows))
        if samples > 1:
            fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
            keys = fold(keys, jnp.arange(samples)).reshape(-1)
        self._model, self._params, self._most = model, params, max_new_tokens
        self._parts, settings = for_rows([one for one in samplings for _ in range(samples)], vocabulary)
        if least and not np.isfinite(_without(settings.offsets, stop_ids)).any(axis=-1).all():
            raise InputError("min_new_tokens asks for more where all but the stop ids are banned")
        self._rules = Rules(
            settings,
            jnp.asarray(stop_ids, jnp.int32),
            jnp.int32(least),
            jnp.asarray(list(forced)[:max_new_tokens], jnp.int32),
        )
        room, wide = sizes(config, length, max_new_tokens + beyond)
        tokens, mask = left_padded(rows, wide)
        # What goes back is no ring.
        cache = model.init_cache(len(rows), wide + room, cache_dtype, ring=not beyond)
        whole = (jnp.asarray(tokens), jnp.asarray(mask))
        head = (wide - 1) // CHUNK * CHUNK if wide > CHUNK else 0
        cache = read_chunks(model, params, tokens, mask, cache, head)
        self.now: Progress = (begin if samples == 1 else begin_samples)(
            params,
            whole[0][:, head:],
            whole[1][:, head:],
            cache,
            keys,
            self._rules,
            whole,
            model=model,
            parts=self._parts,
            steps=room,
            samples=samples,
        )

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

    def advance(self, until: int) -> None:
        """Goes on to step `until`."""
        last = jnp.int32(min(until, self._most))
        self.now = advance(self._params, self.now, self._rules, last, model=self._model, parts=self._parts)

    def end(self, rows: Sequence[bool]) -> None:
        """Ends these rows here."""
        self.now = self.now.replace(done=self.now.done | jnp.asarray(rows))

    def result(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(tokens, lengths, log_probs, ended) as in zoo.generation.generate.Generation."""
        now = self.now
        tokens, lengths, log_probs, ended = (np.array(x) for x in (now.tokens, now.lengths, now.log_probs, now.done))
        for i, made in enumerate(self._made()):  # the buffer has room beyond max_new_tokens, and a run may end early
            tokens[i, made:] = tokens[i, lengths[i]] if ended[i] and lengths[i] < made else 0
        return tokens[:, : self._most], lengths, log_probs[:, : self._most], ended


def read_chunks(model: Model, params: Any, tokens: np.ndarray, mask: np.ndarray, cache: Cache, until: int) -> Cache:
    """The cache with the prompts' tokens [B, T] up to `until`, a chunk a pass."""
    for start in range(0, until, CHUNK):
        part = slice(start, min(start + CHUNK, until))
        cache = read(params, tokens[:, part], mask[:, part], cache, model=model)
    return cache


def check_room(config: ModelConfig, length: int, new: int, beyond: int = 0) -> None:
    """Raises InputError unless so many new tokens follow a prompt of `length`.

    Args:
        beyond: tokens that are tried past the last one (drafts).
    """
    longest = longest_text(config)
    if new < 1:
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


def check_ids(name: str, ids: Sequence[int], limit: int) -> None:
    """Raises InputError for an id outside a vocabulary of `limit`."""
    for token in ids:
        if not 0 <= int(token) < limit:
            raise InputError(f"{name} holds id {token}, outside the vocabulary: 0 to {limit - 1}")


def end_ids(given: Sequence[int] | None, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a text: those given, or else the tokenizer's stop_ids, or its EOS."""
    if given is None:
        last = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
        given = getattr(tokenizer, "stop_ids", last)
    return tuple(int(token) for token in given)


def require_decoder(config: ModelConfig) -> None:
    """Raises InputError unless the model is a causal language model."""
    if config.image_size:
        raise InputError("generation continues texts, and this model reads images")
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


def sizes(config: ModelConfig, length: int, new: int, whole: bool = False) -> tuple[int, int]:
    """(room for new tokens, width of the prompts), rounded up to few values where that changes no number.

    Args:
        length: of the longest prompt.
        new: tokens that follow it.
        whole: where the rounded room would pass the model's positions, take all that are left, and not `new`: few
            values there, too.
    """
    if config.rotary_scaling is not None and config.rotary_scaling.by_length:
        return new, length  # there the capacity is what the angles go by
    width = _up(length, 32 if length <= CHUNK else CHUNK)
    capacity = _up(width + new, 128 if width + new <= 1024 else 512)
    longest = longest_text(config)
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
