"""Gemma 1, 2 and 3 folders: norms of 1 + scale, scaled embeddings; then sandwich norms, caps and local layers.

Gemma 3 from 4B on is published with a model of images beside it: its text model is loaded, the rest named and left out.

References: Gemma Team 2024 (arXiv:2403.08295 and 2408.00118), Gemma Team 2025 (arXiv:2503.19786).
"""

import dataclasses
from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import (
    FULL,
    HEAD_NORMS,
    LAYER,
    SLIDING,
    THEIRS,
    TOKENS,
    decoder_format,
    one_window,
    published_decoder,
    published_layer_types,
    read_decoder,
    read_layer_types,
    read_window,
    table,
)
from zoo.checkpoints.keys import Key
from zoo.checkpoints.rotary_settings import published_scaling, read_rotary, scaling_of
from zoo.checkpoints.settings import ACTIVATIONS, Settings, is_number
from zoo.config import ModelConfig
from zoo.errors import nearest
from zoo.layer_config import LayerConfig, RotaryScaling, shortest_pattern

SANDWICH = (
    Key(f"{LAYER}attention_norm/scale", f"{THEIRS}input_layernorm.weight"),
    Key(f"{LAYER}attention_post_norm/scale", f"{THEIRS}post_attention_layernorm.weight"),
    Key(f"{LAYER}mlp_norm/scale", f"{THEIRS}pre_feedforward_layernorm.weight"),
    Key(f"{LAYER}mlp_post_norm/scale", f"{THEIRS}post_feedforward_layernorm.weight"),
)
GEMMA1 = dict(
    vocab_size=256000,
    hidden_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=16,
    intermediate_size=24576,
    max_position_embeddings=8192,
)
GEMMA2 = GEMMA1 | dict(
    hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, intermediate_size=9216
)
GEMMA3 = GEMMA2 | dict(vocab_size=262208, max_position_embeddings=131072)

# Gemma's first folders say "gelu" and mean the tanh form, the only one that its authors' code had.
WORDS = ACTIVATIONS | {"gelu": "gelu_tanh"}
PUBLISHED_WORDS = {"gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}
BASES = {FULL: 1000000.0, SLIDING: 10000.0}


def _read(settings: Settings, names: Set[str], architecture: str | None, tied: bool, defaults: dict[str, Any]):
    settings.ignore("cache_implementation", "hidden_act")
    fields = read_decoder(settings, names, architecture, tied, defaults)
    bias = settings.flag("attention_bias", False)
    return fields | dict(
        head_dim=settings.whole("head_dim", 256),
        embed_scale=fields["embed_dim"] ** 0.5,
        norm_unit_offset=True,
        attention_bias=bias,
        attention_out_bias=bias,
    )


def _sandwich(settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
    """What Gemma 2 and 3 share."""
    scalar = settings.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise settings.fault(f"query_pre_attn_scalar is {scalar!r}; it must be above 0")
    return fields | dict(
        norm_placement="both",
        activation=settings.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
        score_scale=None if scalar == fields["head_dim"] else scalar**-0.5,
    )


def _cap(settings: Settings, name: str, default: float | None) -> float | None:
    return settings.number(name, None if settings.is_null(name) else default)


def read_gemma1(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Gemma 1 folder; arguments as in zoo/checkpoints/bert.py."""
    settings.only("use_bidirectional_attention", False)
    fields = _read(settings, names, architecture, tied, GEMMA1)
    rotary = read_rotary(settings, fields["max_positions"])
    activation = settings.choice("hidden_act", "gelu_pytorch_tanh", WORDS)
    if "hidden_activation" in settings.values and settings.choice("hidden_activation", "", WORDS) != activation:
        raise settings.fault("hidden_act and hidden_activation disagree; keep one of them")
    settings.ignore("hidden_activation")
    rotary_fields = dict(rotary_base=rotary.base, rotary_scaling=rotary.scaling)
    return ModelConfig(**fields | rotary_fields | dict(family="gemma", activation=activation))


def read_gemma2(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Gemma 2 folder; arguments as in zoo/checkpoints/bert.py."""
    settings.only("use_bidirectional_attention", False)
    fields = _sandwich(settings, _read(settings, names, architecture, tied, GEMMA2))
    rotary = read_rotary(settings, fields["max_positions"])
    window = read_window(settings, 4096)
    kinds = read_layer_types(settings, [FULL if i % 2 else SLIDING for i in range(fields["num_layers"])])
    if SLIDING in kinds and not window:
        raise settings.fault(f'layer_types has "{SLIDING}" but sliding_window is null')
    return ModelConfig(
        **fields
        | dict(
            family="gemma2",
            rotary_base=rotary.base,
            rotary_scaling=rotary.scaling,
            layer_pattern=shortest_pattern([LayerConfig(window=window if kind == SLIDING else None) for kind in kinds]),
            attention_soft_cap=_cap(settings, "attn_logit_softcapping", 50.0),
            logit_soft_cap=_cap(settings, "final_logit_softcapping", 30.0),
        )
    )


def read_gemma3(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Gemma 3 text folder; arguments as in zoo/checkpoints/bert.py."""
    fields = _sandwich(settings, _read(settings, names, architecture, tied, GEMMA3))
    if settings.flag("use_bidirectional_attention", False):  # EmbeddingGemma: it sees both ways, and speaks no more
        silent = {"head": "none"} if (architecture or "Model").endswith("Model") else {}
        fields |= {"visibility": "full"} | silent
    bases, scaling = _bases(settings, fields["max_positions"])
    window = read_window(settings, 4096)
    every = settings.whole("sliding_window_pattern", 6, "_sliding_window_pattern")
    kinds = read_layer_types(settings, [SLIDING if (i + 1) % every else FULL for i in range(fields["num_layers"])])
    if SLIDING in kinds and not window:
        raise settings.fault(f'layer_types has "{SLIDING}" but sliding_window is null')
    settings.only("attn_logit_softcapping", None)  # the reference library reads it and applies none
    local_base = None if bases[SLIDING] == bases[FULL] else bases[SLIDING]
    local = LayerConfig(window=window, rotary_base=local_base, rotary_scaled=scaling is None)
    return ModelConfig(
        **fields
        | dict(
            family="gemma3",
            qk_norm=True,
            rotary_base=bases[FULL],
            rotary_scaling=scaling,
            layer_pattern=shortest_pattern([local if kind == SLIDING else LayerConfig() for kind in kinds]),
            logit_soft_cap=_cap(settings, "final_logit_softcapping", None),
        )
    )


def _bases(settings: Settings, max_positions: int) -> tuple[dict[str, float], RotaryScaling | None]:
    """Rotary bases of both kinds of layer, and the scaling of the global ones: local layers have none."""
    settings.ignore("rope_parameters", "rope_scaling")
    old = {FULL: settings.number("rope_theta", None), SLIDING: settings.number("rope_local_base_freq", None)}
    found: dict[str, Any] = {FULL: settings.values.get("rope_scaling") or {}, SLIDING: {}}
    nested = settings.values.get("rope_parameters")
    if nested is not None:
        if not isinstance(nested, dict) or set(nested) - {FULL, SLIDING} or settings.values.get("rope_scaling"):
            raise settings.fault(f'rope_parameters must hold "{FULL}" and "{SLIDING}" alone, without rope_scaling')
        found = {kind: nested.get(kind) or {} for kind in (FULL, SLIDING)}
    bases, scalings = {}, {}
    for kind, values in found.items():
        if not isinstance(values, dict):
            raise settings.fault(f"rotary settings of {kind} are {values!r}; they must be an object")
        values = {name: value for name, value in values.items() if value is not None}
        inner = values.pop("rope_theta", None)
        if inner is not None and old[kind] is not None and inner != old[kind]:
            raise settings.fault(f"rotary base of {kind} is both {inner!r} and {old[kind]!r}")
        base = next((one for one in (inner, old[kind]) if one is not None), BASES[kind])
        if not is_number(base) or base <= 0:
            raise settings.fault(f"rotary base of {kind} is {base!r}; it must be a number above 0")
        bases[kind], scalings[kind] = float(base), scaling_of(settings, kind, values, max_positions)
    if scalings[SLIDING] is not None:
        raise settings.fault(f"a rotary scaling of {SLIDING} layers is not supported")
    return bases, scalings[FULL]


# The classes of models of text and images, and those of the text model inside.
WITH_IMAGES = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
    "Gemma3Model": "Gemma3TextModel",
}
TOWERS = ("vision_tower.", "multi_modal_projector.")
IMAGE_SETTINGS = ("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")


def text_settings(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings of the text model in those of a Gemma 3 of text and images."""
    outer = Settings(values, where, "Gemma 3")
    inner = values.get("text_config")
    if not isinstance(inner, dict):
        raise outer.fault(f"text_config is {inner!r}; it must be an object")
    names = values.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else next(iter(WITH_IMAGES))
    if name not in WITH_IMAGES:
        raise outer.fault(f'architecture "{name}" is not supported{nearest(name, WITH_IMAGES)}')
    outer.ignore("text_config", "initializer_range", "tie_word_embeddings", *IMAGE_SETTINGS)
    outer.done()
    shared = ("tie_word_embeddings", "id2label", "label2id", "num_labels")
    given = {key: values[key] for key in shared if key in values}
    return given | inner | {"model_type": "gemma3_text", "architectures": [WITH_IMAGES[name]]}


def write_gemma1(config: ModelConfig) -> dict[str, Any]:
    """The settings of a Gemma 1 config.json."""
    return _written(config, "gemma", "Gemma")


def write_gemma2(config: ModelConfig) -> dict[str, Any]:
    """The settings of a Gemma 2 config.json."""
    return _written_sandwich(config, "gemma2", "Gemma2") | {"attn_logit_softcapping": config.attention_soft_cap}


def write_gemma3(config: ModelConfig) -> dict[str, Any]:
    """The settings of a Gemma 3 text config.json."""
    local = next((layer for layer in config.layer_pattern if layer.window), LayerConfig())
    values = _written_sandwich(config, "gemma3_text", "Gemma3")
    if config.head != "lm":
        values["architectures"] = [values["architectures"][0].replace("Gemma3", "Gemma3Text")]
    if config.visibility == "full":
        values["use_bidirectional_attention"] = True
    return values | {
        "rope_local_base_freq": config.rotary_base if local.rotary_base is None else local.rotary_base,
        "rope_scaling": published_scaling(config.rotary_scaling, config.max_positions),
    }


def _written(config: ModelConfig, model_type: str, stem: str) -> dict[str, Any]:
    word = PUBLISHED_WORDS.get(config.activation, "gelu_pytorch_tanh")
    return published_decoder(config, model_type, stem) | {
        "hidden_act": word,
        "head_dim": config.head_dim,
        "attention_bias": config.attention_bias,
    }


def _written_sandwich(config: ModelConfig, model_type: str, stem: str) -> dict[str, Any]:
    values = _written(config, model_type, stem)
    word = values.pop("hidden_act")
    values["hidden_activation"] = "gelu" if config.activation == "gelu" else word  # here it means the erf form
    return values | {
        "query_pre_attn_scalar": config.head_dim if config.score_scale is None else round(config.score_scale**-2),
        "final_logit_softcapping": config.logit_soft_cap,
        "sliding_window": one_window(config),
        "layer_types": published_layer_types(config),
    }


_TEXT = decoder_format(
    "gemma3_text",
    "Gemma3",
    table("Gemma 3", *HEAD_NORMS, norms=SANDWICH),
    read_gemma3,
    write_gemma3,
    tied=True,
    family="gemma3",
    text="Text",
)
_TEXT_AND_IMAGES = dataclasses.replace(
    _TEXT["gemma3_text"],
    table=dataclasses.replace(
        _TEXT["gemma3_text"].table,
        other_prefixes=("language_model.model.", "model.language_model.", "language_model."),
        left_out=(*TOWERS, *(f"model.{tower}" for tower in TOWERS)),
    ),
    writes=lambda config: False,  # as a model of text alone
    text_of=text_settings,
)
FORMATS = {
    **decoder_format("gemma", "Gemma", table("Gemma"), read_gemma1, write_gemma1, tied=True, answers=(TOKENS,)),
    **decoder_format(
        *("gemma2", "Gemma2", table("Gemma 2", norms=SANDWICH), read_gemma2, write_gemma2),
        tied=True,
        answers=(TOKENS,),
    ),
    **_TEXT,
    "gemma3": _TEXT_AND_IMAGES,
}
