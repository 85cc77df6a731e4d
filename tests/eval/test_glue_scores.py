"""GLUE's averages by hand, and the published table beside ours."""

import pytest

from eval.scores.glue_scores import PUBLISHED, SCORED, GlueTable
from eval.sources.glue import GLUE
from zoo.errors import InputError

SCORES = {
    "cola": {"matthews": 0.5, "accuracy": 0.8},
    "sst-2": {"accuracy": 0.9},
    "mrpc": {"f1": 0.9, "accuracy": 0.8},
    "sts-b": {"pearson": 0.88, "spearman": 0.86, "mean_absolute_error": 0.5},
    "qqp": {"f1": 0.8, "accuracy": 0.9},
    "mnli": {"matched": {"accuracy": 0.84}, "mismatched": {"accuracy": 0.80}},
    "qnli": {"accuracy": 0.9},
    "rte": {"accuracy": 0.6},
}


def test_averages_by_hand():
    table = GlueTable.of(SCORES | {"wnli": {"accuracy": 0.1}})
    eight = [50, 90, 85, 87, 85, 82, 90, 60]
    assert table.average() == pytest.approx(sum(eight) / 8)
    nine = [50, 90, 85, 87, 85, 84, 80, 90, 60]
    assert table.average(mnli_twice=True) == pytest.approx(sum(nine) / 9)
    assert table.score("mrpc") == pytest.approx(85) and table.score("wnli") == pytest.approx(10)
    assert GlueTable.of(SCORES).average() == table.average(), "WNLI is left out"


def test_no_average_over_fewer_tasks():
    fewer = {task: found for task, found in SCORES.items() if task not in ("rte", "qqp")}
    table = GlueTable.of(fewer)
    assert table.missing() == ("qqp", "rte")
    with pytest.raises(InputError, match="without qqp, rte"):
        table.average()
    assert "| average | MNLI once, no WNLI | - |" in table.text()


def test_missing_scores_and_unknown_tasks_are_named():
    for scores, words in (
        ({"colla": {"matthews": 0.1}}, 'no task "colla"; did you mean "cola"'),
        ({"cola": {"accuracy": 0.1}}, 'cola: no "matthews"'),
        ({"mnli": {"matched": {"accuracy": 0.1}}}, 'mnli: no "mismatched"'),
        ({"mnli": {"matched": {}, "mismatched": {}}}, 'mnli, matched: no "accuracy"'),
    ):
        with pytest.raises(InputError) as caught:
            GlueTable.of(scores)
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_published_figures_stand_with_their_sources():
    assert set(SCORED) == {task.name for task in GLUE}
    for row in PUBLISHED:
        assert row.source and row.note and set(row.figures) <= set(SCORED)
        assert all(40 < value < 100 for figures in row.figures.values() for value in figures)
    # The second row's publisher gives the mean of its nine figures.
    figures = [value for values in PUBLISHED[1].figures.values() for value in values]
    assert sum(figures) / 9 == pytest.approx(79.5, abs=0.05)
    text = GlueTable.of(SCORES).text("mine")
    lines = text.splitlines()
    assert lines[0] == "| task | metric | mine | bert-base-cased | bert-base-uncased | BERT-large |"
    assert "| cola | Matthews | 50 | 56.53 | 56.3 | 60.6 |" in lines
    assert "| mnli | accuracy m/mm | 84/80 | 83.91/84.1 | 84.7 | 86.6 |" in lines
    assert "| wnli | accuracy | - | 56.34 | 53.5 | - |" in lines
    assert "| average | MNLI twice, no WNLI | 79.0 | 81.9 | - | - |" in lines
    assert all(row.source in text for row in PUBLISHED)
