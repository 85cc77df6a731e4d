"""Names of models, and what becomes of overrides."""

import pytest

import zoo
from zoo.errors import InputError
from zoo.families import modernbert
from zoo.registry import PRESETS


def test_presets_are_listed():
    names = zoo.list_models()
    wanted = (
        "bert-tiny bert-base bert-large gpt-tiny gpt1 gpt2 gpt2-medium gpt2-large gpt2-xl gpt3-175b "
        "llama-tiny llama-7b llama-13b llama-33b llama-65b llama3-8b llama3-70b"
    )
    assert set(wanted.split()) <= set(names) and len(names) == len(set(names)) == len(PRESETS)


def test_create_takes_names_and_configs():
    assert zoo.create("gpt2").config == PRESETS["gpt2"]
    config = zoo.ModelConfig(embed_dim=16)
    assert zoo.create(config).config is config
    assert zoo.create(config, num_layers=3).config == config.replace(num_layers=3)
    assert hash(zoo.create("gpt2")) == hash(zoo.create("gpt2")) and zoo.create("gpt2") == zoo.create("gpt2")


@pytest.mark.parametrize(
    ("name", "overrides", "sizes"),
    [
        ("bert-tiny", {"embed_dim": 64}, (64, 2, 2, 32, 256)),
        ("bert-tiny", {"num_heads": 4}, (128, 4, 4, 32, 512)),
        ("bert-tiny", {"embed_dim": 64, "mlp_dim": 100, "head_dim": 16}, (64, 2, 2, 16, 100)),
        ("llama-tiny", {"num_heads": 8}, (128, 8, 2, 16, 344)),
        ("llama-tiny", {"embed_dim": 64}, (64, 4, 2, 16, 344)),
        ("llama-7b", {"num_heads": 16}, (4096, 16, 16, 256, 11008)),
    ],
)
def test_sizes_follow_overrides(name, overrides, sizes):
    """(embed_dim, num_heads, num_kv_heads, head_dim, mlp_dim)."""
    config = zoo.create(name, **overrides).config
    assert (config.embed_dim, config.num_heads, config.num_kv_heads, config.head_dim, config.mlp_dim) == sizes


@pytest.mark.parametrize("num_layers", [1, 2, 7, 22, 28])
def test_a_pattern_that_spells_every_layer_follows_their_number(num_layers):
    """ModernBERT: the first without a norm before attention, then local, local, global and so on."""
    found = zoo.create("modernbert-base", num_layers=num_layers).config.layer_pattern
    assert found == modernbert.pattern(num_layers)


def test_rotated_features_embedding_scale_and_pattern_follow():
    assert zoo.create("pythia-160m", num_heads=6).config.rotary_dim == 32
    assert zoo.create("pythia-160m", num_heads=6, rotary_dim=8).config.rotary_dim == 8
    assert zoo.create("gemma-2b", embed_dim=1024).config.embed_scale == 32.0
    assert zoo.create("gemma-2b", embed_dim=1024, embed_scale=2.0).config.embed_scale == 2.0
    assert zoo.create("gemma-2b", num_layers=2).config.embed_scale == 2048**0.5
    pattern = PRESETS["gemma3-1b"].layer_pattern
    assert zoo.create("gemma3-1b", num_layers=2).config.layer_pattern == pattern[:2]
    assert zoo.create("gemma3-1b", num_layers=8).config.layer_pattern == pattern
    rotary = [zoo.create("smollm3-tiny", num_layers=8).config.layer(index).rotary for index in range(8)]
    assert rotary == [True, True, True, False] * 2


def test_unknown_names_give_the_nearest():
    with pytest.raises(InputError, match='^there is no model "bert-bse"; did you mean "bert-base"'):
        zoo.create("bert-bse")
    with pytest.raises(InputError, match='^ModelConfig has no field "num_layer"; did you mean "num_layers"'):
        zoo.create("gpt2", num_layer=3)
    with pytest.raises(InputError, match="^num_heads 5 does not divide embed_dim 768; nearest that does: 4"):
        zoo.create("gpt2", num_heads=5)
    with pytest.raises(InputError, match='^there is no model "GPT2"; did you mean "gpt2"'):
        zoo.create("GPT2")
    with pytest.raises(InputError, match='^there is no model "BERT-bse"; did you mean "bert-base"'):
        zoo.create("BERT-bse")
    with pytest.raises(InputError, match="^create takes a name or a ModelConfig, not a list$"):
        zoo.create(["gpt2"])
