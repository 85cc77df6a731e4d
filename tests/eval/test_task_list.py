"""The list of tasks: all of them, whole descriptions, sizes of files that are at hand, nothing fetched."""

import json

import pytest

from eval import tasks
from eval.cli import evaluate
from eval.task_list import facts
from tests.eval.glue_files import mnli


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEBLOCK_CACHE", str(tmp_path / "cache"))


def test_every_task_has_a_row(capsys):
    assert evaluate(["tasks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(tasks.TASKS)
    by_name = {row["name"]: row for row in rows}
    assert by_name["mnli"]["labels"] == ["entailment", "neutral", "contradiction"]
    assert by_name["cola"]["metrics"] == ["matthews", "accuracy"] and by_name["cola"]["sizes"] == [8551, 1043, 1063]
    assert all(row["licence"] and row["source"] and row["reference"] and row["splits"] is None for row in rows)
    assert evaluate(["tasks"]) == 0
    out = capsys.readouterr().out
    assert all(f" {name} " in out for name in tasks.TASKS) and "glue_data" in out


def test_one_task_in_full_with_the_sizes_of_its_files(tmp_path, capsys):
    mnli(tmp_path / "glue")
    assert evaluate(["tasks", "mnli", "--folder", str(tmp_path / "glue")]) == 0
    out = capsys.readouterr().out
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    assert "2 matched, 1 mismatched" in lines["examples"]
    assert lines["left out"].strip() == "1 without a label that annotators agreed on"
    assert "diagnostic/diagnostic.tsv" in out and "accuracy" in lines["scored by"]
    assert facts(tasks.get("mnli"))["splits"] is None
    assert evaluate(["tasks", "sts-b"]) == 0
    assert "a number" in capsys.readouterr().out


def test_faults_are_one_line(tmp_path, capsys):
    assert evaluate(["tasks", "mnlii"]) == 2
    assert 'did you mean "mnli"' in capsys.readouterr().err
    assert evaluate(["tasks", "cola", "--folder", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
