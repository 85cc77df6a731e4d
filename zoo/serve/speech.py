"""The text of one row as its tokens come: whole characters, stop texts cut off, what may begin one held back."""

from collections.abc import Sequence
from typing import Any

from zoo.generation.reading import Reader
from zoo.serve.jobs import Said, Token

# Ids before a token that are decoded with it: a piece alone loses the space before it.
CONTEXT = 4


class Speech:
    """One row's text. It is fed token by token, so that it and its counts do not depend on how many come at a time.

    Args:
        tokenizer: with decode(ids).
        ids: of the prompt.
        stop: texts that end the text.
    """

    def __init__(self, tokenizer: Any, ids: Sequence[int], stop: Sequence[str] = ()):
        self._reader = Reader(tokenizer, ids, stop)
        self._given = 0  # characters that are given
        self._tokens: list[Token] = []  # tokens that are not

    @property
    def count(self) -> int:
        """Tokens read."""
        return self._reader.count

    def read(self, row: int, ids: Sequence[int], log_probs: Sequence[float], finish: str = "") -> Said:
        """Takes tokens, gives what they add; `finish` says that they are the last, and why.

        A stop text among them finishes the text whatever `finish` says.
        """
        for token, log_prob in zip(ids, log_probs, strict=True):
            start = self._reader.heard
            self._tokens.append(Token(int(token), self._reader.read(int(token)), float(log_prob), start))
            if self._reader.stopped:
                break
        if finish:
            rest = self._reader.end()
            if rest and self._tokens:
                self._tokens[-1].text += rest
        return self._give(row, "stop" if self._reader.stopped else finish)

    def _give(self, row: int, finish: str) -> Said:
        text = self._reader.take()
        self._given += len(text)
        whole = bool(finish) and not self._reader.stopped
        ready = [token for token in self._tokens if whole or token.start < self._given]
        self._tokens = self._tokens[len(ready) :]
        return Said(row, text, tuple(ready), self.count, finish)


def spelled(tokenizer: Any, ids: Sequence[int]) -> list[Token]:
    """The tokens of a prompt, with what each adds to its text."""
    speech = Speech(tokenizer, [])
    return list(speech.read(0, ids, [0.0] * len(ids), "length").tokens)


def in_places(tokenizer: Any, before: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """What each of `tokens` would add after these ids."""
    before = list(before[-CONTEXT:])
    context, found = tokenizer.decode(before), []
    for token in tokens:
        whole = tokenizer.decode([*before, token])
        found.append(whole[len(context) :] if whole.startswith(context) else tokenizer.decode([token]))
    return found
