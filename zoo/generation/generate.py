"""Generation: texts that go on, all at once or piece by piece, with the key-value cache, on the device.

    logits of the last position -> bias, penalties, temperature, filters -> draw -> append    (zoo.generation.decoding)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from zoo.errors import InputError
from zoo.generation.prompts import WANTED, continuation, prompt_rows
from zoo.generation.reading import Reader, stop_texts
from zoo.generation.sampling import Sampling
from zoo.generation.speculation import DraftedBatch
from zoo.generation.text_batch import TextBatch, end_ids, finite, require_decoder
from zoo.given_numbers import number, whole_number, whole_numbers
from zoo.model import Model

__all__ = ["WANTED", "Generation", "Piece", "generate", "stream"]

# Steps between two looks at the texts, where stop texts are given.
LOOK = 16


@dataclass(frozen=True)
class Generation:
    """What was generated, without the prompts. B = prompts x samples, the samples of a prompt next to each other.

    Attributes:
        tokens: int32 [B, max_new_tokens]; after a row has stopped, its stop token is repeated, or after a stop text 0.
        lengths: int32 [B], tokens of each row, the stop token not counted.
        log_probs: float32 [B, max_new_tokens], of each token under the model before bias, penalties, temperature and
            filters; 0 after the stop.
        texts: what follows each prompt, or None without a tokenizer.
        stopped: bool [B], whether the row ended by a stop token or text, and not for want of room.
        acceptance: float64 [B], the share of drafted tokens that were taken; None without a draft.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    log_probs: np.ndarray
    texts: list[str] | None = None
    stopped: np.ndarray | None = None
    acceptance: np.ndarray | None = None


@dataclass(frozen=True)
class Piece:
    """What a stream gives at a time.

    Attributes:
        text: whole characters, maybe none.
        ids: the tokens read since the piece before.
        finished: "" while it goes on, "stop" at a stop token or text, "length" where there is no more room.
    """

    text: str
    ids: tuple[int, ...]
    finished: str = ""


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
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    banned_ids: Sequence[int] = (),
    forced_ids: Sequence[int] = (),
    key: jax.Array | None = None,
    samples: int = 1,
    stop_ids: Sequence[int] | None = None,
    stop: Sequence[str] | str = (),
    min_new_tokens: int = 0,
    cache_dtype: str | None = None,
    draft: tuple[Any, ...] | None = None,
    draft_tokens: int = 4,
) -> Generation:
    """Continues each prompt.

    Args:
        model, params: a causal language model.
        prompts: texts (with a tokenizer; BOS is put before each where its settings say so), lists of ids, or ids
            [B, T] with a padding_mask that may pad either side.
        max_new_tokens: steps, at most.
        padding_mask: [B, T], 1 on real ids, for prompts given as an array.
        tokenizer: turns texts to ids and back; ids beyond its vocabulary are never drawn.
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: see
            zoo.generation.sampling.Sampling.
        logit_bias: id -> what is added to its logit.
        banned_ids: never drawn.
        forced_ids: what each text begins with, whatever the model says.
        key: random key (folded by row), or an array of keys, one a prompt; needed above temperature 0. A prompt with a
            key of its own draws the same text in every batch.
        samples: texts a prompt, where above 1 each with the prompt's key folded by the sample's number.
        stop_ids: a row ends at any of these; None for the tokenizer's stop_ids.
        stop: texts at which a row ends, at the one that is complete first; it is cut off. They need a tokenizer.
        min_new_tokens: tokens before which no row ends by a stop id.
        cache_dtype: of cached keys and values: "float32", "bfloat16" or "int8" (zoo.cache says how far off); None for
            the model's dtype.
        draft: a smaller model of the same vocabulary, (model, params) or (model, params, tokenizer), that says what
            might come next; the texts are distributed as without it, and greedy ones are the same: see
            zoo.generation.speculation.
        draft_tokens: what it says at a time.

    Raises:
        InputError: an empty prompt, prompt plus new tokens beyond the model's positions, a model that is no causal
            language model, sampling values out of range, weights that are no finite numbers, a tokenizer of another
            model.
    """
    require_decoder(model.config)
    sampling = Sampling(
        temperature=number("temperature", temperature),
        top_k=top_k,
        top_p=number("top_p", top_p),
        min_p=number("min_p", min_p),
        repetition_penalty=number("repetition_penalty", repetition_penalty),
        presence_penalty=number("presence_penalty", presence_penalty),
        frequency_penalty=number("frequency_penalty", frequency_penalty),
        logit_bias={} if logit_bias is None else logit_bias,
        banned=tuple(whole_numbers("banned_ids", banned_ids)),
        vocab_limit=None if tokenizer is None else min(tokenizer.vocab_size, model.config.vocab_size),
    )
    rows = prompt_rows(prompts, padding_mask, tokenizer, model.config.vocab_size)
    stop = stop_texts(stop)
    if stop and tokenizer is None:
        raise InputError("stop texts need a tokenizer; give stop_ids without one")
    asked = dict(max_new_tokens=max_new_tokens, key=key, samples=samples, stop_ids=end_ids(stop_ids, tokenizer))
    asked |= dict(least=min_new_tokens, forced=forced_ids, cache_dtype=cache_dtype)
    if draft is None:
        work = TextBatch(model, params, rows, [sampling] * len(rows), **asked)
    else:
        asked |= dict(draft=draft, drafts=draft_tokens, tokenizer=tokenizer)
        work = DraftedBatch(model, params, rows, [sampling] * len(rows), **asked)
    prompts_of = [row for row in rows for _ in range(samples)]
    if not stop:
        work.advance(max_new_tokens)
    readers = [Reader(tokenizer, prompt, stop) for prompt in prompts_of if stop]
    while stop and not work.finished:
        work.advance(work.step + LOOK)
        _read_on(readers, np.asarray(work.now.tokens), np.asarray(work.now.lengths))
        work.end([reader.stopped for reader in readers])
    tokens, lengths, log_probs, ended = work.result()
    texts = None
    if tokenizer is not None and not stop:
        of_rows = zip(prompts_of, tokens, lengths, strict=True)
        texts = [continuation(tokenizer, prompt, row[:count].tolist()) for prompt, row, count in of_rows]
    elif stop:
        _read_on(readers, tokens, lengths)
        texts = []
        for i, reader in enumerate(readers):
            reader.end()
            texts.append(reader.take())
            if reader.stopped:
                ended[i], lengths[i] = True, reader.tokens_of(texts[i])
                tokens[i, reader.count :] = log_probs[i, reader.count :] = 0
    return Generation(tokens, lengths, log_probs, texts, ended, None if draft is None else work.acceptance)


def _read_on(readers: list[Reader], tokens: np.ndarray, lengths: np.ndarray) -> None:
    for reader, row, length in zip(readers, tokens, lengths, strict=True):
        for token in row[reader.count : length].tolist():
            reader.read(token)


def stream(
    model: Model,
    params: dict[str, Any],
    prompt: str | Sequence[int],
    *,
    tokenizer: Any,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    key: jax.Array | None = None,
    stop_ids: Sequence[int] | None = None,
    stop: Sequence[str] | str = (),
    cache_dtype: str | None = None,
    every: int = 1,
) -> Iterator[Piece]:
    """Continues one prompt and gives the text as it comes; it is the text that `generate` would give.

    Args:
        model, params, tokenizer, max_new_tokens, stop_ids, stop, cache_dtype: as in `generate`.
        prompt: a text or ids.
        sampling: how tokens are drawn; None for greedy.
        key: of the draws.
        every: tokens a piece.

    Yields:
        pieces; the last one says why it is the last. What might be the beginning of a stop text is held back.

    Raises:
        InputError: at the first piece: what `generate` refuses, an empty stop text, `every` below 1.
    """
    require_decoder(model.config)
    if isinstance(prompt, list | tuple) and any(isinstance(one, str) for one in prompt):
        raise InputError("stream takes one prompt, a text or its ids; zoo.generate takes several")
    if whole_number("every", every) < 1:
        raise InputError(f"every is {every}: a piece holds one token or more")
    stop = stop_texts(stop)
    rows = prompt_rows([prompt], None, tokenizer, model.config.vocab_size)
    sampling = sampling or Sampling(vocab_limit=min(tokenizer.vocab_size, model.config.vocab_size))
    work = TextBatch(
        model,
        params,
        rows,
        [sampling],
        max_new_tokens=max_new_tokens,
        key=key,
        stop_ids=end_ids(stop_ids, tokenizer),
        cache_dtype=cache_dtype,
    )
    reader = Reader(tokenizer, rows[0], stop)
    while True:
        seen, count = reader.count, int(work.now.lengths[0])
        finite(np.asarray(work.now.log_probs))
        for token in np.asarray(work.now.tokens[0, seen:count]).tolist():
            reader.read(token)
        if work.finished:
            reader.end()
        ids = tuple(np.asarray(work.now.tokens[0, seen : reader.count]).tolist())
        why = "stop" if reader.stopped or bool(work.now.done[0]) else "length" if work.finished else ""
        yield Piece(reader.take(), ids, why)
        if why:
            return
        work.advance(work.step + every)
