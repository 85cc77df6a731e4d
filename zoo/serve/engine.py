"""The one thread that owns the device. Requests wait in a queue; batches made of them take turns.

A row that waits starts with the next batch there is a place for: rows of its kind that wait too go with it, and up to
LANES batches take turns of a few tokens, so that a long text does not keep a short one waiting for its end.
"""

import logging
import threading
from collections import deque
from typing import Any

from zoo.errors import InputError
from zoo.model import Model
from zoo.serve.jobs import Job, Row, TextJob, VectorJob
from zoo.serve.lanes import Desk, Programs, TextLane, VectorLane, height, kind_of
from zoo.serve.limits import Limits, Refusal, failed, stopping, too_many
from zoo.serve.meters import Meters

LANES = 4


class Engine:
    """The queue and its thread. `submit` and `cancel` are called by the event loop.

    Args:
        model, params, tokenizer: what is served.
        limits: how much at once.
        meters: what is counted.
        cache_dtype: of cached keys and values; None for the model's.
    """

    def __init__(
        self,
        model: Model,
        params: Any,
        tokenizer: Any,
        limits: Limits,
        meters: Meters,
        cache_dtype: str | None = None,
    ):
        self._desk, self._limits = Desk(model, params, tokenizer, meters, cache_dtype), limits
        self._waiting: deque[tuple[Any, Row | VectorJob]] = deque()  # with the kind of batch
        self._lanes: deque[TextLane | VectorLane] = deque()
        self._change = threading.Condition()
        self._jobs: set[Job] = set()  # that somebody waits for
        self._stopping = self._closed = False
        self._starting = 0  # taken from the queue, and not in a lane yet
        self._programs = Programs()
        self._thread = threading.Thread(target=self._run, name="oneblock-model", daemon=True)
        meters.gauge("waiting_texts", "Texts that wait for their turn.", lambda: self.waiting)
        meters.gauge("running_texts", "Texts at work.", lambda: self.running)

    def start(self) -> None:
        self._thread.start()

    def warm(self, job: TextJob | VectorJob) -> None:
        """Makes the programs of a job that nobody waits for, before `start`; it is not counted."""
        desk, self._desk = self._desk, self._desk._replace(meters=Meters())
        try:
            first = job.rows[0]
            kind = kind_of(desk.model, first) if isinstance(job, TextJob) else None
            lane = self._lane(kind, [first] if isinstance(job, TextJob) else [job])
            for _ in range(2):  # the prompt's pass, and a step
                if not lane.finished:
                    lane.turn()
        finally:
            self._desk = desk

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return self._starting + sum(lane.size for lane in list(self._lanes))

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
        model = self._desk.model
        items = [(kind_of(model, row), row) for row in job.rows] if isinstance(job, TextJob) else [(None, job)]
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
            self._waiting = deque(item for item in self._waiting if _job(item[1]) is not job)

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
            kind, picked = self._pick()
            self._starting = len(picked)
        if picked:
            self._guarded(picked, lambda: self._lanes.append(self._lane(kind, picked)))
            self._starting = 0
        if self._lanes:
            lane = self._lanes[0]
            self._guarded([lane], lane.turn)
            self._lanes.rotate(-1)
            if lane.finished:
                self._lanes.remove(lane)
        return True

    def _pick(self) -> tuple[Any, list[Row | VectorJob]]:
        """Those for the next batch: the first that waits, and others of its kind."""
        places = self._limits.concurrency - self.running
        if not self._waiting or places < 1 or len(self._lanes) >= LANES:
            return None, []
        kind, first = self._waiting[0]
        if isinstance(first, VectorJob):
            self._waiting.popleft()
            return None, [first]
        picked = [row for other, row in self._waiting if other == kind][:places]
        taken = set(map(id, picked))
        self._waiting = deque(item for item in self._waiting if id(item[1]) not in taken)
        return kind, picked

    def _lane(self, kind: Any, picked: list[Any]) -> TextLane | VectorLane:
        if isinstance(picked[0], VectorJob):
            return VectorLane(self._desk, picked[0])
        self._programs.meet((height(len(picked), self._limits.concurrency), kind))
        return TextLane(self._desk, picked, kind, self._limits.concurrency)

    def _guarded(self, those: list[Any], work: Any) -> None:
        """Does work; what fails ends its own requests and no others."""
        try:
            work()
        except Exception as error:
            if isinstance(error, InputError):
                refusal = Refusal(400, str(error))
            else:
                logging.getLogger("oneblock.serve").exception("the model failed")
                refusal = failed(error)
            for one in those:
                (one if hasattr(one, "tell") else one.job).tell(refusal)


def _job(item: Row | VectorJob) -> Job:
    return item.job if isinstance(item, Row) else item
