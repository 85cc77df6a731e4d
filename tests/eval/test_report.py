"""The report: numbers by hand, verdicts that say what intervals say, files that hold all of it, missing cells named."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from eval import metrics, report
from eval.experiment import report_files
from eval.experiment.cells import Cell, CellKey, key_of
from eval.experiment.plots import LossCurve
from eval.experiment.statistics import mean_interval
from eval.tasks import Example, Splits, Task
from zoo.errors import InputError

GOLD = tuple(i % 2 for i in range(200))
TASK = report.TaskFacts(
    name="toy",
    title="Toy <b>texts</b>",
    main_metric="accuracy",
    labels=("no", "yes"),
    counts={"train": {"no": 1000, "yes": 2000}, "validation": {"no": 1, "yes": 2}, "test": {"no": 100, "yes": 100}},
    gold=GOLD,
    dropped={"with zero rating": 3},
    licence="CC0",
)
RIGHT = {
    ("small", "pretrained", 100): (160, 164, 162),
    ("small", "random", 100): (120, 124, 119),
    ("small", "pretrained", 400): (165, 150, 171),
    ("small", "random", 400): (150, 160, 155),
    ("tf-idf", "baseline", 100): (170, 174, 171),
    ("tf-idf", "baseline", 400): (160, 171, 151),
}


def cell(network, arm, labels, seed, right):
    predictions = np.array(GOLD)
    predictions[right:] = 1 - predictions[right:]
    scores = metrics.score(metrics.confusion(predictions, GOLD, 2))
    return Cell(CellKey("toy", network, arm, labels, seed), scores, 2.0 + seed, predictions, {"rate": 0.001})


CELLS = [cell(*place, seed, right) for place, rights in RIGHT.items() for seed, right in enumerate(rights)]
CURVES = [
    LossCurve("small", "masked LM", tuple(range(50)), tuple(5 - i / 50 for i in range(50))),
    LossCurve("gpt", "next token", (1, 2), (5.0, 4.0)),
]


def build(cells=CELLS, **changes):
    return report.build(cells, [TASK], title="A & B", protocol={"rate": "1e-3"}, created="2026-01-01", **changes)


@pytest.fixture(scope="module")
def built():
    return build(pretraining=CURVES, machine={"processor": "abacus"}, versions={"python": "3"})


@pytest.fixture(scope="module")
def written(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    assert report_files.write(built, folder) == folder / "report.html"
    return folder


def comparison(built, labels, against):
    return next(c for c in built.comparisons if (c.labels, c.against) == (labels, against))


def test_scores_and_differences(built):
    result = next(r for r in built.results if (r.network, r.arm, r.labels) == ("small", "pretrained", 100))
    assert result.metrics["accuracy"] == mean_interval([0.80, 0.82, 0.81])
    assert (result.seeds, result.seconds) == ((0, 1, 2), 3.0)
    gain = comparison(built, 100, "random")
    assert gain.difference.interval.mean == pytest.approx((0.2 + 0.2 + 0.215) / 3)
    assert gain.test_interval.mean == pytest.approx(gain.difference.interval.mean)
    assert gain.difference.interval.low > 0 and (gain.verdict, gain.words) == ("better", "excludes zero: better")
    loss = comparison(built, 100, "baseline")
    assert loss.difference.interval.high < 0 and loss.verdict == "worse" and "excludes zero: worse" in loss.words
    unsure = comparison(built, 400, "random")
    assert unsure.difference.interval.low < 0 < unsure.difference.interval.high
    assert (unsure.verdict, unsure.words) == ("undecided", "includes zero: undecided")
    assert len(built.comparisons) == 4 and built.networks == ("small",) and built.seeds == (0, 1, 2)


def test_the_three_lines(built):
    first, second, third = built.headline
    assert first.startswith("Largest gain: small on toy with 100 labels, accuracy 0.810 pre-trained against 0.605")
    assert "+0.205 (95 % interval +0.183 to +0.227, 3 seeds); the interval excludes zero: better." in first
    assert second == (
        "Pre-trained against random start, all 2: better in 1, worse in 0, undecided in 1; "
        "1 of the 1 decided at 0.05 after Holm's correction."
    )
    assert third == (
        "Pre-trained against TF-IDF, all 2: better in 0, worse in 1, undecided in 1; "
        "1 of the 1 decided at 0.05 after Holm's correction. 18 cells took 0.9 minutes."
    )


def test_no_gain_is_said_plainly():
    even = [
        cell(n, a, 400, s, r) for (n, a, b), rs in RIGHT.items() if b == 400 and n == "small" for s, r in enumerate(rs)
    ]
    headline = build(even).headline
    assert headline[0] == "No gain is shown: no 95 % interval of pre-trained minus random start lies above zero."
    assert "a baseline, not run" in headline[2]


def test_one_seed_decides_nothing(tmp_path):
    built = build([c for c in CELLS if c.key.seed == 0])
    assert all(c.verdict == "undecided" and c.words == "no interval (one seed): undecided" for c in built.comparisons)
    assert all(r.metrics["accuracy"].low is None for r in built.results)
    report_files.write(built, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["comparisons"][0]["difference"]["interval"]["low"] is None
    assert "±" not in (tmp_path / "report.md").read_text()


def test_where_the_two_intervals_disagree_it_is_said():
    """Ten test examples: steady over seeds, but another test set might say otherwise."""
    gold, half = (0, 1) * 5, (0,) * 10
    task = report.TaskFacts("tiny", "tiny", "accuracy", ("a", "b"), TASK.counts, gold)
    cells = []
    for seed, right in enumerate((6, 6, 7)):
        predictions = gold[:right] + tuple(1 - g for g in gold[right:])
        cells.append(Cell(CellKey("tiny", "n", "pretrained", 9, seed), {"accuracy": right / 10}, 1, predictions))
        cells.append(Cell(CellKey("tiny", "n", "random", 9, seed), {"accuracy": 0.45}, 1, half))
    (only,) = report.build(cells, [task], title="", protocol={}).comparisons
    assert only.difference.interval.low > 0
    assert only.words == "excludes zero: better; over test examples it includes zero"


def test_a_missing_cell_is_named():
    def without(*place):
        return [c for c in CELLS if (c.key.network, c.key.arm, c.key.labels, c.key.seed) != place]

    with pytest.raises(InputError, match="missing cell: task toy, network small, arm random, 400 labels, seed 1;"):
        build(without("small", "random", 400, 1))
    with pytest.raises(InputError, match="missing cell: task toy, network small, arm pretrained, 100 labels, seed 2;"):
        build(without("small", "pretrained", 100, 2))
    with pytest.raises(InputError, match="missing cell: task toy, network tf-idf, arm baseline, 100 labels, seed 0;"):
        build(without("tf-idf", "baseline", 100, 0))


def test_bad_cells_are_refused():
    def one(**changes):
        return [Cell(**{**vars(CELLS[0]), **changes}), *CELLS[1:]]

    with pytest.raises(InputError, match="at least one cell"):
        build([])
    with pytest.raises(InputError, match="two cells"):
        build([*CELLS, CELLS[0]])
    with pytest.raises(InputError, match="no accuracy among its metrics .macro_f1."):
        build(one(metrics={"macro_f1": 0.5}))
    with pytest.raises(InputError, match="3 predictions for 200 test examples"):
        build(one(predictions=(0, 1, 0)))
    with pytest.raises(InputError, match='no facts of this task; did you mean "toy"'):
        build(one(key=CellKey("toys", "small", "pretrained", 100, 0)))


def test_json_and_predictions_hold_everything(written, built):
    plain = json.loads((written / "report.json").read_text())
    assert plain["schema"] == report_files.SCHEMA and plain["headline"] == list(built.headline)
    assert plain["seconds"] == 54 and plain["machine"] == {"processor": "abacus"}
    assert plain["protocol"]["rate"] == "1e-3" and plain["protocol"]["p (Holm)"].endswith("; 4 here")
    assert {c["words"] for c in plain["comparisons"]} == {c.words for c in built.comparisons}
    arrays = np.load(written / "predictions.npz")
    assert tuple(arrays["test-labels/toy"]) == GOLD
    for found, source in zip(plain["cells"], CELLS, strict=True):
        assert key_of(found) == source.key
        assert found["metrics"] == source.metrics and found["config"] == {"rate": 0.001}
        assert tuple(arrays[found["predictions"]]) == source.predictions


def test_the_page_stands_alone(written, built):
    page = (written / "report.html").read_text()
    assert "<script" not in page and not re.search(r'(src|href)="(?!data:image/png;base64,)', page)
    assert "<b>texts</b>" not in page and "Toy &lt;b&gt;texts&lt;/b&gt;" in page and "A &amp; B" in page
    inside = {base64.b64decode(text) for text in re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", page)}
    beside = {path.read_bytes() for path in (written / "plots").glob("*.png")}
    assert inside == beside and all(png.startswith(b"\x89PNG") for png in beside)
    assert {path.stem for path in (written / "plots").iterdir()} == {
        "curve-toy",
        "differences-random",
        "differences-baseline",
        "pretraining",
    }
    for words in (
        *built.headline,
        "0.810 ± 0.025",
        "+0.183 to +0.227",
        "3,000 training",
        "left out: 3 with zero rating",
    ):
        assert words in page.replace("&#39;", "'")
    assert not [path for path in written.rglob(".*")], "no temporary file stays"


def test_markdown_tables(written):
    lines = (written / "report.md").read_text().splitlines()
    assert "|  | 100 labels | 400 labels |" in lines
    assert "| small, pre-trained | 0.810 ± 0.025 | 0.810 ± 0.134 |" in lines
    (row,) = [line for line in lines if line.startswith("| small pre-trained minus random start | 100 |")]
    start = "| small pre-trained minus random start | 100 | +0.205 | +0.183 to +0.227 | <0.001 | 0.250 |"
    assert row.startswith(start) and row.endswith("| excludes zero: better |")
    assert row.removeprefix(start).split("|")[0].strip() == "0.002"  # 4 x 0.0006
    # 0.810 pre-trained with 100 labels; random start has 0.605 there and 0.775 with 400.
    assert "| small | 100 | random start | more than 400 labels |  |" in lines
    assert "| small | 100 | TF-IDF | at most 100 labels |  |" in lines


def test_what_makes_numbers_mean_nothing_stands_above_them(built, tmp_path):
    few = build([cell for cell in CELLS if cell.key.seed < 2], notes=("Made-up <text>.",))
    two = "Only two seeds: their intervals are very wide, and next to nothing can be decided; three or more are needed."
    assert few.notes == ("Made-up <text>.", two) and built.notes == ()
    report_files.write(few, tmp_path)
    page, markdown = ((tmp_path / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert page.index("Made-up &lt;text&gt;.") < page.index(two) < page.index(few.headline[0])
    assert markdown.startswith(f"# A & B\n\n**Made-up <text>.**\n\n**{two}**\n\n- {few.headline[0]}")
    assert json.loads((tmp_path / "report.json").read_text())["notes"] == list(few.notes)
    (one,) = build([cell for cell in CELLS if cell.key.seed == 1]).notes
    assert one.startswith("Only one seed: there is no interval, ")


def test_facts_of_a_task():
    task = Task("t", "T", ("a", "b"), ("x",), "y", "f", licence="L")
    splits = Splits(task, (Example("p", None, 0),), (), (Example("q", None, 1), Example("r", None, 0)), {"empty": 2})
    facts = report.facts(splits)
    assert (facts.gold, facts.size("test"), facts.dropped, facts.licence) == ((1, 0), 2, {"empty": 2}, "L")


def test_machine_facts_name_no_host():
    import platform

    facts = report.machine_facts()
    assert int(facts["cores"]) >= 1 and platform.node() not in facts.values()
    assert {"python", "jax", "numpy"} <= set(report.version_facts())


def test_a_full_disk_leaves_no_half_of_a_report(built, tmp_path, monkeypatch):
    def full(path, data, real=Path.write_bytes):
        if path.suffix == ".md":
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="report.md: cannot be written: No space left"):
        report_files.write(built, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_intervals_of_accuracy_stay_in_its_range():
    found = mean_interval([1.0, 0.9], bounds=metrics.bounds("mismatched/accuracy"))
    assert found.high == 1.0 and found.low == pytest.approx(0.3147, abs=1e-3)
    assert metrics.bounds("pearson") == (-1.0, 1.0) and metrics.bounds("loss")[1] == float("inf")
