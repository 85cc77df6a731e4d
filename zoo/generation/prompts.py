"""Prompts in, texts out: rows of ids padded on the left, and what new ids add to a text, whole characters at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from zoo.errors import InputError
from zoo.tokenizer import whole_ids

WANTED = "give texts, a list of ids for each prompt ([[1, 2]]), or ids [B, T]"
# What a decoder gives for bytes that are no whole character.
HALF = "\ufffd"


def prompt_rows(prompts: Any, padding_mask: Any, tokenizer: Any, vocab_size: int) -> list[list[int]]:
    """The real ids of each prompt.

    Args:
        prompts: texts (with a tokenizer; BOS is put before each where its settings say so), lists of ids, or ids
            [B, T] with a padding_mask that may pad either side.
        padding_mask: [B, T], for ids [B, T] alone.
        tokenizer: of texts.
        vocab_size: of the model.

    Raises:
        InputError: no prompts, an empty one, ids outside the vocabulary, a tokenizer of more pieces than the model.
    """
    check_tokenizer(tokenizer, vocab_size)
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
        rows = [prompt_ids(prompt, tokenizer) for prompt in prompts]
    if not rows:
        raise InputError("there are no prompts")
    for i, row in enumerate(rows):
        if not row:
            raise InputError(f"prompt {i} is empty: there is nothing to continue")
        worst = max(row, key=lambda token: (token < 0, token))
        if not 0 <= worst < vocab_size:
            raise InputError(f"prompt {i} holds id {worst}, outside the vocabulary: 0 to {vocab_size - 1}")
    return rows


def check_tokenizer(tokenizer: Any, vocab_size: int) -> None:
    """Raises InputError where a tokenizer (or None) has more pieces than the model."""
    if tokenizer is not None and tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} pieces but the model's vocabulary {vocab_size}: they do not "
            "belong together"
        )


def prompt_ids(prompt: str | Sequence[int], tokenizer: Any) -> list[int]:
    """Ids of one prompt."""
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


def left_padded(rows: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and mask, int32 [B, length], each row at the right end."""
    tokens = np.zeros((len(rows), length), np.int32)
    mask = np.zeros((len(rows), length), np.int32)
    for i, row in enumerate(rows):
        tokens[i, length - len(row) :] = row
        mask[i, length - len(row) :] = 1
    return tokens, mask


def continuation(tokenizer: Any, prompt: list[int], new: list[int]) -> str:
    """The text that `new` adds to the prompt's: decoded alone, a first piece would lose the space before it."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + new)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(new)


class TextStream:
    """The text of ids that arrive one after the other; what may still change is held back.

    Bytes of a character arrive in several pieces, and a piece alone loses the space before it. So the ids since the
    last whole character are decoded together with the ones before them, and given out when they end in a whole one.

    Args:
        tokenizer: with decode(ids).
        prompt: ids before.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]):
        self._decode, self._ids = tokenizer.decode, list(prompt)
        self._given = len(self._ids)  # ids whose text is out
        self._from = 0  # ids that are decoded for context

    def add(self, ids: Sequence[int]) -> str:
        """Takes ids; gives the text that is certain now, maybe none."""
        self._ids += ids
        return self._out(final=False)

    def end(self) -> str:
        """What is held back, half characters as U+FFFD."""
        return self._out(final=True)

    def _out(self, final: bool) -> str:
        if self._given == len(self._ids):
            return ""
        before = self._decode(self._ids[self._from : self._given])
        whole = self._decode(self._ids[self._from :])
        if not final and (whole.endswith(HALF) or not whole.startswith(before)):
            return ""
        if whole.startswith(before):
            text = whole[len(before) :]
        else:
            text = self._decode(self._ids[self._given :])
        self._from, self._given = self._given, len(self._ids)
        return text


def overlap(text: str, word: str) -> int:
    """Characters at the end of `text` that may be the beginning of `word`."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)
