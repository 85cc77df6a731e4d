"""Random settings of every encoder of text and of images with a Hugging Face format; as in draws_decoders."""

from typing import Any

from hypothesis import strategies as st

from tests.parity.draws import ACTS, FULL, SLIDING, Draw, family, flag, heads, kinds_of_layer, labels, one, whole
from tests.parity.reference import Case

FAMILIES: dict[str, st.SearchStrategy[Case]] = {}

ENDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def encoder_class(draw: Draw, stem: str, *more: str) -> tuple[str, dict[str, Any]]:
    end = one(draw, *ENDS, *more)
    return stem + end, labels(draw) if end.endswith("Classification") else {}


def bert_like(draw: Draw, stem: str, *more: str, before: int = 0) -> tuple[str, dict[str, Any]]:
    name, found = encoder_class(draw, stem, *more)
    count = whole(draw, 1, 6)
    return name, found | dict(
        vocab_size=whole(draw, 60, 120),
        hidden_size=count * whole(draw, 3, 12),
        num_attention_heads=count,
        num_hidden_layers=whole(draw, 1, 5),
        intermediate_size=whole(draw, 5, 60),
        max_position_embeddings=before + whole(draw, 80, 90),
        type_vocab_size=whole(draw, 1, 3),
        hidden_act=one(draw, *ACTS),
        layer_norm_eps=one(draw, 1e-12, 1e-5, 1e-2),
        tie_word_embeddings=flag(draw),
        pad_token_id=before - 1 if before else None,
    )


@family(FAMILIES)
def bert(draw):
    return bert_like(draw, "Bert", "ForPreTraining", "ForNextSentencePrediction")


@family(FAMILIES)
def roberta(draw):
    return bert_like(draw, "Roberta", before=whole(draw, 1, 3))


@family(FAMILIES)
def xlm_roberta(draw):
    return bert_like(draw, "XLMRoberta", before=2)


@family(FAMILIES)
def albert(draw):
    name, settings = bert_like(draw, "Albert", "ForPreTraining")
    return name, settings | dict(embedding_size=whole(draw, 4, 40))


@family(FAMILIES)
def electra(draw):
    name, settings = bert_like(draw, "Electra", "ForPreTraining")
    return name, settings | dict(embedding_size=one(draw, settings["hidden_size"], whole(draw, 4, 40)))


@family(FAMILIES)
def distilbert(draw):
    name, found = encoder_class(draw, "DistilBert")
    count = whole(draw, 1, 6)
    return name, found | dict(
        vocab_size=whole(draw, 60, 120),
        dim=count * whole(draw, 3, 12),
        n_heads=count,
        n_layers=whole(draw, 1, 5),
        hidden_dim=whole(draw, 5, 60),
        max_position_embeddings=whole(draw, 80, 90),
        activation=one(draw, *ACTS),
        tie_word_embeddings=flag(draw),
        pad_token_id=None,
    )


@family(FAMILIES)
def modernbert(draw):
    name, found = encoder_class(draw, "ModernBert")
    settings = heads(draw)
    settings.pop("num_key_value_heads")
    layers = whole(draw, 1, 5)
    kinds = kinds_of_layer(draw, layers)
    found |= one(draw, dict(global_attn_every_n_layers=whole(draw, 1, 4)), dict(layer_types=kinds))
    bases = {kind: dict(rope_type="default", rope_theta=one(draw, 100.0, 160000.0)) for kind in (FULL, SLIDING)}
    return name, found | settings | dict(
        vocab_size=whole(draw, 60, 120),
        num_hidden_layers=layers,
        intermediate_size=whole(draw, 5, 60),
        max_position_embeddings=128,
        local_attention=one(draw, 2, 7, 16, 33, 200),
        hidden_activation=one(draw, *ACTS),
        classifier_activation=one(draw, *ACTS),
        classifier_pooling=one(draw, "cls", "mean"),
        norm_bias=flag(draw),
        attention_bias=flag(draw),
        mlp_bias=flag(draw),
        classifier_bias=flag(draw),
        norm_eps=one(draw, 1e-5, 1e-2),
        rope_parameters=bases,
        tie_word_embeddings=flag(draw),
        pad_token_id=None,
    )


# -- images ------------------------------------------------------------------------------------------------------------


def image_like(draw: Draw, stem: str, *more: str) -> tuple[str, dict[str, Any]]:
    end = one(draw, "Model", "ForImageClassification", *more)
    count = whole(draw, 1, 6)
    patch = whole(draw, 1, 4)
    return stem + end, (labels(draw) if end != "Model" else {}) | dict(
        hidden_size=count * whole(draw, 3, 12),
        num_attention_heads=count,
        num_hidden_layers=whole(draw, 1, 5),
        image_size=patch * whole(draw, 8, 9),
        patch_size=patch,
        num_channels=whole(draw, 1, 4),
        hidden_act=one(draw, *ACTS),
        layer_norm_eps=one(draw, 1e-12, 1e-6, 1e-2),
        qkv_bias=flag(draw),
    )


@family(FAMILIES)
def vit(draw):
    name, settings = image_like(draw, "ViT")
    return name, settings | dict(intermediate_size=whole(draw, 5, 60))


@family(FAMILIES)
def deit(draw):
    name, settings = image_like(draw, "DeiT", "ForImageClassificationWithTeacher")
    return name, settings | dict(intermediate_size=whole(draw, 5, 60))


@family(FAMILIES)
def dinov2(draw):
    stem = one(draw, "Dinov2", "Dinov2WithRegisters")
    name, settings = image_like(draw, stem)
    own = dict(num_register_tokens=whole(draw, 1, 5)) if "With" in stem else dict(use_mask_token=flag(draw))
    return name, settings | own | dict(mlp_ratio=whole(draw, 1, 5), use_swiglu_ffn=flag(draw))
