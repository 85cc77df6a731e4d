"""ViT, DeiT and DINOv2 folders: models of images.

References: Dosovitskiy et al. 2020 (arXiv:2010.11929), Touvron et al. 2020 (arXiv:2012.12877), Oquab et al. 2023
(arXiv:2304.07193), Darcet et al. 2023 (arXiv:2309.16588).
"""

import dataclasses
from collections.abc import Callable, Set
from typing import Any

from zoo.checkpoints.encoder import LAYER, THEIRS, write_labels
from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, linear_to_heads, norm
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig

Reader = Callable[[Settings, Set[str], str | None, bool], ModelConfig]
Writer = Callable[[ModelConfig], dict[str, Any]]
Fits = Callable[[ModelConfig], bool]
RATIOS = range(1, 17)  # of F to D; the reference takes whole ones alone
HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")

EMBEDDINGS = (
    Key("embed/class_token", "embeddings.cls_token", "first_axis"),
    Key("embed/distillation_token", "embeddings.distillation_token", "first_axis"),
    Key("embed/registers", "embeddings.register_tokens", "first_axis"),
    Key("embed/position/embedding", "embeddings.position_embeddings", "first_axis"),
    Key("embed/patches/kernel", "embeddings.patch_embeddings.projection.weight", "patches"),
    Key("embed/patches/bias", "embeddings.patch_embeddings.projection.bias"),
)
ATTENTION = (
    *linear_to_heads(f"{LAYER}attention/query", f"{THEIRS}attention.attention.query"),
    *linear_to_heads(f"{LAYER}attention/key", f"{THEIRS}attention.attention.key"),
    *linear_to_heads(f"{LAYER}attention/value", f"{THEIRS}attention.attention.value"),
    *linear(f"{LAYER}attention/out", f"{THEIRS}attention.output.dense", "linear_from_heads"),
)
AFTER = (*norm("final_norm", "layernorm"), *linear("pooler", "pooler.dense"))


CLASSIFIER = linear("classifier", "classifier")

_VIT_KEYS = (
    *EMBEDDINGS,
    Key("embed/mask_token", "embeddings.mask_token", "first_axis"),
    *norm(f"{LAYER}attention_norm", f"{THEIRS}layernorm_before"),
    *ATTENTION,
    *norm(f"{LAYER}mlp_norm", f"{THEIRS}layernorm_after"),
    *linear(f"{LAYER}mlp/up", f"{THEIRS}intermediate.dense"),
    *linear(f"{LAYER}mlp/down", f"{THEIRS}output.dense"),
    *AFTER,
)
VIT_TABLE = Table(name="ViT", prefix="vit.", keys=(*_VIT_KEYS, *CLASSIFIER), heads=HEADS)
TEACHER = "distillation_classifier/kernel"
DEIT_TABLE = Table(
    name="DeiT",
    prefix="deit.",
    keys=(
        *_VIT_KEYS,
        *(dataclasses.replace(key, unless=TEACHER) for key in CLASSIFIER),
        *(dataclasses.replace(key, given=TEACHER) for key in linear("classifier", "cls_classifier")),
        *linear("distillation_classifier", "distillation_classifier"),
    ),
    heads=HEADS,
)
GATE = f"{LAYER}mlp/gate/kernel"
DINOV2_TABLE = Table(
    name="DINOv2",
    prefix="dinov2.",
    keys=(
        *EMBEDDINGS,
        Key("embed/mask_token", "embeddings.mask_token"),
        *norm(f"{LAYER}attention_norm", f"{THEIRS}norm1"),
        *ATTENTION,
        Key(f"{LAYER}attention_scale/scale", f"{THEIRS}layer_scale1.lambda1"),
        *norm(f"{LAYER}mlp_norm", f"{THEIRS}norm2"),
        *(
            dataclasses.replace(key, unless=GATE)
            for ours, theirs in (("up", "fc1"), ("down", "fc2"))
            for key in linear(f"{LAYER}mlp/{ours}", f"{THEIRS}mlp.{theirs}")
        ),
        Key((GATE, f"{LAYER}mlp/up/kernel"), f"{THEIRS}mlp.weights_in.weight", "linear_stacked"),
        Key((f"{LAYER}mlp/gate/bias", f"{LAYER}mlp/up/bias"), f"{THEIRS}mlp.weights_in.bias", "fused_heads_bias"),
        *(dataclasses.replace(key, given=GATE) for key in linear(f"{LAYER}mlp/down", f"{THEIRS}mlp.weights_out")),
        Key(f"{LAYER}mlp_scale/scale", f"{THEIRS}layer_scale2.lambda1"),
        *AFTER,
        *CLASSIFIER,
    ),
    heads=HEADS,
)
REGISTERS_TABLE = dataclasses.replace(DINOV2_TABLE, prefix="dinov2_with_registers.")

VIT_ARCHITECTURES: dict[str, dict[str, Any]] = {"ViTForImageClassification": {"head": "classifier"}, "ViTModel": {}}
DEIT_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "DeiTForImageClassification": {"head": "classifier"},
    "DeiTForImageClassificationWithTeacher": {"head": "classifier", "distillation_head": True},
    "DeiTModel": {},
}


def _dinov2_architectures(stem: str) -> dict[str, dict[str, Any]]:
    return {f"{stem}ForImageClassification": {"head": "classifier"}, f"{stem}Model": {}}


def _side(settings: Settings, name: str, default: int) -> int:
    """The side of a square, given once or as [height, width]."""
    value = settings.values.get(name)
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1] or isinstance(value[0], list):
            raise settings.fault(f"{name} is {value!r}; images and patches must be square")
        settings.values[name] = value[0]
    return settings.whole(name, default)


def _shared(settings: Settings, wanted: dict[str, Any], patch_size: int, norm_eps: float) -> dict[str, Any]:
    """The fields that all four read from the same settings."""
    dropout = settings.number("hidden_dropout_prob", 0.0)
    head = wanted.get("head", "none")
    num_labels = settings.num_labels() if head == "classifier" else 0
    settings.ignore("encoder_stride", "interpolate_pos_encoding")
    return dict(
        vocab_size=0,
        image_size=_side(settings, "image_size", 224),
        patch_size=_side(settings, "patch_size", patch_size),
        channels=settings.whole("num_channels", 3),
        class_token=True,
        embed_dim=settings.whole("hidden_size", 768),
        num_layers=settings.whole("num_hidden_layers", 12),
        num_heads=settings.whole("num_attention_heads", 12),
        visibility="full",
        positions="learned",
        norm="layernorm",
        norm_placement="pre",
        norm_eps=settings.number("layer_norm_eps", norm_eps),
        final_norm=True,
        attention_bias=settings.flag("qkv_bias", True),
        dropout=dropout,
        embed_dropout=dropout,
        attention_dropout=settings.number("attention_probs_dropout_prob", 0.0),
        initializer_range=settings.number("initializer_range", 0.02),
        head=head,
        num_labels=num_labels,
        label_names=settings.labels(num_labels) if num_labels else (),
    )


def _vit_reader(family: str, architectures: dict[str, dict[str, Any]]) -> Reader:
    def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
        wanted = architectures[architecture] if architecture else {}
        shared = _shared(settings, wanted, 16, 1e-12)
        settings.only("pooler_act", "tanh")
        settings.only("pooler_output_size", shared["embed_dim"])
        return ModelConfig(
            family=family,
            **shared,
            mlp_dim=settings.whole("intermediate_size", 3072),
            activation=settings.choice("hidden_act", "gelu", ACTIVATIONS),
            pooler="pooler.dense.weight" in names,
            mask_token="embeddings.mask_token" in names,
            distillation_token=family == "deit",
            distillation_head=wanted.get("distillation_head", False),
        )

    return read_config


def _dinov2_reader(model_type: str, architectures: dict[str, dict[str, Any]]) -> Reader:
    def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
        wanted = architectures[architecture] if architecture else {}
        with_registers = model_type == "dinov2_with_registers"
        shared = _shared(settings, wanted, 16 if with_registers else 14, 1e-6)
        width = shared["embed_dim"]
        hidden = width * settings.whole("mlp_ratio", 4)
        gated = settings.flag("use_swiglu_ffn", False)
        settings.only("drop_path_rate", 0.0)
        settings.ignore("out_features", "out_indices", "stage_names", "apply_layernorm", "reshape_hidden_states")
        masks = True if with_registers else settings.flag("use_mask_token", True)
        word = settings.choice("hidden_act", "gelu", ACTIVATIONS)
        return ModelConfig(
            family="dinov2",
            **shared,
            mlp_dim=gated_width(hidden) if gated else hidden,
            activation="silu" if gated else word,
            gated=gated,
            layer_scale=settings.number("layerscale_value", 1.0),
            registers=settings.whole("num_register_tokens", 4) if with_registers else 0,
            mask_token=masks,
            pooling="cls_mean" if wanted else "cls",
        )

    return read_config


def gated_width(hidden: int) -> int:
    """F of a gated layer with the parameters of a plain one of width `hidden`: 2/3, rounded up to a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _published(config: ModelConfig, model_type: str, stem: str) -> dict[str, Any]:
    ending = "ForImageClassification" if config.head == "classifier" else "Model"
    return {
        "model_type": model_type,
        "architectures": [stem + ending],
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "layer_norm_eps": config.norm_eps,
        "qkv_bias": config.attention_bias,
        "hidden_act": "gelu" if config.gated else PUBLISHED_ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.initializer_range,
        **write_labels(config),
    }


def write_vit(config: ModelConfig) -> dict[str, Any]:
    """The settings of a ViT config.json."""
    return {**_published(config, "vit", "ViT"), "intermediate_size": config.mlp_dim}


def write_deit(config: ModelConfig) -> dict[str, Any]:
    """The settings of a DeiT config.json."""
    out = {**_published(config, "deit", "DeiT"), "intermediate_size": config.mlp_dim}
    if config.distillation_head:
        out["architectures"] = ["DeiTForImageClassificationWithTeacher"]
    return out


def write_dinov2(config: ModelConfig) -> dict[str, Any]:
    """The settings of a DINOv2 config.json; with registers it is a model_type of its own."""
    stem, model_type = "Dinov2", "dinov2"
    own: dict[str, Any] = {"use_mask_token": config.mask_token}
    if config.registers:
        stem, model_type = "Dinov2WithRegisters", "dinov2_with_registers"
        own = {"num_register_tokens": config.registers}
    plain = {ratio * config.embed_dim: ratio for ratio in RATIOS}
    widths = {gated_width(width): ratio for width, ratio in plain.items()} if config.gated else plain
    return {
        **_published(config, model_type, stem),
        "mlp_ratio": widths.get(config.mlp_dim, 4),
        "use_swiglu_ffn": config.gated,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": 0.0,
        **own,
    }


def _format(table: Table, architectures: dict[str, dict[str, Any]], read: Reader, write: Writer, fits: Fits) -> Format:
    return Format(
        table=table,
        architectures=architectures,
        read=read,
        write=write,
        read_out="",
        token_table="",
        tied=True,
        bare=tuple(name for name in architectures if name.endswith("Model")),
        writes=fits,
    )


_DINOV2, _REGISTERS = _dinov2_architectures("Dinov2"), _dinov2_architectures("Dinov2WithRegisters")
FORMATS = {
    "vit": _format(
        VIT_TABLE, VIT_ARCHITECTURES, _vit_reader("vit", VIT_ARCHITECTURES), write_vit, lambda c: c.family == "vit"
    ),
    "deit": _format(
        DEIT_TABLE,
        DEIT_ARCHITECTURES,
        _vit_reader("deit", DEIT_ARCHITECTURES),
        write_deit,
        lambda c: c.family == "deit",
    ),
    "dinov2": _format(
        DINOV2_TABLE,
        _DINOV2,
        _dinov2_reader("dinov2", _DINOV2),
        write_dinov2,
        lambda c: c.family == "dinov2" and not c.registers,
    ),
    "dinov2_with_registers": _format(
        REGISTERS_TABLE,
        _REGISTERS,
        _dinov2_reader("dinov2_with_registers", _REGISTERS),
        write_dinov2,
        lambda c: c.family == "dinov2" and c.registers > 0,
    ),
}
