"""The pictures of a report: learning curves, differences with their intervals, pre-training losses.

One style throughout. Colour is the network (Okabe and Ito's palette, told apart by colour-blind readers), line and
fill are the arm: solid and filled for pre-trained, dashed and open for random start, dash-dotted crosses for shuffled
labels, dotted black squares for the baseline. The marker is the way of adapting: circles for all parameters, triangles
for a probe, diamonds for LoRA. Each function returns the bytes of a PNG, drawn by Agg without a display and without
pyplot's global state.
"""

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eval.experiment.cells import ARM_WORDS, BASELINE_WORDS, FULL, WAY_WORDS
from eval.experiment.statistics import Interval
from zoo.errors import InputError

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, GRID = "#222222", "#666666", "#E3E3E3"
ARM_STYLE: dict[str, dict[str, Any]] = {
    "pretrained": {"linestyle": "-", "marker": "o", "markersize": 6.5},
    "random": {"linestyle": (0, (5, 2.5)), "marker": "o", "markersize": 6.5, "markerfacecolor": "white"},
    "shuffled": {"linestyle": (0, (4, 2, 1, 2)), "marker": "x", "markersize": 6.5},
    "baseline": {"linestyle": (0, (1, 2)), "marker": "s", "markersize": 5.5, "color": INK},
}
WAY_MARKER = {FULL: "o", "probe": "^", "lora": "D", "head": "v", "top": "P"}
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
}


@dataclass(frozen=True)
class Curve:
    """One line of a learning curve: a network in one arm and way, and its score at each label budget."""

    network: str
    arm: str
    points: tuple[tuple[int, Interval], ...]
    way: str = FULL


@dataclass(frozen=True)
class Difference:
    """One row of `differences`: what is compared, its interval over seeds, and (thin, where there is one) over test
    examples."""

    group: str
    name: str
    network: str
    interval: Interval
    test_interval: Interval | None = None


@dataclass(frozen=True)
class LossCurve:
    """A pre-training run: losses in nats a predicted token at each step; only one objective's losses are comparable."""

    network: str
    objective: str
    steps: tuple[int, ...]
    losses: tuple[float, ...]


def learning_curve(curves: Sequence[Curve], *, title: str, metric: str, networks: Sequence[str] = ()) -> bytes:
    """Score against labels, with interval bars over seeds.

    Args:
        curves: the lines.
        title: above the plot.
        metric: what the score is, for the axis.
        networks: all networks of the report, so that each keeps its colour from plot to plot.
    """
    if not curves or not all(curve.points for curve in curves):
        raise InputError("a learning curve needs at least one point a line")
    colours = _colours([*networks, *(curve.network for curve in curves if curve.arm != "baseline")])
    budgets = sorted({labels for curve in curves for labels, _ in curve.points})
    with _figure(7.6, 4.4) as (figure, axes):
        for number, curve in enumerate(curves):
            style = {"color": colours.get(curve.network, INK)} | ARM_STYLE[curve.arm]
            if curve.way != FULL and curve.arm == "pretrained":
                style["marker"] = WAY_MARKER.get(curve.way, "*")
            shift = 1.022 ** (number - (len(curves) - 1) / 2)  # so that bars at one budget do not hide one another
            xs = [labels * shift for labels, _ in curve.points]
            ys = [interval.mean for _, interval in curve.points]
            axes.plot(xs, ys, linewidth=1.8, zorder=3, **style)
            for x, (_, interval) in zip(xs, curve.points, strict=True):
                if interval.low is not None:
                    axes.plot(
                        [x, x], [interval.low, interval.high], color=style["color"], linewidth=1.3, alpha=0.65, zorder=2
                    )
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
        axes.set_xticks([], minor=True)
        pad = 1.25 if len(budgets) > 1 else 1.6
        axes.set_xlim(budgets[0] / pad, budgets[-1] * pad)
        if all(0 <= interval.mean <= 1 for curve in curves for _, interval in curve.points):
            low, high = axes.get_ylim()  # wide intervals of few seeds reach where no score does
            axes.set_ylim(max(low, -0.02), min(high, 1.02))
        axes.set_xlabel("labelled training examples (log scale)")
        axes.set_ylabel(metric)
        axes.set_title(title)
        _legend(axes, curves, colours)
        return _png(figure)


def differences(rows: Sequence[Difference], *, title: str, metric: str, networks: Sequence[str] = ()) -> bytes:
    """A forest plot: each difference with its interval against a line at zero.

    A filled marker says that the interval over seeds excludes zero, an open one that it does not (or that there is
    none).

    Args:
        rows: from top to bottom; equal `group`s stand together.
        title: above the plot.
        metric: what is subtracted, for the axis.
        networks: all networks of the report, for their colours.
    """
    if not rows:
        raise InputError("a plot of differences needs at least one row")
    colours = _colours([*networks, *(row.network for row in rows)])
    groups = list(dict.fromkeys(row.group for row in rows))
    height, ticks = 0.0, []
    with _figure(7.6, 1.9 + 0.29 * len(rows) + 0.42 * len(groups)) as (figure, axes):
        for group in groups:
            height += 1.3
            ticks.append((height, group, True))
            for row in (row for row in rows if row.group == group):
                height += 1.0
                ticks.append((height, row.name, False))
                colour, interval = colours[row.network], row.interval
                if row.test_interval is not None and row.test_interval.low is not None:
                    ends = [row.test_interval.low, row.test_interval.high]
                    axes.plot(ends, [height + 0.27] * 2, color=FAINT, linewidth=1.0, zorder=2)
                if interval.low is not None:
                    axes.plot([interval.low, interval.high], [height] * 2, color=colour, linewidth=2.4, zorder=3)
                face = colour if interval.excludes_zero else "white"
                axes.plot(interval.mean, height, "o", markersize=7, color=colour, markerfacecolor=face, zorder=4)
        axes.axvline(0, color=INK, linewidth=1.2, zorder=1)
        axes.grid(False, axis="y")
        axes.set_yticks([y for y, _, _ in ticks], [name for _, name, _ in ticks])
        for label, (_, _, bold) in zip(axes.get_yticklabels(), ticks, strict=True):
            label.set(fontweight="bold" if bold else "normal", color=INK)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(height + 0.8, 0.5)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"difference in {metric}")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        _differences_legend(figure, any(row.test_interval is not None for row in rows))
        return _png(figure)


def losses(curves: Sequence[LossCurve], *, title: str, networks: Sequence[str] = ()) -> bytes:
    """Pre-training loss against step, one panel an objective.

    Args:
        curves: the runs.
        title: above the plot.
        networks: all networks of the report, for their colours.
    """
    if not curves:
        raise InputError("a loss plot needs at least one run")
    for curve in curves:
        if not curve.steps or len(curve.steps) != len(curve.losses):
            raise InputError(f"loss curve of {curve.network}: {len(curve.steps)} steps and {len(curve.losses)} losses")
    colours = _colours([*networks, *(curve.network for curve in curves)])
    objectives = list(dict.fromkeys(curve.objective for curve in curves))
    with _figure(7.6, 3.6, panels=len(objectives)) as (figure, panels):
        for axes, objective in zip([panels] if len(objectives) == 1 else panels, objectives, strict=True):
            for curve in (curve for curve in curves if curve.objective == objective):
                colour = colours[curve.network]
                if len(curve.steps) > 40:
                    axes.plot(curve.steps, curve.losses, color=colour, linewidth=0.7, alpha=0.3)
                smooth = _smooth(curve.losses) if len(curve.steps) > 40 else curve.losses
                axes.plot(curve.steps, smooth, color=colour, linewidth=1.8, label=curve.network)
            axes.set_title(objective, fontsize=10, fontweight="normal", pad=6)
            axes.set_xlabel("step")
            axes.legend(loc="upper right")
        figure.axes[0].set_ylabel("loss (nats a predicted token)")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        return _png(figure)


def _colours(networks: Sequence[str]) -> dict[str, str]:
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(networks))}


def _smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and its neighbours, up to a fortieth of the run and as far to one side as to the other."""
    out, last = [], len(values) - 1
    for i in range(len(values)):
        reach = min(max(1, len(values) // 40), i, last - i)
        window = [v for v in values[i - reach : i + reach + 1] if math.isfinite(v)]
        out.append(sum(window) / len(window) if window else math.nan)
    return out


def _legend(axes: Any, curves: Sequence[Curve], colours: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    shown = dict.fromkeys(curve.network for curve in curves if curve.arm != "baseline")
    handles = [Line2D([], [], color=colours[network], linewidth=3, label=network) for network in shown]
    plain = {"color": FAINT, "linewidth": 1.8}
    for arm in (arm for arm in ARM_STYLE if arm != "baseline" and any(curve.arm == arm for curve in curves)):
        handles.append(Line2D([], [], **plain | ARM_STYLE[arm], label=ARM_WORDS[arm]))
    ways = dict.fromkeys(curve.way for curve in curves if curve.arm == "pretrained")
    for way in ways if set(ways) != {FULL} else ():
        marker = {"marker": WAY_MARKER.get(way, "*"), "markersize": 6.5, "linestyle": "none", "color": FAINT}
        handles.append(Line2D([], [], **marker, label=WAY_WORDS.get(way, way)))
    for name in dict.fromkeys(curve.network for curve in curves if curve.arm == "baseline"):
        handles.append(Line2D([], [], **plain | ARM_STYLE["baseline"], label=BASELINE_WORDS.get(name, name)))
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=2.8, labelspacing=0.7)


def _differences_legend(figure: Any, with_test: bool) -> None:
    from matplotlib.lines import Line2D

    dot = {"color": FAINT, "marker": "o", "markersize": 7, "linestyle": "none"}
    handles = [Line2D([], [], color=FAINT, linewidth=2.4, label="95 % over seeds (Student's t)")]
    if with_test:
        handles.append(
            Line2D([], [], color=FAINT, linewidth=1.0, label="95 % over test examples and seeds (bootstrap)")
        )
    handles.append(Line2D([], [], **dot, label="over seeds, zero is excluded"))
    handles.append(Line2D([], [], **dot, markerfacecolor="white", label="zero is not excluded"))
    figure.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=9, handlelength=2.2, columnspacing=2.5)


@contextlib.contextmanager
def _figure(width: float, height: float, panels: int = 1) -> Iterator[tuple[Any, Any]]:
    """`with _figure(width, height) as (figure, axes)`: a blank figure, in inches, in the house style."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(1, panels)


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
