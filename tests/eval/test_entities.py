"""Entities out of tags, in the cases that evaluations disagree on, and scores by hand."""

import pytest

from eval.scores.entities import EntityCounts, count_entities, entities, table, total
from zoo import InputError

# Every case was also put to seqeval 1.2.2 in its default mode; tests/parity/test_entities.py does it again.
CASES = [
    ("O O", []),
    ("", []),
    ("B-x I-x O B-y", [("x", 0, 2), ("y", 3, 4)]),
    ("B-x B-x", [("x", 0, 1), ("x", 1, 2)]),
    ("I-x I-x", [("x", 0, 2)]),  # I- with nothing before it
    ("O I-x O I-x", [("x", 1, 2), ("x", 3, 4)]),
    ("B-x I-y I-y", [("x", 0, 1), ("y", 1, 3)]),  # another type
    ("I-x B-x", [("x", 0, 1), ("x", 1, 2)]),
    ("B-x I-x E-x E-x", [("x", 0, 3), ("x", 3, 4)]),
    ("S-x I-x", [("x", 0, 1), ("x", 1, 2)]),
    ("B-x S-x B-x", [("x", 0, 1), ("x", 1, 2), ("x", 2, 3)]),
    ("B-geo-loc I-geo-loc I-geo", [("geo-loc", 0, 2), ("geo", 2, 3)]),
]


@pytest.mark.parametrize("tags, expected", CASES)
def test_entities(tags, expected):
    assert entities(tags.split()) == expected


def test_tags_without_a_prefix_are_types():
    assert entities("ORG ORG O LOC ORG".split()) == [("ORG", 0, 2), ("LOC", 3, 4), ("ORG", 4, 5)]


def test_scores_by_hand():
    """CoNLL-2003's rule: a boundary that is off by a word finds nothing, and costs precision and recall."""
    true = ["O O O B-MISC I-MISC I-MISC O".split(), "B-PER I-PER O".split()]
    predicted = ["O O B-MISC I-MISC I-MISC I-MISC O".split(), "B-PER I-PER B-LOC".split()]
    counts = count_entities(true, predicted)
    assert counts == {"LOC": EntityCounts(0, 1, 0), "MISC": EntityCounts(0, 1, 1), "PER": EntityCounts(1, 1, 1)}
    assert total(counts) == EntityCounts(1, 3, 2)
    assert total(counts).precision == pytest.approx(1 / 3)
    assert total(counts).recall == 0.5
    assert total(counts).f1 == pytest.approx(0.4)
    assert table(counts).splitlines() == [
        "type  precision  recall      F1  entities",
        "LOC      0.0000  0.0000  0.0000         0",
        "MISC     0.0000  0.0000  0.0000         1",
        "PER      1.0000  1.0000  1.0000         1",
        "all      0.3333  0.5000  0.4000         2",
    ]


def test_counts_add_over_sentences():
    """A mean of sentences' scores would be another number."""
    parts = [(["B-x"], ["B-x"]), (["B-x", "B-y"], ["O", "O"])]
    added = sum((total(count_entities([true], [guess])) for true, guess in parts), EntityCounts())
    whole = total(count_entities(*map(list, zip(*parts, strict=True))))
    assert added == whole == EntityCounts(1, 1, 3)


def test_nothing_predicted_or_nothing_true_is_nought_and_no_fault():
    for true, predicted in ((["O"], ["O"]), (["B-x"], ["O"]), (["O"], ["B-x"])):
        counts = total(count_entities([true], [predicted]))
        assert (counts.precision, counts.recall, counts.f1) == (0.0, 0.0, 0.0)


def test_sentences_and_words_must_match():
    with pytest.raises(InputError, match="1 tagged sentences for 2"):
        count_entities([["O"], ["O"]], [["O"]])
    with pytest.raises(InputError, match="sentence 1 has 2 words and 1 predicted tags"):
        count_entities([["O"], ["O", "O"]], [["O"], ["O"]])
