"""Files that appear whole or not at all: written under a hidden name in the same folder, flushed to disk, renamed."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from zoo.errors import InputError
from zoo.output_folder import file_above


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a hidden path beside `path` to write to; moves it to `path` on success, removes it on any failure.

    Args:
        path: the file to make or replace; its folder is made too. The hidden name has the same ending, by which some
            writers choose a format.

    Raises:
        InputError: the folder cannot be made or written, or the disk is full.
    """
    path, hidden = Path(path), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:40]}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        hidden = Path(name)
        yield hidden
        with open(hidden, "rb+") as file:
            os.fsync(file.fileno())
        hidden.chmod(0o644)
        os.replace(hidden, path)
    except OSError as error:
        above = file_above(path)
        if above is not None:
            raise InputError(f"{above} is a file, where a folder is needed for {path}") from error
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if hidden is not None:
            hidden.unlink(missing_ok=True)


def write_atomically(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Writes `data` (text as UTF-8): a reader or a kill never meets half a file. Raises as `replacing`."""
    with replacing(path) as hidden:
        hidden.write_bytes(data.encode() if isinstance(data, str) else data)


def write_together(files: Mapping[Path, str | bytes]) -> None:
    """Writes all of them beside their places, and moves them there, in their order, once the last is on the disk.

    A disk that fills up leaves the files of before, or none, and no half of a set. Raises as `replacing`.
    """
    with contextlib.ExitStack() as moves:  # which moves the one that came last first
        for path, data in reversed(files.items()):
            hidden = moves.enter_context(replacing(path))
            hidden.write_bytes(data.encode() if isinstance(data, str) else data)
            with open(hidden, "rb+") as file:
                os.fsync(file.fileno())
