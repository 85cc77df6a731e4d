"""Accuracy and macro-F1 against scikit-learn, added over any batches, and refused where shapes or classes are wrong."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from eval.metrics import accuracy, confusion, f1, macro_f1, matthews, score, spoken_name
from zoo.errors import InputError

CLASSES = st.integers(2, 5)


@st.composite
def answers(draw):
    """C, labels and predictions; constant and one-element ones are frequent."""
    classes, size = draw(CLASSES), draw(st.integers(1, 40))
    values = st.one_of(st.integers(0, classes - 1), st.just(0))
    rows = st.one_of(st.lists(values, min_size=size, max_size=size), st.just([classes - 1] * size))
    return classes, np.array(draw(rows)), np.array(draw(rows))


@given(answers(), st.integers(1, 41))
def test_equal_to_scikit_learn_in_batches_of_any_size(case, batch):
    classes, labels, predictions = case
    counts = np.zeros((classes, classes), np.int64)
    for start in range(0, len(labels), batch):
        # The last batch is filled up, as a compiled step needs it, with rows that must not count.
        fill = max(0, start + batch - len(labels))
        weights = np.r_[np.ones(min(batch, len(labels) - start), int), np.zeros(fill, int)]
        padded = [np.r_[a[start : start + batch], np.full(fill, -1)] for a in (predictions, labels)]
        counts = counts + confusion(*padded, classes, weights)
    assert (counts == confusion(predictions, labels, classes)).all() and counts.sum() == len(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "accuracy": accuracy_score(labels, predictions),
            "macro_f1": f1_score(labels, predictions, average="macro", zero_division=0),
            "micro_f1": f1_score(labels, predictions, average="micro", zero_division=0),
            "matthews": matthews_corrcoef(labels, predictions),
        }
        if classes == 2:
            expected["f1"] = f1_score(labels, predictions, zero_division=0)
    assert score(counts, tuple(expected)) == pytest.approx(expected, abs=1e-12)


def test_literal_values():
    counts = confusion([0, 0, 1, 2], [0, 1, 1, 2], 4)
    assert counts.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert accuracy(counts) == 0.75
    assert macro_f1(counts) == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    always_zero = confusion(np.zeros(4, int), [0, 0, 1, 1], 2)
    assert score(always_zero) == pytest.approx({"accuracy": 0.5, "macro_f1": (2 / 3 + 0) / 2})


def test_matthews_and_f1_of_two_classes():
    counts = confusion([1, 1, 1, 0, 0, 1], [1, 1, 0, 0, 1, 1], 2)  # TP 3, FP 1, FN 1, TN 1
    assert f1(counts) == 0.75
    assert matthews(counts) == pytest.approx((3 * 1 - 1 * 1) / (4 * 4 * 2 * 2) ** 0.5)
    one_class = confusion(np.ones(5, int), [0, 1, 1, 0, 1], 2)
    assert matthews(one_class) == 0.0 and f1(one_class) == pytest.approx(2 * 3 / (2 * 3 + 2))
    nobody = confusion(np.zeros(4, int), np.zeros(4, int), 2)
    assert matthews(nobody) == 0.0 and f1(nobody) == 0.0
    huge = np.array([[3_000_000_000, 1], [1, 3_000_000_000]])
    assert matthews(huge) == pytest.approx(1.0), "products of four counts pass 2^63"
    with pytest.raises(InputError, match="two classes and these are 3"):
        f1(confusion([0, 1, 2], [0, 1, 2], 3))
    assert spoken_name("matthews") == "Matthews" and spoken_name("mean_absolute_error") == "mean absolute error"


def test_the_mean_of_batch_scores_is_another_number():
    """Why counts are added and not scores."""
    first, second = confusion([0, 0, 0], [0, 0, 1], 2), confusion([1], [1], 2)
    assert macro_f1(first + second) != pytest.approx((macro_f1(first) + macro_f1(second)) / 2)
    assert accuracy(first + second) == 0.75 != (accuracy(first) + accuracy(second)) / 2


@pytest.mark.parametrize(
    ("predictions", "labels", "weights", "words"),
    [
        (np.zeros((3, 1), int), np.zeros(3, int), None, "(3, 1) and labels (3,)"),
        (np.zeros(3, int), np.zeros((3, 1), int), None, "(3,) and labels (3, 1)"),
        (np.zeros((3, 1), int), np.zeros((3, 1), int), None, "(B,)"),
        (np.zeros(2, int), np.zeros(3, int), None, "(2,) and labels (3,)"),
        (np.zeros(3, int), np.zeros(3, int), np.ones(2, int), "weights have shape (2,)"),
        (np.zeros(3, int), np.zeros(3, int), np.full(3, 0.5), "0 or 1"),
        (np.zeros(3), np.zeros(3, int), None, "predictions are float64"),
        (np.array([0, 2]), np.zeros(2, int), None, "predictions hold class 0 to 2; classes are 0 to 1"),
        (np.zeros(2, int), np.array([0, -1]), None, "labels hold class -1"),
    ],
)
def test_what_would_broadcast_or_wrap_is_refused(predictions, labels, weights, words):
    with pytest.raises(InputError) as caught:
        confusion(predictions, labels, 2, weights)
    assert words in str(caught.value)


def test_nothing_counted_and_unknown_names_are_refused():
    with pytest.raises(InputError, match="no example"):
        score(confusion(np.zeros(2, int), np.zeros(2, int), 2, np.zeros(2, int)))
    with pytest.raises(InputError, match='did you mean "accuracy"'):
        score(np.eye(2, dtype=int), ["acuracy"])
