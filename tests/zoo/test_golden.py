"""Three families against numbers of the reference library, without it: 1e-5 of the largest number, in float32."""

import json

import numpy as np
import pytest

from tests.golden.recipe import HERE, batch, error, write_folder
from zoo.checkpoints import load

NAMES = sorted(path.stem for path in HERE.glob("*.json"))


def test_all_families_are_there():
    families = {json.loads((HERE / f"{name}.json").read_text())["config"]["model_type"] for name in NAMES}
    assert families == {"bert", "openai-gpt", "gpt2", "llama"}


@pytest.mark.parametrize("name", NAMES)
def test_golden_numbers(name, tmp_path):
    described = json.loads((HERE / f"{name}.json").read_text())
    model, params = load(write_folder(tmp_path / name, described["config"], described["shapes"], described["seed"]))
    inputs = batch(**described["batch"])
    types = {"token_types": inputs["token_types"]} if model.config.token_types else {}
    out = model.apply(params, inputs["tokens"], padding_mask=inputs["padding_mask"], **types)
    real = inputs["padding_mask"] == 1
    with np.load(HERE / f"{name}.npz") as expected:
        assert error(out.hidden, expected["hidden"], real) < 1e-5
        assert error(out.logits, expected["logits"], real) < 1e-5
        if "seq_relationship_logits" in expected:
            assert error(out.next_sentence, expected["seq_relationship_logits"]) < 1e-5
