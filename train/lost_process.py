"""When one of several processes is lost, the others end: in bounded time, with one line and a code of their own.

    heartbeats   jax's runtime: a process that is silent for `lost_after` seconds ends all others (code 134)
    broken       a collective that fails because its peer is gone: PeerLost (code 75, "try again")
    stalled      nothing finished for `stalled_after` seconds although all are alive (code 75)

A process that fails alone leaves at once, without waiting at the door for the others: with code 2 for wrong input, 75
for what may pass, such as a disk that does not answer, 1 with a traceback.
"""

import contextlib
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TextIO

import jax

from train import last_words
from train.distributed import Job, compare, join, versions
from train.last_words import AGAIN
from train.peer_lost import PeerLost, raise_lost
from zoo.command_errors import describe, exit_code

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
LINGER = 2.0  # seconds in which others may fail, too: the end of process 0, which coordinates, would end them first


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
        self._doing, self._over = "", threading.Event()

    def __enter__(self) -> "Watch":
        if jax.process_count() > 1:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def beat(self, step: int) -> None:
        """Something was finished: the numbers of `step`, a batch of an evaluation."""
        self._step, self._last = step, time.monotonic()

    @contextlib.contextmanager
    def working(self, doing: str) -> Iterator[None]:
        """Around what takes its time and finishes no step: inside, this process's own work counts as a beat.

        Processor time does, as of a compiler, and so do bytes read and written, as of a restore.

        Args:
            doing: how the line calls it.
        """
        before, self._doing, self._last = self._doing, doing, time.monotonic()
        try:
            yield
        finally:
            self._doing, self._last = before, time.monotonic()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del kind, error, trace
        self._over.set()

    def _look(self) -> None:
        done, pause = own_work(), min(self.seconds / 4, 10.0)
        while not self._over.wait(pause):
            before, done = done, own_work()
            if self._doing and (done[0] - before[0] > pause / 5 or done[1] - before[1] > 2**20):
                self._last = time.monotonic()
            if time.monotonic() - self._last > self.seconds:
                at = f" ({self._doing})" if self._doing else ""
                end(
                    f"process {jax.process_index()} of {jax.process_count()}: nothing was finished for "
                    f"{self.seconds:g} s after step {self._step}{at}; look for a process that waits for its disk or "
                    f"its data, or give a longer stalled_after; {AGAIN}",
                    TRY_AGAIN,
                )


def own_work() -> tuple[float, int]:
    """(seconds of processor time, bytes read and written) of this process; 0 bytes where the system does not tell."""
    moved = 0
    with contextlib.suppress(OSError):
        moved = sum(map(int, re.findall(r"^[rw]char: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)))
    return time.process_time(), moved


def end(line: str, code: int, linger: float = 0.0) -> None:
    """Says a line and ends this process, without a word to the others, at once or `linger` seconds later."""
    sys.stdout.flush()
    print(f"error: {line}", file=sys.stderr, flush=True)
    time.sleep(linger)
    os._exit(code)


def _leave(error: BaseException) -> None:
    try:
        raise_lost(error)
    except PeerLost as lost:
        error = lost
    if isinstance(error, PeerLost):
        end(str(error), TRY_AGAIN)
    if isinstance(error, KeyboardInterrupt):  # also SIGTERM before the run has begun to listen
        end("interrupted", 143 if type(error).__name__ == "Terminated" else 130)
    line = describe(error)
    told = line is not None and not os.environ.get("ONEBLOCK_TRACEBACK")
    if not told:
        traceback.print_exception(error)
        line = "failed; the traceback is above"
    line = f"process {jax.process_index()} of {jax.process_count()}{':' if told else ''} {line}"
    end(line, exit_code(error) if told else 1, LINGER if jax.process_index() == 0 else 0.0)
