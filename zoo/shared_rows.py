"""Several texts in one row, each blind to the others: hardly any padding, and few shapes whatever the texts.

    row        [CLS] a fine film [SEP] [CLS] dull [SEP] [CLS] never a dull moment [SEP] (padding)
    segment      1   1  1   1     1     2    2    2      3     3   3  3     3     3        0

Tokens see their own segment alone and positions start anew in each (zoo.masks, zoo.positions), so a text's numbers are
those that it has in a row of its own, beyond rounding.

Reference: Krell et al. 2021, Efficient Sequence Packing without Cross-contamination, arXiv:2107.02027.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from zoo.config import ModelConfig
from zoo.errors import InputError

# Rows are of at least so many tokens, a multiple of STEP: short enough for attention to be cheap, long enough to hold
# a few sentences.
SHORTEST, STEP = 64, 16
# Longer texts than this do not lengthen the rows of shorter ones: they have rows of their own, of twice the length ...
LONGEST = 128
# So many places for texts in a row, and no more: one for each 8 tokens.
TOKENS_A_PLACE = 8
# Texts that are put closer than best fit has it, at most: it takes time as their number squared.
FEW = 64


# Tokens of a batch that is only read. A CPU's caches hold the activations of so many, and its products are as fast as
# of more: MiniLM reads a quarter more in the same time, of 512 or 1,024 tokens a batch, than of 4,096.
TOKENS = {"cpu": 1024}
TOKENS_ELSEWHERE = 16384


@dataclass(frozen=True)
class SharedRows:
    """Rows that hold several texts; arrays of [B, T], int32.

    Attributes:
        order: [B, S], which text is in each place of each row; -1 for none.
        tokens: ids, then padding.
        segment_ids: 1, 2, ... by place; 0 for padding.
    """

    order: np.ndarray
    tokens: np.ndarray
    segment_ids: np.ndarray


def rows_a_batch(length: int, most: int) -> int:
    """How many rows of T tokens are read at once: `most`, or as many as the processor is fast with."""
    tokens = TOKENS.get(jax.default_backend(), TOKENS_ELSEWHERE)
    return max(1, min(most, tokens // length))


def can_share(config: ModelConfig) -> bool:
    """Whether a text's numbers are the same wherever in a row it stands."""
    by_length = config.rotary_scaling is not None and config.rotary_scaling.by_length
    return not (config.distillation_head or by_length or config.image_size)


def row_length(longest: int) -> int:
    """T of rows for texts of at most `longest` ids: 64, 80, 96 ..."""
    return max(SHORTEST, -(-longest // STEP) * STEP)


def places(length: int) -> int:
    """S: most texts of a row of T tokens."""
    return max(1, length // TOKENS_A_PLACE)


def fill(lengths: Sequence[int] | np.ndarray, length: int) -> list[list[int]]:
    """Puts texts into rows: the longest first, each into the fullest row that still holds it (best fit decreasing).

    A few texts are put closer where they could go into fewer rows: row by row, the longest that is left, and of the
    others those that fill the row up best.

    Args:
        lengths: of the texts, each at most `length`.
        length: T.

    Returns:
        rows, each a list of indexes into `lengths`; every index once.
    """
    lengths = np.asarray(lengths, np.int64)
    if lengths.size and lengths.max() > length:
        raise InputError(f"an example of {lengths.max()} ids does not go into rows of {length}")
    rows = _best_fit(lengths, length)
    if len(lengths) <= FEW and len(rows) > -(-int(lengths.sum()) // length):
        closer = _row_by_row(lengths, length)
        rows = closer if len(closer) < len(rows) else rows
    return rows


def _best_fit(lengths: np.ndarray, length: int) -> list[list[int]]:
    most = places(length)
    rows: list[list[int]] = []
    room: list[list[int]] = [[] for _ in range(length + 1)]  # free tokens -> rows with so many
    open_rooms = 0  # bit f: a row has f free tokens
    needs = lengths.tolist()
    for index in np.argsort(-lengths, kind="stable").tolist():
        need = needs[index]
        fitting = open_rooms >> need
        if fitting:
            free = need + (fitting & -fitting).bit_length() - 1
            row = room[free].pop()
            if not room[free]:
                open_rooms &= ~(1 << free)
        else:
            rows.append([])
            row, free = len(rows) - 1, length
        rows[row].append(index)
        left = free - need
        if len(rows[row]) < most and left > 0:
            room[left].append(row)
            open_rooms |= 1 << left
    return rows


def _row_by_row(lengths: np.ndarray, length: int) -> list[list[int]]:
    """Minimum bin slack (Gupta and Ho 1999): the sums that texts can have are the bits of an integer."""
    most = places(length)
    left = np.argsort(-lengths, kind="stable").tolist()
    needs = lengths.tolist()
    rows = []
    while left:
        row, room = [left.pop(0)], length
        room -= needs[row[0]]
        sums, inside = [1], (1 << (room + 1)) - 1  # sums of none, of the first, of the first two ... that is left
        for index in left:
            sums.append((sums[-1] | sums[-1] << needs[index]) & inside)
        best = sums[-1].bit_length() - 1
        for place in range(len(left), 0, -1):  # a short one only where longer ones alone do not give the sum
            if len(row) < most and not sums[place - 1] >> best & 1:
                row.append(left.pop(place - 1))
                best -= needs[row[-1]]
        rows.append(row)
    return rows


def laid_out(
    ids: Sequence[Sequence[int] | np.ndarray], rows: Sequence[Sequence[int]], length: int, pad_id: int, count: int = 0
) -> SharedRows:
    """Texts written into rows.

    Args:
        ids: of all texts.
        rows: which texts each row holds (`fill`).
        length: T.
        pad_id: what fills rows up.
        count: B; 0 for as many as `rows`. Rows beyond these hold padding alone.
    """
    shape = (count or len(rows), length)
    tokens, segment_ids = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
    order = np.full((shape[0], places(length)), -1, np.int64)
    for row, members in enumerate(rows):
        start = 0
        for place, member in enumerate(members):
            end = start + len(ids[member])
            tokens[row, start:end] = ids[member]
            segment_ids[row, start:end] = place + 1
            start = end
        order[row, : len(members)] = members
    return SharedRows(order, tokens, segment_ids)


def shared_batches(
    ids: Sequence[Sequence[int]],
    height_of: Callable[[int], int],
    pad_id: int | None = 0,
    longest: int | None = None,
) -> Iterator[SharedRows]:
    """All texts in batches of rows that they share; every text once.

    Texts of up to 128 ids go together, then those of up to 256, 512 ...: a few long ones leave the rows of the others
    short.

    Args:
        ids: of the texts.
        height_of: row length -> most rows of a batch.
        pad_id: what fills rows up.
        longest: no row is longer, but for the shortest rows there are; None for no limit.
    """
    lengths = np.array([len(text) for text in ids], np.int64)
    bounds = [LONGEST]
    while bounds[-1] < lengths.max():
        bounds.append(2 * bounds[-1])
    group = np.searchsorted(bounds, lengths)
    for number, bound in enumerate(bounds):
        members = np.flatnonzero(group == number)
        if not len(members):
            continue
        length = row_length(int(lengths[members].max()) if bound == LONGEST else min(bound, longest or bound))
        rows = [[int(members[i]) for i in row] for row in fill(lengths[members], length)]
        height = height_of(length)
        for start in range(0, len(rows), height):
            part = rows[start : start + height]
            count = height if start else min(height, 1 << (len(part) - 1).bit_length())
            yield laid_out(ids, part, length, pad_id or 0, count)
