"""Choice among given strings: the one that a causal language model finds likeliest after the prompt.

    l_c = sum over the tokens of c of log p(token | prompt, tokens of c before)         "none"
    l_c / tokens of c, l_c / UTF-8 bytes of c                                            "tokens", "bytes"

What all choices of a prompt begin with goes through the model once, into a cache that each of them continues.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import Cache, take_rows
from zoo.errors import InputError, nearest
from zoo.generation.pairs import Ids, encode_pairs, shared_length
from zoo.generation.prompts import check_tokenizer, left_padded
from zoo.generation.text_batch import check_room, finite, longest_text, read_chunks, require_decoder
from zoo.model import Model

NORMALISE = ("none", "tokens", "bytes")
# Choices in one pass, and tokens of them: fewer choices where they are long.
ROWS, TOKENS = 16, 4096
# Tokens of each choice whose logits exist at a time, [rows, PLACES, V].
PLACES = 8


@dataclass(frozen=True, eq=False)
class Choices:
    """P answers.

    Attributes:
        index: int64 [P], the best of each; of equals the first.
        log_probs: P arrays float64 [C], l_c.
        scores: P arrays float64 [C], what was compared.
        tokens: P arrays int64 [C].
    """

    index: np.ndarray
    log_probs: list[np.ndarray]
    scores: list[np.ndarray]
    tokens: list[np.ndarray]


def choose(
    model: Model,
    params: dict[str, Any],
    prompts: Sequence[str] | str,
    choices: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenizer: Any,
    normalise: str = "none",
    cache_dtype: str | None = None,
) -> Choices:
    """The likeliest of the choices after each prompt.

    Args:
        model, params: a causal language model.
        prompts: texts, or one.
        choices: texts that may follow, the same for all prompts, or a list for each. They begin as they are written:
            " yes" and "yes" are two things.
        tokenizer: the model's.
        normalise: one of NORMALISE, see above: "bytes" puts long choices at no disadvantage, whatever the tokenizer.
        cache_dtype: as in zoo.generate.

    Raises:
        InputError: no prompt, an empty one or one without choices, an empty choice, a pair longer than the model's
            positions, weights that are no finite numbers.
    """
    config = model.config
    require_decoder(config)
    if normalise not in NORMALISE:
        near = nearest(normalise, NORMALISE)
        raise InputError(f'normalise is "{normalise}"{near}')
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    lists = _lists(prompts, choices)
    check_tokenizer(tokenizer, config.vocab_size)
    owners = [i for i, those in enumerate(lists) for _ in those]
    texts = [choice for those in lists for choice in those]
    pairs = encode_pairs(tokenizer, [(prompts[i], choice) for i, choice in zip(owners, texts, strict=True)])
    for choice, (context, continuation) in zip(texts, pairs, strict=True):
        if not continuation:
            raise InputError(f"choice {choice!r:.40} has no token of its own")
        check_room(config, len(context), len(continuation))
    found = np.zeros(len(pairs))
    rows = max(1, min(ROWS, TOKENS // max(len(context) + len(text) for context, text in pairs)))
    for start in range(0, len(pairs), rows):
        part = slice(start, start + rows)
        found[part] = _log_probs(model, params, pairs[part], owners[part], tokenizer.vocab_size, cache_dtype)
    finite(found)
    counts = np.array([len(continuation) for _, continuation in pairs])
    sizes = {"none": np.ones(len(pairs)), "tokens": counts}.get(normalise)
    if sizes is None:
        sizes = np.array([len(choice.encode()) for choice in texts])
    at = np.cumsum([len(those) for those in lists])[:-1]
    scores = np.split(found / sizes, at)
    index = np.array([int(np.argmax(values)) for values in scores])
    return Choices(index, np.split(found, at), scores, np.split(counts, at))


def _lists(prompts: list[str], choices: Any) -> list[list[str]]:
    if not prompts:
        raise InputError("there are no prompts")
    for number, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise InputError(f"prompt {number} is {prompt!r:.40}; choices follow texts")
        if not prompt:
            raise InputError(f"prompt {number} is empty: there is nothing to continue")
    choices = list(choices)
    lists = [choices] * len(prompts) if all(isinstance(choice, str) for choice in choices) else choices
    if len(lists) != len(prompts):
        raise InputError(f"{len(lists)} lists of choices for {len(prompts)} prompts; give one each, or one for all")
    for number, those in enumerate(lists):
        if isinstance(those, str) or not those or not all(isinstance(choice, str) and choice for choice in those):
            raise InputError(f"the choices of prompt {number} must be texts, one at least, and none of them empty")
    return [list(those) for those in lists]


def _log_probs(
    model: Model, params: Any, pairs: list[Ids], owners: list[int], limit: int, cache_dtype: str | None
) -> np.ndarray:
    """l_c of each pair, float64."""
    first, last = owners[0], owners[-1]
    scaling = model.config.rotary_scaling
    groups = [[i for i, owner in enumerate(owners) if owner == one] for one in range(first, last + 1)]
    shared = [_common(pairs, those) for those in groups]
    longest, rows = longest_text(model.config), [[*context, *text] for context, text in pairs]

    def tails_of(shared):
        return [row[len(shared[owner - first]) :] for row, owner in zip(rows, owners, strict=True)]

    def sizes_of(shared, tails):
        return max(map(len, shared)), max(len(tail) for tail in tails) - 1

    tails = tails_of(shared)
    # Under a scaling by length the capacity is what the angles go by.
    if sum(sizes_of(shared, tails)) > longest or (scaling is not None and scaling.by_length):
        shared = [[] for _ in groups]
        tails = tails_of(shared)
    wide, long = sizes_of(shared, tails)
    rounded = -(-wide // 32) * 32, -(-long // 8) * 8
    wide, long = rounded if sum(rounded) <= longest else (wide, long)
    cache = None
    if wide:
        tokens, mask = left_padded(shared, wide)
        cache = model.init_cache(len(groups), wide + long, cache_dtype)
        cache = read_chunks(model, params, tokens, mask, cache, wide)
        cache = take_rows(cache, jnp.asarray([owner - first for owner in owners]))
    tokens, mask = np.zeros((len(pairs), long), np.int32), np.zeros((len(pairs), long), np.int32)
    most = max(len(text) for _, text in pairs)
    most = -(-most // 4) * 4 if most <= PLACES else -(-most // PLACES) * PLACES
    at, labels = np.full((len(pairs), most), 0, np.int32), np.zeros((len(pairs), most), np.int32)
    asked = np.zeros((len(pairs), most), bool)
    for i, (tail, (_, text)) in enumerate(zip(tails, pairs, strict=True)):
        tokens[i, : len(tail) - 1], mask[i, : len(tail) - 1] = tail[:-1], 1
        at[i, : len(text)] = np.arange(len(tail) - 1 - len(text), len(tail) - 1)
        labels[i, : len(text)], asked[i, : len(text)] = text, True
    each = _score(params, tokens, mask, at, labels, cache, model=model, limit=limit)
    return np.where(asked, np.asarray(each, np.float64), 0.0).sum(axis=1)


def _common(pairs: list[Ids], those: list[int]) -> list[int]:
    """What the rows begin with, up to the last place before the first token that one asks for."""
    rows = [[*pairs[i][0], *pairs[i][1]] for i in those]
    count = min(len(pairs[i][0]) for i in those) - 1
    for row in rows[1:]:
        count = min(count, shared_length(rows[0], row))
    return rows[0][:count]


@functools.partial(jax.jit, static_argnames=("model", "limit"))
def _score(params: Any, tokens, mask, at, labels, cache: Cache | None, *, model: Model, limit: int) -> jax.Array:
    """float32 [R, K]: log p of the labels at these places; K is PLACES at most, or a multiple of it."""
    hidden = model.apply(params, tokens, padding_mask=mask, cache=cache, logits_at=False).hidden
    states = jnp.take_along_axis(hidden, at[..., None], axis=1)  # [R, K, D]

    def part(given):
        logits = model.unembed(params, given[0]).astype(jnp.float32)
        logits = jnp.where(jnp.arange(logits.shape[-1]) < limit, logits, -jnp.inf)
        return jnp.take_along_axis(jax.nn.log_softmax(logits), given[1][..., None], axis=-1)[..., 0]

    def in_parts(x):
        return jnp.moveaxis(x.reshape(x.shape[0], -1, min(PLACES, x.shape[1]), *x.shape[2:]), 1, 0)

    each = jax.lax.map(part, (in_parts(states), in_parts(jnp.asarray(labels))))  # [parts, R, PLACES]
    return jnp.moveaxis(each, 0, 1).reshape(at.shape)
