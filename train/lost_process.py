"""When one of several processes is lost, the others end: in bounded time, with one line and a code of their own.

    heartbeats   jax's runtime: a process that is silent for `lost_after` seconds ends all others (code 134)
    broken       a collective that fails because its peer is gone: PeerLost (code 75, "try again")
    stalled      nothing finished in any process for `stalled_after` seconds although all are alive (code 75)

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
from types import FrameType, TracebackType
from typing import Any, TextIO

import jax

from train import distributed, last_words
from train.distributed import Job, compare, join, versions
from train.last_words import AGAIN
from train.peer_lost import PeerLost, raise_lost
from zoo.command_errors import describe, exit_code

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
NEWS = "oneblock/moved"  # the key under which the process that moved last says so
EXCHANGE = distributed._gathered.__code__
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
    """Ends the process where nothing moves in any of them for too long; with one process it does nothing.

    Those that wait for one at work, as for the first that packs rows, do nothing themselves. So each that moves says so
    in the key-value store of jax's coordinator, and the others wait for it, also at their first step for its compiler.
    What another moved is not passed on as one's own: where none moves, all end, within 1.75 times `seconds`.

    Args:
        seconds: between two beats.
    """

    def __init__(self, seconds: float):
        self.seconds, self._step, self._last = seconds, 0, time.monotonic()
        self._news = self._last  # when another was last seen to move
        self._doing, self._over = "", threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Watch":
        if jax.process_count() > 1:
            pause, store = min(self.seconds / 4, 10.0), coordinator()
            self._last = time.monotonic()
            self._threads = [threading.Thread(target=self._look, args=(pause,), daemon=True)]
            if store is not None:  # by a thread of its own: one that is lost may never answer
                exchange = (store, min(self.seconds / 8, 30.0))
                self._threads.append(threading.Thread(target=self._exchange, args=exchange, daemon=True))
            for thread in self._threads:
                thread.start()
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
        for thread in self._threads:  # none may be in jax's client when the program ends
            thread.join(2.0)

    def _look(self, pause: float) -> None:
        done = own_work()
        while not self._over.wait(pause):
            before, done = done, own_work()
            if self._doing and worked(before, done, pause):
                self._last = time.monotonic()
            if time.monotonic() - max(self._last, self._news) > self.seconds:
                at = f" ({self._doing})" if self._doing else ""
                end(
                    f"process {jax.process_index()} of {jax.process_count()}: nothing was finished for "
                    f"{self.seconds:g} s after step {self._step}{at}; look for a process that waits for its disk or "
                    f"its data, or give a longer stalled_after; {AGAIN}",
                    TRY_AGAIN,
                )

    def _exchange(self, store: Any, pause: float) -> None:
        """Says when this process moved, and looks whether another one did."""
        own = seen = ""
        while not self._over.wait(pause):
            with contextlib.suppress(Exception):  # nothing said yet, or a coordinator that is lost
                now = f"{jax.process_index()} {self._last}"
                if now != own:
                    store.key_value_set(NEWS, now, allow_overwrite=True)
                    own = now
                before, seen = seen, store.key_value_try_get(NEWS)
                if seen not in (before, own) and before:
                    self._news = time.monotonic()


def coordinator() -> Any:
    """jax's client of the process that coordinates; None where there is none, or where a later jax hides it."""
    try:
        from jax._src.distributed import global_state
    except ImportError:
        return None
    return getattr(global_state, "client", None)


def worked(before: tuple[float, int], now: tuple[float, int], pause: float) -> bool:
    """Whether a process worked in so many seconds between two readings of `own_work`.

    A twentieth of a core is, so that one on a busy machine is seen; one that waits, its live display drawn, takes a
    hundredth. Time spent in an exchange with others is no work: some backends wait in it by turning round and round.
    """
    spent = now[0] - before[0] > max(pause / 20, 0.01) and not in_exchange()
    return spent or now[1] - before[1] > 2**20


def in_exchange() -> bool:
    """Whether a thread of this process is in an exchange with the others: ours, or jax's, which Orbax calls."""
    for frame in sys._current_frames().values():
        one: FrameType | None = frame
        while one is not None:
            if one.f_code is EXCHANGE or one.f_code.co_filename.endswith("multihost_utils.py"):
                return True
            one = one.f_back
    return False


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
