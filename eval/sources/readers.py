"""Files of labelled text as rows: TSV, CSV, JSON lines and Orange tables, each fault named by file and line.

| format | what is read |
|---|---|
| tsv | tab-separated, header line first; a quote is a character like any other (GLUE's files hold single ones) |
| tsv-bare | the same without a header; the columns are given |
| mrpc | as tsv, or from Microsoft's own files beside it (`read_mrpc`) |
| orange | tab-separated, three header lines: names, types, flags (Orange's .tab) |
| csv | header line first, fields quoted as RFC 4180 has it; between them commas, or where the header has none,
  semicolons or tabs, or what a first line `sep=;` says (both as Excel writes them) |
| jsonl | one JSON object a line |
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval.sources import strict_json
from zoo.errors import InputError, nearest

# A published file may hold this many torn rows, or this share of them, before it is another file than it should be.
MOST_TORN, MOST_TORN_SHARE = 10, 0.01
QUOTED = re.compile(r'"[^"]*"')
FORMATS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".tab": "orange"}


@dataclass(frozen=True)
class Table:
    """Rows of one file.

    Attributes:
        path: the file, for messages.
        columns: column names in the file's order.
        lines: line number of each row, counted from 1.
        rows: column -> text, one dict a row. In JSON lines a key may be missing from a row.
        torn: line numbers of rows with the wrong number of fields, where these may be left out.
        nested: of JSON lines, columns that hold a list or an object (here its JSON) -> the first such line.
    """

    path: Path
    columns: tuple[str, ...]
    lines: tuple[int, ...]
    rows: tuple[dict[str, str], ...]
    torn: tuple[int, ...] = ()
    nested: Mapping[str, int] = field(default_factory=dict)

    def require(self, column: str) -> None:
        """Raises InputError where the file has no such column, naming those that it has, or one with lists in it."""
        if column in self.nested:
            raise InputError(
                f'{self.path}: line {self.nested[column]}: "{column}" holds a list or an object; one text or one label '
                "is needed"
            )
        if column not in self.columns:
            hint = nearest(column, self.columns)
            there = "" if hint.startswith("; one of") else f" among {', '.join(self.columns)}"
            raise InputError(f'{self.path}: no column "{column}"{there}{hint}')


def format_of(path: Path) -> str:
    """The format that a file name's ending stands for; InputError for an unknown one."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f'{path}: cannot tell the format from "{path.suffix}"{nearest(path.suffix, FORMATS)}')
    return FORMATS[path.suffix.lower()]


def read_table(
    path: Path,
    format: str,
    *,
    columns: Iterable[str] = (),
    encoding: str = "utf-8",
    skip_torn: bool = False,
    keep: Container[str] | None = None,
) -> Table:
    """Reads a whole file.

    Args:
        path: the file.
        format: one of the table above.
        columns: column names, for "tsv-bare" alone.
        encoding: of the bytes; a byte-order mark is dropped.
        skip_torn: of tab-separated files, leave out up to 10 rows, or one in a hundred, that have too few or too many
            fields (a tab or a line break inside a text); otherwise such a row is refused.
        keep: columns that rows need to have; None for all. (MNLI's parses are most of its file.)

    Returns:
        The rows; blank lines are no rows.

    Raises:
        InputError: missing or empty file, bytes that do not decode, a row with the wrong number of fields, bad JSON.
    """
    if format == "mrpc":
        return read_mrpc(path, encoding=encoding, skip_torn=skip_torn)
    text = read_text(path, encoding)
    if format == "jsonl":
        return _json_lines(path, text)
    if format == "csv":
        return _from_lists(path, None, _csv_rows(path, text), keep=keep)
    header_lines = {"tsv": 1, "tsv-bare": 0, "orange": 3}
    if format not in header_lines:
        raise InputError(f'unknown format "{format}"{nearest(format, [*header_lines, "mrpc", "csv", "jsonl"])}')
    lists = ((number, line.split("\t")) for number, line in _numbered_lines(text))
    if format == "orange":
        head = dict(itertools.islice(lists, 3))
        names, flags = head.get(1), head.get(3, [])
        if not names or (any(flags) and len(flags) != len(names)):
            raise InputError(f"{path}: not an Orange table: it starts with three lines of names, types and flags")
        return _from_lists(path, names, lists, skip_torn, keep)
    return _from_lists(path, list(columns) if format == "tsv-bare" else None, lists, skip_torn, keep)


def read_mrpc(path: Path, *, encoding: str = "utf-8", skip_torn: bool = False) -> Table:
    """A file of GLUE's MRPC folder, or its rows from Microsoft's files beside it where it has not been made yet.

    Args:
        path: MRPC/train.tsv, dev.tsv or test.tsv. Where it is missing, test.tsv is msr_paraphrase_test.txt, and the
            other two are msr_paraphrase_train.txt, of which dev_ids.tsv (two ids a line) names the development set.
        encoding, skip_torn: see `read_table`.

    Raises:
        InputError: neither is there, or dev_ids.tsv is missing, without which no development set is GLUE's.
    """
    part = path.stem
    whole = path.with_name(f"msr_paraphrase_{'test' if part == 'test' else 'train'}.txt")
    if path.exists() or not whole.exists():
        return read_table(path, "tsv", encoding=encoding, skip_torn=skip_torn)
    table = read_table(whole, "tsv", encoding=encoding, skip_torn=skip_torn)
    if part == "test":
        return table
    ids = path.with_name("dev_ids.tsv")
    if not ids.exists():
        raise InputError(f"{ids}: no such file; it says which pairs of {whole.name} are GLUE's development set")
    named = {tuple(line.split("\t")[:2]) for _, line in _numbered_lines(read_text(ids, encoding))}
    keep = [((row["#1 ID"], row["#2 ID"]) in named) == (part == "dev") for row in table.rows]
    lines = tuple(line for line, kept in zip(table.lines, keep, strict=True) if kept)
    return replace(table, lines=lines, rows=tuple(row for row, kept in zip(table.rows, keep, strict=True) if kept))


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file's text, refused by line where its bytes are not what `encoding` says."""
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path}: a folder; a file is needed") from None
    except FileNotFoundError:
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"{path}: no such file{nearest(path.name, sorted(beside))}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not data.strip():
        raise InputError(f"{path}: the file is empty")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) and encoding.lower() in ("utf-8", "utf8"):
        raise InputError(
            f"{path}: begins with the mark of UTF-16 (Excel's Unicode text); save as UTF-8, or say --encoding utf-16"
        )
    try:
        text = data.decode(encoding)
        text.encode()  # some encodings spell halves of characters
        return text
    except LookupError:
        raise InputError(f'{path}: unknown encoding "{encoding}"{nearest(encoding, ["utf-8", "latin-1"])}') from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}: line {line}: byte 0x{data[error.start]:02x} is not {encoding}; save as UTF-8, or name the "
            'encoding (--encoding latin-1; encoding="latin-1" in Python)'
        ) from None
    except (UnicodeError, ValueError) as error:  # encodings that say no byte, and those of no text, such as hex
        raise InputError(f"{path}: is not {encoding}: {' '.join(str(error).split())}") from None


def _numbered_lines(text: str):
    # str.splitlines would also break at form feeds and at U+2028, which occur inside texts.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip():
            yield number, line


def _csv_rows(path: Path, text: str) -> list[tuple[int, list[str]]]:
    limit = csv.field_size_limit(len(text) + 1)
    separator, above = _separator(text)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        rows, start = [], 1
        for fields in reader:
            if any(field.strip() for field in fields) and start > above:
                rows.append((start, fields))
            start = reader.line_num + 1
        if not rows:
            raise InputError(f"{path}: a header is needed, and rows below it")
        return rows
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: not CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _separator(text: str) -> tuple[str, int]:
    """What separates the fields of a CSV file, and how many lines above its header say so."""
    first = text.lstrip("\r\n").split("\n", 1)[0].rstrip("\r")
    if len(first) == 5 and first.startswith("sep="):
        return first[4], text[: text.index(first)].count("\n") + 1
    header = QUOTED.sub("", first)
    return next((mark for mark in ",;\t" if mark in header), ","), 0


def _from_lists(
    path: Path,
    columns: list[str] | None,
    lists: Iterable[tuple[int, list[str]]],
    skip_torn: bool = False,
    keep: Container[str] | None = None,
) -> Table:
    lists = iter(lists)
    if columns is None:
        columns = [name.strip() for name in next(lists)[1]]
    repeated = next((name for name in columns if columns.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f'{path}: two columns are named "{repeated}"')
    places = [(i, name) for i, name in enumerate(columns) if keep is None or name in keep]
    lines, rows, torn = [], [], []
    for number, fields in lists:
        if len(fields) != len(columns):
            torn.append((number, len(fields)))
            continue
        lines.append(number)
        rows.append({name: fields[i] for i, name in places})
    total = len(rows) + len(torn)
    if not total:
        raise InputError(f"{path}: a header but no rows")
    if len(torn) > (max(MOST_TORN, MOST_TORN_SHARE * total) if skip_torn else 0):
        many = f" ({len(torn):,} of {total:,} rows are so)" if skip_torn else ""
        raise InputError(
            f"{path}: line {torn[0][0]}: {torn[0][1]} fields where {len(columns)} are needed "
            f"({', '.join(columns)}){many}"
        )
    return Table(path, tuple(columns), tuple(lines), tuple(rows), tuple(number for number, _ in torn))


def _json_lines(path: Path, text: str) -> Table:
    columns: dict[str, None] = {}
    nested: dict[str, int] = {}
    lines, rows = [], []
    for number, line in _numbered_lines(text):
        row = strict_json.parse(line, f"{path}: line {number}")
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number}: a JSON object is needed, not a {type(row).__name__}")
        columns.update(dict.fromkeys(row))
        for name, value in row.items():
            if isinstance(value, list | dict):
                nested.setdefault(name, number)
        lines.append(number)
        rows.append({name: _plain(value) for name, value in row.items()})
    return Table(path, tuple(columns), tuple(lines), tuple(rows), nested=nested)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
