"""The running account of a run: sums since the last logged line, tokens seen, and speed."""

import time
from dataclasses import dataclass
from typing import Any

import jax

from train.logs import MetricsLog
from train.metrics import add, divide, mfu
from train.progress import Display


@dataclass(frozen=True)
class Window:
    """What was timed since a line: seconds, tokens, steps."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0

    def __add__(self, other: "Window") -> "Window":
        return Window(self.seconds + other.seconds, self.tokens + other.tokens, self.steps + other.steps)


class Ledger:
    """Takes a step's metrics, and writes a line every `every` steps.

    A line's speed is that of its steps. Numbers are looked at some steps late, and at the end of a run all at once, so
    a window with fewer steps than the one before it is timed together with that one.

    Args:
        log: where lines go.
        display: where they are shown.
        every: steps a line; 0 writes one at the end.
        total: steps of the run.
        flops_per_token: training FLOPs of the model a token.
        devices: those that take part.
        saved: from `plain()`, in a checkpoint; None at the start.
    """

    def __init__(
        self,
        log: MetricsLog,
        display: Display,
        *,
        every: int,
        total: int,
        flops_per_token: float,
        devices: list[jax.Device],
        saved: dict[str, Any] | None = None,
    ):
        self.log, self.display, self.every, self.total = log, display, every, total
        self.flops_per_token, self.devices = flops_per_token, devices
        self.tokens = saved["tokens"] if saved else 0
        self.sums = {name: tuple(pair) for name, pair in saved["sums"].items()} if saved else {}
        self._started = time.perf_counter()
        self._since: float | None = None
        self._timed, self._before = Window(), Window()

    def plain(self) -> dict[str, Any]:
        """What a checkpoint must hold for the next line to come out as if nothing had happened."""
        return {"tokens": self.tokens, "sums": {name: list(pair) for name, pair in self.sums.items()}}

    def take(self, step: int, metrics: dict[str, Any]) -> bool:
        """Adds a step's metrics (waiting for them, where they are still being computed).

        Args:
            step: its number, from 1.
            metrics: from the train step.

        Returns:
            False where the step was not finite; nothing is added then.
        """
        metrics = jax.device_get(metrics)
        if not metrics.pop("finite"):
            return False
        scalars = {name: float(metrics.pop(name)) for name in ("grad_norm", "learning_rate")}
        tokens = int(metrics.pop("tokens"))
        self.tokens += tokens
        self.sums = add(self.sums, {name: (float(total), float(weight)) for name, (total, weight) in metrics.items()})
        now = time.perf_counter()
        if self._since is not None:  # the first step compiles, and does not count
            self._timed += Window(now - self._since, tokens, 1)
        self._since = now
        if step == self.total or (self.every and step % self.every == 0):
            self._write(step, scalars)
        return True

    def pause(self) -> None:
        """What passes until the next step is taken (an evaluation, a save) is not the step's time."""
        self._since = None

    def resume(self) -> None:
        """The steps' time runs again."""
        self._since = time.perf_counter()

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        timed = self._timed + self._before if self._timed.steps < self._before.steps else self._timed
        seconds = timed.seconds or float("inf")
        speed: dict[str, Any] = {"tokens_per_second": timed.tokens / seconds, "steps_per_second": timed.steps / seconds}
        speed["mfu"] = mfu(speed["tokens_per_second"], self.flops_per_token, self.devices)
        elapsed = time.perf_counter() - self._started
        values = divide(self.sums) | scalars | {"tokens": self.tokens} | speed | {"seconds": elapsed}
        self.log.write(step, "train", values)
        self.display.update(step, values, elapsed)
        self.sums = {}
        self._timed, self._before = Window(), timed
