"""A run's products with weights: measured once, kept, and no part of the model that the run makes."""

import json

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


def test_the_probe_times_both():
    assert 0.1 < train.matmul.gain() < 100
