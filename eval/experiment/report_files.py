"""A report as files: report.html (pictures inside, no scripts), report.md, report.json, predictions.npz, plots/*.png.

All files are written beside their places first and moved there together, so a disk that fills up leaves the report of
before, or none, and no half of one.

report.json names its format, SCHEMA. Format 2 has ways, costs, failures, corrected p-values, label efficiency, controls
and digests of the splits; of format 1 (where the baseline was an arm "tf-idf") `compare` reads what there is.
"""

import base64
import io
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from eval.experiment import plots, report_tables
from eval.experiment.cells import FULL, WAY_WORDS
from eval.experiment.comparisons import other_name
from eval.experiment.report_tables import markdown
from eval.experiment.statistics import Interval
from eval.metrics import spoken_name
from eval.report import Report
from zoo.atomic_file import write_together

SCHEMA = "oneblock.report/2"
TEMPLATE = Path(__file__).with_name("report.html.jinja")


def write(report: Report, folder: str | Path) -> Path:
    """Writes all files into `folder` (made where it is missing) and returns the page's path.

    Raises:
        InputError: the folder cannot be written, or the disk is full.
    """
    folder = Path(folder)
    pictures = draw(report)
    files: dict[Path, str | bytes] = {folder / "plots" / f"{name}.png": png for name, png in pictures.items()}
    files[folder / "predictions.npz"] = predictions(report)
    files[folder / "report.json"] = json.dumps(as_dict(report), indent=1, allow_nan=False) + "\n"
    files[folder / "report.md"] = markdown(report)
    files[folder / "report.html"] = page(report, pictures)
    write_together(files)
    return folder / "report.html"


def as_dict(report: Report) -> dict[str, Any]:
    """Plain types for JSON. Keys are the fields of `eval.report`'s dataclasses; predictions are in predictions.npz,
    under each cell's `file_name` without its ending. Numbers beyond the budgets are "more" and "fewer"."""
    bare = replace(
        report,
        cells=tuple(replace(cell, predictions=None) for cell in report.cells),
        tasks=tuple(replace(task, gold=()) for task in report.tasks),
    )
    plain = asdict(bare)
    for task in plain["tasks"]:
        del task["gold"]
    for cell, source in zip(plain["cells"], report.cells, strict=True):
        cell.update(cell.pop("key"))
        cell["predictions"] = None if source.predictions is None else source.key.file_name.removesuffix(".json")
    for comparison, source in zip(plain["comparisons"], report.comparisons, strict=True):
        comparison |= {"words": source.words, "holds": source.holds}
    for saving, source in zip(plain["savings"], report.savings, strict=True):
        for name in ("needed", "low", "high"):
            value = saving["worth"][name]
            saving["worth"][name] = {math.inf: "more", 0.0: "fewer"}.get(value, value)
        saving["words"] = source.worth.words
    return {"schema": SCHEMA, "seconds": report.seconds, "flops": report.flops, **plain}


def draw(report: Report) -> dict[str, bytes]:
    """File name without ending -> PNG."""
    pictures = {}
    for task in report.tasks:
        rows: dict[tuple[str, str, str], list[tuple[int, Interval]]] = {}
        for result in (result for result in report.results if result.task == task.name and result.metrics):
            points = rows.setdefault((result.network, result.arm, result.way), [])
            points.append((result.labels, result.metrics[task.main_metric]))
        curves = [
            plots.Curve(network, arm, tuple(sorted(found, key=lambda point: point[0])), way)
            for (network, arm, way), found in rows.items()
        ]
        if curves:
            pictures[f"curve-{slug(task.name)}"] = plots.learning_curve(
                curves, title=task.title, metric=spoken_name(task.main_metric), networks=report.networks
            )
    titles = {task.name: task.title for task in report.tasks}
    for against, words in (("random", "random start"), ("baseline", "the baseline")):
        compared = [c for c in report.comparisons if c.against == against]
        differences = [
            plots.Difference(
                *(titles[c.task], _difference(c.network, c.way, c.labels), c.network),
                *(c.difference.interval, c.test_interval),
            )
            for c in compared
        ]
        if differences:
            metrics = " or ".join(map(spoken_name, dict.fromkeys(c.metric for c in compared)))
            others = dict.fromkeys(map(other_name, compared))
            words = next(iter(others)) if len(others) == 1 else words
            pictures[f"differences-{against}"] = plots.differences(
                differences, title=f"Pre-trained minus {words}", metric=metrics, networks=report.networks
            )
    if report.pretraining:
        pictures["pretraining"] = plots.losses(report.pretraining, title="Pre-training", networks=report.networks)
    return pictures


def page(report: Report, pictures: dict[str, bytes]) -> str:
    """The HTML page, whole in itself."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        report=report,
        pictures={name: base64.b64encode(png).decode() for name, png in pictures.items()},
        tables={task.name: report_tables.table(report, task.name) for task in report.tasks},
        slug=slug,
        spaced=spoken_name,
        words=report_tables,
    )


def predictions(report: Report) -> bytes:
    """predictions.npz: test labels and predictions. Rows of tags stand one after the other, with their lengths under
    test-lengths/TASK."""
    arrays = {}
    for task in (task for task in report.tasks if task.gold is not None):
        arrays[f"test-labels/{task.name}"] = _flat(task.gold)
        if task.kind == "tagging":
            arrays[f"test-lengths/{task.name}"] = np.array([len(row) for row in task.gold], np.int32)
    for cell in report.cells:
        if cell.predictions is not None:
            arrays[cell.key.file_name.removesuffix(".json")] = _flat(cell.predictions)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def slug(name: str) -> str:
    """A task's name in file names."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name)


def _flat(values: tuple[Any, ...]) -> np.ndarray:
    if values and isinstance(values[0], tuple):
        values = tuple(tag for row in values for tag in row)
    return np.array(values, np.float64 if any(isinstance(value, float) for value in values) else np.int16)


def _difference(network: str, way: str, labels: int) -> str:
    return f"{network}{'' if way == FULL else ' ' + WAY_WORDS.get(way, way)}, {labels:,} labels"
