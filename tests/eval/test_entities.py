"""Entities out of tags, in the cases that evaluations disagree on, and scores by hand."""

import pytest

from eval.scores.entities import EntityCounts, are_entities, count_entities, entities, table, total
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
    # Bare tags, as BioBERT's files have them.
    ("B I I O B B", [("_", 0, 3), ("_", 4, 5), ("_", 5, 6)]),
    ("O I O E I", [("_", 1, 2), ("_", 3, 4), ("_", 4, 5)]),
    ("S B E", [("_", 0, 1), ("_", 1, 3)]),
    ("B I-_ B-x I", [("_", 0, 2), ("x", 2, 3), ("_", 3, 4)]),
    ("B- I- O", [("_", 0, 2)]),
    # BILOU, of which that mode knows B, I and O.
    ("B-x U-x L-x", [("x", 0, 3)]),
    ("U-x U-x O U-y L-y", [("x", 0, 2), ("y", 3, 5)]),
    ("B-x L-x B-x", [("x", 2, 3)]),
    # What is no tag: the first letter counts as one.
    ("Bat bat Iat O bat", [("at", 0, 3), ("at", 4, 5)]),
    ("ORG ORG O LOC LOC ORG", [("OC", 3, 5)]),
]


@pytest.mark.parametrize("tags, expected", CASES)
def test_entities(tags, expected):
    assert entities(tags.split()) == expected


@pytest.mark.parametrize(
    ("tags", "are"),
    [
        ("O B-x I-x", True),
        ("O I-x", True),
        ("O B I", True),
        ("B I E S O", True),
        ("O B-x L-x U-x", True),
        ("O PER ORG", False),
        ("NN VB I", False),
        ("O", False),
        ("O E S", False),
    ],
)
def test_which_tags_are_those_of_entities(tags, are):
    assert are_entities(tags.split()) is are


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
