"""Several examples in one row: a label for each segment, and hardly any padding.

    row     [CLS] a fine film [SEP] [CLS] dull [SEP] [CLS] never a dull moment [SEP] (padding)
    segment    1   1  1   1     1     2    2    2      3     3   3  3     3     3        0
    labels  [1, 0, 1, 0 ...]      weights [1, 1, 1, 0 ...]

Tokens see their own segment alone and positions start anew in each, so that an example's answer is what it is in a row
of its own; what a row would pad away is spent on further examples. An update still has exactly its own examples.

Reference: Krell et al. 2021, Efficient Sequence Packing without Cross-contamination, arXiv:2107.02027.
"""

from collections.abc import Sequence

import numpy as np

from eval.encode import Batch, Encoded
from eval.kinds import Kind
from zoo.config import ModelConfig
from zoo.errors import InputError

# Rows are this long: short enough for attention to be cheap, long enough to hold a few sentences.
ROW_LENGTH = 64
# So many places for examples in a row, and no more: one for each 8 tokens.
TOKENS_A_PLACE = 8


def row_length(encoded: Encoded) -> int:
    """T of packed rows: 64, or the shortest bucket that holds the longest example."""
    longest = int(encoded.lengths.max())
    return ROW_LENGTH if longest <= ROW_LENGTH else next(b for b in encoded.buckets if b >= longest)


def places(length: int) -> int:
    """S: most examples of a row of T tokens."""
    return max(1, length // TOKENS_A_PLACE)


def packs(kind: Kind, encoded: Encoded, config: ModelConfig) -> bool:
    """Whether examples may share a row: one label each, and positions that are the same wherever a text stands."""
    by_length = config.rotary_scaling is not None and config.rotary_scaling.by_length
    return kind.packs and encoded.group == 1 and not config.distillation_head and not by_length


def rows_a_step(encoded: Encoded, batch_size: int) -> int:
    """Packed batches have a multiple of so many rows, a quarter of what is to be expected: few shapes, little waste."""
    expected = batch_size * float(encoded.lengths.mean()) / row_length(encoded)
    return max(1, int(expected) // 4)


def fill(lengths: Sequence[int] | np.ndarray, length: int) -> list[list[int]]:
    """Puts examples into rows: the longest first, each into the fullest row that still holds it (best fit decreasing).

    Args:
        lengths: of the examples, each at most `length`.
        length: T.

    Returns:
        rows, each a list of indexes into `lengths`; every index once.
    """
    lengths = np.asarray(lengths, np.int64)
    if lengths.size and lengths.max() > length:
        raise InputError(f"an example of {lengths.max()} ids does not go into rows of {length}")
    most = places(length)
    rows: list[list[int]] = []
    room: list[list[int]] = [[] for _ in range(length + 1)]  # free tokens -> rows with so many
    for index in np.argsort(-lengths, kind="stable"):
        need = int(lengths[index])
        free = next((f for f in range(need, length + 1) if room[f]), None)
        if free is None:
            rows.append([])
            row, free = len(rows) - 1, length
        else:
            row = room[free].pop()
        rows[row].append(int(index))
        if len(rows[row]) < most and free - need > 0:
            room[free - need].append(row)
    return rows


def pack(encoded: Encoded, examples: Sequence[int] | np.ndarray, step: int = 1) -> tuple[Batch, np.ndarray]:
    """The examples with these numbers as one packed batch.

    Args:
        encoded: with one row an example.
        examples: their numbers.
        step: the number of rows is a multiple of this, empty rows behind, so that batches have few shapes.

    Returns:
        (batch, order). The batch has tokens, segment_ids, token_types (if any) [R, T]; labels, weights, label_weights
        (if any) [R, S]; row_ids [R]. order [R, S] holds the number of the example in each place, -1 for none.
    """
    examples = np.asarray(examples, np.int64)
    if encoded.group != 1 or isinstance(encoded.labels, tuple):
        raise InputError("only tasks with one label and one row for each example are packed")
    length = row_length(encoded)
    rows = fill(encoded.lengths[examples], length)
    count = -(-len(rows) // step) * step
    tokens = np.full((count, length), encoded.pad_id, np.int32)
    segment_ids, token_types = np.zeros_like(tokens), np.zeros_like(tokens)
    order = np.full((count, places(length)), -1, np.int64)
    for row, members in enumerate(rows):
        start = 0
        for place, member in enumerate(members):
            number = examples[member]
            ids = encoded.ids[number]
            tokens[row, start : start + len(ids)] = ids
            segment_ids[row, start : start + len(ids)] = place + 1
            if encoded.token_types is not None:
                token_types[row, start : start + len(ids)] = encoded.token_types[number]
            order[row, place] = number
            start += len(ids)
    there = order >= 0
    batch = {
        "tokens": tokens,
        "segment_ids": segment_ids,
        "labels": np.where(there, encoded.labels[order], 0).astype(encoded.labels.dtype),
        "weights": there.astype(np.float32),
        "row_ids": np.arange(count, dtype=np.int32),
    }
    if encoded.label_weights is not None:
        batch["label_weights"] = np.where(there, encoded.label_weights[order], 0).astype(np.float32)
    if encoded.token_types is not None:
        batch["token_types"] = token_types
    return batch, order
