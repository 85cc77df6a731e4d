"""Kept predictions scored anew: equal to the kinds' own scores, on redrawn examples, and by chance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import metrics
from eval.experiment import rescore
from eval.task import Task
from zoo.errors import InputError


def task(kind, labels=(), main="accuracy"):
    return Task("t", "T", labels, ("x",), "y", "f", kind=kind, main_metric=main)


TOPICS = task("classification", ("a", "b", "c"))
RATINGS = task("regression", main="pearson")
TAGS = task("tagging", ("O", "B-x", "I-x", "B-y"), "entity_f1")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30))
def test_counted_examples_are_repeated_examples(rows):
    gold, said, counts = map(list, zip(*rows, strict=True))
    if not sum(counts):
        return
    many = [[value for value, n in zip(values, counts, strict=True) for _ in range(n)] for values in (gold, said)]
    for name in ("accuracy", "macro_f1", "matthews"):
        got = rescore.scorer(TOPICS, gold, said, name)(np.array(counts))
        assert got == pytest.approx(metrics.metric(name)(metrics.confusion(np.array(many[1]), np.array(many[0]), 3)))
    ratings = rescore.scorer(RATINGS, gold, said, "spearman")(np.array(counts))
    assert ratings == pytest.approx(metrics.RATING_METRICS["spearman"](many[1], many[0]))


def test_entities_add_up_over_sentences():
    """Sentence 1: one entity of two found; sentence 2: none, one predicted; sentence 3: exact."""
    gold = ((1, 2, 0, 3), (0, 0), (1,))
    said = ((1, 2, 0, 0), (3, 0), (1,))
    f1 = rescore.scorer(TAGS, gold, said, "entity_f1")
    assert f1() == pytest.approx(2 * 2 / (3 + 3))
    assert f1(np.array([1, 0, 1])) == pytest.approx(2 * 2 / (2 + 3))
    assert f1(np.array([0, 2, 3])) == pytest.approx(2 * 3 / (5 + 3))
    assert rescore.scorer(TAGS, gold, said, "entity_precision")() == pytest.approx(2 / 3)
    assert rescore.scorer(TAGS, gold, said, "entity_recall")(np.array([1, 0, 0])) == pytest.approx(1 / 2)
    assert rescore.scorer(TAGS, gold, said, "accuracy")() == pytest.approx(5 / 7)


def test_chance_is_what_the_predictions_would_score_anyhow():
    """Accuracy by chance: sum over classes of the share of labels times the share of predictions."""
    gold, said = [0] * 60 + [1] * 40, [0] * 50 + [1] * 50
    assert rescore.chance(TOPICS, gold, said, "accuracy") == pytest.approx(0.5, abs=0.02)
    assert rescore.chance(TOPICS, gold, gold, "accuracy") == pytest.approx(0.36 + 0.16, abs=0.02)
    assert rescore.chance(TOPICS, gold, [0] * 100, "accuracy") == pytest.approx(0.6)
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    assert abs(rescore.chance(RATINGS, x, x, "pearson")) < 0.05
    assert rescore.chance(TAGS, ((1, 0, 0, 0),) * 20, ((1, 0, 0, 0),) * 20, "accuracy") == pytest.approx(0.625, abs=0.1)


def test_what_is_kept():
    assert rescore.kept(TOPICS, np.array([0, 2], np.int32)) == (0, 2)
    assert rescore.kept(RATINGS, np.array([0.5, 2.0], np.float32)) == (0.5, 2.0)
    assert rescore.kept(TAGS, [np.array([0, 1]), np.array([2])]) == ((0, 1), (2,))
    assert rescore.kept(task("spans", main="answer_f1"), ["an answer"]) is None


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(InputError, match='no metric "pearsn" of regression; did you mean "pearson"'):
        rescore.require(task("regression", main="pearsn"))
    with pytest.raises(InputError, match="2 predictions for 1 test examples"):
        rescore.scorer(TOPICS, [0], [0, 1], "accuracy")
    with pytest.raises(InputError, match="cannot be computed from predictions alone"):
        rescore.scorer(task("spans"), [0], [0], "answer_f1")
    with pytest.raises(InputError, match="sentence 0 has 2 words and 1 predicted tags"):
        rescore.scorer(TAGS, ((0, 0),), ((0,),), "entity_f1")
