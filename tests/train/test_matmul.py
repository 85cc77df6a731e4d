"""A run's products with weights: measured once, kept, and no part of the model that the run makes."""

import functools
import json
from types import SimpleNamespace

import pytest

import train.matmul
import zoo
from train.config import RunConfig, TrainConfig
from zoo.errors import InputError

MODEL = zoo.create("gpt2-tiny", num_layers=2, vocab_size=96, embed_dim=32, num_heads=2, mlp_dim=64).config


def test_a_run_measures_once_and_keeps_what_it_found(tmp_path, monkeypatch):
    config, folder = RunConfig(MODEL, TrainConfig()), tmp_path / "run"
    auto = RunConfig(config.model, config.train.replace(matmul="auto"))
    for gain, expected in ((1.9, "bfloat16"), (1.1, "float32")):
        monkeypatch.setattr(train.matmul, "gain", lambda gain=gain: gain)
        assert train.matmul.settled(auto, folder).train.matmul == expected
    folder.mkdir()
    kept = RunConfig(config.model, config.train.replace(matmul="bfloat16"))
    (folder / "config.json").write_text(json.dumps(kept.to_dict()))
    assert train.matmul.settled(auto, folder) == kept
    half = RunConfig(config.model.replace(dtype="bfloat16"), auto.train)
    assert train.matmul.settled(half, tmp_path / "other").train.matmul == "float32"
    assert train.matmul.settled(config, folder) == config


def test_what_a_runs_steps_compute():
    model, run = MODEL, TrainConfig(matmul="bfloat16")
    assert train.matmul.trained(RunConfig(model, run)) == model.replace(matmul_dtype="bfloat16")
    for matmul in ("", "float32"):
        said = train.matmul.trained(RunConfig(model, TrainConfig(matmul=matmul)))
        assert said == model.replace(matmul_dtype="float32")
    half = model.replace(dtype="bfloat16")
    assert train.matmul.trained(RunConfig(half, TrainConfig())) == half
    assert train.matmul.trained(RunConfig(half, run)).matmul_dtype == "bfloat16"
    with pytest.raises(InputError, match='^matmul "bfloat16" does not go with dtype "float16"; leave it out, or set '):
        train.matmul.trained(RunConfig(model.replace(dtype="float16"), run))
    with pytest.raises(InputError, match='matmul is "bf16"; nearest: "bfloat16"|matmul'):
        TrainConfig(matmul="bf16")


def test_the_gain_is_the_ratio_of_the_shortest_times(monkeypatch):
    """By a clock of its own: float32's five tries take 9, 6, 8, 7, 9 seconds, bfloat16's 4, 5, 3, 6, 4."""
    ticks = [tick for seconds in (9, 6, 8, 7, 9, 4, 5, 3, 6, 4) for tick in (0.0, float(seconds))]
    monkeypatch.setattr(train.matmul, "time", SimpleNamespace(perf_counter=functools.partial(ticks.pop, 0)))
    assert train.matmul.gain() == 2.0 and ticks == []
