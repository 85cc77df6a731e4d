"""Submission files: every test row, its own number, labels as the benchmark spells them."""

import json
import math

import numpy as np
import pytest

from eval import tasks
from eval.cli import evaluate
from eval.scores import submission
from eval.scores.submission import hidden_sets, spelled
from tests.eval.glue_files import HEADERS, MNLI, mnli, write
from zoo.errors import InputError


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_cola_with_a_quote_that_never_ends(tmp_path):
    write(tmp_path, "CoLA/test.tsv", ["index\tsentence", '0\t"Bill whistled past', "1\tthe house.", "2\t "], end="\r\n")
    task = tasks.get("cola")
    (hidden,) = hidden_sets("cola", tmp_path)
    assert hidden.name == "CoLA" and hidden.indices == ("0", "1", "2")
    assert [e.text_a for e in hidden.examples] == ['"Bill whistled past', "the house.", ""], "no row is left out"
    assert all(e.label == -1 for e in hidden.examples)
    path = submission.write(task, hidden, np.array([[0.1, 0.9], [3.0, 1.0], [0.0, 0.1]]), tmp_path / "out")
    assert path.read_bytes() == b"index\tprediction\n0\t1\n1\t0\n2\t1\n" and path.name == "CoLA.tsv"
    refused(lambda: submission.write(task, hidden, np.zeros((2, 2)), tmp_path), "CoLA", "2 outputs for 3")
    write(tmp_path, "CoLA/test.tsv", ["index\tsentence", "0\ta", "1\tb\tc"])
    refused(lambda: hidden_sets("cola", tmp_path), "test.tsv", "line 3", "3 fields where 2")
    write(tmp_path, "CoLA/test.tsv", ["index\tsentence", "0\ta", "0\tb"])
    refused(lambda: hidden_sets("cola", tmp_path), 'index "0" stands twice')


def test_mnli_writes_names_for_three_sets(tmp_path):
    mnli(tmp_path)
    head = MNLI.removesuffix("\tlabel1\tgold_label")
    row = "\t".join(["{0}", "1n", "1n", "fiction", "( a )", "( b )", "(ROOT)", "(ROOT)", "premise {0}", "claim {0}"])
    write(tmp_path, "MNLI/test_matched.tsv", [head, row.format(0), row.format(1)])
    write(tmp_path, "MNLI/test_mismatched.tsv", [head, row.format(0)])
    assert [hidden.name for hidden in hidden_sets("mnli", tmp_path)] == ["MNLI-m", "MNLI-mm"]
    pair = "0\tThe cat sat.\tThe cat did not sit."
    write(tmp_path, "diagnostic/diagnostic.tsv", ["index\tsentence1\tsentence2", pair])
    matched, mismatched, ax = hidden_sets("mnli", tmp_path)
    assert (mismatched.name, ax.name) == ("MNLI-mm", "AX") and ax.examples[0].text_b == "The cat did not sit."
    task, logits = tasks.get("mnli"), np.array([[0.0, 1.0, 2.0], [5.0, 1.0, 2.0]])
    assert spelled(task, logits) == ["contradiction", "entailment"]
    turned = ("contradiction", "entailment", "neutral")
    assert spelled(task, logits, turned) == ["neutral", "contradiction"], "labels go by name, not by number"
    refused(lambda: spelled(task, logits, ("a", "b", "c")), "entailment, neutral, contradiction", "a, b, c")
    path = submission.write(task, matched, logits, tmp_path)
    assert path.read_text() == "index\tprediction\n0\tcontradiction\n1\tentailment\n"


def test_sts_b_is_clipped_and_binary_tasks_write_digits(tmp_path):
    task = tasks.get("sts-b")
    assert spelled(task, np.array([-0.2, 2.3456, 7.0], np.float32)) == ["0.000", "2.346", "5.000"]
    refused(lambda: spelled(task, np.zeros((3, 1))), "(3, 1)", "(E,)")
    refused(lambda: spelled(task, np.array([1.0, math.nan])), "not finite")
    refused(lambda: spelled(tasks.get("cola"), np.zeros((3, 3))), "(3, 3)", "(E, 2)")
    for name, words in (("wnli", ["1"]), ("rte", ["not_entailment"]), ("qnli", ["not_entailment"]), ("qqp", ["1"])):
        assert spelled(tasks.get(name), np.array([[0.0, 1.0]])) == words
    head = HEADERS["STS-B"].removesuffix("\tscore")
    write(tmp_path, "STS-B/test.tsv", [head, "0\tnews\tx\t2012\t1\tnone\tnone\tone\ttwo"])
    (hidden,) = hidden_sets(task, tmp_path)
    path = submission.write(task, hidden, np.array([4.99951]), tmp_path)
    assert path.read_text() == "index\tprediction\n0\t5.000\n"


def test_qqp_is_numbered_by_id_and_mrpc_read_from_either_layout(tmp_path):
    write(tmp_path, "QQP/test.tsv", ["id\tquestion1\tquestion2", "7\ta b?\tc d?", "9\t\tc?"])
    (hidden,) = hidden_sets("qqp", tmp_path)
    assert hidden.indices == ("7", "9") and hidden.examples[1].texts == ("", "c?")
    write(tmp_path, "one/MRPC/test.tsv", ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t8\t9\tone\ttwo"])
    write(tmp_path, "two/MRPC/msr_paraphrase_test.txt", [HEADERS["MRPC"], "1\t8\t9\tone\ttwo"], start=b"\xef\xbb\xbf")
    assert hidden_sets("mrpc", tmp_path / "one") == hidden_sets("mrpc", tmp_path / "two")


def test_superglue_writes_json_lines(tmp_path):
    rows = [{"question": f"q {i}", "passage": "p", "idx": i} for i in (0, 1)]
    write(tmp_path, "BoolQ/test.jsonl", map(json.dumps, rows))
    (hidden,) = hidden_sets("boolq", tmp_path)
    path = submission.write(tasks.get("boolq"), hidden, np.array([[0.0, 1.0], [1.0, 0.0]]), tmp_path)
    assert path.name == "BoolQ.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"idx": 0, "label": "true"},
        {"idx": 1, "label": "false"},
    ]
    refused(lambda: hidden_sets("tweets", tmp_path), "tweets", "cola", "boolq")


def test_the_command_predicts_with_a_run(tmp_path, bert, tokenizer, capsys):
    from eval.finetune import FinetuneConfig, with_task_head
    from zoo.checkpoints import run_folder

    task = tasks.get("rte")
    model, params = with_task_head(*bert, FinetuneConfig(), 2, task.labels)
    run = tmp_path / "run"
    run.mkdir()
    run_folder.save(model, params, run, tokenizer)
    told = json.loads((run / "config.json").read_text())
    settings = {"finetune": {"task": "rte", "config": {"max_length": 16}}}
    (run / "config.json").write_text(json.dumps(told | settings))
    lines = [f"{i}\tharbor tide {i}\tsail anchor gull" for i in range(5)]
    write(tmp_path, "data/RTE/test.tsv", ["index\tsentence1\tsentence2", *lines])
    words = ["submit", str(run), "--folder", str(tmp_path / "data"), "--out", str(tmp_path / "up")]
    assert evaluate(words) == 0
    assert "RTE.tsv: 5 predictions" in capsys.readouterr().out
    written = (tmp_path / "up/RTE.tsv").read_text().splitlines()
    assert written[0] == "index\tprediction" and [line.split("\t")[0] for line in written[1:]] == list("01234")
    assert {line.split("\t")[1] for line in written[1:]} <= set(task.labels)
    assert evaluate([*words, "--task", "mnli"]) == 2
    assert "test_matched.tsv" in capsys.readouterr().err
    (run / "config.json").write_text(json.dumps(told))
    assert evaluate(words) == 2
    assert "--task cola" in capsys.readouterr().err


def test_a_regression_submits_numbers_in_range(tmp_path, bert, tokenizer, capsys):
    from eval.finetune import FinetuneConfig, with_task_head
    from eval.kinds import REGRESSION
    from zoo.checkpoints import run_folder

    model, params = with_task_head(*bert, FinetuneConfig(), 0, (), REGRESSION)
    params["classifier"]["bias"] = params["classifier"]["bias"] + 4.9
    run = tmp_path / "run"
    run.mkdir()
    run_folder.save(model, params, run, tokenizer)
    head = HEADERS["STS-B"].removesuffix("\tscore")
    rows = [f"{i}\tnews\tx\t2012\t1\tnone\tnone\tharbor tide {i}\tsail" for i in range(5)]
    write(tmp_path, "STS-B/test.tsv", [head, *rows])
    words = [
        "submit",
        str(run),
        "--task",
        "sts-b",
        "--folder",
        str(tmp_path),
        "--out",
        str(tmp_path),
        "--max-length",
        "16",
    ]
    assert evaluate(words) == 0, capsys.readouterr().err
    values = [float(line.split("\t")[1]) for line in (tmp_path / "STS-B.tsv").read_text().splitlines()[1:]]
    assert len(values) == 5 and all(4 < value <= 5 for value in values)
