"""What the measuring commands show: one line of progress on a terminal's stderr, plain tables, JSON."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from eval.language.token_scores import Watch
from train.logs import finite
from train.progress import clock

WIDTH = 120  # of tables that go to a file or a pipe
QUIET = 30.0  # seconds between lines where there is no terminal


@contextlib.contextmanager
def progress(title: str) -> Iterator[Watch]:
    """A Watch that tells how far a measurement has come and about how long it will go on; stdout is left alone."""
    from rich.console import Console

    console = Console(stderr=True)
    status = console.status(title) if console.is_terminal else contextlib.nullcontext()
    began = told = time.perf_counter()

    def watch(done: int, total: int) -> None:
        nonlocal told
        now = time.perf_counter()
        left = clock((now - began) * (total - done) / max(done, 1))
        line = f"{title}: {done:,} of {total:,} tokens, {done / max(now - began, 1e-9):,.0f}/s, {left} left"
        if console.is_terminal:
            status.update(line)
        elif now - told >= QUIET:
            told = now
            print(line, file=sys.stderr, flush=True)

    with status:
        yield watch


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Prints a table, its first column left and the others right, with notes below."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)


def show_json(content: Any) -> None:
    """Prints JSON that any reader takes: numbers that are not finite become null."""
    print(json.dumps(finite(content), indent=2, allow_nan=False))
