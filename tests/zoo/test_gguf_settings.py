"""Metadata of GGUF files as settings: what each architecture leaves unsaid, and values that no converter wrote."""

import math
from pathlib import Path

import numpy as np
import pytest

from zoo.checkpoints import gguf_models
from zoo.checkpoints.gguf_settings import ALSO, READ_APART
from zoo.checkpoints.gguf_spellings import SPELLINGS
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.gguf_file import GgufFile, GgufTensor

SIZES = {
    "context_length": 64,
    "embedding_length": 96,
    "block_count": 6,
    "feed_forward_length": 80,
    "attention.head_count": 6,
    "vocab_size": 50,
}
MORE = {
    "gemma3": {"attention.key_length": 16, "attention.sliding_window": 8},
    "gemma2": {"attention.key_length": 16, "attention.sliding_window": 8},
    "modern-bert": {"attention.sliding_window": 16},
    "phi3": {"rope.scaling.original_context_length": 32, "rope.dimension_count": 12},
    "stablelm": {"rope.dimension_count": 4},
    "gptneox": {"rope.dimension_count": 4},
}


def tensor(name: str, *shape: int) -> GgufTensor:
    return GgufTensor(Path("x.gguf"), name, "F32", "F32", shape, 0, 4 * math.prod(shape))


@pytest.fixture
def config_of(monkeypatch):
    """ModelConfig of an architecture's metadata, of tensors by name."""

    def found(kind: str, changes: dict, *tensors: GgufTensor) -> ModelConfig:
        epsilon = next((name for name in SPELLINGS[kind].settings if "epsilon" in name), "")
        said = SIZES | {epsilon: 1e-12 if kind == "bert" else 1e-5} | MORE.get(kind, {}) | changes
        metadata = {f"{kind}.{name}": value for name, value in said.items() if value is not None}
        metadata["general.architecture"] = kind
        file = GgufFile(Path("x.gguf"), metadata, {one.name: one for one in tensors})
        monkeypatch.setattr(gguf_models, "read_header", lambda path: file)
        return gguf_models.load_config(Path("x.gguf"))

    return found


@pytest.mark.parametrize("kind", SPELLINGS)
def test_values_that_no_converter_wrote_are_one_line_or_a_config(kind, config_of):
    keys = {*SIZES, *SPELLINGS[kind].settings, *READ_APART, *ALSO.get(kind, ())}
    types = tensor("token_types.weight", 2, 96)
    assert config_of(kind, {}, types).num_layers == 6
    refused = 0
    for key in sorted(keys):
        for value in ("x", [1, 2], ["a"], [], -1, 0, True, False, math.nan, math.inf, 2**40, 1e-30, 7):
            try:
                config_of(kind, {key: value}, types)
            except InputError as error:
                refused += 1
                assert "\n" not in str(error) and "x.gguf" in str(error) and "config.json" not in str(error), key
    assert refused > 3 * len(keys)


def test_what_is_left_unsaid(config_of):
    """As llama.cpp runs the published models: patterns, bases, and the scores of the largest ones."""
    windows = [layer.window for layer in config_of("gemma3", {"block_count": 12}).layer_pattern]
    assert windows == [8] * 5 + [None]
    assert [layer.window for layer in config_of("gemma2", {}).layer_pattern] == [8, None]
    assert [layer.window for layer in config_of("gemma3", {"attention.sliding_window": 0}).layer_pattern] == [None]
    local = config_of("gemma3", {"rope.freq_base": 1e6, "rope.freq_base_swa": 5e4}).layer_pattern[0]
    assert local.rotary_base == 5e4
    listed = config_of("gemma3", {"attention.sliding_window_pattern": [True, False, False] * 2})
    assert [layer.window for layer in listed.layer_pattern] == [8, None, None]
    assert config_of("gemma3", {"block_count": 62}).score_scale is None  # 96 / 6 is the head of 16
    wide = {"attention.key_length": 32}
    for kind, largest in (("gemma2", 46), ("gemma3", 62)):
        assert config_of(kind, wide | {"block_count": largest}).score_scale == pytest.approx(16**-0.5)
        assert config_of(kind, wide | {"block_count": largest - 1}).score_scale is None
    assert [layer.rotary for layer in config_of("smollm3", {"block_count": 8}).layer_pattern] == [True] * 3 + [False]
    modern = config_of("modern-bert", {}).layer_pattern
    assert [layer.window for layer in modern] == [None, 16, 16] * 2 and not modern[0].attention_norm
    assert config_of("bert", {}).family == "distilbert"
    assert config_of("bert", {}, tensor("token_types.weight", 2, 96)).family == "bert"
    assert config_of("gptneox", {}).rotary_dim == config_of("stablelm", {}).rotary_dim == 4
    assert config_of("phi3", {}).rotary_dim == 12 and config_of("phi3", {"rope.dimension_count": 16}).rotary_dim is None


def test_keys_that_are_not_there(config_of):
    """A missing key means what the format says, not what the family's folders say."""
    config = config_of("smollm3", {})
    assert (config.num_kv_heads, config.rotary_base, config.head_dim) == (6, 10000.0, 16)
    for kind, key in (
        ("llama", "context_length"),
        ("gpt2", "feed_forward_length"),
        ("qwen2", "attention.layer_norm_rms_epsilon"),
        ("gptneox", "attention.layer_norm_epsilon"),
    ):
        with pytest.raises(InputError, match=f"^x.gguf: {kind}.{key} is not set; a model needs it$"):
            config_of(kind, {key: None})


def test_longrope_by_its_tensors(config_of, monkeypatch):
    def read(self):
        return np.linspace(1, 2 if "long" in self.name else 1.5, 6, dtype=np.float32)

    monkeypatch.setattr(GgufTensor, "read", read)
    factors = tensor("rope_factors_long.weight", 6), tensor("rope_factors_short.weight", 6)
    scaling = config_of("phi3", {}, *factors).rotary_scaling
    assert scaling.kind == "longrope" and scaling.long_factors == (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
    assert scaling.short_factors[-1] == 1.5 and scaling.original_max_positions == 32 and scaling.factor == 2
    usual = math.sqrt(1 + math.log(2) / math.log(32))
    told = {"rope.scaling.attn_factor": float(np.float32(usual))}
    assert config_of("phi3", told, *factors).rotary_scaling == scaling
    assert config_of("phi3", {"rope.scaling.attn_factor": 1.25}, *factors).rotary_scaling.attention_factor == 1.25
    assert config_of("phi3", {}, factors[0]).rotary_scaling is None
    with pytest.raises(InputError, match=r"rope_factors_long.weight is F32 \[5\] for \[6\]"):
        config_of("phi3", {}, tensor("rope_factors_long.weight", 5), factors[1])


def test_yarn_by_its_keys(config_of):
    said = {"type": "yarn", "factor": 4.0, "original_context_length": 16, "yarn_beta_fast": 24.0, "yarn_beta_slow": 2.0}
    scaling = config_of("qwen2", {f"rope.scaling.{name}": value for name, value in said.items()}).rotary_scaling
    assert (scaling.kind, scaling.factor, scaling.original_max_positions) == ("yarn", 4.0, 16)
    assert (scaling.beta_fast, scaling.beta_slow) == (24.0, 2.0)
