"""Progress of an experiment: a line for each finished cell and, on a terminal, how far the current one has come."""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from train.progress import clock

Kind = Hashable
# Seconds after which a log file, which has no line that changes, is told how far a cell has come.
QUIET = 30.0


class Live:
    """Counts cells, prints a line for each, and says about how long the rest will take.

        live.expect(kinds)                  # all cells, by a kind whose members take about as long as one another
        live.start(title); live.watch({"step": 3, ...}); live.finished(title, "accuracy 0.81", kind)

    Args:
        say: prints a line; None for standard output.

    Attributes:
        ran: how many cells were run, and not reused, since `expect`.
    """

    def __init__(self, say: Callable[[str], None] | None = None):
        from rich.console import Console

        self._console = Console(highlight=False, soft_wrap=True)
        self._say = say
        self._status = None
        self._title = ""
        self._waiting: Counter[Kind] = Counter()
        self._times: dict[Kind, list[float]] = {}
        self._total = self._done = self.ran = 0
        self._began = self._told = time.perf_counter()

    def expect(self, kinds: Sequence[Kind]) -> None:
        """The cells that will follow."""
        self._waiting = Counter(kinds)
        self._total, self._done, self.ran = len(kinds), 0, 0

    def line(self, text: str) -> None:
        """A line that stays."""
        if self._say is not None:
            self._say(text)
        elif self._console.is_terminal:
            self._console.print(text, markup=False)
        else:
            print(text, flush=True)

    def start(self, title: str) -> None:
        """A cell begins."""
        self._title = title
        self._began = self._told = time.perf_counter()
        if self._console.is_terminal and self._say is None:
            self._status = self._console.status(f"cell {self._done + 1} of {self._total}: {title}")
            self._status.start()

    def seconds(self) -> float:
        """Since the cell began."""
        return time.perf_counter() - self._began

    def watch(self, now: Mapping[str, float]) -> None:
        """The current cell has come so far; see eval.finetune.finetune."""
        left = (now["steps"] - now["step"]) * self.seconds() / now["step"]
        text = (
            f"{self._title}: step {now['step']} of {now['steps']}, loss {now['loss']:.3f}, "
            f"{now['examples_per_second']:.0f} examples/s, {clock(left)} to go"
        )
        if self._status is not None:
            self._status.update(f"cell {self._done + 1} of {self._total}: {text}")
        elif time.perf_counter() - self._told >= QUIET:
            self._told = time.perf_counter()
            self.line(f"  {text}")

    def finished(self, title: str, score: str, kind: Kind) -> None:
        """The cell is done and written."""
        seconds = self.seconds()
        self.ran += 1
        self._times.setdefault(kind, []).append(seconds)
        self._end(kind)
        left = self.seconds_left()
        rest = f"; {clock(left)} left" if left else ""
        self.line(f"cell {self._done} of {self._total}: {title}: {score} ({seconds:.1f} s{rest})")

    def reused(self, title: str, score: str, kind: Kind) -> None:
        """The cell was found finished."""
        self._end(kind)
        self.line(f"cell {self._done} of {self._total}: {title}: {score} (finished before)")

    def skip(self, kind: Kind) -> None:
        """The cell came to nothing."""
        self._end(kind)

    def stop(self) -> None:
        """Takes the changing line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def seconds_left(self) -> float:
        """Of the cells that wait: the mean of those of their kind, or of all where there is none yet."""
        times = [seconds for found in self._times.values() for seconds in found]
        if not times:
            return 0.0
        mean = sum(times) / len(times)
        means = {kind: sum(found) / len(found) for kind, found in self._times.items()}
        return sum(means.get(kind, mean) * count for kind, count in self._waiting.items())

    def _end(self, kind: Kind) -> None:
        self.stop()
        self._done += 1
        self._waiting[kind] -= 1
