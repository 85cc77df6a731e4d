"""The experiment on ratings and on tags: cells, baselines, controls, the report, through the same door as classes."""

import json
import random

import pytest

from eval import report
from eval.experiment import report_files
from eval.experiment.live import Live
from eval.experiment.plan import plan
from eval.experiment.trial import Trial, check
from eval.finetune import FinetuneConfig
from eval.sources.squad import Answer, SpanExample
from eval.sources.tagged import TaggedExample
from eval.task import Task
from eval.tasks import Example, Splits
from eval.transfer import run
from zoo import InputError

CONFIG = FinetuneConfig(learning_rate=3e-3, epochs=1, max_length=16)


@pytest.fixture(scope="module")
def ratings(topics):
    """How far from the class sea a text is, as a number with a little noise."""
    draw = random.Random(0)
    task = Task("made-up-ratings", "Ratings", (), ("x",), "y", "f", kind="regression", main_metric="pearson")
    task = Task(**{**vars(task), "metrics": ("pearson", "mean_absolute_error")})
    parts = (
        tuple(Example(e.text_a, None, 2.0 * e.label - 1 + 0.1 * draw.random()) for e in part)
        for part in (topics.train[:60], topics.validation[:10], topics.test[:24])
    )
    return Splits(task, *parts)


@pytest.fixture(scope="module")
def tags(topics):
    """The first word of each text of class 1 is an entity."""
    labels, metrics = ("O", "B-topic"), ("entity_f1", "accuracy")
    kind = {"kind": "tagging", "metrics": metrics, "main_metric": "entity_f1"}
    task = Task("made-up-tags", "Tags", labels, ("x",), "", "f", **kind)

    def tagged(example):
        words = tuple(example.text_a.split())
        return TaggedExample(words, (example.label, *[0] * (len(words) - 1)))

    parts = (tuple(map(tagged, part)) for part in (topics.train[:60], topics.validation[:10], topics.test[:24]))
    return Splits(task, *parts)


@pytest.mark.parametrize("kind", ["ratings", "tags"])
def test_an_experiment_of_another_kind(kind, source, one, tmp_path, request):
    splits = request.getfixturevalue(kind)
    trial = Trial("tiny", source, splits, CONFIG, (32,), (0, 1), control=True)
    outcome = run([trial], tmp_path, devices=one, live=Live(lambda line: None))
    assert [cell.key.arm for cell in outcome.cells] == [
        *["pretrained"] * 2, *["random"] * 2, *["shuffled"] * 2, *["baseline"] * 2,
    ]  # fmt: skip
    assert not any(cell.failure for cell in outcome.cells)
    assert {cell.key.network for cell in outcome.cells if cell.key.arm == "baseline"} == {
        {"ratings": "tf-idf-ridge", "tags": "word-tags"}[kind]
    }
    for cell in outcome.cells:
        assert set(cell.metrics) == set(splits.task.metrics) and len(cell.predictions) == 24
        if kind == "tags":
            assert [len(row) for row in cell.predictions] == [len(e.tags) for e in splits.test]
    again = run([trial], tmp_path, devices=one, live=Live(lambda line: None))
    assert again.cells == outcome.cells
    made = report.build(outcome.cells, [report.facts(splits)], title="", protocol={}, machine={}, versions={})
    assert len(made.comparisons) == 2 and all(c.test_interval is not None for c in made.comparisons)
    assert len(made.controls) == 1 and len(made.savings) == 2
    report_files.write(made, tmp_path)
    plain = json.loads((tmp_path / "report.json").read_text())
    assert plain["tasks"][0]["kind"] == splits.task.kind and plain["tasks"][0]["sizes"]["test"] == 24


def test_an_experiment_on_spans_with_its_control(source, one, tmp_path, topics):
    """Answers keep no predictions: chance comes with the cells of the control, and so into the report."""
    metrics = ("answer_f1", "exact_match")
    task = Task("made-up-spans", "Spans", (), ("x",), "y", "f", kind="spans", metrics=metrics, main_metric="answer_f1")

    def asked(number, example):
        first = example.text_a.split()[0]
        return SpanExample(f"q{number}", "", example.text_a, "which?", (Answer(first, 0),), False)

    parts = (
        tuple(asked(n, e) for n, e in enumerate(part))
        for part in (topics.train[:60], topics.validation[:10], topics.test[:24])
    )
    splits = Splits(task, *parts)
    trial = Trial("tiny", source, splits, CONFIG.replace(max_length=32), (16,), (0, 1), scratch=False, control=True)
    outcome = run([trial], tmp_path, with_baseline=False, devices=one, live=Live(lambda line: None))
    assert [cell.key.arm for cell in outcome.cells] == ["pretrained"] * 2 + ["shuffled"] * 2
    assert [set(cell.details) for cell in outcome.cells] == [set(), set(), {"chance"}, {"chance"}]
    assert not any(cell.failure or cell.predictions for cell in outcome.cells)
    assert run([trial], tmp_path, with_baseline=False, devices=one, live=Live(str)).cells == outcome.cells
    made = report.build(outcome.cells, [report.facts(splits)], title="", protocol={}, machine={}, versions={})
    (control,) = made.controls
    assert control.chance == pytest.approx(sum(cell.details["chance"] for cell in outcome.cells[2:]) / 2)
    assert made.headline[-1].startswith("Trained on shuffled labels, all 1: ")
    report_files.write(made, tmp_path)
    assert "shuffled labels" in (tmp_path / "report.md").read_text()


def test_a_way_that_a_kind_does_not_have_is_refused(tags, source):
    with pytest.raises(InputError, match='task made-up-tags: way "probe" is for classes and ratings, .*take "head"'):
        check([Trial("tiny", source, tags, CONFIG, (32,), (0,), ways=("full", "probe"))])


def test_what_cannot_be_measured_is_planned_as_failing(ratings, source, one, tmp_path, capsys):
    """More layers than the network has: cells that will fail, and say so beforehand."""
    config = CONFIG.replace(top_layers=9)
    trial = Trial("tiny", source, ratings, config, (32,), (0, 1), ways=("top",), scratch=False)
    found = plan([trial], tmp_path, with_baseline=False, devices=one, live=Live(str))
    (line,) = found.lines
    assert "top_layers is 9; this model has 1" in line.failure and found.seconds == 0
    found.show()
    assert "fails: made-up-ratings, tiny, pre-trained, top layers: top_layers is 9" in capsys.readouterr().out
    (cell, _) = run([trial], tmp_path, with_baseline=False, devices=one, live=Live(str)).cells
    assert cell.failure == line.failure and cell.metrics == {}


def test_what_a_kind_cannot_do_is_said_before_the_first_cell(source, ratings):
    spans = Task("s", "S", (), ("x",), "y", "f", kind="spans", metrics=("answer_f1",), main_metric="answer_f1")
    part = tuple(ratings.train[:4])
    with pytest.raises(InputError, match="there is no baseline for spans"):
        check([Trial("a", source, Splits(spans, part, (), part), CONFIG, (2,), (0,))], with_baseline=True)
    wrong = Task(**{**vars(ratings.task), "main_metric": "accuracy"})
    with pytest.raises(InputError, match='no metric "accuracy" of regression'):
        check([Trial("a", source, Splits(wrong, part, (), part), CONFIG, (2,), (0,))])
