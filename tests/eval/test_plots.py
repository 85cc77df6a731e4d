"""Plots: what is drawn, read from the drawing itself; the same bytes twice; bad input refused."""

import math

import pytest

from eval.experiment import plots
from eval.experiment.plots import Curve, Difference, LossCurve, differences, learning_curve, losses
from eval.experiment.statistics import Interval, mean_interval
from zoo.errors import InputError

POINTS = ((100, mean_interval([0.6, 0.62, 0.61])), (400, mean_interval([0.7, 0.72, 0.75])))
CURVES = [Curve("b", "pretrained", POINTS), Curve("b", "random", POINTS[:1]), Curve("tf-idf", "baseline", POINTS)]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were made, kept for a look."""
    figures = []
    png = plots._png
    monkeypatch.setattr(plots, "_png", lambda figure: figures.append(figure) or png(figure))
    return figures


def test_a_learning_curve_shows_means_bars_and_arms(drawn):
    png = learning_curve(CURVES, title="Title", metric="accuracy", networks=("a", "b"))
    assert png.startswith(b"\x89PNG") and png == learning_curve(CURVES, title="Title", metric="accuracy", networks="ab")
    axes = drawn[0].axes[0]
    lines = axes.get_lines()
    curves = [line for line in lines if line.get_marker() not in ("None", "", None)]
    bars = [line for line in lines if line.get_marker() in ("None", "", None)]
    assert [list(line.get_ydata()) for line in curves] == [[i.mean for _, i in c.points] for c in CURVES]
    assert [list(bar.get_ydata()) for bar in bars] == [[i.low, i.high] for c in CURVES for _, i in c.points]
    assert [line.get_color() for line in curves] == [plots.PALETTE[1], plots.PALETTE[1], plots.INK]
    assert [line.is_dashed() for line in curves] == [False, True, True]
    assert axes.get_xscale() == "log" and [t.get_text() for t in axes.get_xticklabels()] == ["100", "400"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["b", "pre-trained", "random start", "TF-IDF"]


def test_ways_are_told_apart_by_their_markers(drawn):
    curves = [Curve("a", "pretrained", POINTS, way) for way in ("full", "probe", "lora")]
    learning_curve([*curves, Curve("word-tags", "baseline", POINTS)], title="", metric="F1")
    axes = drawn[0].axes[0]
    markers = [line.get_marker() for line in axes.get_lines() if line.get_marker() not in ("None", "", None)]
    assert markers == ["o", "^", "D", "s"]
    texts = [t.get_text() for t in axes.get_legend().get_texts()]
    assert texts == ["a", "pre-trained", "all parameters", "linear probe", "LoRA", "most frequent tag of each word"]


def test_one_seed_has_no_bar(drawn):
    learning_curve([Curve("a", "random", ((10, mean_interval([0.5])),))], title="", metric="accuracy")
    assert len(drawn[0].axes[0].get_lines()) == 1


def test_a_filled_marker_means_that_zero_is_excluded(drawn):
    intervals = [Interval(0.2, 0.1, 0.3, 3), Interval(0.1, -0.1, 0.3, 3), Interval(0.1, None, None, 1)]
    rows = [Difference("task", f"row {i}", "a", interval, intervals[0]) for i, interval in enumerate(intervals)]
    assert differences(rows, title="", metric="accuracy").startswith(b"\x89PNG")
    axes = drawn[0].axes[0]
    markers = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() for line in markers] == [plots.PALETTE[0], "white", "white"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["task", "row 0", "row 1", "row 2"]
    assert any(list(line.get_xdata()) == [0, 0] for line in axes.get_lines()), "a line at zero"
    thick = [list(line.get_xdata()) for line in axes.get_lines() if line.get_linewidth() == 2.4]
    assert thick == [[0.1, 0.3], [-0.1, 0.3]]


def test_losses_have_a_panel_an_objective(drawn):
    curves = [
        LossCurve("a", "masked LM", (1, 2, 3), (5.0, 4.0, 3.0)),
        LossCurve("b", "next token", tuple(range(100)), tuple(5 - i / 100 for i in range(100))),
    ]
    assert losses(curves, title="").startswith(b"\x89PNG")
    first, second = drawn[0].axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("masked LM", "next token")
    assert list(first.get_lines()[0].get_ydata()) == [5.0, 4.0, 3.0]
    assert list(second.get_lines()[1].get_ydata()) == pytest.approx(curves[1].losses), (
        "smoothing bends no straight line"
    )


def test_smoothing_skips_what_is_not_finite():
    assert plots._smooth([1.0, math.nan, 3.0]) == [1.0, 2.0, 3.0]
    assert math.isnan(plots._smooth([math.nan])[0])


def test_nothing_to_draw_is_refused():
    for call in (
        lambda: learning_curve([], title="", metric=""),
        lambda: learning_curve([Curve("a", "random", ())], title="", metric=""),
        lambda: differences([], title="", metric=""),
        lambda: losses([], title=""),
        lambda: losses([LossCurve("a", "o", (1, 2), (1.0,))], title=""),
    ):
        with pytest.raises(InputError):
            call()
