"""config.json of the encoder and vision families: published settings give the presets; the rest is refused by name."""

import json
import math

import jax
import pytest

import zoo
from tests.zoo.config_json import read, refusal
from zoo.checkpoints.hugging_face import FORMATS, NOT_PUBLISHED, published_config
from zoo.checkpoints.placing import flatten
from zoo.errors import InputError
from zoo.layer_config import LayerConfig
from zoo.registry import PRESETS

BERT_LIKE = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
}
ROBERTA = BERT_LIKE | {
    "model_type": "roberta",
    "architectures": ["RobertaForMaskedLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
XLM_ROBERTA = ROBERTA | {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaForMaskedLM"],
    "output_past": True,
    "position_embedding_type": "absolute",
    "use_cache": True,
    "vocab_size": 250002,
}
DISTILBERT = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForMaskedLM"],
    "activation": "gelu",
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "n_heads": 12,
    "n_layers": 6,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "vocab_size": 30522,
}
ALBERT = BERT_LIKE | {
    "model_type": "albert",
    "architectures": ["AlbertForMaskedLM"],
    "attention_probs_dropout_prob": 0,
    "hidden_dropout_prob": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "classifier_dropout_prob": 0.1,
    "down_scale_factor": 1,
    "embedding_size": 128,
    "gap_size": 0,
    "hidden_act": "gelu_new",
    "inner_group_num": 1,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "net_structure_type": 0,
    "num_hidden_groups": 1,
    "num_memory_blocks": 0,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30000,
}
ELECTRA = BERT_LIKE | {
    "model_type": "electra",
    "architectures": ["ElectraForPreTraining"],
    "embedding_size": 128,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
    "summary_type": "first",
    "summary_use_proj": True,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
MODERNBERT = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "reference_compile": None,
    "repad_logits_with_grad": False,
    "sep_token_id": 50282,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "tie_word_embeddings": True,
    "vocab_size": 50368,
}
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0,
    "encoder_stride": 16,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "image_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "num_labels": 1000,
    "patch_size": 16,
    "qkv_bias": True,
}
DEIT = VIT | {"model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]}
DINOV2 = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "image_size": 518,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-06,
    "layerscale_value": 1.0,
    "mlp_ratio": 4,
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 14,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}
REGISTERS = DINOV2 | {
    "model_type": "dinov2_with_registers",
    "architectures": ["Dinov2WithRegistersModel"],
    "apply_layernorm": True,
    "num_register_tokens": 4,
    "out_features": ["stage12"],
    "out_indices": [12],
    "reshape_hidden_states": True,
    "stage_names": ["stem"] + [f"stage{i}" for i in range(1, 13)],
}
PUBLISHED = {
    "roberta-base": ROBERTA,
    "xlm-roberta-base": XLM_ROBERTA,
    "distilbert-base": DISTILBERT,
    "albert-base-v2": ALBERT,
    "electra-small": ELECTRA,
    "modernbert-base": MODERNBERT,
    "vit-base": VIT,
    "deit-base": DEIT,
    "dinov2-base": DINOV2,
    "dinov2-base-registers": REGISTERS,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_the_presets(name):
    """But for what only another head of the family reads: the rate before it, and how it pools."""
    found, preset = read(PUBLISHED[name]), PRESETS[name]
    unread = {"head_dropout", "pooling"} if preset.head != "classifier" else set()
    differ = {key for key, value in preset.to_dict().items() if found.to_dict()[key] != value}
    assert differ <= unread, differ


def test_modernbert_in_the_new_spelling_is_the_same_model():
    old_names = ("global_rope_theta", "local_rope_theta", "global_attn_every_n_layers", "reference_compile")
    new = {key: value for key, value in MODERNBERT.items() if key not in old_names}
    kinds = ["sliding_attention" if layer % 3 else "full_attention" for layer in range(22)]
    rotary = {"full_attention": {"rope_type": "default", "rope_theta": 160000.0}}
    rotary["sliding_attention"] = {"rope_type": "default", "rope_theta": 10000.0}
    assert read(new | {"layer_types": kinds, "rope_parameters": rotary}) == read(MODERNBERT)
    assert [layer.window for layer in read(MODERNBERT).layer_pattern[:4]] == [None, 128, 128, None]
    assert read(MODERNBERT).layer(0) == LayerConfig(attention_norm=False) and read(MODERNBERT).layer(3) == LayerConfig()


@pytest.mark.parametrize(
    "architecture, head",
    [
        ("BertForTokenClassification", "token_classifier"),
        ("RobertaForTokenClassification", "token_classifier"),
        ("XLMRobertaForQuestionAnswering", "span"),
        ("DistilBertForQuestionAnswering", "span"),
        ("AlbertForTokenClassification", "token_classifier"),
        ("ElectraForQuestionAnswering", "span"),
        ("ModernBertForTokenClassification", "token_classifier"),
    ],
)
def test_heads_by_architecture(architecture, head):
    kind = next(kind for kind, form in FORMATS.items() if architecture in form.architectures)
    values = next((v for v in PUBLISHED.values() if v["model_type"] == kind), BERT_LIKE | {"model_type": "bert"})
    labels = {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}} if head == "token_classifier" else {}
    found = read(values | {"architectures": [architecture]} | labels)
    assert found.head == head and found.label_names == (("O", "B-PER", "I-PER") if labels else ())
    assert published_config(found)[1]["architectures"] == [architecture]


def test_what_published_folders_say_beside_the_numbers():
    """Notes of their authors, of the reference library's old versions, and of sentence-transformers."""
    notes = {"language": "english", "name": "Roberta", "_num_labels": 9, "xla_device": True}
    notes |= {"sbert_ce_default_activation_function": "torch.nn.Identity", "sentence_transformers": {"version": "4.1"}}
    for name in ("roberta-base", "distilbert-base"):
        assert read(PUBLISHED[name] | notes) == read(PUBLISHED[name])


def test_sides_that_are_given_twice():
    """[224, 224] is 224; what is not square is refused by that name."""
    vit = PUBLISHED["vit-base"]
    assert read(vit | {"image_size": [224, 224], "patch_size": [16, 16]}) == read(vit)
    for name, value in (("image_size", [224, 336]), ("patch_size", [16, 8]), ("image_size", [[224], 224])):
        with pytest.raises(InputError, match=f"{name} is .*; images and patches must be square"):
            read(vit | {name: value})


def test_positions_of_roberta_begin_behind_its_padding_id():
    assert (read(ROBERTA).max_positions, read(ROBERTA).position_offset) == (512, 2)
    first = read(ROBERTA | {"pad_token_id": 0})
    assert (first.max_positions, first.position_offset) == (513, 1)
    assert published_config(first)[1]["pad_token_id"] == 0


@pytest.mark.parametrize(
    "values, change, said",
    [
        (ROBERTA, {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        (ROBERTA, {"architectures": ["RobertaForMultipleChoice"]}, '"RobertaForMultipleChoice" is not supported'),
        (ROBERTA, {"pad_token_id": 513}, "max_position_embeddings is 514, of which 514 stand before position 0"),
        (ROBERTA, {"is_decoder": True}, "is_decoder is True"),
        (ROBERTA, {"embedding_size": 128}, "unknown to RoBERTa and may change the numbers: embedding_size=128"),
        (DISTILBERT, {"activation": "gleu"}, 'did you mean "gelu"'),
        (DISTILBERT, {"hidden_size": 96}, "dim is 768 but hidden_size is 96"),
        (ALBERT, {"num_hidden_groups": 2}, "num_hidden_groups is 2, which is not supported; 1 is"),
        (ALBERT, {"inner_group_num": 3}, "inner_group_num is 3"),
        (ALBERT, {"net_structure_type": 1}, "net_structure_type is 1"),
        (ELECTRA, {"embedding_size": 0}, "embedding_size is 0"),
        (MODERNBERT, {"decoder_bias": False}, "decoder_bias is False"),
        (MODERNBERT, {"mlp_dropout": 0.1}, "mlp_dropout is 0.1"),
        (MODERNBERT, {"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
        (MODERNBERT, {"layer_types": ["full_attention"]}, "for each of 22 layers"),
        (MODERNBERT, {"num_hidden_layers": 10**9}, "num_layers is 1000000000"),
        (MODERNBERT, {"rope_parameters": {"rope_theta": 3.0}}, 'must hold "full_attention" and "sliding_attention"'),
        (MODERNBERT, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "only rope_theta is supported"),
        (MODERNBERT, {"rope_parameters": {"full_attention": {"rope_theta": 3.0}}}, "but rope_parameters has 3.0"),
        (MODERNBERT, {"rope_scaling": {"factor": 2}}, "rope_scaling"),
        (VIT, {"image_size": [224, 192]}, "image_size is [224, 192]"),
        (VIT, {"patch_size": 15}, "patch_size 15 does not divide image_size 224; nearest that does: 14"),
        (VIT, {"pooler_act": "relu"}, "pooler_act is 'relu'"),
        (VIT, {"pooler_output_size": 64}, "pooler_output_size is 64"),
        (VIT, {"architectures": ["ViTForMaskedImageModeling"]}, '"ViTForMaskedImageModeling" is not supported'),
        (DINOV2, {"drop_path_rate": 0.1}, "drop_path_rate is 0.1"),
        (DINOV2, {"mlp_ratio": 2.5}, "mlp_ratio is 2.5"),
        (DINOV2, {"num_register_tokens": 4}, "num_register_tokens=4"),
    ],
)
def test_settings_that_would_change_the_numbers(values, change, said):
    assert said in refusal(values | change)


@pytest.mark.parametrize("junk", [-1, 0, math.inf, math.nan, True, "x", [], [[]], {}, {"a": 1}, 10**400], ids=repr)
@pytest.mark.parametrize("name", PUBLISHED)
def test_junk_in_any_setting_is_read_or_refused_in_one_line(name, junk):
    for key in PUBLISHED[name]:
        if key != "model_type":
            try:
                read(PUBLISHED[name] | {key: junk})
            except InputError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("roberta-tiny", {"masked_lm_activation": "relu"}, "RoBERTa folders cannot say masked_lm_activation='relu'"),
        ("roberta-tiny", {"position_offset": 0}, "position_offset=0"),
        ("distilbert-tiny", {"norm_eps": 1e-5}, "DistilBERT folders cannot say norm_eps=1e-05"),
        ("distilbert-tiny", {"token_types": 2}, "token_types=2"),
        ("albert-tiny", {"shared_layers": False}, "ALBERT folders cannot say shared_layers=False"),
        ("albert-tiny", {"head": "classifier", "num_labels": 2, "pooling": "mean"}, "pooling='mean'"),
        ("electra-tiny", {"classifier_hidden": "every"}, "classifier_hidden='every'"),
        ("modernbert-tiny", {"layer_pattern": (LayerConfig(window=8),)}, "layer_pattern"),
        ("modernbert-tiny", {"head": "classifier", "num_labels": 2, "pooling": "last"}, "pooling"),
        ("vit-tiny", {"registers": 4}, "ViT folders cannot say registers=4"),
        ("deit-tiny", {"distillation_token": False, "distillation_head": False}, "distillation_token=False"),
        ("dinov2-small", {"mlp_dim": 100}, "DINOv2 folders cannot say mlp_dim=100"),
        ("dinov2-small", {"layer_scale": None}, "layer_scale=None"),
    ],
)
def test_what_a_family_cannot_say_is_named(name, change, said):
    with pytest.raises(InputError) as error:
        published_config(PRESETS[name].replace(**change))
    assert said in str(error.value) and "\n" not in str(error.value)


FAMILIES = ("roberta", "xlm_roberta", "distilbert", "albert", "electra", "modernbert", "vit", "deit", "dinov2")


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].family in FAMILIES])
def test_every_preset_is_published_and_read_back(name):
    """Settings there and back, and one row of the key table for every parameter of the preset."""
    config = PRESETS[name]
    form, values = published_config(config)
    back = read(values, ["embeddings.mask_token"] if config.mask_token else [])
    differ = {k for k, v in config.to_dict().items() if back.to_dict()[k] != v} - set(NOT_PUBLISHED)
    assert differ <= ({"pooling"} if config.head == "none" else set())
    shapes = flatten(zoo.create(config, num_layers=2, layer_pattern=config.layer_pattern[:2]).init_shapes())
    rows = [key for key in form.table.rows(2) if key.fits(shapes)]
    paths = [path for key in rows for path in key.paths]
    assert len(paths) == len(set(paths)) and set(shapes) == set(paths)
    names = [name for key in rows for name in (key.theirs, key.instead) if name]
    assert len(names) == len(set(names))


class Pieces:
    """As much of a tokenizer as an export reads."""

    vocab_size, bos_id, eos_id = 97, 2, 3

    def __init__(self, pad_id):
        self.pad_id = pad_id

    def files(self):
        return {}


def test_a_padding_id_that_would_move_roberta_s_positions_is_refused(tmp_path):
    """The reference counts positions from behind the padding id, so the folder must say the one that fits."""
    model = zoo.create("roberta-tiny", num_layers=1, embed_dim=16, num_heads=2, vocab_size=97)
    params = model.init(jax.random.key(0))
    with pytest.raises(InputError, match="padding id, here 1, and the tokenizer's is 0: .* position_offset=1"):
        zoo.export(model, params, tmp_path / "out", tokenizer=Pieces(0))
    assert not (tmp_path / "out").exists()
    for name, tokenizer in (("with", Pieces(1)), ("without", None)):
        zoo.export(model, params, tmp_path / name, tokenizer=tokenizer)
        assert json.loads((tmp_path / name / "config.json").read_text())["pad_token_id"] == 1
        assert zoo.load(tmp_path / name)[0].config.position_offset == 2


@pytest.mark.parametrize("head", ["classifier", "span", "masked_lm", "none", "token_classifier"])
def test_distilbert_keeps_the_dropout_before_its_head(head):
    """A head yet to be put on has the sequence classifier's; that of tokens is the model's own, and cannot differ."""
    config = PRESETS["distilbert-base"].replace(head=head, head_dropout=0.4, num_labels=3 if "class" in head else 0)
    if head == "token_classifier":
        config = config.replace(dropout=0.4)
    assert read(published_config(config)[1]).head_dropout == 0.4
    if head in ("masked_lm", "none"):
        assert read(DISTILBERT | {"seq_classif_dropout": 0.3}).head_dropout == 0.3
