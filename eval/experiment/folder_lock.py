"""One process at a time in a folder of results, so that two runs of one experiment do not do the same cells twice."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from zoo.errors import InputError


@contextlib.contextmanager
def only_here(folder: Path) -> Iterator[None]:
    """Makes `folder` and holds it until the end; the system lets go of it when the process dies, however it dies.

    Raises:
        InputError: another process holds it, or it cannot be made.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot write to {folder} ({error.strerror or error})") from error
    with lock:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            fcntl = None
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"another process is filling {folder}; wait for it (this run then reuses its cells), or take "
                    "another folder"
                ) from None
        yield
