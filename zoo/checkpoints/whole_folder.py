"""A folder that appears complete or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zoo.errors import InputError


def require_free(final: Path, overwrite: bool) -> None:
    """Raises InputError where `whole_folder` would not begin: a file, or a folder that must not be replaced."""
    if final.exists() and not final.is_dir():
        raise InputError(f"{final}: is a file; name a folder")
    if final.is_dir() and any(final.iterdir()):
        if not overwrite:
            raise InputError(f"{final}: is not empty; name another folder or overwrite (overwrite=True, --overwrite)")
        if not (final / "config.json").is_file():
            raise InputError(f"{final}: is not empty and holds no config.json, so it is no checkpoint to overwrite")


@contextlib.contextmanager
def whole_folder(final: Path, overwrite: bool) -> Iterator[Path]:
    """Gives a hidden folder beside `final` to fill; renames it to `final` on success, removes it on any failure.

    Args:
        final: absolute path of the folder to make; its parents are made too.
        overwrite: replace a folder that is not empty, if it holds a config.json (so that no other folder is lost).

    Raises:
        InputError: `final` is a file or must not be replaced, or the disk refuses.
    """
    require_free(final, overwrite)
    work = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
        yield work
        work.chmod(0o755)
        if final.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
            os.replace(final, old)
            os.replace(work, final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(work, final)
    except OSError as error:
        raise InputError(f"{final}: cannot be written: {error.strerror or error}") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
