"""Orbax without reports of its own: what fails is raised, and told in one line by whoever catches it."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any


def quiet_logs() -> None:
    """No lines of its logger."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)


@contextlib.contextmanager
def quiet_restore() -> Iterator[None]:
    """Nothing is printed for reads that are still on their way when another one has failed.

    Their threads then find the event loop closed, and Python would print a traceback for each, late and beside the
    error itself. So after a failure the filter stays; it passes on whatever else cannot be raised.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        late = isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"
        if not late:
            before(unraisable)

    sys.unraisablehook = hook
    yield
    if sys.unraisablehook is hook:
        sys.unraisablehook = before
