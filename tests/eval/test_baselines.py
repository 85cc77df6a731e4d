"""Baselines of ratings and of tags: by hand, deterministic, blind to test labels."""

import numpy as np
import pytest

from eval.experiment import baselines
from eval.sources.tagged import TaggedExample
from eval.task import Task
from eval.tasks import Example
from zoo.errors import InputError


def task(kind, labels=()):
    return Task("t", "T", labels, ("x",), "y", "f", kind=kind)


TRAIN = [
    TaggedExample(("Paris", "is", "in", "Texas"), (1, 0, 0, 1)),
    TaggedExample(("paris", "Paris", "Hilton"), (2, 2, 2)),
    TaggedExample(("Paris", "sleeps"), (1, 0)),
]


def test_each_word_gets_its_most_frequent_tag():
    """Paris: 1 twice, 2 once. paris as written: 2. PARIS: in lower case 1 twice and 2 twice, so the first. Words seen
    once have tags 0 (is, in, sleeps), 1 (Texas), 2 (paris, Hilton), so a new word gets 0."""
    test = [TaggedExample(("Paris", "paris", "PARIS", "new", "Hilton"), (0,) * 5), TaggedExample((), ())]
    found = baselines.fit_predict(task("tagging", ("O", "place", "person")), TRAIN, test)
    assert list(found.predictions) == [(1, 2, 1, 0, 2), ()]
    others = [TaggedExample(example.words, (2,) * len(example.words)) for example in test]
    assert list(baselines.word_tags(TRAIN, others, 3).predictions) == list(found.predictions)
    with pytest.raises(InputError, match="no labelled word"):
        baselines.word_tags([], test, 3)


def pairs(count, seed):
    """Pairs of texts whose rating is the share of words that they have in common."""
    draw = np.random.default_rng(seed)
    words = [f"word{i}" for i in range(40)]
    out = []
    for _ in range(count):
        first, other = draw.choice(40, 8, replace=False), draw.choice(40, 8, replace=False)
        shared = draw.integers(0, 9)
        second = np.concatenate([first[:shared], other])[:8]
        rating = 5 * len(set(first) & set(second)) / 8
        out.append(Example(" ".join(words[i] for i in first), " ".join(words[i] for i in second), rating))
    return out


def test_ratings_of_pairs_are_learnt_from_what_their_texts_share():
    train, test = pairs(80, 0), pairs(60, 1)
    found = baselines.fit_predict(task("regression"), train, test, seed=1)
    assert found.predictions.dtype == np.float32 and found.config["folds"] == 5
    assert np.corrcoef(found.predictions, [e.label for e in test])[0, 1] > 0.9
    again = baselines.ridge(train, [Example(e.text_a, e.text_b, 0.0) for e in test], seed=1)
    assert (again.predictions == found.predictions).all() and again.config == found.config


def test_ratings_of_single_texts_and_few_examples():
    good, bad = ("fine lovely film", "dull poor film")
    train = [Example(good, None, 2.0), Example(bad, None, -2.0)] * 4
    found = baselines.ridge(train, [Example("lovely", None, 0.0), Example("dull", None, 0.0)])
    assert found.config == {"penalty": 1.0, "grid": [], "folds": 0}
    assert 2.0 >= found.predictions[0] > 0 > found.predictions[1] >= -2.0
    with pytest.raises(InputError, match="no token"):
        baselines.ridge([Example(" ", None, 1.0)], [])


def test_shuffled_ratings_are_not_learnt():
    train, test = pairs(80, 0), pairs(60, 1)
    order = np.random.default_rng(0).permutation(80)
    shuffled = [Example(e.text_a, e.text_b, train[i].label) for e, i in zip(train, order, strict=True)]
    errors = baselines.ridge(shuffled, test).predictions - [e.label for e in test]
    assert np.mean(errors**2) > 0.9 * np.var([e.label for e in test]), "no better than the mean rating"


def test_every_kind_has_its_own_or_says_so():
    assert [baselines.name_of(task(kind)) for kind in ("classification", "regression", "tagging")] == [
        "tf-idf", "tf-idf-ridge", "word-tags",
    ]  # fmt: skip
    with pytest.raises(InputError, match="no baseline for spans .*leave bow out"):
        baselines.name_of(task("spans"))
