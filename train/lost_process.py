"""When one of several processes is lost, the others end: in bounded time, with one line and a code of their own.

    heartbeats   jax's runtime: a process that is silent for `lost_after` seconds ends all others (code 134)
    broken       a collective that fails because its peer is gone: PeerLost (code 75, "try again")
    stalled      no step finished for `stalled_after` seconds although all are alive (code 75)

A process that fails alone leaves at once, without waiting at the door for the others.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

import jax

from train import last_words
from train.distributed import Job, compare, join, versions
from train.last_words import AGAIN
from zoo.command_errors import describe

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
# What the layers below say when the other side is gone, and not of a program that is wrong.
BROKEN = ("gloo", "connection", "socket closed", "unavailable", "deadline exceeded", "heartbeat", "nccl", "barrier")


class PeerLost(Exception):
    """A collective failed since a process is gone."""


@contextlib.contextmanager
def joined(job: Job) -> Iterator[TextIO | None]:
    """Joins the job, and ends this process rightly if it fails. Gives the terminal, where standard error is filtered.

    An error that all share (`is_shared`) passes on, and the processes part in order. Any other is this process's own:
    it says its line and leaves.

    Raises:
        InputError: the processes cannot be joined, or have other versions or other code; see train/distributed.py.
    """
    terminal = None
    if job.cluster:
        counts = ("?" if value is None else value for value in (job.num_processes, job.process_id))
        terminal = last_words.fold(*counts, job.join_within, job.lost_after)
    several = join(job)
    try:
        if several:
            compare({"num_processes": job.num_processes} | versions())
        yield terminal
    except BaseException as error:
        if is_shared(error):
            raise
        _leave(error)


def raise_lost(error: BaseException) -> None:
    """Raises PeerLost where `error` is that of a collective whose other side is gone."""
    said = " ".join(str(error).split())
    if isinstance(error, jax.errors.JaxRuntimeError) and jax.process_count() > 1:
        if any(word in said.lower() for word in BROKEN):
            raise PeerLost(f"a process was lost ({said[:160]}); {AGAIN}") from error


def is_shared(error: BaseException) -> bool:
    """Whether all processes raise this error at the same place, so that they can part in order."""
    alone = jax.process_count() == 1
    return alone or isinstance(error, SystemExit) or getattr(error, "same_everywhere", False)


class Watch:
    """Ends the process where nothing moves for too long; with one process it does nothing.

    Args:
        seconds: between two beats.
    """

    def __init__(self, seconds: float):
        self.seconds, self._step, self._last = seconds, 0, time.monotonic()
        self._over = threading.Event()

    def __enter__(self) -> "Watch":
        if jax.process_count() > 1:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def beat(self, step: int) -> None:
        """Something was finished: the numbers of `step`, a batch of an evaluation, a save."""
        self._step, self._last = step, time.monotonic()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del kind, error, trace
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(min(self.seconds / 4, 10.0)):
            if time.monotonic() - self._last > self.seconds:
                end(
                    f"process {jax.process_index()} of {jax.process_count()}: nothing was finished for "
                    f"{self.seconds:g} s after step {self._step}; look for a process that waits for its disk or its "
                    f"data, or give a longer stalled_after; {AGAIN}",
                    TRY_AGAIN,
                )


def end(line: str, code: int) -> None:
    """Says a line and ends this process at once, without a word to the others."""
    sys.stdout.flush()
    print(f"error: {line}", file=sys.stderr, flush=True)
    os._exit(code)


def _leave(error: BaseException) -> None:
    if isinstance(error, PeerLost):
        end(str(error), TRY_AGAIN)
    if isinstance(error, KeyboardInterrupt):  # also SIGTERM before the run has begun to listen
        end("interrupted", 143 if type(error).__name__ == "Terminated" else 130)
    line = describe(error)
    if line is not None and not os.environ.get("ONEBLOCK_TRACEBACK"):
        end(f"process {jax.process_index()} of {jax.process_count()}: {line}", 2)
    traceback.print_exception(error)
    end(f"process {jax.process_index()} of {jax.process_count()} failed; the traceback is above", 1)
