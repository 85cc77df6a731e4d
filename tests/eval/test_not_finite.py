"""Outputs that are not finite are no answers: a diverged run has no scores, and is neither saved nor chosen."""

from dataclasses import replace

import jax
import pytest

from eval.cli import evaluate as command
from eval.encode import encode
from eval.experiment.live import Live
from eval.experiment.trial import Trial, limited
from eval.finetune import FinetuneConfig, NotFiniteError
from eval.predict import evaluate
from eval.transfer import protocol, run

WILD = FinetuneConfig(learning_rate=1e30, steps=1, epochs=0, max_length=16)


def test_nothing_is_scored(bert, topics, tokenizer, one):
    model, params = bert
    model, params = type(model)(model.config.replace(head="classifier", num_labels=2)), None
    params = jax.tree.map(lambda leaf: leaf * float("nan"), model.init(jax.random.key(0)))
    encoded = encode(topics.test, tokenizer, model.config, 16)
    with pytest.raises(NotFiniteError, match="outputs are not finite for 83 of 83 examples"):
        evaluate(model, params, encoded, devices=one)


def test_finetune_ends_with_one_line_and_saves_nothing(source, table, tmp_path, capsys):
    """It printed chance accuracy and "loss nan", saved, and left NaN in metrics.json."""
    words = ["finetune", source, "--data", table, "--learning-rate", "1e30", "--steps", "1", "--max-length", "16"]
    assert command([*words, "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "not finite" in err and "lower the learning rate" in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_cell_fails_and_a_rate_loses(source, topics, one, tmp_path):
    trial = Trial("tiny", source, limited(topics, test=40, validation=20), WILD, (16,), (0,))
    outcome = run([trial], tmp_path / "a", with_baseline=False, devices=one, live=Live(str))
    assert len(outcome.cells) == 2 and all("not finite" in cell.failure for cell in outcome.cells)
    tuned = replace(trial, rates=(1e30, 3e-3), scratch=False, ways=("full", "probe"))
    outcome = run([tuned], tmp_path / "b", with_baseline=False, devices=one, live=Live(str))
    assert outcome.rates["made-up-topics", "tiny", "pretrained", "full"] == 3e-3
    assert not any(cell.failure for cell in outcome.cells)
    said = protocol([tuned], outcome)["tiny on made-up-topics"]
    assert "the linear probe is a closed form, without rate or steps" in said and "by linear probe" not in said
