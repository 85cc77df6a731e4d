"""The text of one row as its tokens come: whole characters, up to its first stop text. Whoever shows texts reads so."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from zoo.errors import InputError
from zoo.generation.prompts import TextStream, first_stop, overlap


def stop_texts(stop: Sequence[str] | str) -> tuple[str, ...]:
    """Stop texts, one or several. Raises InputError where one is empty, or no text."""
    stop = tuple(stop) if isinstance(stop, list | tuple | set | frozenset) else (stop,)
    for word in stop:
        if not isinstance(word, str):
            raise InputError(f"a stop text is {word!r:.40}; give texts, or ids as stop_ids")
    if not all(stop):
        raise InputError("a stop text is empty; it would end every text before its first character")
    return stop


class Reader:
    """One row's text.

    It ends before the stop text that is complete first (zoo.generation.prompts.first_stop). That is a matter of the
    text, so that neither it nor the counts depend on how many tokens are made or read at a time.

    Args:
        tokenizer: with decode(ids).
        prompt: ids before.
        stop: texts that end the text, none of them empty.

    Attributes:
        count: tokens read; those of a stop text are among them.
        heard: characters of all that was read.
        stopped: a stop text was met: it takes no more.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str] = ()):
        self._words, self._stop = TextStream(tokenizer, prompt), tuple(stop)
        self._held, self._ready = "", []  # what may begin a stop text, and what is certain before it
        self._ends: list[int] = []  # characters heard at the end of each token
        self.heard, self.stopped = 0, False

    @property
    def count(self) -> int:
        return len(self._ends)

    def read(self, token: int) -> str:
        """Takes a token; gives all that it adds, a stop text or its beginning too."""
        if self.stopped:
            return ""
        text = self._hear(self._words.add([token]))
        self._ends.append(self.heard)
        return text

    def end(self) -> str:
        """There are no more tokens; gives what was held back of half characters."""
        if self.stopped:
            return ""
        text = self._hear(self._words.end())
        if not self.stopped:
            self._ready.append(self._held)
            self._held = ""
        return text

    def take(self) -> str:
        """What is certain since the last time: up to the stop text, or to what may be the beginning of one."""
        text, self._ready = "".join(self._ready), []
        return text

    def tokens_of(self, text: str) -> int:
        """How many tokens it takes to say `text`, with which this one begins."""
        return min(bisect_left(self._ends, len(text)) + 1, self.count) if text else 0

    def _hear(self, text: str) -> str:
        self.heard += len(text)
        self._held += text
        cut = first_stop(self._held, self._stop)
        if cut is None:
            cut = len(self._held) - max((overlap(self._held, word) for word in self._stop), default=0)
        else:
            self.stopped = True
        self._ready.append(self._held[:cut])
        self._held = self._held[cut:]
        return text
