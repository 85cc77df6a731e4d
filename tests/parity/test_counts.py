"""Every preset of a decoder family weighs what the reference library's model of its exported settings weighs."""

import pytest
import torch
import transformers

from zoo.checkpoints.hugging_face import published_config
from zoo.registry import PRESETS
from zoo.summary import summarise

NAMES = [name for name, config in PRESETS.items() if config.visibility == "causal"]


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name):
    _, values = published_config(PRESETS[name])
    architecture = getattr(transformers, values["architectures"][0])
    config = architecture.config_class(**values | {"pad_token_id": None})
    with torch.device("meta"):
        model = architecture(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == summarise(PRESETS[name]).total_parameters
