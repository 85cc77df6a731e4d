"""Options of yes or no: alone, with no- before them, or with a value, whatever lies between yes and no."""

from dataclasses import dataclass

import pytest

from zoo.command_line import run


@dataclass(frozen=True)
class Given:
    """Fields.

    Attributes:
        folder: a place.
        words: or as the config has it.
        quiet: show nothing.
        checked: look first.
    """

    folder: str
    words: bool | None = None
    quiet: bool = False
    checked: bool = True


def fields(given: Given):
    """Say what was given."""
    print(given)


def named(path: str, overwrite: bool = False, name: str = ""):
    """Say what was given."""
    print(path, overwrite, name)


def said(capsys, *words) -> str:
    code = run("zoo", {"fields": fields, "named": named}, list(words))
    shown = capsys.readouterr()
    return shown.out.strip() if code == 0 else shown.err.strip()


@pytest.mark.parametrize(
    "words, words_is, quiet, checked",
    [
        ([], None, False, True),
        (["--words"], True, False, True),
        (["--words", "--quiet", "--no-checked"], True, True, False),
        (["--no-words", "--checked"], False, False, True),
        (["--words", "False", "--quiet", "False"], False, False, True),
        (["--words=True", "--quiet=True", "--checked=False"], True, True, False),
        (["--no-quiet", "--words", "True"], True, False, True),
    ],
)
def test_every_spelling_of_yes_and_no(words, words_is, quiet, checked, capsys):
    expected = f"Given(folder='x', words={words_is}, quiet={quiet}, checked={checked})"
    assert said(capsys, "fields", "x", *words) == expected
    assert said(capsys, "fields", "x", *[word.replace("no-", "no_") for word in words]) == expected


def test_other_words_are_left_alone(capsys):
    assert said(capsys, "named", "x", "--overwrite", "True", "--name", "True") == "x True True"
    assert said(capsys, "named", "x", "--name", "overwrite", "--no-overwrite") == "x False overwrite"


@pytest.mark.parametrize(
    "words, line",
    [
        (["--words=x"], '--words of "zoo fields" cannot be "x"; one of True, False'),
        (["--words", "x"], 'unexpected word x for "zoo fields"; see "python -m zoo fields --help"'),
        (["--wrods"], 'unknown option --wrods for "zoo fields"; did you mean "--words"?'),
        (["--no-wrods"], 'unknown option --no-wrods for "zoo fields"; did you mean "--words"?'),
        (["--no-words=True"], 'unknown option --no-words for "zoo fields"; did you mean "--words"?'),
    ],
)
def test_what_is_neither_is_one_line(words, line, capsys):
    assert said(capsys, "fields", "x", *words) == f"error: {line}"
