"""config.json of LLaMA's relatives: published settings give the presets; what would change the numbers is refused."""

import math

import pytest

import zoo
from tests.zoo.config_json import read, refusal
from tests.zoo.published_decoders import PUBLISHED
from zoo.checkpoints.hugging_face import NOT_PUBLISHED, published_config
from zoo.checkpoints.placing import flatten
from zoo.errors import InputError
from zoo.layer_config import LayerConfig, RotaryScaling
from zoo.registry import PRESETS

MINI = PUBLISHED["phi3-mini"]
LONG = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.5] * 48}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_the_presets(name):
    assert read(PUBLISHED[name]) == PRESETS[name]


DECODERS = [name for name, config in PRESETS.items() if config.visibility == "causal"]


@pytest.mark.parametrize("name", DECODERS)
def test_every_preset_is_published_and_read_back(name):
    """Settings there and back, and a row of the key table for every parameter of the preset."""
    config = PRESETS[name]
    form, values = published_config(config)
    back = read(values, [] if config.tie_embeddings else [form.read_out])
    assert {k for k, v in config.to_dict().items() if back.to_dict()[k] != v} <= set(NOT_PUBLISHED)
    shapes = zoo.create(config, num_layers=1, layer_pattern=config.layer_pattern[:1]).init_shapes()
    paths = [path for key in form.table.rows(1) for path in key.paths]
    assert len(paths) == len(set(paths)) and set(flatten(shapes)) <= set(paths)


@pytest.mark.parametrize("family", sorted({PRESETS[name].family for name in DECODERS}))
def test_classifiers_are_published_and_read_back(family):
    config = next(PRESETS[name] for name in DECODERS if PRESETS[name].family == family)
    config = config.replace(head="classifier", num_labels=3, classifier_bias=False, label_names=("a", "b", "c"))
    form, values = published_config(config)
    assert values["architectures"][0].endswith("ForSequenceClassification")
    back = read(values)
    found = (back.head, back.pooling, back.classifier_bias, back.label_names)
    assert found == ("classifier", "last", False, ("a", "b", "c"))
    for change in ({"classifier_bias": True}, {"pooling": "mean"}):
        with pytest.raises(InputError, match=next(iter(change))):
            published_config(config.replace(**change))


@pytest.mark.parametrize(
    "name, scaling, expected",
    [
        ("qwen2.5-0.5b", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
         RotaryScaling("yarn", 4.0, original_max_positions=32768)),
        ("qwen3-0.6b", {"rope_type": "dynamic", "factor": 2},
         RotaryScaling("dynamic", 2.0, original_max_positions=40960)),
        ("smollm2-135m", {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0},
         RotaryScaling("yarn", 2.0, original_max_positions=8192, attention_factor=1.0)),
        ("gemma3-1b", {"rope_type": "linear", "factor": 8.0}, RotaryScaling("linear", 8.0)),
        ("phi3-mini", LONG, RotaryScaling("longrope", 1.0, original_max_positions=4096, short_factors=(1.0,) * 48,
                                          long_factors=(1.5,) * 48)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_rotary_scalings(name, scaling, expected):
    config = read(PUBLISHED[name] | {"rope_scaling": scaling})
    assert config.rotary_scaling == expected
    assert read(published_config(config)[1]) == config
    if name == "gemma3-1b":
        assert {layer.rotary_scaled for layer in config.layer_pattern} == {True, False}


def test_older_names_and_lengths_of_longrope():
    """su and yarn in a Phi-3 folder are longrope; the factor is the ratio of the two lengths."""
    longer = MINI | {"max_position_embeddings": 131072}
    found = read(longer | {"rope_scaling": LONG}).rotary_scaling
    assert (found.factor, found.original_max_positions) == (32.0, 4096)
    assert found.magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    for old in ("su", "yarn"):
        assert read(longer | {"rope_scaling": LONG | {"type": old}}).rotary_scaling == found
    values = published_config(read(longer | {"rope_scaling": LONG}))[1]
    assert values["rope_scaling"] == LONG and values["original_max_position_embeddings"] == 4096


def test_windows_by_layer():
    """Old settings (max_window_layers, sliding_window_pattern) and new ones (layer_types) say the same."""
    qwen = PUBLISHED["qwen2.5-0.5b"] | {"use_sliding_window": True, "max_window_layers": 20, "sliding_window": 64}
    old = read(qwen)
    assert [layer.window for layer in old.layer_pattern] == [None] * 20 + [64] * 4
    assert read(qwen | {"layer_types": ["full_attention"] * 20 + ["sliding_attention"] * 4}) == old
    mixed = read(qwen | {"layer_types": ["sliding_attention", "full_attention"] * 12})
    assert mixed.layer_pattern == (LayerConfig(window=64), LayerConfig())
    gemma = read(PUBLISHED["gemma3-1b"] | {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4
                                           + ["sliding_attention"] * 2})  # fmt: skip
    assert gemma == PRESETS["gemma3-1b"] and len(gemma.layer_pattern) == 6
    absent = {key: value for key, value in PUBLISHED["mistral-7b"].items() if key != "sliding_window"}
    assert read(absent).layer_pattern == (LayerConfig(window=4096),)


def test_new_spelling_of_rotary_settings():
    nested = {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    names = ("rope_theta", "rope_local_base_freq", "rope_scaling")
    new = {key: value for key, value in PUBLISHED["gemma3-1b"].items() if key not in names}
    assert read(new | {"rope_parameters": nested}) == PRESETS["gemma3-1b"]
    neox = {key: value for key, value in PUBLISHED["pythia-160m"].items() if not key.startswith("rotary")}
    inner = {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25}
    assert read(neox | {"rope_parameters": inner}) == PRESETS["pythia-160m"]


@pytest.mark.parametrize(
    "name, change",
    [
        ("smollm2-135m", {"max_sequence_length": 2048}),  # the first LLaMA conversions
        ("opt-125m", {"learned_embeddings": True, "scale_embeddings": False}),  # Galactica
        ("gemma2-2b", {"_num_labels": 1, "xla_device": True}),  # versions 2 and 3 of the reference library
    ],
)
def test_what_published_folders_say_beside_the_numbers(name, change):
    assert read(PUBLISHED[name] | change) == PRESETS[name]


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("opt-125m", {"scale_embeddings": True}, "scale_embeddings is True"),
        ("gemma2-2b", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("mistral-7b", {"layer_types": ["full_attention"] * 32}, "Mistral's layers are all alike"),
        ("mistral-7b", {"sliding_window": 0}, "sliding_window is 0"),
        ("mixtral-8x7b", {"num_local_experts": 65}, "num_local_experts is 65"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "experts_per_token is 9"),
        ("qwen2.5-0.5b", {"layer_types": ["sliding_attention"] * 24}, "set no window"),
        ("qwen2.5-0.5b", {"layer_types": ["full_attention"]}, "layer_types must be a list of 24 names"),
        ("qwen3-0.6b", {"layer_types": ["chunked_attention"] * 28}, "'chunked_attention'"),
        ("qwen3-0.6b", {"max_window_layers": -1}, "max_window_layers is -1"),
        ("qwen2.5-0.5b", {"use_mrope": True}, "use_mrope is True"),
        ("smollm3-3b", {"no_rope_layers": [1, 0]}, "no_rope_layers must be a list of 0 and 1"),
        ("smollm3-3b", {"no_rope_layers": [2] * 36}, "no_rope_layers must be a list of 0 and 1"),
        ("gemma-2b", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma-2b", {"hidden_activation": "relu"}, "hidden_act and hidden_activation disagree"),
        ("gemma2-2b", {"sliding_window": None}, "sliding_window is null"),
        ("gemma2-2b", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ("gemma3-4b", {"text_config": None}, "text_config is None; it must be an object"),
        ("gemma3-4b", {"text_config": {"hidden_sise": 8}}, "hidden_sise=8"),
        ("gemma3-4b", {"image_tokens": 8}, "image_tokens=8"),
        ("gemma3-4b", {"architectures": ["Gemma3ForConditionalGenerations"]}, 'mean "Gemma3ForConditionalGeneration"'),
        ("gemma3-1b", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma3-1b", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters must hold"),
        ("gemma3-1b", {"rope_local_base_freq": 0}, "rotary base of sliding_attention is 0"),
        ("pythia-160m", {"rotary_pct": 0.05}, "0.05 of a head of 64 features is 3"),
        ("pythia-160m", {"rotary_pct": 1.5}, "partial_rotary_factor 1.5 is not supported"),
        ("pythia-160m", {"is_decoder": True}, "is_decoder is True"),
        ("opt-125m", {"word_embed_proj_dim": 0}, "word_embed_proj_dim is 0"),
        ("opt-125m", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False"),
        ("phi3-mini", {"rope_scaling": {"type": "linear", "factor": 2.0}}, '"linear" is not Phi-3'),
        ("phi3-mini", {"rope_scaling": LONG | {"long_mscale": 1.2}}, '"long_mscale" means nothing'),
        ("phi3-mini", {"rope_scaling": LONG | {"short_factor": [1.0]}}, "short_factors has 1 numbers for 48"),
        ("phi3-mini", {"rope_scaling": LONG | {"short_factor": [True] * 48}}, "short_factor is"),
        ("phi3-mini", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
        ("phi3-mini", {"attention_bias": True}, "attention_bias is True"),
        ("olmo2-7b", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("olmo2-7b", {"architectures": ["OlmoForCausalLM"]}, 'did you mean "Olmo2ForCausalLM"'),
        ("stablelm-2-1.6b", {"qk_layernorm": 1}, "qk_layernorm is 1; it must be true or false"),
        ("smollm2-135m", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate is 1"),
        ("smollm2-135m", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.5}}, "beta_slow 1.0"),
        ("smollm2-135m", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "short_factor is None"),
        ("smollm2-135m", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ],
)
def test_settings_that_would_change_the_numbers(name, change, said):
    assert said in refusal(PUBLISHED[name] | change)


JUNK = [-1, 0, math.nan, True, "x", [], [[]], {}, {"a": 1}, 10**400]


@pytest.mark.parametrize("name", PUBLISHED)
def test_junk_in_any_setting_is_read_or_refused_in_one_line(name):
    more = {"rope_scaling": None, "rope_parameters": None, "layer_types": None, "no_rope_layers": None}
    for key in PUBLISHED[name] | more:
        for junk in JUNK if key != "model_type" else ():
            try:
                read(PUBLISHED[name] | {key: junk})
            except InputError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "llama3", "linear"])
def test_junk_in_rotary_scalings(kind):
    whole = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "truncate": True}
    whole |= {"beta_fast": 8, "attention_factor": 1.0, "short_factor": [1.0] * 32, "long_factor": [1.0] * 32}
    whole |= {"original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}
    for key in (*whole, None):
        for junk in JUNK:
            scaling = whole if key is None else {"rope_type": kind, "factor": 2.0, key: junk}
            try:
                read(PUBLISHED["smollm2-135m"] | {"rope_scaling": scaling})
            except InputError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("mistral-tiny", {"layer_pattern": (LayerConfig(window=8), LayerConfig())}, "Mistral folders cannot say layer"),
        ("qwen2.5-tiny", {"attention_out_bias": True}, "Qwen2 folders cannot say attention_out_bias=True"),
        ("qwen3-tiny", {"qk_norm": False}, "qk_norm=False"),
        ("gemma3-tiny", {"attention_soft_cap": 50.0}, "attention_soft_cap=50.0"),
        ("gemma3-tiny", {"score_scale": 0.3}, "score_scale=0.3"),
        ("pythia-tiny", {"parallel_mlp_norm": False}, "parallel_mlp_norm=False"),
        ("opt-tiny", {"norm_eps": 1e-6}, "norm_eps=1e-06"),
        ("opt-tiny", {"position_offset": 0}, "position_offset=0"),
        ("phi3-tiny", {"rotary_scaling": RotaryScaling("linear", 2.0)}, '"linear" is not Phi-3'),
        ("olmo2-tiny", {"qk_norm_over": "head"}, "qk_norm_over='head'"),
        ("stablelm-tiny", {"norm": "rmsnorm"}, "norm='rmsnorm'"),
        ("stablelm-2-12b", {"qk_norm_over": "head"}, "qk_norm_over='head'"),
        ("stablelm-2-12b", {"qk_norm_kind": "rmsnorm"}, "qk_norm_kind='rmsnorm'"),
        ("opt-350m", {"embed_projection": "sum", "head": "none"}, "embed_projection='sum'"),
        ("llama-tiny", {"layer_pattern": (LayerConfig(rotary=False),)}, "layer_pattern"),
    ],
)
def test_what_a_family_cannot_say_is_named(name, change, said):
    with pytest.raises(InputError) as error:
        published_config(PRESETS[name].replace(**change))
    assert said in str(error.value) and "\n" not in str(error.value)
