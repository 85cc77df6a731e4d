"""Generation: the prompt in one pass, then one token a step with the key-value cache, on the device.

    logits of the last position -> temperature, top-k, top-p -> draw -> append
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import Cache
from zoo.call_checks import require_key
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.model import Model
from zoo.sampling import Sampling, draw
from zoo.tokenizer import whole_ids

WANTED = "give texts, a list of ids for each prompt ([[1, 2]]), or ids [B, T]"


@dataclass(frozen=True)
class Generation:
    """What was generated, without the prompts.

    Attributes:
        tokens: int32 [B, max_new_tokens]; after a row has stopped, its stop token is repeated.
        lengths: int32 [B], tokens of each row, the stop token not counted.
        log_probs: float32 [B, max_new_tokens], of each token under the model before temperature and filters; 0 after
            the stop.
        texts: what follows each prompt, or None without a tokenizer.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    log_probs: np.ndarray
    texts: list[str] | None = None


def generate(
    model: Model,
    params: dict[str, Any],
    prompts: Sequence[str] | Sequence[Sequence[int]] | jax.Array,
    *,
    max_new_tokens: int,
    padding_mask: jax.Array | None = None,
    tokenizer: Any = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    key: jax.Array | None = None,
    stop_ids: Sequence[int] | None = None,
    cache_dtype: str | None = None,
) -> Generation:
    """Continues each prompt.

    Args:
        model, params: a causal language model.
        prompts: texts (with a tokenizer; BOS is put before each where its settings say so), lists of ids, or ids
            [B, T] with a padding_mask that may pad either side.
        max_new_tokens: steps, at most.
        tokenizer: turns texts to ids and back; ids beyond its vocabulary are never drawn.
        temperature, top_k, top_p: see zoo.sampling.Sampling.
        key: random key (folded by row), or an array of keys, one a row; needed above temperature 0.
        stop_ids: a row ends at any of these; None for the tokenizer's stop_ids.
        cache_dtype: of cached keys and values; None for the model's dtype.

    Raises:
        InputError: an empty prompt, prompt plus new tokens beyond the model's positions, a model that is no causal
            language model, sampling values out of range.
    """
    config = model.config
    if config.image_size:
        raise InputError("generation continues texts, and this model reads images")
    if config.head != "lm" or config.visibility == "full":
        raise InputError(
            f'generation needs a causal language model; this one has visibility "{config.visibility}" and head '
            f'"{config.head}"'
        )
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
    tokens, mask, rows = _as_batch(prompts, padding_mask, tokenizer, config.vocab_size)
    batch, length = tokens.shape
    longest = _longest(config)
    if length + max_new_tokens > longest:
        raise InputError(
            f"a prompt of {length} tokens and {max_new_tokens} new ones exceed the model's {longest} "
            f"positions; ask for at most {max(longest - length, 0)} new tokens"
        )
    limit = min(tokenizer.vocab_size, config.vocab_size) if tokenizer is not None else None
    sampling = Sampling(float(temperature), top_k, float(top_p), limit)
    sampling.check(config.vocab_size)
    if sampling.temperature > 0 and key is None:
        raise InputError("sampling above temperature 0 needs a key, such as jax.random.key(0)")
    keys = _row_keys(jax.random.key(0) if key is None else key, batch)
    if stop_ids is None:
        ends = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
        stop_ids = getattr(tokenizer, "stop_ids", ends)
    cache = model.init_cache(batch, length + max_new_tokens, cache_dtype)
    logits, cache = prefill(params, tokens, mask, cache, model=model)
    out, log_probs, lengths = decode(
        params,
        logits,
        cache,
        keys,
        model=model,
        sampling=sampling,
        steps=max_new_tokens,
        stop_ids=tuple(int(i) for i in stop_ids),
    )
    out, lengths = np.asarray(out), np.asarray(lengths)
    texts = None
    if tokenizer is not None:
        texts = [
            _continuation(tokenizer, prompt, row[:count].tolist())
            for prompt, row, count in zip(rows, out, lengths, strict=True)
        ]
    return Generation(out, lengths, np.asarray(log_probs), texts)


@functools.partial(jax.jit, static_argnames=("model",))
def prefill(params, tokens, mask, cache: Cache, *, model: Model) -> tuple[jax.Array, Cache]:
    """The prompt in one pass: logits [B, V] after each row's last real token, and the filled cache."""
    length = tokens.shape[1]
    last = length - 1 - jnp.argmax(mask[:, ::-1] != 0, axis=1)
    out = model.apply(params, tokens, padding_mask=mask, cache=cache, logits_at=last[:, None].astype(jnp.int32))
    return out.logits[:, 0], out.cache


@functools.partial(jax.jit, static_argnames=("model", "sampling", "steps", "stop_ids"))
def decode(params, logits, cache: Cache, keys, *, model: Model, sampling: Sampling, steps: int, stop_ids: tuple):
    """Up to `steps` tokens a row, ending early when every row has stopped.

    Returns:
        tokens int32 [B, steps], log-probabilities float32 [B, steps], lengths int32 [B].
    """
    batch = logits.shape[0]
    stops = jnp.asarray(stop_ids, jnp.int32)

    def running(carry):
        step, *_, done = carry
        return (step < steps) & ~jnp.all(done)

    def one_step(carry):
        step, logits, cache, tokens, log_probs, lengths, done = carry
        step_keys = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
        token = draw(logits, step_keys, sampling)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=1)[:, 0]
        if stop_ids:
            ended = jnp.any(token[:, None] == stops, axis=1)
            token = jnp.where(done, stops[0], token)
        else:
            ended = jnp.zeros_like(done)
        tokens = tokens.at[:, step].set(token)
        log_probs = log_probs.at[:, step].set(jnp.where(done, 0.0, log_prob))
        done = done | ended
        lengths = jnp.where(done, lengths, step + 1)
        out = model.apply(params, token[:, None], cache=cache)
        return step + 1, out.logits[:, 0], out.cache, tokens, log_probs, lengths, done

    filler = stop_ids[0] if stop_ids else 0
    start = (
        jnp.int32(0),
        logits,
        cache,
        jnp.full((batch, steps), filler, jnp.int32),
        jnp.zeros((batch, steps), jnp.float32),
        jnp.zeros((batch,), jnp.int32),
        jnp.zeros((batch,), bool),
    )
    _, _, _, tokens, log_probs, lengths, _ = jax.lax.while_loop(running, one_step, start)
    return tokens, log_probs, lengths


def _as_batch(prompts, padding_mask, tokenizer, vocab_size) -> tuple[jax.Array, jax.Array, list[list[int]]]:
    """Tokens int32 [B, T], mask [B, T], and the real ids of each row; lists are padded on the left to the longest."""
    if hasattr(prompts, "ndim"):
        tokens = np.asarray(prompts)
        if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
            raise InputError(f"prompts are {tokens.dtype} of shape {tokens.shape}; {WANTED}")
        mask = np.ones(tokens.shape, np.int32) if padding_mask is None else np.asarray(padding_mask)
        if mask.shape != tokens.shape or not np.isin(mask, (0, 1)).all():
            raise InputError(f"padding_mask must be of 1 (real tokens) and 0, of the prompts' shape {tokens.shape}")
        rows = [row[real != 0].tolist() for row, real in zip(tokens, mask, strict=True)]
    else:
        if isinstance(prompts, str):
            prompts = [prompts]
        if not isinstance(prompts, list | tuple):
            raise InputError(f"prompts are a {type(prompts).__name__}; {WANTED}")
        rows = [_ids(prompt, tokenizer) for prompt in prompts]
        longest = max((len(row) for row in rows), default=0)
        tokens = np.zeros((len(rows), longest), np.int32)
        mask = np.zeros((len(rows), longest), np.int32)
        for i, row in enumerate(rows):
            tokens[i, longest - len(row) :] = row
            mask[i, longest - len(row) :] = 1
    if not rows:
        raise InputError("there are no prompts")
    for i, row in enumerate(rows):
        if not row:
            raise InputError(f"prompt {i} is empty: there is nothing to continue")
        worst = max(row, key=lambda token: (token < 0, token))
        if not 0 <= worst < vocab_size:
            raise InputError(f"prompt {i} holds id {worst}, outside the vocabulary: 0 to {vocab_size - 1}")
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(mask, jnp.int32), rows


def _continuation(tokenizer: Any, prompt: list[int], new: list[int]) -> str:
    """The text that `new` adds to the prompt's: decoded alone, a first piece would lose the space before it."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + new)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(new)


def _ids(prompt: str | Sequence[int], tokenizer: Any) -> list[int]:
    if not isinstance(prompt, str):
        if not hasattr(prompt, "__iter__") or isinstance(prompt, bytes | dict):
            raise InputError(f"a prompt is {prompt!r:.40}; {WANTED}")
        return whole_ids(prompt)
    if tokenizer is None:
        raise InputError("prompts are texts but no tokenizer is given; pass tokenizer=zoo.load_tokenizer(path)")
    ids = tokenizer.encode(prompt)
    # A tokenizer of the zoo says whether texts begin with BOS (OPT's do, though its BOS is its EOS too); others do not.
    other = tokenizer.bos_id not in (None, tokenizer.eos_id)
    return [tokenizer.bos_id, *ids] if getattr(tokenizer, "adds_bos", other) else ids


def _longest(config: ModelConfig) -> int:
    """Tokens of a text: max_positions, or what a rotary scaling stretches the trained length to.

    Folders keep the trained length in max_position_embeddings where the scaling is dynamic, and often where it is
    linear or YaRN.
    """
    scaling = config.rotary_scaling
    if config.positions != "rotary" or scaling is None:
        return config.max_positions
    trained = config.max_positions if scaling.kind == "linear" else scaling.original_max_positions
    return max(config.max_positions, int(scaling.factor * trained))


def _row_keys(key: jax.Array, batch: int) -> jax.Array:
    require_key("key", key)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(jnp.asarray(key))
    if key.ndim == 0:
        return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))
    if key.shape != (batch,):
        raise InputError(f"key has shape {key.shape}; give one key, or one a row: ({batch},)")
    return key
