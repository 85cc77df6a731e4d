"""The TF-IDF baseline: it learns what words tell, reads no test label, and its shortcut changes no prediction."""

import random

import numpy as np
import pytest
import scipy.sparse

from eval.experiment import baseline
from eval.experiment.baseline import fit_predict
from eval.tasks import Example
from zoo.errors import InputError

KINDS = ("stock shares profit bank".split(), "goal match player league".split(), "orbit moon rocket launch".split())


def examples(count, seed, noise=0.15):
    """Texts of five words, each of the label's own kind or, at times, of any; and filler."""
    draw = random.Random(seed)
    out = []
    for i in range(count):
        label = i % len(KINDS)
        kinds = [draw.choice(KINDS) if draw.random() < noise else KINDS[label] for _ in range(5)]
        out.append(Example(" ".join(["the", "a", *(draw.choice(kind) for kind in kinds)]), None, label))
    return out


TRAIN, TEST = examples(60, 0), examples(90, 1)


def share_right(prediction, test=TEST):
    return np.mean(prediction.predictions == [e.label for e in test])


def test_it_learns_and_states_its_settings():
    got = fit_predict(TRAIN, TEST)
    assert got.predictions.shape == (90,) and got.predictions.dtype == np.int32 and got.seconds > 0
    assert share_right(got) > 0.9
    assert got.config["folds"] == 5 and got.config["c"] in got.config["grid"] == [1.0, 10.0, 100.0]
    few = fit_predict(TRAIN[:12], TEST)
    assert (few.config["folds"], few.config["grid"], few.config["c"]) == (0, [], 10.0)
    assert share_right(few) > 0.6


def test_it_is_deterministic_and_reads_no_test_label():
    first = fit_predict(TRAIN, TEST, seed=3)
    other_labels = [Example(e.text_a, None, 0) for e in TEST]
    again = fit_predict(TRAIN, other_labels, seed=3)
    assert (first.predictions == again.predictions).all() and first.config == again.config
    alone = fit_predict(TRAIN, TEST[:7], seed=3)
    assert (alone.predictions == first.predictions[:7]).all(), "a test text is predicted alike in any company"


def test_shuffled_labels_score_chance():
    labels = [e.label for e in TRAIN]
    random.Random(0).shuffle(labels)
    shuffled = [Example(e.text_a, None, label) for e, label in zip(TRAIN, labels, strict=True)]
    assert abs(share_right(fit_predict(shuffled, TEST)) - 1 / 3) < 0.2


def test_fitting_in_the_span_of_the_rows_changes_nothing(monkeypatch):
    train, test = examples(60, 4, noise=0.6), examples(90, 5, noise=0.6)
    spanned = fit_predict(train, test)
    monkeypatch.setattr(baseline, "SPAN_LIMIT", 0)
    direct = fit_predict(train, test)
    assert spanned.config == direct.config
    assert (spanned.predictions == direct.predictions).all() and 0.4 < share_right(direct, test) < 0.9


def test_the_span_keeps_all_inner_products(rng):
    """What an L2-penalised fit sees of the rows is their products with one another and with the others."""
    rows, others = scipy.sparse.random_array((6, 50), density=0.4, rng=rng), rng.normal(size=(4, 50))
    rows = scipy.sparse.vstack([rows, rows[:1]], format="csr")  # one row twice: fewer directions than rows
    few, few_others = baseline._span(rows, scipy.sparse.csr_array(others))
    assert few.shape == (7, 6)
    np.testing.assert_allclose(few @ few.T, (rows @ rows.T).toarray(), atol=1e-9)
    np.testing.assert_allclose(few_others @ few.T, others @ rows.T.toarray(), atol=1e-9)


def test_marks_are_words_and_pairs_are_read():
    smiles = [Example(f"it is {'ab'[i % 2]} {(':)', ':(')[i // 2 % 2]}", None, i // 2 % 2) for i in range(20)]
    assert share_right(fit_predict(smiles, smiles), smiles) == 1.0
    second = [Example("same", ("good", "bad")[i % 2], i % 2) for i in range(20)]
    assert share_right(fit_predict(second, second), second) == 1.0


def test_folds_deal_every_class_evenly():
    labels = np.array([0] * 41 + [1] * 14)
    fold = baseline._fold_of(labels, 5, seed=0)
    for label, size in ((0, 41), (1, 14)):
        counts = np.bincount(fold[labels == label], minlength=5)
        assert counts.sum() == size and counts.max() - counts.min() <= 1
    assert (fold != baseline._fold_of(labels, 5, seed=1)).any()


def test_too_little_to_learn_from_is_refused():
    with pytest.raises(InputError, match="one class"):
        fit_predict([TRAIN[0], TRAIN[3]], TEST)
    with pytest.raises(InputError, match="no token"):
        fit_predict([Example(" ", None, 0), Example("\t", None, 1)], TEST)
