"""JSON of strangers: one line and the place, in every reader."""

import json

import pytest

from eval.cli import evaluate
from eval.sources import strict_json
from eval.sources.own_file import from_file
from zoo import InputError

DEEP = "[" * 100_000
FAULTS = [
    ('"\\ud800"', "is half of a character"),
    ('"\\uDC01 x"', "\\udc01 is half of a character"),
    (DEEP, "nested too deeply"),
    ('{"a": NaN}', "NaN is no number of JSON"),
    ('{"a": -1e999}', "-1e999 is too large for a number"),
    ("{", "not JSON"),
]


@pytest.mark.parametrize(("text", "said"), FAULTS)
def test_what_cannot_be_read_is_one_line_with_its_place(text, said):
    with pytest.raises(InputError) as caught:
        strict_json.parse(text, "mine.json: line 3")
    line = str(caught.value)
    assert line.startswith("mine.json: line 3: ") and said in line and "\n" not in line


def test_whole_pairs_are_characters():
    assert strict_json.parse('"\\ud83d\\ude00 \\\\ud800"', "x") == "\U0001f600 \\ud800"


def rows(text):
    good = "\n".join(json.dumps({"text": f"a harbor {n}", "label": "ab"[n % 2]}) for n in range(30))
    return good + '\n{"text": ' + text + ', "label": "a"}\n'


def questions(text):
    """SQuAD's JSON with `text` as the title."""
    return '{"data": [{"title": ' + text + ', "paragraphs": []}]}'


def options(text):
    return '{"context": "c", "options": ["x", ' + text + '], "label": 0}\n'


@pytest.mark.parametrize(
    ("kind", "name", "made", "place"),
    [
        ("classification", "m.jsonl", rows, "m.jsonl: line 31: "),
        ("spans", "s.json", questions, "s.json: "),
        ("choice", "c.jsonl", options, "c.jsonl: line 1: "),
    ],
)
@pytest.mark.parametrize(("text", "said"), [FAULTS[0], FAULTS[2]])
def test_every_reader_of_a_file_of_ones_own(kind, name, made, place, text, said, tmp_path):
    (tmp_path / name).write_text(made(text))
    with pytest.raises(InputError) as caught:
        from_file(tmp_path / name, kind=kind)
    assert place in str(caught.value) and said in str(caught.value)


def test_a_cell_with_json_in_it(tmp_path):
    """ARC's question as a string of JSON, which is read once more."""
    (tmp_path / "arc.jsonl").write_text(json.dumps({"question": DEEP, "answerKey": "A"}))
    with pytest.raises(InputError, match="line 1: .*nested too deeply"):
        from_file(tmp_path / "arc.jsonl", kind="choice")


@pytest.mark.parametrize(("text", "said"), FAULTS)
def test_commands_that_read_what_runs_left_behind(text, said, tmp_path, capsys):
    for name in ("config.json", "metrics.json", "predictions.tsv", "report.json"):
        (tmp_path / name).write_text(text)
    run = str(tmp_path)
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "metrics.json", "predictions.tsv"):
        (tmp_path / "bare" / name).write_text(text)
    for words in (["glue", run], ["compare", run, run], ["compare", run + "/bare", run], ["finetune", "--again", run]):
        assert evaluate(words) == 2, words
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and err.startswith("error: ") and said in err, (words, err[:300])


@pytest.mark.parametrize("value", ['["a", "b"]', '{"en": "a"}'])
def test_a_list_is_no_text(value, tmp_path):
    """It used to become its JSON."""
    (tmp_path / "m.jsonl").write_text(rows(value))
    with pytest.raises(InputError, match='line 31: "text" holds a list or an object; one text'):
        from_file(tmp_path / "m.jsonl")


def test_text_in_an_encoding_that_spells_halves_of_characters(tmp_path):
    (tmp_path / "m.tsv").write_bytes(b"text\tlabel\n+2AA-\ta\n")
    with pytest.raises(InputError, match="is not utf-7"):
        from_file(tmp_path / "m.tsv", encoding="utf-7")
