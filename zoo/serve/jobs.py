"""What goes between the event loop and the thread of the model: jobs one way, events the other."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zoo.serve.asked import TextsAsked
from zoo.serve.limits import Refusal


@dataclass
class Token:
    """One token of a text.

    Attributes:
        id: of the vocabulary.
        text: what it adds to the text: "" for the first bytes of a character that later ones complete.
        log_prob: under the model before bias, penalties, temperature and filters; None for the first of all.
        top: (text, log-probability) of the likeliest in its place, the likeliest first.
        start: characters of the text before it.
    """

    id: int
    text: str
    log_prob: float | None
    start: int = 0
    top: list[tuple[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Said:
    """A piece of a text.

    Attributes:
        row: which of the job's.
        text: whole characters; what may be the beginning of a stop text is held back.
        tokens: those of the piece.
        count: tokens made so far, those of a stop text counted, a stop token not.
        finish: "" while it goes on, "stop", "length".
        prompt: the prompt's tokens, where they were asked for, with the last piece.
    """

    row: int
    text: str
    tokens: tuple[Token, ...]
    count: int
    finish: str = ""
    prompt: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Vectors:
    """Embeddings, all of a job's."""

    values: np.ndarray


class Job:
    """One request at the model; its events go to a queue of `loop`, or nowhere where that is None."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None):
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False  # set by the loop, read by the model's thread between steps
        self.began = time.perf_counter()
        self._loop = loop

    def tell(self, event: Said | Vectors | Refusal) -> None:
        """Called by the model's thread."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:  # the loop has ended, and nobody listens
            self.cancelled = True


class TextJob(Job):
    """Texts for a request.

    Args:
        asked: the request.
        prompts: ids of each.
        most: new tokens of each, at most.
        seed: of the draws.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None,
        asked: TextsAsked,
        prompts: Sequence[list[int]],
        most: Sequence[int],
        seed: int,
    ):
        super().__init__(loop)
        self.asked, self.seed = asked, seed
        several = asked.samples > 1
        self.rows = [
            Row(self, place * asked.samples + sample, ids, new, place, sample if several else None)
            for place, (ids, new) in enumerate(zip(prompts, most, strict=True))
            for sample in range(asked.samples)
        ]


@dataclass(eq=False)
class Row:
    """One text at work.

    Attributes:
        job: its request.
        number: of the answer's choices.
        ids: of the prompt.
        most: new tokens.
        prompt, sample: what its key is folded by, as zoo.generate folds them; sample None where there is one a prompt.
        kind: of the batch that it goes into; set by the model's thread.
    """

    job: TextJob
    number: int
    ids: list[int]
    most: int
    prompt: int
    sample: int | None
    kind: Any = None


class VectorJob(Job):
    """Embeddings for a request: rows of ids, special pieces included."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, rows: list[list[int]]):
        super().__init__(loop)
        self.rows = rows
