"""Best-fit packing of pieces into rows of one length, by counting sizes and not by looking at pieces."""

from bisect import bisect_right

import numpy as np

from zoo.errors import InputError


def pack(sizes: np.ndarray, capacity: int, window: int = 65_536) -> np.ndarray:
    """The row of each piece, so that no row holds more than `capacity` and little room is wasted.

    Pieces are packed `window` at a time, in order. Within a window the largest remaining piece opens a row and the
    largest that still fits joins it until none does; that choice of sizes is then repeated for as many rows as the
    counts of sizes allow, so the work grows with the number of different sizes and not of pieces. Deterministic.

    Args:
        sizes: [pieces] each from 1 to `capacity`.
        capacity: of a row.
        window: pieces that may share rows; bounds how far apart in the corpus they are.

    Returns:
        [pieces] int64, row numbers from 0 without gaps.

    Raises:
        InputError: a size outside 1 to `capacity`.
    """
    sizes = np.asarray(sizes)
    if len(sizes) and not 1 <= int(sizes.min()) <= int(sizes.max()) <= capacity:
        raise InputError(f"pieces of {sizes.min()} to {sizes.max()} ids cannot be packed into rows of {capacity}")
    rows = np.empty(len(sizes), np.int64)
    first = 0
    for begin in range(0, len(sizes), window):
        part = rows[begin : begin + window]
        first = _pack_window(sizes[begin : begin + window], capacity, first, part)
    return rows


def _pack_window(sizes: np.ndarray, capacity: int, first: int, rows: np.ndarray) -> int:
    """Fills `rows` with row numbers from `first` on; returns the first number not used."""
    by_size = np.argsort(sizes, kind="stable")
    counts = np.bincount(sizes, minlength=capacity + 1)
    taken = np.concatenate([[0], np.cumsum(counts)[:-1]])
    left = counts.tolist()
    present = [size for size in range(1, capacity + 1) if left[size]]
    while present:
        pattern = _pattern(present, left, capacity)
        repeats = min(left[size] // times for size, times in pattern.items())
        numbers = np.arange(first, first + repeats)
        for size, times in pattern.items():
            pieces = by_size[taken[size] : taken[size] + repeats * times]
            rows[pieces] = np.repeat(numbers, times)
            taken[size] += repeats * times
            left[size] -= repeats * times
            if not left[size]:
                present.remove(size)
        first += repeats
    return first


def _pattern(present: list[int], left: list[int], capacity: int) -> dict[int, int]:
    """Sizes of one row and how often each, largest first; `present` ascends, `left` counts each size."""
    pattern: dict[int, int] = {}
    room, place = capacity, len(present) - 1
    while room and place >= 0:
        size = present[place]
        times = min(left[size], room // size)
        if times:
            pattern[size] = times
            room -= size * times
        place = min(place - 1, bisect_right(present, room) - 1)
    return pattern
