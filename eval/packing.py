"""Several examples in one row: a label for each segment, and hardly any padding.

    row     [CLS] a fine film [SEP] [CLS] dull [SEP] [CLS] never a dull moment [SEP] (padding)
    segment    1   1  1   1     1     2    2    2      3     3   3  3     3     3        0
    labels  [1, 0, 1, 0 ...]      weights [1, 1, 1, 0 ...]

Rows are those of zoo.shared_rows: what a row would pad away is spent on further examples, and an example's answer is
what it is in a row of its own. An update still has exactly its own examples, and all updates have the same number of
rows where `training_order` levelled their tokens: one program.
"""

from collections.abc import Sequence

import numpy as np

from eval.encode import Batch, Encoded
from eval.kinds import Kind
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.shared_rows import STEP, can_share, fill, laid_out, places, row_length

__all__ = ["fill", "layout", "pack", "packs", "places", "prediction_length"]

# Row lengths that are tried for the batches of a run, from the shortest that holds each example on; and by how many of
# its batches.
LENGTHS, TRIED = 5, 512
# Of a row of so many tokens attention costs as much again as all else (of a small network; it decides between equals).
EVEN = 1024


def packs(kind: Kind, encoded: Encoded, config: ModelConfig) -> bool:
    """Whether examples may share a row: one label each, and positions that are the same wherever a text stands."""
    return kind.packs and encoded.group == 1 and can_share(config)


def prediction_length(encoded: Encoded) -> int:
    """T of rows that all examples share, whatever their order: the shortest that holds each."""
    return row_length(int(encoded.lengths.max()))


def layout(encoded: Encoded, batches: Sequence[np.ndarray]) -> tuple[int, int]:
    """(T, R): how long the rows of a run are, and how many of them a batch has; the least work among few lengths.

    The same on any number of devices, which decides empty rows alone: an example stays where it is, and so its dropout.

    Args:
        encoded: with one row an example.
        batches: example numbers of each (`training_order`).
    """
    least = row_length(int(encoded.lengths.max()))
    found = []
    for length in range(least, least + LENGTHS * STEP, STEP):
        rows = max(len(fill(encoded.lengths[batch], length)) for batch in batches[:TRIED])
        found.append((rows * length * (1 + length / EVEN), length, rows))
    _, length, rows = min(found)
    return length, rows


def pack(
    encoded: Encoded, examples: Sequence[int] | np.ndarray, length: int, least: int = 1, unit: int = 1
) -> tuple[Batch, np.ndarray]:
    """The examples with these numbers as one packed batch.

    Args:
        encoded: with one row an example.
        examples: their numbers.
        length: T.
        least: rows there are at least, empty ones behind.
        unit: the number of rows is a multiple of this.

    Returns:
        (batch, order). The batch has tokens, segment_ids, token_types (if any) [R, T]; labels, weights, label_weights
        (if any) [R, S]; row_ids [R]. order [R, S] holds the number of the example in each place, -1 for none.
    """
    examples = np.asarray(examples, np.int64)
    if encoded.group != 1 or isinstance(encoded.labels, tuple):
        raise InputError("only tasks with one label and one row for each example are packed")
    rows = [[int(examples[i]) for i in row] for row in fill(encoded.lengths[examples], length)]
    count = -(-max(len(rows), least) // unit) * unit
    shared = laid_out(encoded.ids, rows, length, encoded.pad_id, count)
    order = shared.order
    there = order >= 0
    batch = {
        "tokens": shared.tokens,
        "segment_ids": shared.segment_ids,
        "labels": np.where(there, encoded.labels[order], 0).astype(encoded.labels.dtype),
        "weights": there.astype(np.float32),
        "row_ids": np.arange(count, dtype=np.int32),
    }
    if encoded.label_weights is not None:
        batch["label_weights"] = np.where(there, encoded.label_weights[order], 0).astype(np.float32)
    if encoded.token_types is not None:
        batch["token_types"] = laid_out(encoded.token_types, rows, length, 0, count).tokens
    return batch, order
