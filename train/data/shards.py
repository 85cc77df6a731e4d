"""Token shards: a corpus as flat binaries of ids, with a manifest that says what they hold.

    folder/
        train.tokens  train.ends      ids end to end in uint16 or uint32; the end of each document in uint64
        valid.tokens  valid.ends      the same for the held-out documents
        tokenizer/                    the vocabulary that the ids belong to
        manifest.json                 written last: a folder without it is unfinished and counts for nothing

Ids stand without special pieces: `rows` adds those. All numbers are little-endian.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from train.data.holdout import HoldOut
from train.data.progress import Progress
from zoo.atomic_file import write_atomically
from zoo.errors import InputError
from zoo.output_folder import held
from zoo.tokenizer import Tokenizer

FORMAT = "oneblock-shards-1"
MANIFEST = "manifest.json"
SPLITS = ("train", "valid")
ENDS = np.dtype("<u8")
BATCH_DOCUMENTS = 256
BATCH_CHARACTERS = 1_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Documents as one run of ids.

    Attributes:
        tokens: [tokens] ids end to end, memory-mapped where they come from a file.
        ends: [documents] uint64, where each document ends in `tokens`.
        vocab_size: V; every id must be below it.
        name: for messages.
        digest: SHA-256 (hex) of the ids, a name for what was derived from them.
    """

    tokens: np.ndarray
    ends: np.ndarray
    vocab_size: int
    name: str = "documents"
    digest: str = ""

    def __len__(self) -> int:
        return len(self.ends)

    def document(self, number: int) -> np.ndarray:
        """[length] int32: the ids of one document, checked against the vocabulary."""
        if not 0 <= number < len(self):
            raise InputError(f"{self.name} has documents 0 to {len(self) - 1}; there is no {number}")
        start = 0 if number == 0 else int(self.ends[number - 1])
        return self.check(self.tokens[start : int(self.ends[number])]).astype(np.int32)

    def check(self, ids: np.ndarray) -> np.ndarray:
        """`ids` unchanged.

        Raises:
            InputError: one of them is not below vocab_size.
        """
        return _check(ids, self.vocab_size, self.name)

    @classmethod
    def of(cls, documents: Iterable[Sequence[int]], vocab_size: int, name: str = "documents") -> "Split":
        """A split in memory, of documents that are ids already."""
        pieces = [_check(np.asarray(ids, np.int64), vocab_size, name) for ids in documents]
        tokens = np.concatenate([*pieces, np.zeros(0, np.int64)]).astype(token_dtype(vocab_size))
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64).astype(ENDS)
        digest = hashlib.sha256(tokens.tobytes() + ends.tobytes()).hexdigest()
        return cls(tokens, ends, vocab_size, name, digest)


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """What `open_shards` found.

    Attributes:
        folder: where.
        manifest: the parsed manifest.json.
        train, valid: the two splits; either may hold no document.
    """

    folder: Path
    manifest: dict[str, Any]
    train: Split
    valid: Split

    @property
    def vocab_size(self) -> int:
        return self.manifest["vocab_size"]

    @property
    def fingerprint(self) -> str:
        return self.manifest["tokenizer"]

    def split(self, name: str) -> Split:
        if name not in SPLITS:
            raise InputError(f'no split "{name}"; one of train, valid')
        return self.train if name == "train" else self.valid


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every id below vocab_size: uint16 up to 65,536 pieces, else uint32."""
    if not 0 < vocab_size <= 2**32:
        raise InputError(f"vocab_size {vocab_size} is outside 1 to {2**32}")
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def check_held_out(valid_fraction: float, min_valid: int) -> None:
    """Refuses shares and numbers of held-out documents that cannot be."""
    if not 0 <= valid_fraction < 1:
        raise InputError(f"valid_fraction is {valid_fraction}; it must be from 0 to below 1")
    if min_valid < 0:
        raise InputError(f"min_valid is {min_valid}; it must be 0, to set none aside, or more")


def require_no_checkpoint(folder: str | os.PathLike) -> None:
    """Refuses a folder of a run or of a published checkpoint: shards would replace its tokenizer."""
    what = held(folder)
    if what not in ("", "token shards"):
        raise InputError(f"{folder} holds {what}; take another folder for shards")


def write_shards(
    documents: Iterable[str | Sequence[int]],
    tokenizer: Tokenizer,
    folder: str | os.PathLike,
    *,
    valid_fraction: float = 0.01,
    min_valid: int = 1,
    source: str = "",
    licence: str = "",
    overwrite: bool = False,
    progress: bool = True,
) -> Shards:
    """Encodes documents into a shard folder, holding a few hundred of them in memory at a time.

    A document is held out when the hash of its text falls into the first `valid_fraction` of hashes, so its side
    depends neither on order nor on the rest, and equal documents share a side. Where that leaves fewer than
    `min_valid`, those with the next smallest hashes are held out too; that many documents wait in memory and, where
    they are not held out after all, are written out of order.

    A failed run leaves nothing new, and finished shards as they were. A killed one may leave a folder without manifest:
    run it again, and it starts clean.

    Args:
        documents: texts, or sequences of ids that belong to `tokenizer`'s vocabulary. Documents that give no id are
            left out and counted.
        tokenizer: its vocabulary decides the ids' type; it is saved beside them.
        folder: made if missing.
        valid_fraction: 0 to below 1.
        min_valid: distinct documents held out at least.
        source, licence: kept in the manifest.
        overwrite: replace finished shards.
        progress: show documents and tokens per second.

    Returns:
        The shards, opened.

    Raises:
        InputError: no document with text, too few to hold out `min_valid` and still train on one, an id that is not in
            the vocabulary, finished shards in the way, or a folder that cannot be written.
    """
    check_held_out(valid_fraction, min_valid)
    require_no_checkpoint(folder)
    folder = Path(folder)
    if (folder / MANIFEST).exists() and not overwrite:
        raise InputError(f"{folder} holds finished shards; open them, or make them anew (overwrite=True, --overwrite)")
    fresh = not os.path.lexists(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest = _write(documents, tokenizer, folder, valid_fraction, min_valid, progress)
        manifest |= {"source": source, "licence": licence}
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False).encode())
    except BaseException as error:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write shards in {folder} ({error.strerror or error})") from error
        raise
    return open_shards(folder)


def _write(documents, tokenizer, folder, valid_fraction, min_valid, progress) -> dict[str, Any]:
    dtype = token_dtype(tokenizer.vocab_size)
    work = folder / ".unfinished"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        skipped = 0
        with Progress("shards", ("documents", "tokens"), shown=progress) as bar:
            outputs = {name: _Writer(work, name, dtype) for name in SPLITS}
            with outputs["train"], outputs["valid"]:
                holdout = HoldOut(int(valid_fraction * 2**64), min_valid)
                for key, ids in _encoded(documents, tokenizer):
                    if len(ids) == 0:
                        skipped += 1
                        continue
                    for side, chosen in holdout.add(key, ids):
                        outputs[side].add(chosen)
                    bar.add(documents=1, tokens=len(ids))
                for side, chosen in holdout.rest():
                    outputs[side].add(chosen)
        if outputs["train"].documents + outputs["valid"].documents == 0:
            raise InputError(f"the corpus holds no text ({skipped} empty documents); give at least one document")
        if min_valid and (holdout.held_out < min_valid or not outputs["train"].documents):
            count = outputs["train"].documents + outputs["valid"].documents
            raise InputError(
                f"the text is {count} document{'s' if count > 1 else ''}, too few to set {min_valid} aside for "
                "validation and still train on the rest; give more text, or pass --min-valid 0 to set none aside"
            )
        tokenizer.save(work / "tokenizer")
        (folder / MANIFEST).unlink(missing_ok=True)  # from here on the old shards are gone
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        for name in ("tokenizer", *(f"{name}.{kind}" for name in SPLITS for kind in ("tokens", "ends"))):
            os.replace(work / name, folder / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {
        "format": FORMAT,
        "tokenizer": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "dtype": dtype.name,
        "skipped_empty": skipped,
        "valid_fraction": valid_fraction,
        "min_valid": min_valid,
        "splits": {name: outputs[name].record() for name in SPLITS},
    }


def open_shards(folder: str | os.PathLike, tokenizer: Tokenizer | None = None, *, verify: bool = False) -> Shards:
    """Opens a shard folder, memory-mapped.

    File sizes are checked at once; ids are checked against the vocabulary wherever they are read.

    Args:
        folder: what `write_shards` made.
        tokenizer: the one that will be used with these ids; None takes the folder's word.
        verify: read everything once, to check SHA-256 and every id.

    Raises:
        InputError: no or unfinished shards, a file that is missing, truncated or altered, an id outside the vocabulary,
            or shards of another tokenizer.
    """
    folder = Path(folder)
    if folder.is_file():
        make = f"python -m train prepare {folder} --out data/mine"
        raise InputError(f"{folder} is a file, not a folder of shards; make some of it: {make}")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        started = " (a run was cut short there)" if (folder / ".unfinished").exists() else ""
        raise InputError(f"no finished shards in {folder}{started}; make them with: python -m train prepare") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{folder / MANIFEST} cannot be read ({error}); prepare the shards again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f'{folder / MANIFEST} is not of format "{FORMAT}"; prepare the shards again')
    if tokenizer is not None and tokenizer.fingerprint != manifest.get("tokenizer"):
        raise InputError(f"the shards in {folder} belong to another tokenizer; use the one in {folder / 'tokenizer'}")
    try:
        splits = {name: _open_split(folder, name, manifest, verify) for name in SPLITS}
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / MANIFEST} lacks {error}; prepare the shards again") from error
    return Shards(folder, manifest, splits["train"], splits["valid"])


def _open_split(folder: Path, name: str, manifest: dict[str, Any], verify: bool) -> Split:
    record = manifest["splits"][name]
    arrays = {}
    for kind, dtype, count in (
        ("tokens", np.dtype(manifest["dtype"]).newbyteorder("<"), record["tokens"]),
        ("ends", ENDS, record["documents"]),
    ):
        path = folder / f"{name}.{kind}"
        size = path.stat().st_size if path.is_file() else -1
        if size != count * dtype.itemsize:
            fault = "is missing" if size < 0 else f"has {size} bytes and not {count * dtype.itemsize}"
            raise InputError(f"{path} {fault}; prepare the shards again")
        arrays[kind] = np.zeros(0, dtype) if count == 0 else np.asarray(np.memmap(path, dtype, mode="r"))
        if verify and hashlib.sha256(arrays[kind].data).hexdigest() != record[f"{kind}_sha256"]:
            raise InputError(f"{path} was altered: its SHA-256 is not the manifest's; prepare the shards again")
    ends = arrays["ends"]
    if (int(ends[-1]) if len(ends) else 0) != record["tokens"] or np.any(ends[1:] <= ends[:-1]):
        raise InputError(f"{folder / f'{name}.ends'} does not fit its tokens; prepare the shards again")
    split = Split(arrays["tokens"], ends, manifest["vocab_size"], str(folder / name), record["tokens_sha256"])
    if verify:
        for start in range(0, record["tokens"], 1 << 24):
            split.check(split.tokens[start : start + (1 << 24)])
    return split


class _Writer:
    """One split's two files, hashed while they are written."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype):
        self.name, self.dtype = name, dtype
        self.documents = self.tokens = 0
        self._paths = {kind: folder / f"{name}.{kind}" for kind in ("tokens", "ends")}
        self._hashes = {kind: hashlib.sha256() for kind in self._paths}
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> "_Writer":
        self._files = {kind: path.open("wb") for kind, path in self._paths.items()}
        return self

    def __exit__(self, *_) -> None:
        for file in self._files.values():
            file.close()

    def add(self, ids: np.ndarray) -> None:
        self.documents += 1
        self.tokens += len(ids)
        for kind, array in (("tokens", ids.astype(self.dtype)), ("ends", np.array([self.tokens], ENDS))):
            data = array.tobytes()
            self._hashes[kind].update(data)
            self._files[kind].write(data)

    def record(self) -> dict[str, Any]:
        hashes = {f"{kind}_sha256": found.hexdigest() for kind, found in self._hashes.items()}
        return {"documents": self.documents, "tokens": self.tokens} | hashes


def _encoded(documents: Iterable[str | Sequence[int]], tokenizer: Tokenizer) -> Iterator[tuple[int, np.ndarray]]:
    """(hash of the document as 64 bits, ids) of each document in order, many encoded while those before are written."""
    encode = tokenizer.encoder()

    def work(first: int, several: list[Any]) -> list[tuple[int, np.ndarray]]:
        if isinstance(several[0], str):
            names, found = ["the tokenizer's output"] * len(several), encode(several)
            hashed = [text.encode() for text in several]
        else:
            names = [f"document {number}" for number in range(first, first + len(several))]
            found = [np.array(document, np.int64) for document in several]
            hashed = [ids.tobytes() for ids in found]
        parts = zip(hashed, found, names, strict=True)
        return [(_hash(data), _check(ids, tokenizer.vocab_size, name)) for data, ids, name in parts]

    waiting = None
    with ThreadPoolExecutor(1) as pool:
        for batch in _batched(documents):
            begun = pool.submit(work, *batch)
            if waiting is not None:
                yield from waiting.result()
            waiting = begun
        if waiting is not None:
            yield from waiting.result()


def _batched(documents: Iterable[str | Sequence[int]]) -> Iterator[tuple[int, list[Any]]]:
    """Texts, or sequences of ids, many at a time, with the number of the first."""
    held, size = [], 0
    for number, document in enumerate(documents):
        if held and isinstance(document, str) != isinstance(held[0], str):
            yield number - len(held), held
            held, size = [], 0
        held.append(document)
        size += len(document)
        if len(held) == BATCH_DOCUMENTS or size >= BATCH_CHARACTERS:
            yield number + 1 - len(held), held
            held, size = [], 0
    if held:
        yield number + 1 - len(held), held


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _check(ids: np.ndarray, vocab_size: int, name: str) -> np.ndarray:
    if ids.size and (int(ids.max()) >= vocab_size or (ids.dtype.kind != "u" and int(ids.min()) < 0)):
        wrong = int(ids[np.argmax((ids >= vocab_size) | (ids < 0))])
        raise InputError(f"{name} holds id {wrong}, outside the vocabulary of {vocab_size} pieces")
    return ids
