"""The two things that `compare` compares, read into one form: reports of experiments, and fine-tuned folders."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eval import tasks
from eval.experiment.cells import FULL, WAY_WORDS, key_of
from eval.experiment.comparisons import row_name
from eval.experiment.trial import digest
from eval.report import RULES
from eval.sources import strict_json
from eval.ways.finetune_config import FinetuneConfig
from eval.ways.protocol import protocol as spoken_protocol
from zoo.errors import InputError

TABLE, TAGS = "predictions.tsv", "predictions.conll"
FORMATS = ("oneblock.report/1", "oneblock.report/2")


@dataclass(frozen=True)
class Answers:
    """One cell: scores, and [E] predictions where they are kept."""

    metrics: Mapping[str, float]
    predictions: tuple[Any, ...] | None


@dataclass(frozen=True)
class TestSet:
    """What was answered.

    Attributes:
        name, kind, labels, main_metric: of the task.
        size: E.
        digest: of the test examples, "" where the file does not say.
        gold: [E] true labels; None where they are not at hand.
        texts: [E] where the file holds them.
    """

    __test__ = False  # no test of pytest's

    name: str
    kind: str
    labels: tuple[str, ...]
    main_metric: str
    size: int
    digest: str
    gold: tuple[Any, ...] | None
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """A report, or a fine-tuned folder.

    Attributes:
        path: where it was read.
        tasks: name -> what was answered.
        rows: (task, row name) -> (labels, seed) -> Answers.
        protocol: how it was made, in the words of the file.
    """

    path: Path
    tasks: Mapping[str, TestSet]
    rows: Mapping[tuple[str, str], Mapping[tuple[int, int], Answers]] = field(default_factory=dict)
    protocol: Mapping[str, str] = field(default_factory=dict)


def read(path: str | Path) -> Side:
    """A side from a report.json, a folder that holds one, or a folder that `finetune --out` made.

    Raises:
        InputError: neither, or one that cannot be read.
    """
    path = Path(path)
    if path.is_dir() and (path / "report.json").exists():
        path = path / "report.json"
    if path.is_file():
        return _report(path)
    if (path / "metrics.json").exists() and ((path / TABLE).exists() or (path / TAGS).exists()):
        return _finetuned(path)
    raise InputError(f"{path}: no report.json of transfer, and no folder that finetune --out made")


def _report(path: Path) -> Side:
    try:
        plain = strict_json.read_object(path)
        schema = plain["schema"]
        if schema not in FORMATS:
            raise InputError(f"{path}: format {schema} is not known here ({', '.join(FORMATS)}); update this program")
        arrays = path.with_name("predictions.npz")
        with np.load(arrays) if arrays.exists() else _nothing() as kept:
            return _from_report(path, plain, kept)
    except InputError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a report of transfer ({type(error).__name__}: {error})") from None


def _from_report(path: Path, plain: dict[str, Any], kept: Mapping[str, np.ndarray]) -> Side:
    sets, lengths = {}, {}
    for task in plain["tasks"]:
        name = task["name"]
        gold = kept[f"test-labels/{name}"] if f"test-labels/{name}" in kept else None
        if f"test-lengths/{name}" in kept:
            lengths[name] = np.cumsum(kept[f"test-lengths/{name}"])[:-1]
        told = {cell["config"].get("test", "") for cell in plain["cells"] if cell["task"] == name}
        own = task.get("digests", {}).get("test") or next(iter(told - {""}), "")
        rows = _rows(gold, lengths.get(name))
        size = task.get("sizes", {}).get("test") or sum(task["counts"]["test"].values())
        kind, labels = task.get("kind", "classification"), tuple(task["labels"])
        sets[name] = TestSet(name, kind, labels, task["main_metric"], size, own, rows)
    rows: dict[tuple[str, str], dict[tuple[int, int], Answers]] = {}
    for cell in plain["cells"]:
        if cell.get("failure"):
            continue
        key, array = key_of(cell), cell["predictions"]
        found = _rows(kept[array], lengths.get(key.task)) if array and array in kept else None
        place = (key.task, row_name(key.network, key.arm, key.way))
        rows.setdefault(place, {})[key.labels, key.seed] = Answers(cell["metrics"], found)
    own = {name: value for name, value in plain["protocol"].items() if name not in (*RULES, "many comparisons")}
    return Side(path, sets, rows, own)


def _finetuned(path: Path) -> Side:
    try:
        config = strict_json.read_object(path / "config.json")
        settings = config["finetune"]
        measured = strict_json.read_object(path / "metrics.json")["test"]
        scores = {name: value for name, value in measured.items() if isinstance(value, float) and name != "loss"}
        name = settings["task"] or Path(settings["data"]).stem
        start = "random start" if settings["random_start"] else "pre-trained"
        way = settings["config"].get("way", FULL)
        row = f"{settings['checkpoint']}, {start}" + ("" if way == FULL else f", {WAY_WORDS.get(way, way)}")
        row += f", {settings['labels'] or 'all'} labels, seed {settings['config']['seed']}"
        labels = tuple(config.get("model", {}).get("label_names") or ())
        kind, texts, gold, said = _answers(path, labels)
    except InputError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: not a folder that finetune --out made ({type(error).__name__}: {error})") from None
    main = tasks.TASKS[name].main_metric if name in tasks.TASKS else next(iter(scores))
    named = labels if kind in ("classification", "tagging") else ()
    tested = TestSet(name, kind, named, main, len(texts), digest("\0".join(texts)), gold, texts)
    protocol = {row: spoken_protocol(FinetuneConfig.from_dict(settings["config"]), kind=kind)}
    return Side(path, {name: tested}, {(name, row): {(0, 0): Answers(scores, said)}}, protocol)


def _answers(path: Path, labels: tuple[str, ...]) -> tuple[str, tuple[str, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Kind, texts with their labels, true labels and predictions out of the files of `eval.scores.predictions`."""
    if (path / TAGS).exists():
        blocks = (path / TAGS).read_text("utf-8").split("\n\n")
        rows = [[line.split("\t") for line in block.split("\n") if line] for block in blocks]
        texts = tuple("\n".join(f"{word}\t{tag}" for word, tag, _ in block) for block in rows)
        gold, said = (tuple(tuple(labels.index(row[k]) for row in block) for block in rows) for k in (1, 2))
        return "tagging", texts, gold, said
    with open(path / TABLE, encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    true, answers = ([row[name] for row in table] for name in ("label", "prediction"))
    shown = "context" if table and "context" in table[0] else "text"
    texts = tuple(f"{row['label']}\1{row[shown]}" for row in table)
    if shown == "context":
        return "choice", texts, tuple(map(int, true)), tuple(map(int, answers))
    if table and "probability" not in table[0]:
        return "regression", texts, tuple(map(float, true)), tuple(map(float, answers))
    return "classification", texts, tuple(map(labels.index, true)), tuple(map(labels.index, answers))


def _rows(flat: np.ndarray | None, ends: np.ndarray | None) -> tuple[Any, ...] | None:
    """Predictions out of predictions.npz; rows of tags are cut at their ends."""
    if flat is None:
        return None
    return tuple(flat.tolist()) if ends is None else tuple(tuple(row.tolist()) for row in np.split(flat, ends))


class _nothing(dict):
    """An empty predictions.npz."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None
