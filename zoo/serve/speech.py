"""The text of one row as its tokens come: whole characters, stop texts cut off, what may begin one held back."""

from collections.abc import Sequence
from typing import Any

from zoo.generation.prompts import TextStream, overlap
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
        self._words, self._stop = TextStream(tokenizer, ids), tuple(stop)
        self._held = ""  # text that is not given yet
        self._given = 0  # characters that are
        self._tokens: list[Token] = []  # tokens that are not given yet
        self.count = 0

    def read(self, row: int, ids: Sequence[int], log_probs: Sequence[float], finish: str = "") -> Said:
        """Takes tokens, gives what they add; `finish` says that they are the last, and why.

        A stop text among them finishes the text whatever `finish` says.
        """
        for token, log_prob in zip(ids, log_probs, strict=True):
            self.count += 1
            self._hear(Token(int(token), self._words.add([int(token)]), float(log_prob)))
            cut = self._cut()
            if cut is not None:
                return self._give(row, cut, "stop", cut_off=True)
        if finish:
            rest = self._words.end()
            if rest and self._tokens:
                self._tokens[-1].text += rest
            self._held += rest
            cut = self._cut()
            if cut is not None:
                return self._give(row, cut, "stop", cut_off=True)
            return self._give(row, len(self._held), finish)
        keep = max((overlap(self._held, word) for word in self._stop), default=0)
        return self._give(row, len(self._held) - keep, "")

    def _hear(self, token: Token) -> None:
        token.start = self._given + len(self._held)
        self._held += token.text
        self._tokens.append(token)

    def _cut(self) -> int | None:
        return min((self._held.find(word) for word in self._stop if word in self._held), default=None)

    def _give(self, row: int, length: int, finish: str, cut_off: bool = False) -> Said:
        text, self._held = self._held[:length], self._held[length:]
        self._given += length
        whole = bool(finish) and not cut_off
        ready = [token for token in self._tokens if whole or token.start < self._given]
        self._tokens = self._tokens[len(ready) :]
        return Said(row, text, tuple(ready), self.count, finish)


def spelled(tokenizer: Any, ids: Sequence[int]) -> list[Token]:
    """The tokens of a prompt, with what each adds to its text."""
    speech = Speech(tokenizer, [])
    return list(speech.read(0, ids, [0.0] * len(ids), "length").tokens)


def in_place(tokenizer: Any, before: Sequence[int], token: int) -> str:
    """What a token would add after these ids."""
    before = list(before[-CONTEXT:])
    context, whole = tokenizer.decode(before), tokenizer.decode([*before, token])
    return whole[len(context) :] if whole.startswith(context) else tokenizer.decode([token])
