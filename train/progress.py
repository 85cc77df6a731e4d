"""How a run shows itself while it works: a live line on a terminal, plain lines elsewhere."""

import sys
from typing import Any, TextIO


class Display:
    """Shows steps, loss, speed and the time that is left.

    Args:
        total: steps of the run.
        quiet: show nothing.
        stream: where to; standard error by default.
        every: seconds between plain lines, where there is no terminal.
    """

    def __init__(self, total: int, *, quiet: bool = False, stream: TextIO | None = None, every: float = 10.0):
        self.total, self.every = total, every
        self._quiet, self._stream = quiet, stream or sys.stderr
        self._live = self._task = None
        self._last = -every

    def __enter__(self) -> "Display":
        if not self._quiet and self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}"))
            self._live = Progress(*columns, console=Console(file=self._stream))
            self._live.start()
            self._task = self._live.add_task("training", total=self.total, line="")
        return self

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        elif not self._quiet:
            print(text, file=self._stream, flush=True)

    def update(self, step: int, values: dict[str, Any], seconds: float) -> None:
        """New numbers.

        Args:
            step: updates done.
            values: loss, tokens_per_second, and what else the log has.
            seconds: since the run's start, for plain lines not to come too often.
        """
        rate = values.get("steps_per_second") or 0.0
        left = clock((self.total - step) / rate) if rate else "?"
        line = f"step {step:,}/{self.total:,}  loss {values['loss']:.4f}  {values['tokens_per_second']:,.0f} tokens/s"
        if values.get("mfu") is not None:
            line += f"  MFU {values['mfu']:.1%}"
        line += f"  {left} left"
        if self._live is not None:
            self._live.update(self._task, completed=step, line=line)
        elif not self._quiet and (seconds - self._last >= self.every or step == self.total):
            self._last = seconds
            print(line, file=self._stream, flush=True)

    def __exit__(self, *_) -> None:
        if self._live is not None:
            self._live.stop()


def clock(seconds: float) -> str:
    """A duration as 45 s, 3:05 or 2:03:05."""
    whole = int(round(seconds))
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
