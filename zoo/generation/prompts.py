"""Prompts in, texts out: rows of ids padded on the left, and what new ids add to a text, whole characters at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from zoo.errors import InputError
from zoo.given_numbers import whole_ids

WANTED = "give texts, a list of ids for each prompt ([[1, 2]]), or ids [B, T]"
# Rows of a table beyond its tokenizer's pieces that a small one may have.
PADDING = 128
# What a decoder gives for bytes that are no whole character, for some or for each of them: three at most.
HALF = "\ufffd"
MOST_HALVES = 3
# Ids that are decoded before new ones, at least: a piece alone loses the space before it.
CONTEXT = 8


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
    """Raises InputError where a tokenizer (or None) has more pieces than the model, or far fewer.

    Tables have rows that no piece has: published ones up to a fiftieth of all, or up to the next multiple of 128.
    """
    if tokenizer is None:
        return
    pieces = tokenizer.vocab_size
    if pieces > vocab_size or vocab_size - pieces > max(PADDING, vocab_size // 10):
        raise InputError(
            f"the tokenizer has {pieces} pieces but the model's vocabulary {vocab_size}: they do not belong together"
        )


def prompt_ids(prompt: str | Sequence[int], tokenizer: Any) -> list[int]:
    """Ids of one prompt."""
    if not isinstance(prompt, str):
        if not hasattr(prompt, "__iter__") or isinstance(prompt, bytes | dict):
            raise InputError(f"a prompt is {prompt!r:.40}; {WANTED}")
        return whole_ids(prompt)
    if not prompt:
        return []  # and not BOS alone
    if tokenizer is None:
        raise InputError("prompts are texts but no tokenizer is given; pass tokenizer=zoo.load_tokenizer(path)")
    ids = tokenizer.encode(prompt)
    if not ids:  # of a blank, say
        return []
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


def continuation(tokenizer: Any, prompt: Sequence[int], new: Sequence[int]) -> str:
    """The text that `new` adds to the prompt's: decoded alone, a first piece would lose the space before it."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *new])
    if whole.startswith(before) and HALF not in whole[len(before) :]:
        return whole[len(before) :]
    stream = TextStream(tokenizer, prompt)
    return stream.add(new) + stream.end()


class TextStream:
    """The text of ids that arrive one after the other; what may still change is held back.

    Bytes of a character arrive in several pieces, and a piece alone loses the space before it. So the newest ids are
    decoded together with some before them, and what these add is given out but for the end that is no whole character:
    three U+FFFD at most, since a character has four bytes at most. Whatever the ids, no more is held back, and an id
    costs the same however many came before. How many ids come at a time changes nothing.

    Args:
        tokenizer: with decode(ids).
        prompt: ids before.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]):
        self._decode = tokenizer.decode
        self._ids, self._out = self._recent(list(prompt))  # the newest, and of their text what was given out
        self._half = ""  # held back behind it
        self._late = 0  # ids at the end that were decoded to another text than the one given out

    def add(self, ids: Sequence[int]) -> str:
        """Takes ids; gives the text that is certain now, maybe none."""
        return "".join([self._hear(int(i)) for i in ids])

    def end(self) -> str:
        """What is held back, half characters as U+FFFD."""
        text = self._half + (self._decode(self._ids[len(self._ids) - self._late :]) if self._late else "")
        self._forget()
        return text

    def _hear(self, token: int) -> str:
        self._ids.append(token)
        whole, out = self._decode(self._ids), self._out
        if not whole.startswith(out):
            # So it is amid some characters: their first bytes can undo a whole one before them until they are complete.
            self._late += 1
            return self.end() if self._late > MOST_HALVES else ""
        self._late, added = 0, len(whole) - len(out)
        halves = min(len(whole) - len(whole.rstrip(HALF)), MOST_HALVES, added)
        self._out, self._half = whole[: len(whole) - halves], whole[len(whole) - halves :]
        text = self._out[len(out) :]
        if len(self._ids) >= 4 * CONTEXT:
            text += self._shortened()
        return text

    def _shortened(self) -> str:
        """Goes on with the newest ids alone; gives what these do not hold back in the same way."""
        self._ids, whole = self._recent(self._ids)
        if whole.endswith(self._half):
            self._out = whole[: len(whole) - len(self._half)]
            return ""
        text, self._half, self._out = self._half, "", whole
        return text

    def _forget(self) -> None:
        self._half, self._late = "", 0
        self._ids, self._out = self._recent(self._ids)

    def _recent(self, ids: list[int]) -> tuple[list[int], str]:
        """The last few ids, from the beginning of a character where there is one, and their text."""
        last = ids[-CONTEXT:]
        for more in range(MOST_HALVES + 1):
            some = ids[-CONTEXT - more :]
            text = self._decode(some)
            if not text.startswith(HALF):
                return some, text
        return last, self._decode(last)


def first_stop(text: str, words: Sequence[str]) -> int | None:
    """Where a text ends: before the stop text that is complete first, the longest of those complete at one character.

    It goes by the characters alone, so that it does not matter how they arrive.
    """
    places = [(text.find(word) + len(word), -len(word)) for word in words if word in text]
    return sum(min(places)) if places else None


def overlap(text: str, word: str) -> int:
    """Characters at the end of `text` that may be the beginning of `word`."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)
