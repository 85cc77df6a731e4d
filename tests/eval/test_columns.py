"""The text and the label column of a file: found where one choice is possible, asked for where it is not."""

import re
from pathlib import Path

import pytest

from eval.sources.columns import find
from eval.sources.readers import Table
from zoo.errors import InputError

TEXTS = [f"a text of some words {i}" for i in range(8)]
CLASSES = ["good", "bad"] * 4
NUMBERS = [str(i) for i in range(8)]


def table(**columns):
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return Table(Path("mine.csv"), tuple(columns), tuple(range(2, 10)), tuple(rows))


@pytest.mark.parametrize(
    "columns, found",
    [
        ({"sentence": TEXTS, "y": CLASSES}, ("sentence", "y")),
        ({"Review": TEXTS, "Stars": NUMBERS}, ("Review", "Stars")),
        ({"id": NUMBERS, "what_they_said": TEXTS, "verdict": CLASSES}, ("what_they_said", "verdict")),
        ({"verdict": CLASSES, "word": NUMBERS}, ("word", "verdict")),  # short texts: the one column that is left
        ({"text": TEXTS, "summary": TEXTS, "source": CLASSES, "label": NUMBERS}, ("text", "label")),
    ],
)
def test_one_choice_is_taken(columns, found):
    assert find(table(**columns)) == found


def test_what_is_given_is_taken_and_the_rest_found():
    whole = table(title=TEXTS, body=TEXTS, grade=CLASSES, source=CLASSES)
    assert find(whole, label="grade") == ("body", "grade")
    assert find(whole, text="title", label="source") == ("title", "source")
    assert find(table(q=TEXTS, s=TEXTS, same=CLASSES), text_b="s") == ("q", "same")


def test_one_column_is_a_file_separated_otherwise():
    with pytest.raises(InputError, match='mine.csv: one column alone, "text,label", where text and label are two;'):
        find(table(**{"text,label": TEXTS}))


@pytest.mark.parametrize(
    "columns, given, line",
    [
        (
            {"a": TEXTS, "b": CLASSES, "c": CLASSES},
            {},
            "which column holds the label? Say --label NAME; its columns are a, b, c",
        ),
        (
            {"a": TEXTS, "b": TEXTS, "c": CLASSES},
            {},
            "which column holds the text? Say --text NAME; its columns are a, b, c",
        ),
        ({"n": NUMBERS, "m": NUMBERS}, {}, "which column holds the label? Say --label NAME; its columns are n, m"),
        (
            {"review": TEXTS, "y": CLASSES},
            {"text": "reviw"},
            'no column "reviw" among review, y; did you mean "review"?',
        ),
    ],
)
def test_no_choice_or_several_are_asked_for(columns, given, line):
    with pytest.raises(InputError, match=f"^{re.escape(f'mine.csv: {line}')}$"):
        find(table(**columns), **given)
