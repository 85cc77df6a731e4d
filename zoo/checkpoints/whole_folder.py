"""A folder that appears complete or not at all."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zoo.errors import InputError
from zoo.output_folder import file_above, held


def require_apart(source: str, target: Path) -> None:
    """Raises InputError where a checkpoint would be made of itself: the same folder, one inside it or one around it.

    Args:
        source: what is read. A step of a run stands for the whole run; names and URLs are not looked at.
        target: the folder to make.
    """
    if "://" in source or not source.strip() or not os.path.exists(os.path.expanduser(source)):
        return
    there, new = (Path(path).expanduser().resolve() for path in (source, target))
    if there.parent.name == "checkpoints" and there.name.isdigit():
        there = there.parent.parent
    if new == there:
        raise InputError(f"{target}: is the source itself; name another folder")
    if there in new.parents:
        raise InputError(f"{target}: lies in the source, {there}; name a folder outside it")
    if new in there.parents:
        raise InputError(f"{target}: holds the source, {there}; name another folder")


def require_free(final: Path, overwrite: bool, *, run: bool = False) -> None:
    """Raises InputError where `whole_folder` would not begin: a file, or a folder that must not be replaced."""
    if final.exists() and not final.is_dir():
        raise InputError(f"{final}: is a file; name a folder")
    if final.is_dir() and any(final.iterdir()):
        if not overwrite:
            raise InputError(f"{final}: is not empty; name another folder or overwrite (overwrite=True, --overwrite)")
        if not (final / "config.json").is_file():
            raise InputError(f"{final}: is not empty and holds no config.json, so it is no checkpoint to overwrite")
        what = held(final)
        if what in ("a training run", "a fine-tuned checkpoint"):
            raise InputError(f"{final}: holds {what}, which is not overwritten; name another folder")
        if what == "an imported checkpoint" and not run:
            raise InputError(f"{final}: holds an imported checkpoint, not one that export wrote; name another folder")


@contextlib.contextmanager
def whole_folder(final: Path, overwrite: bool, *, run: bool = False) -> Iterator[Path]:
    """Gives a hidden folder beside `final` to fill; renames it to `final` on success, removes it on any failure.

    Args:
        final: absolute path of the folder to make; its parents are made too.
        overwrite: replace a folder that is not empty, if it holds a config.json and is no run (so that nothing else is
            lost).
        run: what is made is a run, and may replace one that `zoo import` made; never one that was trained.

    Raises:
        InputError: `final` is a file or must not be replaced, or the disk refuses.
    """
    require_free(final, overwrite, run=run)
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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"no space left on the disk at {final}; free some and run it again") from error
        above = file_above(final)
        if above is not None:
            raise InputError(f"{above} is a file, where a folder is needed for {final}") from error
        raise InputError(f"{final}: cannot be written: {error.strerror or error}") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
