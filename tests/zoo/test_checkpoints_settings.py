"""config.json: published settings give the presets; what is unknown or would change the numbers is refused by name."""

import math

import pytest

import zoo
from tests.zoo.config_json import read, refusal
from zoo.checkpoints.hugging_face import FORMATS, NOT_PUBLISHED, published_config
from zoo.checkpoints.keys import plain_names
from zoo.checkpoints.placing import flatten
from zoo.errors import InputError
from zoo.layer_config import LayerConfig, RotaryScaling
from zoo.registry import PRESETS

# The settings that the published folders hold.
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
GPT2 = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
GPT1 = {
    "model_type": "openai-gpt",
    "afn": "gelu",
    "architectures": ["OpenAIGPTLMHeadModel"],
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "n_ctx": 512,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 512,
    "n_special": 0,
    "predict_special_tokens": True,
    "resid_pdrop": 0.1,
    "vocab_size": 40478,
}
LLAMA31 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
LLAMA1 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-06,
    "vocab_size": 32000,
}
PUBLISHED = {"bert-base": BERT, "gpt2": GPT2, "gpt1": GPT1, "llama3.1-8b": LLAMA31, "llama-7b": LLAMA1}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_the_presets(name):
    found, preset = read(PUBLISHED[name], ["pooler.dense.weight"]), PRESETS[name]
    if name == "bert-base":
        assert found.head == "masked_lm"
        found = found.replace(head="lm")
    assert found == preset


def test_new_and_old_spelling_of_rotary_settings():
    new = {key: value for key, value in LLAMA31.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = LLAMA31["rope_scaling"] | {"rope_theta": 500000.0}
    assert read(new) == read(LLAMA31)
    old = LLAMA1 | {"rope_scaling": {"type": "linear", "factor": 2}}
    assert read(old).rotary_scaling == RotaryScaling("linear", 2.0)
    assert read(LLAMA1 | {"rope_scaling": None, "rope_theta": 1e6}).rotary_base == 1e6
    both = LLAMA31 | {"rope_parameters": new["rope_parameters"]}
    assert read(both) == read(LLAMA31)


def test_llama3_scaling_without_a_trained_length_takes_the_model_s():
    scaling = {k: v for k, v in LLAMA31["rope_scaling"].items() if k != "original_max_position_embeddings"}
    assert read(LLAMA31 | {"rope_scaling": scaling}).rotary_scaling.original_max_positions == 131072


@pytest.mark.parametrize(
    "scaling, said",
    [
        ({"rope_type": "proportional", "factor": 4.0}, '"proportional" is not supported'),
        ({"rope_type": ["yarn"], "factor": 4.0}, "is not supported"),
        ({"type": "dynamic"}, "factor is None"),
        ({"rope_type": "lama3", "factor": 2.0}, 'did you mean "llama3"'),
        ({"rope_type": "linear"}, "factor is None"),
        ({"rope_type": "linear", "factor": 0.5}, "at least 1"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, '"beta_fast" means nothing'),
        ({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor is None"),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}, "rope_theta is 500000.0 but"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ([8.0], "must be an object"),
    ],
)
def test_rotary_scalings_that_we_do_not_compute(scaling, said):
    assert said in refusal(LLAMA31 | {"rope_scaling": scaling})


@pytest.mark.parametrize(
    "values, change, said",
    [
        (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        (BERT, {"is_decoder": True}, "is_decoder is True"),
        (BERT, {"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
        (BERT, {"hidden_act": "gelu_nwe"}, 'did you mean "gelu_new"'),
        (BERT, {"embedding_size": 128}, "a setting is unknown to BERT and may change the numbers: embedding_size=128"),
        (BERT, {"architectures": ["BertForMultipleChoice"]}, '"BertForMultipleChoice" is not supported'),
        (BERT, {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        (BERT, {"num_attention_heads": 7}, "7 does not divide embed_dim 768"),
        (BERT, {"num_hidden_layers": 10**9}, "num_layers is 1000000000"),
        (BERT, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (BERT, {"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        (GPT2, {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is True"),
        (GPT2, {"hidden_size": 1024}, "n_embd is 768 but hidden_size is 1024"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention is True"),
        (GPT2, {"activation_funktion": "relu"}, 'did you mean "activation_function"'),
        (GPT1, {"afn": "gelu_python"}, "afn is 'gelu_python'"),
        (LLAMA1, {"sliding_window": 4096}, "sliding_window is 4096"),
        (LLAMA1, {"layer_types": ["full_attention"]}, "layer_types"),
        (LLAMA1, {"attention_bias": "yes"}, "attention_bias is 'yes'"),
        (LLAMA1, {"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
        (LLAMA1, {"rope_theta": 0}, "rope_theta is 0"),
        (LLAMA1, {"num_key_value_heads": 5}, "5 does not divide num_heads 32"),
    ],
)
def test_settings_that_would_change_the_numbers(values, change, said):
    assert said in refusal(values | change)


JUNK = [-1, 0, math.inf, math.nan, True, "x", [], [[]], {}, {"a": 1}, 10**400]


@pytest.mark.parametrize("junk", JUNK, ids=lambda value: repr(value)[:8])
@pytest.mark.parametrize("name", PUBLISHED)
def test_junk_in_any_setting_is_read_or_refused_in_one_line(name, junk):
    for key in PUBLISHED[name]:
        if key != "model_type":
            try:
                read(PUBLISHED[name] | {key: junk})
            except InputError as error:
                assert "\n" not in str(error)


def test_labels_come_by_index_and_placeholders_do_not():
    classifier = BERT | {"architectures": ["BertForSequenceClassification"]}
    found = read(classifier | {"id2label": {"1": "good", "0": "bad", "2": "so-so"}})
    assert (found.head, found.num_labels, found.label_names) == ("classifier", 3, ("bad", "good", "so-so"))
    assert found.pooler and found.pooling == "cls"
    plain = read(classifier | {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}})
    assert (plain.num_labels, plain.label_names) == (2, ())
    assert read(classifier).num_labels == 2
    assert "id2label names 2 labels" in refusal(classifier | {"id2label": {"0": "a", "5": "b"}})


def test_score_scale_of_unscaled_gpt2():
    assert read(GPT2 | {"scale_attn_weights": False}).score_scale == 1.0


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].family in ("bert", "gpt", "llama")])
def test_every_preset_is_published_and_read_back(name):
    """Settings there and back, and a row of the key table for every parameter of the preset."""
    config = PRESETS[name]
    form, values = published_config(config)
    tables = [form.read_out] if not config.tie_embeddings else []
    back = read(values, tables + (["pooler.dense.weight"] if config.pooler else []))
    differ = {k for k, v in config.to_dict().items() if back.to_dict()[k] != v} - set(NOT_PUBLISHED)
    assert differ == ({"head"} if config.family == "bert" else set())
    shapes = zoo.create(config, num_layers=1, layer_pattern=(LayerConfig(),)).init_shapes()
    paths = [path for key in form.table.rows(1) for path in key.paths]
    assert len(paths) == len(set(paths)) and set(flatten(shapes)) <= set(paths)


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("llama-tiny", {"logit_soft_cap": 30.0}, "LLaMA folders cannot say logit_soft_cap=30.0"),
        ("llama-tiny", {"layer_pattern": (LayerConfig(window=8),)}, "layer_pattern"),
        ("llama-tiny", {"qk_norm": True, "gated": False}, "qk_norm=True, gated=False"),
        ("gpt2-tiny", {"positions": "rotary"}, "positions='rotary'"),
        ("gpt1-tiny", {"activation": "gelu"}, "GPT-1 folders cannot say activation='gelu'"),
        ("gpt1-tiny", {"mlp_dim": 100}, "mlp_dim=100"),
        ("bert-tiny", {"head": "classifier", "num_labels": 2, "pooling": "mean"}, "pooling='mean'"),
        ("gpt2-tiny", {"head": "classifier", "num_labels": 2}, "classifier_bias=True"),
        ("gpt2-tiny", {"family": "custom"}, 'family "custom" has no published folder layout'),
    ],
)
def test_what_a_family_cannot_say_is_named(name, change, said):
    with pytest.raises(InputError) as error:
        published_config(PRESETS[name].replace(**change))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_settings_of_training_and_execution_do_not_stand_in_the_way():
    changed = PRESETS["gpt2-tiny"].replace(dropout=0.3, dtype="bfloat16", scan=True, remat="full", embed_dropout=0.0)
    assert published_config(changed)[1]["resid_pdrop"] == 0.3


def test_a_name_given_twice_under_two_spellings():
    table = FORMATS["bert"].table
    with pytest.raises(InputError, match='both "embeddings.LayerNorm.weight"'):
        plain_names(
            table, dict.fromkeys(["bert.embeddings.LayerNorm.gamma", "embeddings.LayerNorm.weight"]), "folder"
        )
