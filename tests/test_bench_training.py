"""The bench of training steps without its peers: rows by formula, batches, times, the rule on losses, resuming."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import zoo
from zoo.summary import summarise

BENCH = Path(__file__).resolve().parent / "bench"
NAMES = ("training", "training_rows", "training_peers", "contestant")


@pytest.fixture
def training(monkeypatch, tmp_path):
    """tests/bench/training.py, imported as its script imports the others, with a file of records of its own."""
    monkeypatch.syspath_prepend(str(BENCH))
    import training

    monkeypatch.setattr(training.bench, "KEPT", tmp_path)
    monkeypatch.setattr(training.bench, "RUN", "2031-02-03T00:00:00Z")
    yield training
    for name in NAMES:
        sys.modules.pop(name, None)


def values(training, first=9.0, last=7.0, rate=100.0, steps=16):
    losses = {"losses": [first, last], "steps": steps}
    return {"rate": rate, "cpu": 2.0, "peak": 2**30, "first_step": 5.0} | losses


def given(**changes):
    options = {"rows": ["gpt-tiny"], "contestants": ["ours", "keras"], "steps": 16, "rounds": 2}
    options |= {"again": False, "resume": False, "ours": "ours", "reference": "torch", "keras": "keras", "x": "x"}
    return argparse.Namespace(**options | changes)


def config_of(training, row):
    fields = {"vocab_size": row.vocabulary, "embed_dim": row.width, "num_layers": row.layers, "num_heads": row.heads}
    fields |= {"mlp_dim": row.mlp, "max_positions": row.positions, "tie_embeddings": True, "num_kv_heads": row.heads}
    fields |= {"head": "masked_lm", "pooler": False} if row.family == "bert" else {}
    return zoo.create(training.PRESETS[row.family], **fields).config


def test_rows_have_the_published_sizes_and_those_of_this_project(training):
    rows = training.ROWS
    assert rows["bert"].parameters == 109_514_298 and rows["gpt2"].parameters == 124_439_808
    for row in rows.values():
        # A summary reads out at every position.
        everywhere = summarise(config_of(training, row), row.length)
        assert row.parameters == everywhere.total_parameters
        assert replace(row, share=0.0).flops == pytest.approx(everywhere.training_flops_per_token, rel=1e-12)
    # Of the read-out, 0.15 counts: 6 (V D + D^2) fewer for the rest.
    full, part = replace(rows["bert"], share=1.0).flops, rows["bert"].flops
    assert full - part == pytest.approx(0.85 * 6 * (30522 * 768 + 768**2))


def test_batches_come_in_turn_and_masks_anew(training):
    from training_rows import MASK, batches, masked, masked_batches

    row = training.ROWS["bert-tiny"]
    ids = list(batches(row, 10))
    assert ids[0].shape == (16, 64) and ids[0].dtype == np.int32
    assert min(batch.min() for batch in ids) >= 150 and max(batch.max() for batch in ids) < 4096
    assert (ids[8] == ids[0]).all() and (ids[1] != ids[0]).any()
    assert next(batches(training.ROWS["gpt-tiny"], 1)).shape == (16, 65)
    first, eighth = (list(masked_batches(row, 9))[number] for number in (0, 8))
    assert (first.positions != eighth.positions).any()

    inputs, positions, labels, weights = again = masked(row, ids[0], 0)
    assert all((left == right).all() for left, right in zip(first, again, strict=True))
    # 154 of 1,024, nine or ten a row.
    assert weights.shape == positions.shape == (16, 10) and weights.sum() == round(0.15 * 16 * 64)
    assert set(weights.sum(axis=1)) == {9, 10}
    assert (np.diff(positions, axis=1) > 0).all() and (np.take_along_axis(ids[0], positions, 1) == labels).all()
    changed = np.zeros_like(ids[0], bool)
    np.put_along_axis(changed, positions, weights > 0, axis=1)
    assert (inputs == ids[0])[~changed].all()
    hidden = (inputs[changed] == MASK).mean()
    assert 0.7 < hidden < 0.9 and 0.03 < (inputs == ids[0])[changed].mean() < 0.2


def test_what_is_timed(training, monkeypatch):
    import training_rows

    row = training.ROWS["gpt-tiny"]
    wall, cpu = iter([0, 50, 50, 60, 60, 62, 62, 66, 66, 72]), iter([0, 90, 90, 99, 99, 102, 102, 110, 110, 121])
    monkeypatch.setattr(training_rows.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(training_rows.time, "process_time", lambda: next(cpu))
    found = training_rows.measured(lambda loss: loss, [9.0, 8.0, 7.0, 6.0, 5.0], row, row.parameters, {"threads": 2})
    assert found["rate"] == 1024 / 4 and found["spread"] == [1024 / 6, 512.0] and found["step"] == 4
    assert found["cpu"] == 8 and found["rate_cpu"] == 128 and found["first_step"] == 50
    assert found["losses"] == [7.0, 7.0] and found["steps"] == 3 and found["threads"] == 2
    assert found["flops"] == row.flops and found["parameters"] == row.parameters
    assert found["peak"] == pytest.approx(training_rows.peak_memory(), rel=0.01) and found["peak"] > 2**20


def test_another_number_of_parameters_is_refused(training):
    import training_rows

    row = training.ROWS["gpt-tiny"]
    training_rows.measured(float, [1.0] * 3, row, round(row.parameters * 1.009))
    with pytest.raises(ValueError, match="parameters are trained, and this row has 986,624"):
        training_rows.measured(float, [1.0] * 3, row, round(row.parameters * 1.011))


def test_losses_that_fall_alike(training):
    alike = {"ours": [values(training)], "theirs": [values(training, 9.1, 7.05)], "keras": [values(training, 9.0, 6.8)]}
    assert training.unlike(alike) == []
    lazy = values(training, 9.0, 8.4)
    assert training.unlike(alike | {"x": [lazy]}) == [
        "x: the loss fell by 0.600, and by 2.025 in the median contestant: not alike"
    ]
    # The median of rounds counts, one odd round does not.
    assert training.unlike(alike | {"x": [lazy, values(training), values(training)]}) == []
    assert len(training.unlike(alike | {"x": [values(training, float("nan"), 7.0)]})) >= 1
    few = training.unlike({"ours": [values(training, steps=4)]})
    assert few == ["too few steps to tell whether losses fall alike: --steps 14 or more"]
    assert training.unlike({"ours": []}) == []


def test_every_contestant_can_run(training):
    from training_peers import RUNS

    assert (
        {setting.library for setting in training.CONTESTANTS.values()} == {"ours", *RUNS} == set(training.INTERPRETERS)
    )
    for name, setting in training.CONTESTANTS.items():
        assert name.startswith(setting.library) and (setting.precision == "bf16") == name.endswith("bf16")
        assert setting.compiled == ("compiled" in name or setting.library == "litgpt")
    for row in training.ROWS.values():
        libraries = {each.library for each in training.CONTESTANTS.values() if row.family in each.families}
        assert libraries >= {"ours", "theirs", "keras", "x"} and ("litgpt" in libraries) == (row.family == "llama")


def test_turn_and_turn_about(training, monkeypatch, capsys):
    """Rounds are interleaved, a row that a library cannot build is left to the others, a failure is told and passed."""
    ran = []

    def result_of(words):
        ran.append((words[0], *words[3:6:2]))
        if words[0] == "x" and len(ran) > 3:
            raise training.bench.Failed("out of memory")
        return values(training, rate=100.0 * len(ran)) | {"versions": {}, "load": 0.0}

    monkeypatch.setattr(training.bench, "result_of", result_of)
    code = training.compare(given(contestants=["ours", "x", "litgpt"]))
    assert code == 1 and ran == [(name, run, "gpt-tiny") for name, run in [("ours", "ours"), ("x", "x")] * 2]
    shown = capsys.readouterr()
    assert "round 2, gpt-tiny, x: out of memory" in shown.err
    rows = [line.split() for line in shown.out.splitlines() if line.startswith("  ")]
    # ours 100 and 300, x 200 in the first round alone: twice ours there.
    assert [row[:2] + [row[5]] for row in rows] == [["ours", "200", "1.00"], ["x", "200", "2.00"]]
    kept = [json.loads(line) for line in (training.bench.KEPT / "training.jsonl").read_text().splitlines()]
    assert [(line["contestant"], line["round"], line["precision"]) for line in kept] == [
        ("ours", 1, "float32"), ("x", 1, "float32"), ("ours", 2, "float32"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "commit, kept_commit, changes, runs",
    [
        ("abc", "abc", {}, 1),
        ("abc", "abc", {"again": True}, 4),
        ("abc", "abc", {"steps": 8}, 4),
        ("abd", "abc", {}, 4),
        ("abc+", "abc+", {}, 4),
        ("abd+", "abc", {"resume": True}, 1),
    ],
)
def test_what_is_kept_is_not_run_again(training, monkeypatch, commit, kept_commit, changes, runs):
    ran = []
    monkeypatch.setattr(training.bench, "result_of", lambda words: ran.append(words) or values(training))
    monkeypatch.setattr(training.bench, "commit", lambda: kept_commit)
    path = training.bench.KEPT / "training.jsonl"
    # An older run of the same is passed over, and so are lines that are no records.
    for run, name, number in [("2", "keras", 2), ("3", "ours", 1), ("3", "keras", 1), ("3", "ours", 2)]:
        monkeypatch.setattr(training.bench, "RUN", f"2031-02-0{run}T00:00:00Z")
        training.bench.record("training", "gpt-tiny", name, number, values(training))
    path.write_text('{"bench": "training"}\nnone\n' + path.read_text())

    monkeypatch.setattr(training.bench, "RUN", "2031-02-09T00:00:00Z")
    monkeypatch.setattr(training.bench, "commit", lambda: commit)
    assert training.compare(given(**changes)) == 0 and len(ran) == runs
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["contestant"], last["round"]) == ("keras", 2)
    assert last["run"] == ("2031-02-03T00:00:00Z" if runs == 1 else "2031-02-09T00:00:00Z")


def test_a_missing_environment_is_named(training):
    at = {"ours": sys.executable, "keras": "no/such/python"}
    assert training.missing(given(contestants=["ours"], **at)) is None
    fault = training.missing(given(contestants=["ours", "keras-bf16"], **at))
    assert fault == (
        'no/such/python is not there, for keras-bf16: "make bench BENCH=training" makes it, or name one with --keras'
    )
