"""Rows of one length, made of slices of documents: packed once, ahead of training, into an index.

    row -> slices (document, start, stop)        row_length ids a row, the rest padding

Each slice is one segment of its row and carries the special pieces of its style:

    bert   [CLS] slice [SEP]     around every slice; a long document is cut end to end
    gpt    <s> document </s>     <s> opens only the first slice of a document, </s> closes only the last

A next-token row of T ids gives T - 1 labels: its first id is input alone. So where a document is cut under "gpt", the
next slice begins with the last id of the one before: each id of the document, and </s>, is a label exactly once.
"""

import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np

from train.data.packing import pack
from train.data.shards import Split
from zoo.atomic_file import replacing
from zoo.errors import InputError
from zoo.tokenizer import Tokenizer

Style = Literal["bert", "gpt", "pairs"]
VERSION = 1
WINDOW = 65_536
ARRAYS = ("row_starts", "document", "start", "length", "opens", "closes")


@dataclasses.dataclass(frozen=True)
class Framing:
    """The special ids of a style.

    Attributes:
        style: "bert", "gpt" or "pairs".
        before, after: ids that open and close a slice; one may be None under "gpt".
        pad: id written where nothing stands.
    """

    style: Style
    before: int | None
    after: int | None
    pad: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer, style: Style) -> "Framing":
        """The framing for a vocabulary.

        Raises:
            InputError: unknown style, or the vocabulary lacks its pieces.
        """
        if style not in ("bert", "gpt", "pairs"):
            raise InputError(f'no row style "{style}"; one of bert, gpt, pairs')
        pad = 0 if tokenizer.pad_id is None else tokenizer.pad_id
        if style == "gpt":
            if tokenizer.bos_id is None and tokenizer.eos_id is None:
                raise InputError('this tokenizer has neither BOS nor EOS, which rows of style "gpt" need; use "bert"')
            return cls(style, tokenizer.bos_id, tokenizer.eos_id, pad)
        if tokenizer.cls_id is None or tokenizer.sep_id is None:
            raise InputError(f'this tokenizer has no [CLS] or no [SEP], which rows of style "{style}" need; use "gpt"')
        return cls(style, tokenizer.cls_id, tokenizer.sep_id, pad)


@dataclasses.dataclass(frozen=True, eq=False)
class RowIndex:
    """Which slices make up which row.

    Attributes:
        row_length: T, ids a row.
        row_starts: [rows + 1] int64: row r has slices row_starts[r] to row_starts[r + 1].
        document: [slices] int64.
        start, length: [slices] int64 and int32: ids start to start + length of the document.
        opens, closes: [slices] bool: an opening and a closing special piece are added.
        key: see `index_key`; "" of an index that is kept nowhere.
    """

    row_length: int
    row_starts: np.ndarray
    document: np.ndarray
    start: np.ndarray
    length: np.ndarray
    opens: np.ndarray
    closes: np.ndarray
    key: str = ""

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """[slices] int32: ids of each slice, special pieces included."""
        return self.length + self.opens + self.closes

    def slices(self, row: int) -> list[tuple[int, int, int]]:
        """(document, start, stop) of each slice of a row, in order."""
        part = slice(int(self.row_starts[row]), int(self.row_starts[row + 1]))
        columns = (self.document[part], self.start[part], self.start[part] + self.length[part])
        return [(int(d), int(a), int(b)) for d, a, b in zip(*columns, strict=True)]

    def save(self, path: Path) -> None:
        """Writes the arrays as .npz, atomically."""
        with replacing(path) as hidden, hidden.open("wb") as file:
            np.savez(file, row_length=self.row_length, **{name: getattr(self, name) for name in ARRAYS})

    @classmethod
    def load(cls, path: Path) -> "RowIndex | None":
        """What `save` wrote; None where there is no such file or a damaged one."""
        try:
            with np.load(path, allow_pickle=False) as found:
                return cls(int(found["row_length"]), **{name: found[name] for name in ARRAYS})
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            return None


class PackedRows:
    """Rows of style "bert" or "gpt": several segments a row.

    Args:
        split: the documents.
        index: from `build_index` with the same framing.
        framing: the special ids.
    """

    draws = 0

    def __init__(self, split: Split, index: RowIndex, framing: Framing):
        self.split, self.index, self.framing = split, index, framing
        self.row_length = index.row_length
        ends = split.ends.astype(np.int64)
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
        # The opening piece takes the place before the slice's first id.
        self._source = begins[index.document] + index.start - index.opens
        self._sizes = index.sizes

    def __len__(self) -> int:
        return len(self.index)

    @property
    def fill(self) -> float:
        """Share of all positions that hold an id and not padding."""
        return int(self._sizes.sum(dtype=np.int64)) / max(1, len(self) * self.row_length)

    def assemble(self, rows: np.ndarray, draws: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The rows with these numbers.

        Args:
            rows: [B] row numbers.
            draws: not used by this kind of row.

        Returns:
            tokens [B, T] int32, padded with the pad id; segment_ids [B, T] int32, from 1, 0 on padding.

        Raises:
            InputError: a row number that does not exist, or an id in the shards outside the vocabulary.
        """
        rows = row_numbers(rows, len(self))
        first = self.index.row_starts[rows]
        counts = self.index.row_starts[rows + 1] - first
        before = np.cumsum(counts) - counts
        segment = np.arange(counts.sum()) - np.repeat(before, counts)
        chosen = np.repeat(first, counts) + segment
        sizes = self._sizes[chosen].astype(np.int64)
        ahead = np.cumsum(sizes) - sizes
        column = ahead - np.repeat(ahead[before], counts)
        begin = np.repeat(np.arange(len(rows)) * self.row_length, counts) + column
        ids = gather(self.split, np.repeat(self._source[chosen] - ahead, sizes) + np.arange(sizes.sum()))
        labels = np.repeat((segment + 1).astype(np.int32), sizes)
        if len(ids) == len(rows) * self.row_length:
            tokens, segments = ids.astype(np.int32), labels
        else:
            filled = (np.arange(self.row_length) < np.add.reduceat(sizes, before)[:, None]).reshape(-1)
            tokens = np.full(len(filled), self.framing.pad, np.int32)
            segments = np.zeros(len(filled), np.int32)
            tokens[filled], segments[filled] = ids, labels
        opens, closes = self.index.opens[chosen], self.index.closes[chosen]
        if self.framing.before is not None:
            tokens[begin[opens]] = self.framing.before
        if self.framing.after is not None:
            tokens[(begin + sizes - 1)[closes]] = self.framing.after
        shape = (len(rows), self.row_length)
        return {"tokens": tokens.reshape(shape), "segment_ids": segments.reshape(shape)}


def gather(split: Split, places: np.ndarray) -> np.ndarray:
    """Ids at `places`, checked against the vocabulary; places past either end, where special pieces go, give any id."""
    return split.check(split.tokens.take(places, mode="clip"))


def build_index(split: Split, framing: Framing, row_length: int, window: int = WINDOW) -> RowIndex:
    """Cuts documents into slices and packs the slices into rows.

    Args:
        split: the documents; empty ones give nothing.
        framing: the style and its special ids.
        row_length: T, ids a row: for "gpt" one more than the positions a model sees.
        window: slices that are packed together; see `pack`.

    Raises:
        InputError: rows too short to hold anything beside special pieces, or no document that fills one.
    """
    least = {"bert": 3, "gpt": 2, "pairs": 5}[framing.style]
    if row_length < least:
        raise InputError(f'row_length {row_length} is too short for style "{framing.style}"; at least {least}')
    ends = split.ends.astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    if framing.style == "gpt":
        pieces = _cut_overlapping(lengths, row_length, framing.before is not None, framing.after is not None)
    else:
        pieces = _cut(lengths, row_length - (2 if framing.style == "bert" else 3))
        pieces = _keep(pieces, pieces[2] >= (1 if framing.style == "bert" else 2))
    document, start, length, opens, closes = pieces
    if not len(document):
        raise InputError(f"{split.name} has no document that fills a row of style {framing.style!r}; give more text")
    if framing.style == "pairs":
        row = np.arange(len(document))
    else:
        row = pack(length + opens + closes, row_length, window)
    order = np.argsort(row, kind="stable")
    row_starts = np.concatenate([[0], np.cumsum(np.bincount(row))]).astype(np.int64)
    return RowIndex(
        row_length,
        row_starts,
        document[order],
        start[order],
        length[order].astype(np.int32),
        opens[order],
        closes[order],
    )


def index_key(split: Split, framing: Framing, row_length: int) -> str:
    """16 hexadecimal digits of all that decides which slices make up which row, the version of the packing included."""
    settings = [VERSION, WINDOW, framing.style, row_length, framing.before is not None, framing.after is not None]
    content = [split.digest, hashlib.sha256(split.ends.data if len(split.ends) else b"").hexdigest()]
    return hashlib.sha256(json.dumps(settings + content, allow_nan=False).encode()).hexdigest()[:16]


def load_or_build(split: Split, framing: Framing, row_length: int, folder: Path | None = None) -> RowIndex:
    """`build_index`, kept in `folder` under a name made of everything that decides it; None keeps nothing."""
    if folder is None or not split.digest:
        return build_index(split, framing, row_length)
    key = index_key(split, framing, row_length)
    path = folder / f"rows-{framing.style}-{row_length}-{key}.npz"
    index = RowIndex.load(path)
    if index is None:
        index = build_index(split, framing, row_length)
        try:
            index.save(path)
        except InputError:  # a read-only or full disk: the index is made again next time
            pass
    return dataclasses.replace(index, key=key)


def _cut(lengths: np.ndarray, most: int) -> tuple[np.ndarray, ...]:
    """Slices of at most `most` ids, end to end: document, start, length, opens, closes."""
    document, number = _count_up(-(-lengths // most))
    start = number * most
    length = np.minimum(lengths[document] - start, most)
    always = np.ones(len(document), bool)
    return document, start, length, always, always


def _cut_overlapping(lengths: np.ndarray, most: int, opened: bool, closed: bool) -> tuple[np.ndarray, ...]:
    """Slices of the framed document, at most `most` ids each; each begins with the last id of the one before."""
    framed = np.where(lengths > 0, lengths + opened + closed, 0)
    document, number = _count_up(np.where(lengths > 0, np.maximum(1, -(-(framed - 1) // (most - 1))), 0))
    begin = number * (most - 1)
    end = np.minimum(begin + most, framed[document])
    opens = (begin == 0) & opened
    closes = (end == framed[document]) & closed
    start = begin - opened + opens
    return document, start, end - begin - opens - closes, opens, closes


def _count_up(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([0, 0, 1, ...], [0, 1, 0, ...]): each place repeated `counts` times, and which repeat it is."""
    place = np.repeat(np.arange(len(counts)), counts)
    return place, np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)


def _keep(pieces: tuple[np.ndarray, ...], wanted: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(column[wanted] for column in pieces)


def row_numbers(rows: np.ndarray, count: int) -> np.ndarray:
    """[B] int64: `rows`, checked to be numbers below `count`."""
    rows = np.asarray(rows, np.int64)
    if rows.ndim != 1 or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count):
        raise InputError(f"row numbers must be a list of numbers from 0 to {count - 1}")
    return rows
