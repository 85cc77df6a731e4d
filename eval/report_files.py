"""A report as files: report.html (pictures inside, no scripts), report.md, report.json, predictions.npz, plots/*.png.

Each file is written whole or not at all, the page last, so that a page that exists shows a finished report.
"""

import base64
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from eval import plots
from eval.metrics import spoken_name
from eval.report import Comparison, Report, Result, arm_name, difference_name
from eval.statistics import Interval
from zoo.atomic_file import write_atomically

SCHEMA = "oneblock.report/1"
TEMPLATE = Path(__file__).with_name("report.html.jinja")


def write(report: Report, folder: str | Path) -> Path:
    """Writes all files into `folder` (made where it is missing) and returns the page's path.

    Raises:
        InputError: the folder cannot be written, or the disk is full.
    """
    folder = Path(folder)
    pictures = draw(report)
    for name, png in pictures.items():
        write_atomically(folder / "plots" / f"{name}.png", png)
    write_atomically(folder / "predictions.npz", _predictions(report))
    write_atomically(folder / "report.json", json.dumps(as_dict(report), indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "report.md", markdown(report))
    write_atomically(folder / "report.html", page(report, pictures))
    return folder / "report.html"


def as_dict(report: Report) -> dict[str, Any]:
    """Plain types for JSON. Keys are the fields of `eval.report`'s dataclasses; predictions are in predictions.npz,
    under each cell's `file_name` without its ending."""
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
        comparison["words"] = source.words
    return {"schema": SCHEMA, "seconds": report.seconds, **plain}


def draw(report: Report) -> dict[str, bytes]:
    """File name without ending -> PNG."""
    pictures = {}
    for task in report.tasks:
        rows: dict[tuple[str, str], list[tuple[int, Interval]]] = {}
        for result in (result for result in report.results if result.task == task.name):
            points = rows.setdefault((result.network, result.arm), [])
            points.append((result.labels, result.metrics[task.main_metric]))
        curves = [plots.Curve(*key, tuple(sorted(points, key=lambda point: point[0]))) for key, points in rows.items()]
        pictures[f"curve-{_slug(task.name)}"] = plots.learning_curve(
            curves, title=task.title, metric=spoken_name(task.main_metric), networks=report.networks
        )
    titles = {task.name: task.title for task in report.tasks}
    for against, words in (("random", "random start"), ("tf-idf", "TF-IDF")):
        rows = [
            plots.Difference(
                titles[c.task], f"{c.network}, {c.labels:,} labels", c.network, c.difference.interval, c.test_interval
            )
            for c in report.comparisons
            if c.against == against
        ]
        if rows:
            measured = dict.fromkeys(c.metric for c in report.comparisons if c.against == against)
            names = " or ".join(map(spoken_name, measured))
            pictures[f"differences-{against}"] = plots.differences(
                rows, title=f"Pre-trained minus {words}", metric=names, networks=report.networks
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
        tables={task.name: table(report, task.name) for task in report.tasks},
        slug=_slug,
        spaced=spoken_name,
        score=_score,
        signed=_signed,
        ends=_ends,
        p=_p,
        arm_name=arm_name,
    )


def markdown(report: Report) -> str:
    """Tables for a README or an issue."""
    lines = [f"# {report.title}", ""]
    lines += [part for note in report.notes for part in (f"**{note}**", "")]
    lines += [*(f"- {line}" for line in report.headline), ""]
    for task in report.tasks:
        budgets, rows = table(report, task.name)
        lines += [f"## {task.title}: {spoken_name(task.main_metric)}", ""]
        lines += _markdown_table(
            ["", *(f"{budget:,} labels" for budget in budgets)],
            [[name, *(_score(r and r.metrics[task.main_metric]) for r in results)] for name, results in rows],
        )
        lines += _markdown_table(
            ["difference", "labels", "mean", "95 % over seeds", "p (t)", "p (flip)", "95 % over test set", "verdict"],
            [_comparison_row(c) for c in report.comparisons if c.task == task.name],
        )
    lines += ["## Protocol", "", *(f"- {name}: {value}" for name, value in report.protocol.items()), ""]
    machine = ", ".join(report.machine.values())
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines += [f"{report.created}; {machine}; {versions}."]
    return "\n".join(lines) + "\n"


def table(report: Report, task: str) -> tuple[list[int], list[tuple[str, list[Result | None]]]]:
    """Budgets, and a (name, result at each budget) for every network and arm of a task; None where a cell was not
    planned."""
    results = {(r.network, r.arm, r.labels): r for r in report.results if r.task == task}
    budgets = sorted({labels for _, _, labels in results})
    rows = dict.fromkeys((network, arm) for network, arm, _ in results)
    return budgets, [(arm_name(*row), [results.get((*row, budget)) for budget in budgets]) for row in rows]


def _comparison_row(c: Comparison) -> list[str]:
    d = c.difference
    return [
        difference_name(c),
        f"{c.labels:,}",
        _signed(d.interval.mean),
        _ends(d.interval),
        _p(d.p_t),
        _p(d.p_flip),
        _ends(c.test_interval),
        c.words,
    ]


def _markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)] + [""]


def _predictions(report: Report) -> bytes:
    arrays = {f"test-labels/{task.name}": np.array(task.gold, np.int16) for task in report.tasks}
    for cell in report.cells:
        if cell.predictions is not None:
            arrays[cell.key.file_name.removesuffix(".json")] = np.array(cell.predictions, np.int16)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name)


def _score(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval.mean:.3f}" + ("" if interval.half_width is None else f" ± {interval.half_width:.3f}")


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def _ends(interval: Interval | None) -> str:
    return "" if interval is None or interval.low is None else f"{interval.low:+.3f} to {interval.high:+.3f}"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"
