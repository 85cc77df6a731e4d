"""A cell: one fine-tuning run of an experiment, the unit that is run, kept on disk and resumed.

An experiment is a grid of (task, network, arm, labels, seed). Each cell is one small JSON file, written whole or not
at all, so a
killed run goes on with the cells that are missing: `find` gives a finished cell, unless its config has changed.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.atomic_file import write_atomically
from zoo.errors import InputError, nearest

ARMS = ("pretrained", "random", "tf-idf")
ARM_WORDS = {"pretrained": "pre-trained", "random": "random start", "tf-idf": "TF-IDF"}


@dataclass(frozen=True)
class CellKey:
    """Where a cell stands in the grid.

    Attributes:
        task: task name.
        network: checkpoint or architecture; both arms of a comparison have the same one. "tf-idf" for the baseline.
        arm: "pretrained", "random" (same network, random start) or "tf-idf".
        labels: labelled training examples, as a number ("all" is the size of the training split).
        seed: of the draw of those examples, of the initial weights and of the order: one and the same for all arms.
    """

    task: str
    network: str
    arm: str
    labels: int
    seed: int

    def __post_init__(self):
        if self.arm not in ARMS:
            raise InputError(f'cell: arm "{self.arm}"{nearest(self.arm, ARMS)}')

    def __str__(self) -> str:
        return f"task {self.task}, network {self.network}, arm {self.arm}, {self.labels} labels, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """Readable, safe for any file system, and different for different keys."""
        parts = (self.task, self.network, self.arm, str(self.labels), f"s{self.seed}")
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
        return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part)[:40] for part in parts) + f"_{digest}.json"


@dataclass(frozen=True)
class Cell:
    """A finished run.

    Attributes:
        key: its place.
        metrics: metric name -> value on the test set.
        seconds: wall-clock time of training and prediction.
        predictions: [E] predicted classes in the order of the test set, for the paired bootstrap; None where not kept.
        config: all that decides the result besides the key (rate, epochs, length, ...); a change makes it another run.
    """

    key: CellKey
    metrics: Mapping[str, float]
    seconds: float
    predictions: tuple[int, ...] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        metrics = {name: float(value) for name, value in self.metrics.items()}
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise InputError(f"{self.key}: {name} is {value}; the run went wrong and is not kept")
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "seconds", float(self.seconds))
        if self.predictions is not None:
            object.__setattr__(self, "predictions", tuple(int(p) for p in self.predictions))


def save(folder: Path, cell: Cell) -> Path:
    """Writes a cell into a folder and returns its file."""
    plain = {**vars(cell), "key": vars(cell.key)}
    path = Path(folder) / cell.key.file_name
    write_atomically(path, json.dumps(plain, allow_nan=False))
    return path


def read(path: Path) -> Cell:
    """Reads one cell's file; InputError where it is none."""
    try:
        plain = json.loads(Path(path).read_bytes())
        return Cell(
            key=CellKey(**plain["key"]),
            metrics=plain["metrics"],
            seconds=plain["seconds"],
            predictions=plain["predictions"],
            config=plain["config"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not a cell's file ({type(error).__name__}: {error}); delete it to run the cell again"
        ) from None


def read_all(folder: Path) -> tuple[Cell, ...]:
    """All cells of a folder, in the order of their file names."""
    return tuple(read(path) for path in sorted(Path(folder).glob("*.json")))


def find(folder: Path, key: CellKey, config: Mapping[str, Any]) -> Cell | None:
    """The finished cell of this key and config, or None where it must be run (anew)."""
    path = Path(folder) / key.file_name
    if not path.exists():
        return None
    cell = read(path)
    same = json.dumps(cell.config, sort_keys=True) == json.dumps(dict(config), sort_keys=True)
    return cell if cell.key == key and same else None


def by_key(cells: Sequence[Cell]) -> dict[CellKey, Cell]:
    """Key -> cell; InputError where two cells have one key."""
    table: dict[CellKey, Cell] = {}
    for cell in cells:
        if cell.key in table:
            raise InputError(f"two cells for {cell.key}")
        table[cell.key] = cell
    return table
