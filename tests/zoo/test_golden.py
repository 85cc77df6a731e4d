"""Families against numbers of the reference library, without it: 1e-5 of the largest number, in float32."""

import json

import numpy as np
import pytest

from tests.golden.recipe import HERE, batch, error, images, write_folder
from zoo.checkpoints import load

NAMES = sorted(path.stem for path in HERE.glob("*.json"))


def test_all_families_are_there():
    families = {json.loads((HERE / f"{name}.json").read_text())["config"]["model_type"] for name in NAMES}
    wanted = {"bert", "openai-gpt", "gpt2", "llama", "roberta", "distilbert", "albert", "electra", "modernbert"}
    wanted |= {"mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text", "gpt_neox", "opt", "phi3", "olmo2"}
    wanted |= {"stablelm", "gemma", "mixtral"}
    assert families >= wanted | {"vit", "deit", "dinov2_with_registers"}


@pytest.mark.parametrize("name", NAMES)
def test_golden_numbers(name, tmp_path):
    described = json.loads((HERE / f"{name}.json").read_text())
    model, params = load(write_folder(tmp_path / name, described["config"], described["shapes"], described["seed"]))
    if "images" in described:
        out, real = model.apply(params, images(**described["images"]), want=("hidden_states",)), None
        hidden = out.hidden_states[-1]  # these the reference gives before the final norm
    else:
        inputs = batch(**described["batch"])
        types = {"token_types": inputs["token_types"]} if model.config.token_types else {}
        out = model.apply(params, inputs["tokens"], padding_mask=inputs["padding_mask"], **types)
        hidden, real = out.hidden, inputs["padding_mask"] == 1
    with np.load(HERE / f"{name}.npz") as expected:
        assert error(hidden, expected["hidden"], real) < 1e-5
        assert error(out.logits, expected["logits"], real if out.logits.shape[:2] == hidden.shape[:2] else None) < 1e-5
        if "seq_relationship_logits" in expected:
            assert error(out.next_sentence, expected["seq_relationship_logits"]) < 1e-5
