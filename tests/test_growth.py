"""tests/bench/growth.py: fits of made-up power laws, the page's text, and what is measured again and what not."""

import importlib
import json
import math
import sys

import pytest

from tests.test_house import ROOT

sys.path.append(str(ROOT / "tests/bench"))
growth, laws, page, points = (
    importlib.import_module(name) for name in ("growth", "growth_laws", "growth_page", "growth_points")
)
from contestant import Failed  # noqa: E402

FACTS = {"machine": "A machine", "versions": "jax 1", "clock": "seconds of CPU", "settings": {"batch": "T 128"}}


@pytest.mark.parametrize("exponent,scale", [(2.0, 3e-9), (1.0, 1e6), (0.0, 7.0), (-0.5, 2.0)])
def test_a_power_law_is_found_exactly(exponent, scale):
    found = laws.fit([(x, scale * x**exponent) for x in (3, 50, 700, 9_000)])
    assert found.exponent == pytest.approx(exponent, abs=1e-12) and found.error < 1e-7
    assert found.scale == pytest.approx(scale, rel=1e-9) and (found.first, found.last, found.points) == (3, 9_000, 4)
    assert found.at(100.0) == pytest.approx(scale * 100**exponent)


def test_the_standard_error_by_hand():
    """At log x = -1, 0, 1 residuals of a slope 2 are h (1, -2, 1): a sum of squares of 6 h^2 over 1 degree and 2."""
    h = 0.05
    found = laws.fit([(math.exp(x), math.exp(2 * x + h * r)) for x, r in ((-1, 1), (0, -2), (1, 1))])
    assert found.exponent == pytest.approx(2) and found.error == pytest.approx(math.sqrt(3) * h)


def test_what_cannot_be_fitted_is_said():
    for points, words in (
        ([(1, 1), (2, 2)], "2 points are too few"),
        ([(1, 1), (2, 0), (3, 1)], "numbers above 0"),
        ([(1, 1), (2, math.inf), (3, 1)], "finite"),
        ([(2, 1), (2, 2), (2, 3)], "more than one x"),
    ):
        with pytest.raises(ValueError, match=words):
            laws.fit(points)


def test_the_upper_half():
    assert laws.upper_half([(5, 0), (1, 0), (2, 0), (4, 0), (3, 0)]) == [(3, 0), (4, 0), (5, 0)]
    assert [x for x, _ in laws.upper_half([(x, 0) for x in range(8)])] == [4, 5, 6, 7]
    assert len(laws.upper_half([(1, 0), (2, 0)])) == 2
    assert laws.slope([(1, 5.0), (2, 7.0), (4, 11.0)]) == pytest.approx(2)


def records(sweep, value, exponent, xs=(1, 2, 4, 8, 16, 32)):
    """A small part of a sweep far from the law, and a large part upon it."""
    return [
        {"sweep": sweep, "x": x, value: 5.0 * x**exponent if x > 2 else 1e4, "settings": growth.SWEEPS[sweep][2](x)}
        for x in xs
    ]


def law(sweep, value):
    return next(one for one in laws.LAWS if (one.sweep, one.value) == (sweep, value))


def test_departures_are_from_the_formula_at_the_same_sizes():
    limit = laws.find(law("corpus", "seconds"), records("corpus", "seconds", 1.05))
    assert limit.expected == 1 and limit.fitted.exponent == pytest.approx(1.05) and not limit.departs
    assert laws.find(law("corpus", "seconds"), records("corpus", "seconds", 1.2)).departs
    batch = laws.find(law("batch", "seconds"), records("batch", "seconds", 1.0))
    assert batch.expected == pytest.approx(1.0) and not batch.departs
    assert laws.find(law("batch", "seconds"), records("batch", "seconds", 1.0)[:2]).fitted is None


def test_theory_at_the_sizes_of_the_bench():
    """The formulas' own exponents over the fitted points: what grows is most of the whole there."""

    def expected(sweep, formula):
        _, xs, settings = growth.SWEEPS[sweep]
        return laws.fit(laws.upper_half([(x, formula(settings(x))) for x in xs])).exponent

    assert 1.6 < expected("length, materialised", laws.flops) < 2
    assert 1.6 < expected("length, blockwise", laws.flops) < 2
    assert 1.8 < expected("length, materialised", laws.program_bytes) < 2
    assert 0.9 < expected("length, blockwise", laws.program_bytes) < 1.05
    assert 0.9 < expected("depth, all kept", laws.program_bytes) < 1
    assert 0.1 < expected("depth, remat", laws.program_bytes) < 0.7
    assert 0.9 < expected("vocabulary", laws.flops) < 1


def test_the_page(tmp_path):
    measured = records("batch", "seconds", 1.0) + records("corpus", "process", 0.5) + records("batch", "program", 1.0)
    found = page.write(tmp_path, measured, FACTS)
    text = (tmp_path / "GROWTH.md").read_text()
    assert "| time of a step | 1.00 ± 0.00 | 1.00 | 1 |  |" in text
    assert "| memory to prepare | 0.50 ± 0.00 | 0.00 | 0 | departs: not looked into |" in text
    assert "- batch: T 128" in text and "![rows a step, B](batch.png)" in text and "depth.png" not in text
    assert "A machine. jax 1." in text and "Times are seconds of CPU." in text
    assert (tmp_path / "batch.png").read_bytes()[:4] == b"\x89PNG"
    kept = json.loads((tmp_path / "growth.json").read_text())
    assert len(kept["points"]) == len(measured) and len(kept["laws"]) == len(found) == len(laws.LAWS)
    one = next(one for one in kept["laws"] if one["sweep"] == "batch" and one["value"] == "seconds")
    assert one["fitted"]["exponent"] == pytest.approx(1) and not one["departs"]


def test_notes_belong_to_laws():
    assert set(page.NOTES) <= {one.key for one in laws.LAWS} and {one.figure for one in laws.LAWS} == set(page.FIGURES)
    assert {one.sweep for one in laws.LAWS} == set(growth.SWEEPS)


def test_levels():
    settings = growth.SWEEPS["depth, remat"][2](4)
    depth = [{"sweep": "depth, remat", "x": x, "temporaries": 1e6 + 2e6 * x, "settings": settings} for x in (1, 2, 4)]
    devices = [{"sweep": "devices, data", "x": x, "seconds": 2.0 * x, "share": 2.0, "settings": {}} for x in (1, 2)]
    del devices[0]["share"]
    levels_of_data = "2, and V D / P more: the tied table's gradient is summed for look-up and read-out apart"
    assert laws.levels(depth + devices) == [
        ("temporaries a layer, remat full", "2.00 MB", "1.31 MB: the stream, 1.05, and a gradient, 0.26"),
        ("bytes a device sends, data, / 4 P (1 - 1/n)", "2.00 at 2", levels_of_data),
        ("time of n devices / time of one, data", "2.00 at 2", "1, and what they say to each other"),
    ]


def test_known_points_are_not_run_again_and_a_failed_one_costs_itself_alone(tmp_path):
    kept, ran, said = tmp_path / "growth.jsonl", [], []
    wanted = list(growth.points(["batch"]))

    def run(point):
        ran.append(point.x)
        if point.x == 8 and len(ran) < 8:
            raise Failed("Traceback (most recent call last):\n  somewhere\nMemoryError: too much\n\n")
        return {"seconds": float(point.x), "program": 1000 * point.x, "load": 0.5}

    def measure(points, **more):
        return growth.measure(points, kept, run=run, say=said.append, **more)

    xs = [point.x for point in wanted]
    assert measure(wanted) == ["batch, 8: failed: MemoryError: too much"] and ran == xs
    assert len(growth.read(kept)) == len(wanted) - 1
    with kept.open("a") as file:
        file.write("cut shor\n[]\n")
    assert measure(wanted) == [] and ran == [*xs, 8]
    other = [growth.Point("batch", 2, wanted[0].settings | {"length": 64})]
    assert measure(other) == [] and measure(wanted) == [] and ran == [*xs, 8, 2]
    assert measure(wanted[:1], again=True) == [] and len(ran) == len(xs) + 3
    assert f"{len(xs) - 1} points of {len(xs)} are measured; 1 to go" in said
    assert said[1].startswith("1 of 7: batch, 2: 2e+03 ms, 0.002 MB (")
    values = growth.read(kept)[wanted[1].identity(growth.versions().get("jax"))]["values"]
    assert values == {"seconds": 4.0, "program": 4000, "sweep": "batch", "x": 4, "settings": wanted[1].settings}


def test_one_that_is_killed_is_named(tmp_path):
    def killed(point):
        raise Failed("")

    wanted = list(growth.points(["corpus"]))[:1]
    assert growth.measure(wanted, tmp_path / "kept.jsonl", run=killed, say=lambda line: None) == [
        "corpus, 1,000,000: failed: killed, without a word"
    ]


def test_a_step_is_measured():
    """One small step in this process: all that the laws read is there."""
    model = growth.MODEL | {"num_layers": 1, "vocab_size": 64, "max_positions": 64}
    found = points.run_step(growth.step(2, 32, model, activations=True))
    assert found["seconds"] > 0 and found["token_seconds"] == pytest.approx(found["seconds"] / 64)
    assert found["program"] >= found["arguments"] + found["temporaries"] > 12 * found["parameters"]
    assert found["activations"] > 0 and len(found["cpu"]) >= points.LEAST and found["clock"] == "cpu"
    assert {one.value for one in laws.LAWS if one.sweep == "vocabulary"} <= set(found) | {"process"}


def test_a_corpus_is_measured():
    found = points.run_corpus({"kind": "corpus", "bytes": 20_000})
    assert 20_000 <= found["bytes"] < 30_000 and found["tokens"] > 4_000 and found["seconds"] > 0
    opened = points.run_opening({"kind": "opening", "ids": 5_000, "row": 129, "batch": 8})
    assert 30 <= opened["rows"] <= 60 and 5 < opened["documents"] < 20
    values = {one.value for one in laws.LAWS if one.sweep == "opening"}
    assert {value for value in values if value.endswith("_seconds")} <= set(opened)
