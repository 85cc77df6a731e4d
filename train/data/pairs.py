"""Rows for next-sentence prediction (Devlin et al. 2018, section 3.1): one pair a row.

    [CLS] A [SEP] B [SEP]        B follows A in its document (label 0), or comes from another one (label 1)

Where A ends, which label it gets and which other document are drawn anew in each epoch, from random words that the
caller derives from (seed, step, row). The labels are those of the published BERT heads.
"""

import numpy as np

from train.data.rows import Framing, RowIndex, gather, row_numbers
from train.data.shards import Split
from zoo.errors import InputError

FOLLOWS, ELSEWHERE = 0, 1


class PairRows:
    """Rows of style "pairs".

    Each row of the index is a slice of at least two ids, cut anew at each visit: its first part is A, and the rest is
    B or only sets B's length, so that the length tells nothing about the label (unless the other document is shorter).

    Args:
        split: the documents.
        index: from `build_index` with the same framing.
        framing: the special ids.

    Raises:
        InputError: fewer than two documents that hold an id.
    """

    draws = 4

    def __init__(self, split: Split, index: RowIndex, framing: Framing):
        self.split, self.index, self.framing = split, index, framing
        self.row_length = index.row_length
        ends = split.ends.astype(np.int64)
        self._lengths = np.diff(ends, prepend=0)
        self._begins = ends - self._lengths
        self._filled = np.flatnonzero(self._lengths)
        if len(self._filled) < 2:
            raise InputError(f"{split.name} has one document alone; pairs need a second to draw from")

    def __len__(self) -> int:
        return len(self.index)

    @property
    def fill(self) -> float:
        """Share of all positions that hold an id where every B follows its A."""
        placed = int(self.index.length.sum(dtype=np.int64)) + 3 * len(self)
        return placed / max(1, len(self) * self.row_length)

    def assemble(self, rows: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these numbers.

        Args:
            rows: [B] row numbers.
            draws: [B, 4] uint64 random words, one line a row.

        Returns:
            tokens, segment_ids (1, or 0 on padding), token_types (0 up to the first [SEP], then 1): [B, T] int32;
            next_sentence [B] int32.

        Raises:
            InputError: a row number that does not exist, or an id in the shards outside the vocabulary.
        """
        rows = row_numbers(rows, len(self))
        document, start = self.index.document[rows], self.index.start[rows]
        length = self.index.length[rows].astype(np.int64)
        first = 1 + _below(draws[:, 0], length - 1)
        label = (draws[:, 1] >> np.uint64(63)).astype(np.int32)
        place = _below(draws[:, 2], np.full(len(rows), len(self._filled) - 1))
        other = self._filled[place + (self._filled[place] >= document)]
        rest = np.where(label == ELSEWHERE, np.minimum(length - first, self._lengths[other]), length - first)
        offset = _below(draws[:, 3], self._lengths[other] - rest + 1)
        here = self._begins[document] + start
        second = np.where(label == ELSEWHERE, self._begins[other] + offset, here + first)

        column = np.arange(self.row_length)
        middle, last = (first + 1)[:, None], (first + rest + 2)[:, None]
        in_first, in_second = (column > 0) & (column < middle), (column > middle) & (column < last)
        source = np.where(in_first, here[:, None] + column - 1, second[:, None] + column - middle - 1)
        ids = np.zeros(source.shape, np.int32)
        filled = in_first | in_second
        ids[filled] = gather(self.split, source[filled])
        special = np.where(column == 0, self.framing.before, self.framing.after)
        inside = column <= last
        tokens = np.where(filled, ids, np.where(inside, special, self.framing.pad))
        return {
            "tokens": tokens.astype(np.int32),
            "segment_ids": inside.astype(np.int32),
            "token_types": ((column > middle) & inside).astype(np.int32),
            "next_sentence": label,
        }


def _below(words: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Random words brought into 0 to limits - 1."""
    return (words % np.maximum(limits, 1).astype(np.uint64)).astype(np.int64)
