"""The one thread that owns the device. Requests wait in a queue; batches made of them take turns.

A row that waits starts with the next batch there is a place for: rows of its kind that wait too go with it. Batches
take turns of a few tokens, so that a long text does not keep a short one waiting for its end. A place is a row of keys
and values that is held, so that no more of these exist than the limits say.
"""

import logging
import threading
import time
from collections import deque
from typing import NamedTuple

from zoo.errors import InputError
from zoo.serve.jobs import Job, Row, TextJob, VectorJob
from zoo.serve.lanes import Desk, Kind, Programs, TextLane, height, kind_of
from zoo.serve.limits import Refusal, failed, stopping, too_many
from zoo.serve.meters import Meters
from zoo.serve.served import Served
from zoo.serve.vector_lane import VectorLane

# Batches that begin at once. With so many at work a text waits for others of its kind, but no longer than PATIENCE
# seconds where a place is free.
LANES, PATIENCE = 4, 1.0


class _Waiting(NamedTuple):
    """A row, or a request for embeddings, in the queue; `since` when."""

    item: Row | VectorJob
    since: float

    @property
    def job(self) -> Job:
        return self.item.job if isinstance(self.item, Row) else self.item


class Engine:
    """The queue and its thread. `submit` and `cancel` are called by the event loop.

    Args:
        served: the model, and how much at once.
        meters: what is counted.
    """

    def __init__(self, served: Served, meters: Meters):
        self._desk, self._limits = Desk(served, meters, Programs()), served.limits
        self._waiting: deque[_Waiting] = deque()
        self._lanes: deque[TextLane | VectorLane] = deque()
        self._change = threading.Condition()
        self._jobs: set[Job] = set()  # that somebody waits for
        self._stopping = self._closed = False
        self._thread = threading.Thread(target=self._run, name="oneblock-model", daemon=True)
        meters.gauge("waiting_texts", "Texts that wait for their turn.", lambda: self.waiting)
        meters.gauge("running_texts", "Texts at work.", lambda: self.running)

    def start(self) -> None:
        self._thread.start()

    def warm(self, job: TextJob | VectorJob) -> None:
        """Makes the programs of a job that nobody waits for, before `start`; it is not counted."""
        desk = self._desk._replace(meters=Meters())
        if isinstance(job, VectorJob):
            return VectorLane(desk, job).turn()
        lane, first = TextLane(desk, job.rows[:1], kind_of(desk.served, job.rows[0])), job.rows[0]
        until = len(first.ids) // 16 + 2  # the prompt's pass, and a step
        for _ in range(until):
            if not lane.finished:
                lane.turn()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return sum(lane.size for lane in list(self._lanes))

    @property
    def held(self) -> int:
        """Places that are taken."""
        return sum(lane.held for lane in list(self._lanes))

    @property
    def sound(self) -> bool:
        """It takes requests."""
        return self._thread.is_alive() and not self._stopping

    @property
    def ended(self) -> bool:
        """Its thread is over, or never began."""
        return not self._thread.is_alive()

    def require_room(self, texts: int) -> None:
        """Raises Refusal: 400 where a request has more texts than are ever served at once, 429 where others wait."""
        most = self._limits.concurrency + self._limits.max_waiting
        if texts > most:
            raise Refusal(400, f"{texts} texts are asked for at once; at most {most} are served", param="n")
        if self.waiting + self.running + texts > most:
            raise too_many(self.waiting)

    def submit(self, job: TextJob | VectorJob) -> None:
        """Puts a request into the queue.

        Raises:
            Refusal: as `require_room`; 503 while stopping.
        """
        now = time.monotonic()
        items = [_Waiting(item, now) for item in (job.rows if isinstance(job, TextJob) else [job])]
        with self._change:
            if not self.sound:
                raise stopping()
            self.require_room(len(items))
            self._jobs.add(job)
            self._waiting.extend(items)
            self._change.notify()

    def cancel(self, job: Job) -> None:
        """Nobody waits for this one any more: it has its answer, or has gone."""
        job.cancelled = True
        with self._change:
            self._jobs.discard(job)
            self._waiting = deque(one for one in self._waiting if one.job is not job)

    def stop(self) -> None:
        """Takes no more."""
        self._stopping = True

    def tell_all(self) -> None:
        """All that is not finished is told that the server stops, even where the thread is busy with one long thing."""
        for job in list(self._jobs):
            self.cancel(job)
            job.tell(stopping())

    def close(self, seconds: float = 3.0) -> None:
        """Ends the thread, unless one thing that it does takes longer than this."""
        self.stop()
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while self._work():
            pass

    def _work(self) -> bool:
        """One turn; False at the end."""
        with self._change:
            self._change.wait_for(lambda: self._lanes or self._waiting or self._closed)
            if self._closed:
                return False
            lane = self._next_lane()
            if lane is not None:
                self._lanes.appendleft(lane)
        if self._lanes:
            lane = self._lanes[0]
            try:
                lane.turn()
            except Exception as error:
                lane.tell(_refusal(error))
            with self._change:
                self._lanes.rotate(-1)
                if lane.finished:
                    self._lanes.remove(lane)
        return True

    def _next_lane(self) -> TextLane | VectorLane | None:
        """A batch of the first that waits, and others of its kind; None where there is no place."""
        places = self._limits.concurrency - self.held
        if not self._waiting or places < 1:
            return None
        first = self._waiting[0]
        if len(self._lanes) >= LANES and time.monotonic() - first.since < PATIENCE:
            return None
        if isinstance(first.item, VectorJob):
            return VectorLane(self._desk, self._waiting.popleft().item)
        kind, rows = self._kind(first), []
        for one in self._waiting:
            if isinstance(one.item, Row) and self._kind(one) == kind:
                if len(rows) == places or height(len(rows) + 1, self._limits.concurrency) > places:
                    break
                rows.append(one.item)
        taken = set(map(id, rows))
        self._waiting = deque(one for one in self._waiting if id(one.item) not in taken)
        return TextLane(self._desk, rows, kind)

    def _kind(self, waiting: _Waiting) -> Kind:
        row = waiting.item
        if row.kind is None:
            row.kind = kind_of(self._desk.served, row)
        return row.kind


def _refusal(error: Exception) -> Refusal:
    """What the requests of a turn hear of its fault; all others go on."""
    if isinstance(error, InputError):
        return Refusal(400, str(error))
    logging.getLogger("oneblock.serve").error("the model failed", exc_info=error)
    return failed()
