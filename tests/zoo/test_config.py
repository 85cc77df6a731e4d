"""ModelConfig: derived sizes, plain dicts and back, and one clear line for every impossible setting."""

import dataclasses
import json

import pytest

from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.layer_config import LayerConfig, RotaryScaling
from zoo.registry import PRESETS


def test_sizes_follow():
    config = ModelConfig(embed_dim=24, num_heads=4)
    assert (config.head_dim, config.num_kv_heads, config.mlp_dim, config.num_groups) == (6, 4, 96, 1)
    grouped = ModelConfig(embed_dim=24, num_heads=4, num_kv_heads=2, head_dim=8, num_layers=6, mlp_dim=7)
    assert (grouped.head_dim, grouped.mlp_dim, grouped.num_groups, grouped.num_repeats) == (8, 7, 2, 6)


def test_pattern_repeats():
    config = ModelConfig(num_layers=4, layer_pattern=[LayerConfig(window=8), LayerConfig()])
    assert [config.layer(i).window for i in range(4)] == [8, None, 8, None] and config.num_repeats == 2


def test_configs_hash_and_compare_by_value():
    first, second = (ModelConfig(layer_pattern=[LayerConfig(3)], label_names=["a"]) for _ in range(2))
    assert first == second and hash(first) == hash(second) and hash(first) != hash(first.replace(norm_eps=1e-6))
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.embed_dim = 3


def test_replace_keeps_derived_sizes_unless_named():
    config = ModelConfig(embed_dim=24, num_heads=4)
    assert config.replace(num_layers=5).num_layers == 5
    assert config.replace(embed_dim=48).head_dim == 6
    assert config.replace(embed_dim=48, head_dim=None, mlp_dim=None).mlp_dim == 192


def test_plain_dicts_come_back():
    every = [
        *PRESETS.values(),
        ModelConfig(layer_pattern=(LayerConfig(4), LayerConfig()), label_names=("no", "yes"), logit_soft_cap=30.0),
        ModelConfig(positions="rotary", layer_pattern=(LayerConfig(4, 1e6), LayerConfig()), rotary_dim=8),
    ]
    for config in every:
        plain = json.loads(json.dumps(config.to_dict()))
        assert ModelConfig.from_dict(plain) == config


@pytest.mark.parametrize(
    ("plain", "line"),
    [
        ({"embed_dims": 8}, 'ModelConfig has no field "embed_dims"; did you mean "embed_dim"?'),
        ({"layer_pattern": [{"windw": 3}]}, 'LayerConfig has no field "windw"; did you mean "window"?'),
        (
            {"positions": "rotary", "rotary_scaling": {"kind": "linear", "factr": 2.0}},
            'RotaryScaling has no field "factr"; did you mean "factor"?',
        ),
    ],
)
def test_unknown_keys_are_refused(plain, line):
    with pytest.raises(InputError) as caught:
        ModelConfig.from_dict(plain)
    assert str(caught.value) == line
    with pytest.raises(InputError, match='^ModelConfig has no field "n_heads"; did you mean "num_heads"'):
        ModelConfig().replace(n_heads=3)


WRONG = [
    ({"num_heads": 3}, "num_heads 3 does not divide embed_dim 128; nearest that does: 2 (or set head_dim)"),
    ({"num_heads": 8, "num_kv_heads": 3}, "num_kv_heads 3 does not divide num_heads 8; nearest that does: 2"),
    ({"num_layers": 0}, "num_layers is 0; it must be a whole number from 1 to 10000"),
    ({"vocab_size": 3.5}, "vocab_size is 3.5; it must be a whole number from 1 to 100000000"),
    ({"embed_dim": True}, "embed_dim is True; it must be a whole number from 1 to 1000000"),
    ({"mlp_dim": 0}, "mlp_dim is 0; it must be a whole number from 1 to 1000000"),
    ({"norm": "rms_norm"}, 'ModelConfig: norm is "rms_norm"; did you mean "rmsnorm"?'),
    ({"positions": "alibi"}, 'ModelConfig: positions is "alibi"; one of learned, sinusoidal, rotary, relative, none'),
    ({"scan": "no"}, "ModelConfig: scan is 'no'; it must be true or false"),
    ({"norm_eps": "1e-5"}, "ModelConfig: norm_eps is '1e-5'; it must be a finite number"),
    ({"norm_eps": 0.0}, "norm_eps is 0.0; it must be above 0"),
    ({"dropout": float("nan")}, "ModelConfig: dropout is nan; it must be a finite number"),
    ({"dropout": 1.0}, "dropout is 1.0; it must be in [0, 1)"),
    ({"attention_soft_cap": 0.0}, "attention_soft_cap is 0.0; it must be above 0"),
    ({"logit_soft_cap": -1.0}, "logit_soft_cap is -1.0; it must be above 0"),
    ({"initializer_range": -0.1}, "initializer_range is -0.1; it must be 0 or more"),
    ({"token_types": -1}, "token_types is -1; it must be a whole number from 0 to 1000000"),
    ({"position_offset": 0.5}, "position_offset is 0.5; it must be a whole number from 0 to 1000000"),
    ({"layer_pattern": ()}, "layer_pattern is empty; it needs at least one LayerConfig()"),
    ({"layer_pattern": (3,)}, "layer_pattern holds 3; its entries are LayerConfig()"),
    (
        {"num_layers": 1, "layer_pattern": (LayerConfig(), LayerConfig(2))},
        "layer_pattern has 2 entries for 1 layers",
    ),
    ({"layer_pattern": (LayerConfig(0),)}, "window is 0; it must be a whole number from 1 to 100000000"),
    (
        {"layer_pattern": (LayerConfig(rotary_base=1e6),)},
        'layer_pattern sets rotary_base but positions is "learned"',
    ),
    (
        {"layer_pattern": (LayerConfig(rotary=False),)},
        'layer_pattern sets rotary or rotary_scaled but positions is "learned"',
    ),
    (
        {
            "positions": "rotary",
            "rotary_scaling": RotaryScaling("longrope", 2.0, short_factors=(1.0,), long_factors=(2.0,)),
        },
        "rotary scaling longrope: short_factors has 1 numbers for 32",
    ),
    ({"norm_unit_offset": True}, "norm_unit_offset is defined for norm 'rmsnorm' alone"),
    ({"parallel_mlp_norm": True}, "parallel_mlp_norm needs parallel_block=True"),
    ({"parallel_block": True, "norm_placement": "after"}, "parallel_block is defined for norm_placement 'pre' alone"),
    ({"rotary_dim": 4}, 'rotary_dim is set but positions is "learned"'),
    ({"rotary_scaling": RotaryScaling("linear", 2.0)}, 'rotary_scaling is set but positions is "learned"'),
    ({"positions": "rotary", "rotary_dim": 5}, "rotary_dim 5 must be even: features are turned in pairs"),
    ({"positions": "rotary", "rotary_dim": 66}, "rotary_dim is 66; it must be a whole number from 2 to 64"),
    ({"positions": "rotary", "rotary_base": 0}, "rotary_base is 0; it must be above 0"),
    (
        {"positions": "relative", "relative_buckets": 1},
        "relative_buckets is 1; it must be a whole number from 2 to 1000000",
    ),
    (
        {"positions": "relative", "relative_max_distance": 16},
        "relative_max_distance is 16; it must be a whole number from 17 to 100000000",
    ),
    ({"head": "classifier"}, 'head "classifier" needs num_labels of 1 or more, not 0'),
    (
        {"head": "classifier", "num_labels": 2, "label_names": ("a",)},
        "label_names names 1 labels but num_labels is 2",
    ),
    (
        {"head": "classifier", "num_labels": 2, "pooling": "cls"},
        'pooling "cls" reads the first token, which sees itself alone in a causal model; use pooling "last" or "mean"',
    ),
    (
        {"pooler": True},
        "pooler reads the first token, which sees itself alone in a causal model; leave it out, or set visibility",
    ),
    ({"head": "masked_lm"}, 'head "masked_lm" needs visibility "full", not "causal"'),
    ({"next_sentence": True}, "next_sentence reads the pooled token: it needs pooler=True"),
    (
        {"parallel_block": True, "norm_placement": "post"},
        "parallel_block is defined for norm_placement 'pre' alone",
    ),
    (
        {"parallel_block": True, "cross_attention": True},
        "parallel_block has no place for cross_attention; set one of them alone",
    ),
]


@pytest.mark.parametrize(("changes", "line"), WRONG, ids=[" ".join(changes) for changes, _ in WRONG])
def test_impossible_settings_give_one_line(changes, line):
    with pytest.raises(InputError) as caught:
        ModelConfig(**changes)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("yearn", 2.0), 'RotaryScaling: kind is "yearn"; did you mean "yarn"?'),
        (
            ("yarn", 2.0, 1.0, 4.0, 64, 1.0, 1.0),
            "rotary scaling yarn: beta_slow 1.0 must be above 0 and below beta_fast 1.0",
        ),
        (
            ("dynamic", 2.0, 1.0, 4.0, 0),
            "rotary scaling dynamic: original_max_positions is 0; it must be a whole number from 1 to 100000000",
        ),
        (("longrope", 2.0), "rotary scaling longrope: short_factors has 0 numbers"),
        (("linear", 0.5), "rotary scaling: factor is 0.5; it must be at least 1"),
        (("linear", "8"), "RotaryScaling: factor is '8'; it must be a finite number"),
        (
            ("llama3", 8.0, 4.0, 4.0),
            "rotary scaling llama3: low_freq_factor 4.0 must be above 0 and below high_freq_factor 4.0",
        ),
        (
            ("llama3", 8.0, 1.0, 4.0, 0),
            "rotary scaling llama3: original_max_positions is 0; it must be a whole number from 1 to 100000000",
        ),
    ],
)
def test_impossible_scalings_give_one_line(arguments, line):
    with pytest.raises(InputError) as caught:
        RotaryScaling(*arguments)
    assert str(caught.value) == line
