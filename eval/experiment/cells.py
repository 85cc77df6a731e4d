"""A cell: one fine-tuning run of an experiment, the unit that is run, kept on disk and resumed.

An experiment is a grid of (task, network, arm, way, labels, seed). Each cell is one small JSON file, written whole or
not at all, so a killed run goes on with the cells that are missing: `find` gives a finished cell, unless its config has
changed. A run that fails by itself (a loss that is not finite) is a cell too, with its failure and without scores.

Files of before there were ways are read: their way is "full", and what they did not measure is absent.
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

ARMS = ("pretrained", "random", "shuffled", "baseline")
ARM_WORDS = {"pretrained": "pre-trained", "random": "random start", "shuffled": "shuffled labels"}
# The baselines, which stand in a cell as its network.
BASELINE_WORDS = {"tf-idf": "TF-IDF", "tf-idf-ridge": "TF-IDF, ridge", "word-tags": "most frequent tag of each word"}
FULL = "full"
# Ways of adapting, after the arm; "full" goes without saying.
WAY_WORDS = {"full": "all parameters", "head": "head alone", "probe": "linear probe", "lora": "LoRA"}
WAY_WORDS |= {"top": "top layers"}
# Predictions of one example: a class, a rating, or a tag for each word.
Prediction = int | float | tuple[int, ...]


@dataclass(frozen=True)
class CellKey:
    """Where a cell stands in the grid.

    Attributes:
        task: task name.
        network: checkpoint or architecture; both arms of a comparison have the same one. The baseline's name for it.
        arm: "pretrained", "random" (same network, random start), "shuffled" (pre-trained, trained on labels that were
            dealt out anew: it must score chance) or "baseline".
        labels: labelled training examples, as a number ("all" is the size of the training split).
        seed: of the draw of those examples, of the initial weights and of the order: one and the same for all arms.
        way: how the network is adapted: FinetuneConfig.way. "full" for a random start and for the baseline.
    """

    task: str
    network: str
    arm: str
    labels: int
    seed: int
    way: str = FULL

    def __post_init__(self):
        if self.arm not in ARMS:
            raise InputError(f'cell: arm "{self.arm}"{nearest(self.arm, ARMS)}')

    def __str__(self) -> str:
        way = "" if self.way == FULL else f", {self.way}"
        return f"task {self.task}, network {self.network}, arm {self.arm}{way}, {self.labels} labels, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """Readable, safe for any file system, and different for different keys."""
        ways = () if self.way == FULL else (self.way,)
        parts = (self.task, self.network, self.arm, *ways, str(self.labels), f"s{self.seed}")
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
        return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part)[:40] for part in parts) + f"_{digest}.json"


@dataclass(frozen=True)
class Cell:
    """A finished run.

    Attributes:
        key: its place.
        metrics: metric name -> value on the test set; "NAME/metric" on a further test set. {} where it failed.
        seconds: wall-clock time of training and prediction.
        predictions: [E] predicted classes, ratings or rows of tags in the order of the test set, for the paired
            bootstrap; None where not kept.
        config: all that decides the result besides the key (rate, epochs, length, ...); a change makes it another run.
        cost: training_seconds, prediction_seconds, and of a network training_flops, prediction_flops,
            training_tokens, prediction_tokens (padding included); see eval.experiment.cost. {} where not measured.
        details: what the run chose by itself (the baseline's penalty), or measured: of the control on spans, chance.
        failure: why there are no scores; "" for a run that went well.
    """

    key: CellKey
    metrics: Mapping[str, float]
    seconds: float
    predictions: tuple[Prediction, ...] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""

    def __post_init__(self):
        metrics = {name: float(value) for name, value in self.metrics.items()}
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise InputError(f"{self.key}: {name} is {value}; the run went wrong and is not kept")
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "seconds", float(self.seconds))
        if self.predictions is not None:
            object.__setattr__(self, "predictions", tuple(_plain(p) for p in self.predictions))
        object.__setattr__(self, "cost", {name: float(value) for name, value in self.cost.items()})


def _plain(prediction: Any) -> Prediction:
    """A prediction in Python's own types: a whole number, a rating, or the tags of a row."""
    if hasattr(prediction, "__len__"):
        return tuple(int(tag) for tag in prediction)
    number = prediction.item() if hasattr(prediction, "item") else prediction
    return number if isinstance(number, float) else int(number)


def key_of(plain: Mapping[str, Any]) -> CellKey:
    """A key from its fields, those of before there were ways too, where "tf-idf" was an arm."""
    arm = "baseline" if plain["arm"] == "tf-idf" else plain["arm"]
    names = ("task", "network", "labels", "seed")
    return CellKey(arm=arm, way=plain.get("way", FULL), **{name: plain[name] for name in names})


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
            key=key_of(plain["key"]),
            metrics=plain["metrics"],
            seconds=plain["seconds"],
            predictions=plain["predictions"],
            config=plain["config"],
            **{name: plain[name] for name in ("cost", "details", "failure") if name in plain},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    kept, asked = (json.dumps(dict(each), sort_keys=True, allow_nan=False) for each in (cell.config, config))
    return cell if cell.key == key and kept == asked else None


def by_key(cells: Sequence[Cell]) -> dict[CellKey, Cell]:
    """Key -> cell; InputError where two cells have one key."""
    table: dict[CellKey, Cell] = {}
    for cell in cells:
        if cell.key in table:
            raise InputError(f"two cells for {cell.key}")
        table[cell.key] = cell
    return table
