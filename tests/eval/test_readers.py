"""Rows of each format, literally; each fault named by file and line."""

import csv

import pytest

from eval.sources.readers import read_table, read_text
from zoo.errors import InputError


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_tsv_takes_quotes_as_they_are_and_breaks_lines_at_newlines_alone(tmp_path):
    path = put(tmp_path, "a.tsv", 'y\tsentence\r\n1\tsaid "yes\r\n\r\n0\tfeed\x0cline\u2028same line\n')
    table = read_table(path, "tsv")
    assert table.columns == ("y", "sentence")
    assert table.lines == (2, 4)
    assert table.rows == ({"y": "1", "sentence": 'said "yes'}, {"y": "0", "sentence": "feed\x0cline\u2028same line"})


def test_orange_has_three_header_lines(tmp_path):
    path = put(tmp_path, "a.tab", "Category\tText\nd\tstring\nclass\t\nearn\tnet profit\n")
    table = read_table(path, "orange")
    assert (table.lines, table.rows) == ((4,), ({"Category": "earn", "Text": "net profit"},))
    refused(lambda: read_table(put(tmp_path, "b.tab", "Category\tText\nd\tstring\nclass\t\n"), "orange"), "no rows")


def test_csv_fields_may_hold_commas_quotes_and_lines(tmp_path):
    path = put(tmp_path, "a.csv", 'sentence,y\n"one, ""two""\nthree",1\nfour,0\n')
    table = read_table(path, "csv")
    assert table.rows[0] == {"sentence": 'one, "two"\nthree', "y": "1"}
    assert table.lines == (2, 4)
    long = put(tmp_path, "long.csv", "sentence,y\n" + "a" * 200_000 + ",1\n")
    before = csv.field_size_limit()
    assert len(read_table(long, "csv").rows[0]["sentence"]) == 200_000
    assert csv.field_size_limit() == before
    refused(lambda: read_table(put(tmp_path, "b.csv", 'sentence,y\n"open,1\n'), "csv"), "b.csv", "not CSV")


@pytest.mark.parametrize("top", ["", "sep=;\r\n", "\ufeffsep=;\r\n"])
def test_csv_as_excel_writes_it_where_the_comma_is_decimal(tmp_path, top):
    path = put(tmp_path, "a.csv", top + 'y;"a, b; c";sentence\r\n1,5;;"one; ""two"", three"\r\n0;x;four, five\r\n')
    table = read_table(path, "csv")
    assert table.columns == ("y", "a, b; c", "sentence")
    assert [list(row.values()) for row in table.rows] == [["1,5", "", 'one; "two", three'], ["0", "x", "four, five"]]
    assert table.lines == ((3, 4) if top else (2, 3))
    tabs = read_table(put(tmp_path, "b.csv", "y\tsentence\n1\tone, two; three\n"), "csv")
    assert tabs.rows == ({"y": "1", "sentence": "one, two; three"},)
    commas = read_table(put(tmp_path, "c.csv", "y,what; why\n1,one; two\n"), "csv")
    assert commas.rows == ({"y": "1", "what; why": "one; two"},)
    refused(lambda: read_table(put(tmp_path, "d.csv", "sep=;\n\n"), "csv"), "d.csv", "a header is needed")


def test_json_lines(tmp_path):
    path = put(tmp_path, "a.jsonl", '{"text": "a\\nb", "y": 1}\n\n{"text": null, "y": true, "extra": 2.5}\n')
    table = read_table(path, "jsonl")
    assert table.columns == ("text", "y", "extra")
    assert table.rows == ({"text": "a\nb", "y": "1"}, {"text": "", "y": "true", "extra": "2.5"})
    refused(lambda: read_table(put(tmp_path, "b.jsonl", '{"a": 1}\n{"a": \n'), "jsonl"), "line 2", "not JSON")
    refused(lambda: read_table(put(tmp_path, "c.jsonl", "[1, 2]\n"), "jsonl"), "line 1", "list")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b" \n\n", ["empty"]),
        (b"y\tsentence\n", ["no rows"]),
        (b"y\ty\n1\t2\n", ["two columns", '"y"']),
        (b"y\tsentence\n1\ta\n1\ta\tb\n", ["line 3", "3 fields", "2 are needed", "y, sentence"]),
        (b"y\tsentence\n1\tcaf\xe9\n", ["line 2", "0xe9", "utf-8", "latin-1"]),
        ("y\tsentence\n1\tone\n".encode("utf-16"), ["the mark of UTF-16", "--encoding utf-16"]),
    ],
)
def test_faults_of_a_file(tmp_path, content, words):
    refused(lambda: read_table(put(tmp_path, "a.tsv", content), "tsv"), "a.tsv", *words)


def test_bytes_and_encodings(tmp_path):
    assert read_text(put(tmp_path, "bom.txt", b"\xef\xbb\xbfcaf\xc3\xa9")) == "café"
    assert read_text(put(tmp_path, "latin.txt", b"caf\xe9"), "latin-1") == "café"
    assert read_text(put(tmp_path, "excel.txt", "café".encode("utf-16")), "utf-16") == "café"
    refused(lambda: read_text(tmp_path / "latin.txt", "utf-88"), "utf-88", 'did you mean "utf-8"')


def test_a_missing_file_names_the_nearest_beside_it(tmp_path):
    put(tmp_path, "movies.tsv", "y\tsentence\n")
    refused(lambda: read_text(tmp_path / "movie.tsv"), 'did you mean "movies.tsv"')
    refused(lambda: read_text(tmp_path), "folder")


def test_a_missing_column_names_those_there(tmp_path):
    table = read_table(put(tmp_path, "a.tsv", "label\tsentence\n1\ta\n"), "tsv")
    refused(lambda: table.require("sentance"), "label, sentence", 'did you mean "sentence"')
    refused(lambda: table.require("zzz"), "one of label, sentence")
