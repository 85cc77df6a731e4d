"""A line that shows how far counted work has come, on standard error."""

import time


class Progress:
    """Counts things and shows totals and rates while work runs; silent where standard error is no terminal.

        with Progress("shards", ("documents", "tokens")) as bar:
            bar.add(documents=1, tokens=120)

    Args:
        title: what runs.
        names: what is counted, in the order shown.
        shown: False counts without showing.
    """

    def __init__(self, title: str, names: tuple[str, ...], *, shown: bool = True):
        self.title = title
        self.counts = dict.fromkeys(names, 0)
        self._shown = shown
        self._live = None
        self._next = 0.0
        self._began = 0.0

    def __enter__(self) -> "Progress":
        self._began = time.monotonic()
        if self._shown:
            from rich.console import Console
            from rich.status import Status

            console = Console(stderr=True)
            if console.is_terminal:
                self._live = Status(self.title, console=console)
                self._live.start()
        return self

    def add(self, **amounts: int) -> None:
        """Adds to the counts, and redraws at most five times a second."""
        for name, amount in amounts.items():
            self.counts[name] += amount
        if self._live is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.2
            self._live.update(self.line())

    def line(self) -> str:
        """Title, counts and rates as one line."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        told = (f"{count:,} {name} ({count / seconds:,.0f}/s)" for name, count in self.counts.items())
        return f"{self.title}: " + ", ".join(told)

    def __exit__(self, *_) -> None:
        if self._live is not None:
            self._live.stop()
