"""docs/growth: the table of tests/bench/growth.py as Markdown, its pictures, and all numbers as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growth_laws import LAWS, Found, find, levels

from zoo.atomic_file import replacing, write_atomically

COLOURS = ("#2f5d8a", "#c0392b", "#2e7d4f", "#d9a441")
# Why a fit departs, by the law's key: what was found when it was looked into.
_SCORES = (
    "FLOPs count products alone; masks, exponentials and their gradients pass over [T, T], too, and a fifth to a "
    "quarter of the time is the operating system's, which hands out the arrays' pages anew each step"
)
_CHUNKS = (
    "parameters and moments grow with V, temporaries do not: they are three arrays of 16 MiB, at small V of a chunk's "
    "logits, at V 65,536 the logits, the table's gradient by a chunk, and the sum of these in the place of the former "
    "two. The limit begins where the table is larger than a chunk"
)
_INDEX = "the index of rows is read whole: 30 bytes a row on disk, about 50 in memory"
_ORDER = "the order of an epoch sorts one random word a row: 4 bytes a row are kept, about 26 used"
_ENDS = "it is looked at whether the documents' ends ascend: 8 bytes a document"
NOTES: dict[str, str] = {
    "length, materialised: seconds": _SCORES,
    "length, materialised: token_seconds": "as the time of a step",
    "vocabulary: seconds": "the operating system hands out 64 MB for temporaries anew each step, in 30 ms whatever V: "
    "22 % of the time at V 8,192 and 4 % at 65,536; and larger products run faster",
    "vocabulary: program": _CHUNKS,
    "vocabulary: process": "as the program's",
    "devices, fsdp: seconds": "the temporaries of a device shrink towards the caches, so n = 4 is the fastest; at 16 "
    "each has one row, and every collective waits for 16 threads on one core",
    "devices, data: seconds": "each device updates all parameters: on the one core AdamW runs n times",
    "opening: open_seconds": _ENDS,
    "opening: open_memory": _ENDS,
    "opening: index_memory": "slices are packed 65,536 at a time: that work's own memory grows no more from there on",
    "opening: again_seconds": _INDEX,
    "opening: again_memory": _INDEX,
    "opening: batch_seconds": _ORDER,
    "opening: batch_memory": _ORDER,
}
# x of each figure, and what is held still.
FIGURES = {
    "length": "tokens a row, T",
    "batch": "rows a step, B",
    "depth": "layers, L",
    "vocabulary": "vocabulary, V",
    "devices": "virtual devices, n",
    "corpus": "bytes of text",
    "opening": "ids in the corpus",
}
HEAD = """# Growth

Written by `make bench BENCH=growth` (tests/bench/growth.py): how time and memory grow with the length of rows, their
number, depth, vocabulary, devices and the corpus. Each point is a process of its own on one core. Exponents are fitted
by least squares of logarithms over the upper half of a sweep, with their standard error. *In the limit* a single term
is left; *expected* is the exponent of the project's own formulas (FLOPs: train/plan/formulas.py, bytes:
train/plan/memory.py) at the very sizes of the fit, where others are left beside it, or the limit where there is none. A
fit departs where it is more than 0.1 and two standard errors away from what is expected.

Times are {clock}. Memory of the program is what the compiled step needs by its own account: arguments, results not
written over them, temporaries. Memory of the process is the arguments and what its resident memory rose by while steps
ran: open marks, where both are drawn.
"""


def write(folder: Path, records: Sequence[dict[str, Any]], facts: dict[str, Any]) -> list[Found]:
    """Writes growth.json, GROWTH.md and a PNG a figure.

    Args:
        folder: made where it is missing.
        records: values of all points, with "sweep", "x" and "settings".
        facts: machine, versions, load.

    Returns:
        what was found of each law.
    """
    found = [find(law, records) for law in LAWS]
    drawn = []
    for figure in FIGURES:
        own = [one for one in found if one.law.figure == figure and one.law.panel and one.points]
        if own:
            draw(own, FIGURES[figure], folder / f"{figure}.png")
            drawn.append(figure)
    kept = {
        "facts": facts,
        "laws": [_plain(one) for one in found],
        "points": sorted(records, key=lambda record: (record["sweep"], record["x"])),
    }
    write_atomically(folder / "growth.json", json.dumps(kept, indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "GROWTH.md", markdown(found, levels(records), facts, drawn))
    return found


def _plain(one: Found) -> dict[str, Any]:
    law = {name: getattr(one.law, name) for name in ("sweep", "value", "name", "limit")}
    fitted = None if one.fitted is None else dataclasses.asdict(one.fitted)
    return law | {"expected": one.expected, "departs": one.departs, "fitted": fitted}


def markdown(
    found: Sequence[Found], known: Sequence[tuple[str, str, str]], facts: dict[str, Any], drawn: Sequence[str] = ()
) -> str:
    """The page."""
    lines = [HEAD.format(clock=facts["clock"])]
    for figure, x in FIGURES.items():
        own = [one for one in found if one.law.figure == figure and one.points]
        if not own:
            continue
        lines += [f"## By {x}", ""]
        lines += [f"![{x}]({figure}.png)", ""] if figure in drawn else []
        lines += ["| | fitted | expected | in the limit | |", "|---|---|---|---|---|"]
        lines += [line(one) for one in own]
        settings = facts.get("settings", {})
        sizes = [f"- {one}: {settings[one]}" for one in dict.fromkeys(f.law.sweep for f in own) if one in settings]
        lines += ["", *sizes, *([""] if sizes else [])]
    if known:
        lines += ["## Not by the power alone", "", "| | measured | expected |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in known]
        lines += [""]
    lines += [f"{facts['machine']}. {facts['versions']}."]
    return "\n".join(lines) + "\n"


def line(one: Found) -> str:
    """A row of the table."""
    if one.fitted is None:
        return f"| {one.law.name} | {len(one.points)} points, too few | | {one.law.limit:g} | |"
    note = ""
    if one.departs:
        note = f"departs: {NOTES.get(one.law.key, 'not looked into')}"
    elif one.law.key in NOTES:
        note = NOTES[one.law.key]
    cells = (one.law.name, f"{one.fitted.exponent:.2f} ± {one.fitted.error:.2f}", f"{one.expected:.2f}")
    return f"| {' | '.join(cells)} | {one.law.limit:g} | {note} |"


def draw(found: Sequence[Found], x: str, path: Path) -> None:
    """A panel for each kind of quantity, both axes logarithmic: points, fits, and the expected slopes dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator

    panels = list(dict.fromkeys(one.law.panel for one in found))
    figure = Figure(figsize=(5 * len(panels), 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        own = [one for one in found if one.law.panel == panel]
        series = list(dict.fromkeys((one.law.sweep, _colour_key(one)) for one in own))
        for one in own:
            colour = COLOURS[series.index((one.law.sweep, _colour_key(one))) % len(COLOURS)]
            process = one.law.value == "process" and any(other.law.value == "program" for other in own)
            xs, ys = zip(*one.points, strict=True)
            if process:
                axes.plot(xs, ys, "o", color=colour, markerfacecolor="none", markersize=5)
                continue
            axes.plot(xs, ys, "o", color=colour, markersize=4, label=_legend(one))
            if one.fitted is not None:
                fitted = [point for point in xs if point >= one.fitted.first]
                axes.plot(fitted, [one.fitted.at(point) for point in fitted], color=colour)
                middle = (one.fitted.first * one.fitted.last) ** 0.5
                theory = [one.fitted.at(middle) * (point / middle) ** one.expected for point in fitted]
                axes.plot(fitted, theory, "--", color="#666666", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel=x, ylabel=panel)
        axes.set_xticks(ticks := sorted({point for one in own for point, _ in one.points}), map(_short, ticks))
        axes.tick_params(axis="x", labelsize=7)
        axes.minorticks_off()
        ys = [y for one in own for _, y in one.points]
        if max(ys) < 10 * min(ys):
            middle = (max(ys) * min(ys)) ** 0.5
            axes.set_ylim(middle / 4, middle * 4)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(ys) < 100 * min(ys) else (1,)))
        unit = {"b": "B", "s": "s"}.get(panel[0] if "/" not in panel else "")
        axes.yaxis.set_major_formatter(EngFormatter(unit) if unit else "{x:g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    with replacing(path) as hidden:
        figure.savefig(hidden, format="png")


def _colour_key(one: Found) -> str:
    return "memory" if one.law.value in ("program", "process") else one.law.value


def _legend(one: Found) -> str:
    if one.fitted is None:
        return one.law.name
    return f"{one.law.name}: {one.fitted.exponent:.2f} ± {one.fitted.error:.2f}"


def _short(number: float) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number:g}"
