"""Which documents are held out: decided by their hash, in constant memory."""

import heapq
from collections.abc import Iterator
from typing import Any


class HoldOut:
    """Sends documents to train or valid by the hash of their text.

    A hash below `threshold` is valid. The `least` smallest other hashes wait until the end, since they fill up a valid
    side that stayed short. So the sides do not depend on the order of documents, and equal documents share a side.

    Args:
        threshold: out of 2**64 equally likely hashes.
        least: different hashes held out at least.

    Attributes:
        held_out: how many different ones were, `least` at most; known after `rest`.
    """

    def __init__(self, threshold: int, least: int):
        self.threshold, self.least = threshold, least
        self._below: set[int] = set()
        self._waiting: dict[int, list[Any]] = {}
        self._largest: list[int] = []
        self.held_out = 0

    def add(self, key: int, document: Any) -> Iterator[tuple[str, Any]]:
        """Takes one document and its hash; yields (side, document) for those that are decided by now."""
        if key < self.threshold:
            if len(self._below) < self.least:
                self._below.add(key)
            yield "valid", document
        elif key in self._waiting:
            self._waiting[key].append(document)
        elif len(self._waiting) < self.least:
            self._waiting[key] = [document]
            heapq.heappush(self._largest, -key)
        elif self._largest and key < -self._largest[0]:
            self._waiting[key] = [document]
            yield from (("train", old) for old in self._waiting.pop(-heapq.heapreplace(self._largest, -key)))
        else:
            yield "train", document

    def rest(self) -> Iterator[tuple[str, Any]]:
        """(side, document) of those still waiting, once there are no more."""
        short = self.least - len(self._below)
        for place, key in enumerate(sorted(self._waiting)):
            for document in self._waiting[key]:
                yield "valid" if place < short else "train", document
        self.held_out = len(self._below) + max(0, min(short, len(self._waiting)))
