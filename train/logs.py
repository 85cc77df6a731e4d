"""What a run writes down: metrics.jsonl, and TensorBoard files where asked for."""

import errno
import json
import os
from pathlib import Path
from typing import Any

from zoo.atomic_file import write_atomically
from zoo.errors import InputError


class MetricsLog:
    """metrics.jsonl: one JSON object a line, each with "step" and "split", in order and without repeats.

    Args:
        path: the file.
        step: lines after this one are dropped, for the run goes on from there; 0 starts a new file.
        tensorboard: folder for TensorBoard files, or None.
        writes: False keeps nothing: of several processes in one run the first alone writes.

    Raises:
        InputError: TensorBoard asked for and not installed.
    """

    def __init__(self, path: Path, step: int = 0, tensorboard: Path | None = None, *, writes: bool = True):
        self.path, self._file, self._board = path, None, None
        if not writes:
            return
        kept = [line for line in read(path) if line["step"] <= step] if step else []
        write_atomically(path, "".join(_text(line) for line in kept))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._board = None if tensorboard is None else _board(tensorboard, step + 1)

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Appends one line; numbers are written so that they read back bit for bit, those not finite as null.

        Raises:
            InputError: the disk is full.
        """
        if self._file is None:
            return
        try:
            self._file.write(_text({"step": step, "split": split, **values}))
            self._file.flush()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InputError(
                    f"no disk space left for {self.path}; free some and run the same command again"
                ) from error
            raise
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{split}/{name}", value, step)

    def has(self, step: int, split: str) -> bool:
        """Whether there is a line of this step and split."""
        return any(line["step"] == step and line["split"] == split for line in read(self.path))

    def close(self) -> None:
        """Closes the files; the lines are on disk then."""
        if self._file is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            pass  # the full disk was reported where it was met
        self._file.close()
        if self._board is not None:
            self._board.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line cut short by a kill is left out, a missing file has none."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text("utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def finite(content: Any) -> Any:
    """`content` with None for every number that is not finite: JSON has no word for them."""
    if isinstance(content, dict):
        return {str(name): finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    if isinstance(content, float) and not abs(content) < float("inf"):
        return None
    return content


def _text(line: dict[str, Any]) -> str:
    return json.dumps(finite(line), allow_nan=False) + "\n"


def _board(folder: Path, first_step: int):
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InputError(
            'TensorBoard files need tensorboardX; install it with: pip install "oneblock[tensorboard]"'
        ) from None
    return SummaryWriter(str(folder), purge_step=first_step)
