"""Comparisons by way, labels saved, controls, failures: what a report says of cells that are made up by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from eval import metrics, report
from eval.experiment import report_files
from eval.experiment.cells import Cell, CellKey
from eval.experiment.comparisons import ALPHA
from eval.experiment.statistics import holm

GOLD = tuple(i % 2 for i in range(200))
TASK = report.TaskFacts(
    name="toy",
    title="Toy",
    main_metric="accuracy",
    labels=("no", "yes"),
    counts={"train": {"no": 500, "yes": 500}, "validation": {"no": 1, "yes": 2}, "test": {"no": 100, "yes": 100}},
    gold=GOLD,
    near=3,
    warnings=("a label stands in every text",),
    digests={"test": "abc"},
)
RIGHT = {
    ("net", "pretrained", "full", 100): (160, 164, 162),
    ("net", "pretrained", "probe", 100): (150, 155, 151),
    ("net", "random", "full", 100): (120, 124, 119),
    ("net", "pretrained", "full", 400): (170, 174, 171),
    ("net", "pretrained", "probe", 400): (152, 156, 154),
    ("net", "random", "full", 400): (156, 158, 157),
    ("tf-idf", "baseline", "full", 100): (130, 132, 131),
    ("tf-idf", "baseline", "full", 400): (150, 172, 165),
}


def cell(network, arm, way, labels, seed, right, **more):
    predictions = np.array(GOLD)
    wrong = np.random.default_rng(seed).permutation(200)[right:]
    predictions[wrong] = 1 - predictions[wrong]
    scores = metrics.score(metrics.confusion(predictions, GOLD, 2))
    cost = {"training_flops": 2e12, "prediction_flops": 1e12} if arm != "baseline" else {}
    return Cell(CellKey("toy", network, arm, labels, seed, way), scores, 2.0, predictions, cost=cost, **more)


CELLS = [cell(*place, seed, right) for place, rights in RIGHT.items() for seed, right in enumerate(rights)]


def build(cells=CELLS, **changes):
    return report.build(cells, [TASK], title="Try", protocol={}, machine={}, versions={}, created="now", **changes)


def test_each_way_is_held_against_the_one_random_start_and_the_baseline():
    built = build()
    places = [(c.network, c.way, c.labels, c.against, c.other) for c in built.comparisons]
    assert places == [
        ("net", way, labels, against, other)
        for against, other in (("random", "net"), ("baseline", "tf-idf"))
        for way in ("full", "probe")
        for labels in (100, 400)
    ]
    probe = next(c for c in built.comparisons if (c.way, c.labels, c.against) == ("probe", 100, "random"))
    assert probe.difference.interval.mean == pytest.approx((30 + 31 + 32) / 3 / 200)
    assert [(r.network, r.arm, r.way) for r in built.results][::2] == [
        ("net", "pretrained", "full"), ("net", "pretrained", "probe"), ("net", "random", "full"),
        ("tf-idf", "baseline", "full"),
    ]  # fmt: skip


def test_p_values_are_corrected_over_the_whole_report():
    built = build()
    raw = [c.difference.p_t for c in built.comparisons]
    assert [c.p_holm for c in built.comparisons] == pytest.approx(holm(raw))
    assert built.protocol["p (Holm)"].endswith("; 8 here")
    for c in built.comparisons:
        assert c.holds == (c.verdict != "undecided" and c.p_holm < ALPHA)
    unsure = [c for c in built.comparisons if c.verdict != "undecided" and not c.holds]
    assert unsure and all("not once corrected for all comparisons" in c.words for c in unsure)
    assert f"{sum(c.holds for c in built.comparisons if c.against == 'random')} of the" in built.headline[1]


def test_labels_saved(tmp_path):
    """Random start has 0.605 with 100 labels and 0.785 with 400; the probe's 0.76 with 100 lies between."""
    built = build()
    (probe,) = [s for s in built.savings if (s.way, s.worth.labels, s.against) == ("probe", 100, "random")]
    low, high = (np.mean(RIGHT["net", "random", "full", labels]) / 200 for labels in (100, 400))
    score = np.mean(RIGHT["net", "pretrained", "probe", 100]) / 200
    assert probe.worth.needed == pytest.approx(100 * 4 ** ((score - low) / (high - low)))
    (full,) = [s for s in built.savings if (s.way, s.worth.labels, s.against) == ("full", 100, "random")]
    assert full.worth.words == "more than 400 labels"
    assert len(built.savings) == 8
    report_files.write(built, tmp_path)
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert "| net | 100 | random start | more than 400 labels |  |" in lines
    assert f"| net, linear probe | 100 | random start | {probe.worth.words} | {probe.worth.factor:.1f} |" in lines
    plain = json.loads((tmp_path / "report.json").read_text())
    assert {saving["worth"]["needed"] for saving in plain["savings"]} >= {"more"}
    assert "| net, pre-trained, linear probe | 2.0 s, 3 TFLOP | 2.0 s, 3 TFLOP |" in lines
    assert "3 test texts (1.5%) nearly repeat a training text" in "\n".join(lines).replace("3 test", "3 test")
    assert built.notes == ("toy: a label stands in every text",)


def test_a_cell_that_failed_is_shown_and_takes_its_seed_out(tmp_path):
    gone = CellKey("toy", "net", "random", 100, 1)
    failed = Cell(gone, {}, 1.0, failure="the loss is not finite at step 3 of 9")
    built = build([failed if c.key == gone else c for c in CELLS])
    assert built.failures == (failed,)
    result = next(r for r in built.results if (r.arm, r.labels) == ("random", 100))
    assert (result.seeds, result.failed) == ((0, 2), 1)
    full = next(c for c in built.comparisons if (c.way, c.labels, c.against) == ("full", 100, "random"))
    assert full.difference.interval.n == 2
    assert full.difference.interval.mean == pytest.approx(np.mean([160 - 120, 162 - 119]) / 200)
    assert built.notes[0].startswith("1 of 24 cells failed and have no score, so means and differences rest on fewer")
    report_files.write(built, tmp_path)
    for kind in ("md", "html"):
        text = (tmp_path / f"report.{kind}").read_text()
        assert "the loss is not finite at step 3 of 9" in text and "(1 failed)" in text


def test_a_row_that_failed_everywhere_leaves_the_others():
    cells = [Cell(c.key, {}, 0.0, failure="no") if (c.key.arm, c.key.labels) == ("random", 400) else c for c in CELLS]
    built = build(cells)
    assert {(c.against, c.labels) for c in built.comparisons} == {("random", 100), ("baseline", 100), ("baseline", 400)}
    nothing = build([Cell(c.key, {}, 0.0, failure="no") for c in CELLS])
    assert nothing.comparisons == () and nothing.headline[0] == "No network was compared with its random start."


@pytest.mark.parametrize(
    ("right", "verdict"),
    [((98, 103, 101), "at chance"), ((160, 164, 162), "above chance"), ((60, 140, 160), "undecided")],
)
def test_the_control_says_whether_labels_leak(right, verdict, tmp_path):
    shuffled = [cell("net", "shuffled", "full", 400, seed, count) for seed, count in enumerate(right)]
    built = build([*CELLS, *shuffled])
    (control,) = built.controls
    assert (control.verdict, control.labels, control.way) == (verdict, 400, "full")
    assert control.chance == pytest.approx(0.5, abs=0.01)
    assert control.difference.mean == pytest.approx(np.mean(right) / 200 - control.chance)
    assert built.headline[-1].startswith(f"Trained on shuffled labels, all 1: {verdict} in 1.")
    assert ("labels reach the network by another way" in built.headline[-1]) == (verdict == "above chance")
    assert len(built.comparisons) == 8, "the control is no arm of a comparison"
    report_files.write(built, tmp_path)
    assert verdict in (tmp_path / "report.md").read_text()


def test_chance_that_a_cell_brings_along_is_taken():
    """Spans keep no predictions to compute it from."""
    facts = replace(TASK, gold=None)
    told = [
        Cell(CellKey("toy", "net", "shuffled", 400, seed), {"accuracy": 0.2 + seed / 50}, 1.0, details={"chance": 0.21})
        for seed in range(3)
    ]
    cells = [replace(each, predictions=None) for each in CELLS]
    (control,) = report.build([*cells, *told], [facts], title="", protocol={}, machine={}, versions={}).controls
    assert (control.chance, control.verdict) == (pytest.approx(0.21), "at chance")
    told[2] = replace(told[2], details={})
    assert report.build([*cells, *told], [facts], title="", protocol={}, machine={}, versions={}).controls == ()


def test_tags_and_ratings_have_reports_too(tmp_path):
    rng = np.random.default_rng(0)
    gold = tuple(tuple(int(tag) for tag in rng.integers(0, 3, n)) for n in rng.integers(1, 9, 40))
    ratings = tuple(float(value) for value in rng.normal(size=40))
    facts = [
        report.TaskFacts("ner", "NER", "entity_f1", ("O", "B-x", "I-x"), TASK.counts, gold, kind="tagging"),
        report.TaskFacts("sts", "STS", "pearson", (), TASK.counts, ratings, kind="regression"),
    ]
    cells = []
    for seed in range(3):
        for arm, noise in (("pretrained", 0.2), ("random", 0.6)):
            draw = np.random.default_rng([seed, arm == "random"])
            tags = tuple(tuple(0 if draw.random() < noise else tag for tag in row) for row in gold)
            cells.append(Cell(CellKey("ner", "net", arm, 9, seed), {"entity_f1": 0.8 - noise}, 1.0, tags))
            said = tuple(float(value) for value in ratings + noise * draw.normal(size=40))
            cells.append(Cell(CellKey("sts", "net", arm, 9, seed), {"pearson": 0.9 - noise}, 1.0, said))
    built = report.build(cells, facts, title="", protocol={}, machine={}, versions={})
    assert all(c.test_interval.low > 0 for c in built.comparisons) and len(built.comparisons) == 2
    report_files.write(built, tmp_path)
    arrays = np.load(tmp_path / "predictions.npz")
    assert arrays["test-lengths/ner"].tolist() == [len(row) for row in gold]
    assert arrays["test-labels/ner"].tolist() == [tag for row in gold for tag in row]
    assert arrays["test-labels/sts"].tolist() == pytest.approx(ratings)
    assert "3 tags" in (tmp_path / "report.html").read_text()


def test_glue_scores_stand_beside_published_ones():
    names = {
        "cola": {"matthews": 0.5}, "sst-2": {"accuracy": 0.9}, "mrpc": {"f1": 0.8, "accuracy": 0.7},
        "sts-b": {"pearson": 0.8, "spearman": 0.8}, "qqp": {"f1": 0.8, "accuracy": 0.9}, "qnli": {"accuracy": 0.8},
        "mnli": {"accuracy": 0.7, "mismatched/accuracy": 0.8}, "rte": {"accuracy": 0.6}, "wnli": {"accuracy": 0.1},
    }  # fmt: skip
    facts = [
        report.TaskFacts(
            name, name, next(iter(scores)), ("a", "b"), {"train": {"a": 9}, "test": {"a": 2}}, None, benchmark="GLUE"
        )
        for name, scores in names.items()
    ]
    cells = [Cell(CellKey(name, "net", "pretrained", 9, 0), scores, 1.0) for name, scores in names.items()]
    (average,) = report.build(cells, facts, title="", protocol={}, machine={}, versions={}).averages
    once = 100 * np.mean([0.5, 0.9, 0.75, 0.8, 0.85, 0.8, 0.75, 0.6])
    twice = 100 * np.mean([0.5, 0.9, 0.75, 0.8, 0.85, 0.8, 0.7, 0.8, 0.6])
    assert (average.once, average.twice) == pytest.approx((once, twice))
    assert f"average of 8 scores {once:.1f}" in average.words and "WNLI is left out" in average.words
    assert "bert-base-cased" in average.table
    (few,) = report.build(cells[1:], facts, title="", protocol={}, machine={}, versions={}).averages
    assert few.once is None and few.words == "no average without cola"
    half = [replace(c, metrics={"accuracy": 0.7}) if c.key.task == "mnli" else c for c in cells]
    (few,) = report.build(half, facts, title="", protocol={}, machine={}, versions={}).averages
    assert few.words == "no average without mnli", "it used to end the report, after all its cells"
