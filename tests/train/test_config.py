"""TrainConfig and RunConfig: there and back, and refusals by name."""

import dataclasses
import json

import pytest

import zoo
from train.config import FREE_FIELDS, RunConfig, TrainConfig
from zoo.errors import InputError

RUN = RunConfig(zoo.ModelConfig(), TrainConfig(decay=("*kernel", "*/embedding"), clip_norm=None, steps=7))


def test_there_and_back(tmp_path):
    assert RunConfig.from_dict(json.loads(json.dumps(RUN.to_dict()))) == RUN
    RUN.save(tmp_path / "config.json")
    assert RunConfig.load(tmp_path) == RunConfig.load(tmp_path / "config.json") == RUN
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    hash(RUN)


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: TrainConfig(objective="next_tok"), 'objective is "next_tok"; did you mean "next_token"'),
        (
            lambda: TrainConfig().replace(learning_rat=1),
            'TrainConfig has no field "learning_rat"; did you mean "learning_rate"',
        ),
        (lambda: TrainConfig(batch_size=10, accumulate=3), "accumulate 3 does not divide batch_size 10"),
        (lambda: TrainConfig(steps=0), "steps is 0; it must be 1 or more"),
        (lambda: TrainConfig(steps=1.5), "steps is 1.5; it must be a whole number"),
        (lambda: TrainConfig(learning_rate="fast"), "learning_rate is 'fast'; it must be a number"),
        (lambda: TrainConfig(learning_rate=float("nan")), "learning_rate is nan; it must be a number"),
        (lambda: TrainConfig(tensorboard="yes"), "tensorboard is 'yes'; it must be true or false"),
        (lambda: TrainConfig(decay="*kernel"), "it must be a list of patterns"),
        (lambda: TrainConfig(mask_rate=1.0), "mask_rate is 1.0"),
        (lambda: TrainConfig(clip_norm=-1), "clip_norm is -1; it must be 0 or more"),
        (lambda: TrainConfig(whole_words=True), 'whole_words is a part of the objective "masked_lm"'),
        (lambda: RunConfig.from_dict({"model": {}}), 'a run\'s config needs the table "train"'),
        (lambda: RunConfig.from_dict({"model": {}, "train": {}, "modle": 1}), 'RunConfig has no field "modle"'),
        (lambda: RunConfig.load("nowhere"), "no config at nowhere"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_broken_file_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {')
    with pytest.raises(InputError, match="is not JSON"):
        RunConfig.load(tmp_path)


def test_changes_name_what_matters_and_nothing_else():
    free = {"log_every": 3, "driver": "mesh", "mesh": "data=8", "data": "elsewhere", "keep_last": 5}
    assert RUN.changes(RunConfig(RUN.model, RUN.train.replace(**free))) == []
    other = RunConfig(RUN.model.replace(dropout=0.5), RUN.train.replace(seed=1, **free))
    assert RUN.changes(other) == ["model.dropout was 0.0, now 0.5", "train.seed was 0, now 1"]
    assert set(FREE_FIELDS) <= {f.name for f in dataclasses.fields(TrainConfig)}


def test_next_token_rows_carry_one_id_more():
    assert TrainConfig(seq_len=64).row_length == 65
    assert TrainConfig(seq_len=64, objective="masked_lm").row_length == 64


def test_no_clipping_has_two_names():
    assert TrainConfig(clip_norm=0) == TrainConfig(clip_norm=0.0) == TrainConfig(clip_norm=None)
