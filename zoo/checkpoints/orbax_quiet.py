"""Orbax without reports of its own: what fails is raised, and told in one line by whoever catches it."""

import contextlib
import errno
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any


def quiet_logs() -> None:
    """No lines of its logger, nor of asyncio's about writes that a full disk refused beside the one that is told."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_not_of_a_full_disk)


def _not_of_a_full_disk(record: logging.LogRecord) -> bool:
    return not (record.exc_info and is_full(record.exc_info[1]))


@contextlib.contextmanager
def quiet_restore() -> Iterator[None]:
    """Nothing is printed for reads and writes that are still on their way when another one has failed.

    They fail of the same file, or find the event loop closed, and Python would print a traceback for each, late and
    beside the error itself. So after a failure the filter stays; it passes on whatever else cannot be raised.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        late = isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"
        code = getattr(unraisable.object, "cr_code", None)  # of a coroutine
        beside = code is not None and "orbax" in PurePath(code.co_filename).parts
        if not (late or beside):
            before(unraisable)

    sys.unraisablehook = hook
    yield
    if sys.unraisablehook is hook:
        sys.unraisablehook = before


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error, however the layers below report it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(said in str(error) for said in ("No space left on device", "Disk quota exceeded")):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """SIGINT and SIGTERM wait for the end of the block, so that none meets Orbax's writers half-way.

    They would go on filling a folder that is being removed, or outlive the interpreter. A second signal does not wait.
    """
    before, received = {}, []

    def restore():
        while before:
            signal.signal(*before.popitem())

    def hold(number, frame):
        del frame
        received.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, hold)
    try:
        yield
    finally:
        restore()
        if received:
            signal.raise_signal(received[0])
