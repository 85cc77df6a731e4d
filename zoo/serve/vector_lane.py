"""Embeddings of one request at work: texts of like length together, a batch a turn."""

from typing import Any

import numpy as np

from zoo.generation.text_batch import longest_text
from zoo.serve.jobs import VectorJob, Vectors
from zoo.serve.lanes import Desk
from zoo.serve.scoring import NotFinite
from zoo.text_rows import SHORTEST, Batch, batches, rows_within
from zoo.text_vectors import pooling_of, vectors_of

# Texts of a turn, and tokens (of one text more where it alone has more).
TEXTS, TOKENS = 16, 4096


class VectorLane:
    """Embeddings of one request.

    Args:
        desk: the model.
        job: the request.
    """

    held = 1  # it counts as one text, though what is read at once keeps no keys and values

    def __init__(self, desk: Desk, job: VectorJob):
        self._desk, self._job = desk, job
        self._order = sorted(range(len(job.rows)), key=lambda number: len(job.rows[number]))
        self._found = np.zeros((len(job.rows), desk.served.model.config.hidden_width), np.float32)
        self._done = 0
        self._pooling = ""

    @property
    def size(self) -> int:
        """Texts at work: one."""
        return int(not self.finished)

    @property
    def finished(self) -> bool:
        return self._job.cancelled or self._done == len(self._order)

    def turn(self) -> None:
        """A batch more."""
        served, rows = self._desk.served, self._job.rows
        if not self._pooling:
            self._pooling = pooling_of(served.model.config, served.tokenizer)
        numbers, batch = self._next()
        self._desk.programs.meet(("vectors", batch.tokens.shape))
        vectors = np.asarray(vectors_of(served.model, served.params, batch, self._pooling))
        if not np.isfinite(vectors).all():
            raise NotFinite
        real = batch.order < len(numbers)
        self._found[np.array(numbers)[batch.order[real]]] = vectors[real]
        self._done += len(numbers)
        if self._done == len(rows):
            self._job.tell(Vectors(self._found))

    def tell(self, event: Any) -> None:
        """The last that the request hears."""
        self._done = len(self._order)
        self._job.tell(event)

    def _next(self) -> tuple[list[int], Batch]:
        """The next texts, in a batch of 1, 4 or 16: the most that a turn has room for."""
        config, rows, left = self._desk.served.model.config, self._job.rows, self._order[self._done :]
        for height in (TEXTS, TEXTS // 4, 1):
            numbers = [number for number in left[:height] if height == 1 or self._fits(height, len(rows[number]))]
            if len(numbers) > height // 4:
                break
        texts = [rows[number] for number in numbers]
        texts += [texts[0]] * (height - len(texts))
        (batch,) = batches(texts, height, longest_text(config), self._desk.served.tokenizer.pad_id)
        return numbers, batch

    def _fits(self, height: int, length: int) -> bool:
        width = max(SHORTEST, 1 << (length - 1).bit_length())
        config = self._desk.served.model.config
        return height * width <= TOKENS and rows_within(config, width, height) == height
