"""ModernBERT folders (Warner et al. 2024, arXiv:2412.13663).

Pre-norm, rotary, gated, without biases; most layers see a window of their own, with another rotary base. The first
layer reads the normalised embeddings as they are.
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.encoder import CLASSES, LAYER, architecture_of, read_head, write_labels
from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, norm
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings, is_number
from zoo.config import ModelConfig
from zoo.config_checks import MAX_LAYERS
from zoo.layer_config import LayerConfig, shortest_pattern

THEIRS = "layers.{layer}."
TOKEN_TABLE = "embeddings.tok_embeddings.weight"
DECODER = "decoder.weight"
QKV = ("query", "key", "value")
GLOBAL, LOCAL = "full_attention", "sliding_attention"

TABLE = Table(
    name="ModernBERT",
    prefix="model.",
    keys=(
        Key("embed/token/embedding", TOKEN_TABLE, aliases=(DECODER,)),
        *norm("embed/norm", "embeddings.norm"),
        *norm(f"{LAYER}attention_norm", f"{THEIRS}attn_norm"),
        Key(tuple(f"{LAYER}attention/{part}/kernel" for part in QKV), f"{THEIRS}attn.Wqkv.weight", "linear_stacked"),
        Key(tuple(f"{LAYER}attention/{part}/bias" for part in QKV), f"{THEIRS}attn.Wqkv.bias", "fused_heads_bias"),
        *linear(f"{LAYER}attention/out", f"{THEIRS}attn.Wo", "linear_from_heads"),
        *norm(f"{LAYER}mlp_norm", f"{THEIRS}mlp_norm"),
        Key((f"{LAYER}mlp/gate/kernel", f"{LAYER}mlp/up/kernel"), f"{THEIRS}mlp.Wi.weight", "linear_stacked"),
        Key((f"{LAYER}mlp/gate/bias", f"{LAYER}mlp/up/bias"), f"{THEIRS}mlp.Wi.bias", "fused_heads_bias"),
        *linear(f"{LAYER}mlp/down", f"{THEIRS}mlp.Wo"),
        *norm("final_norm", "final_norm"),
        *(
            row
            for ours in ("masked_lm", "classifier", "token_classifier", "span")
            for row in (*linear(f"{ours}/dense", "head.dense"), *norm(f"{ours}/norm", "head.norm"))
        ),
        Key("masked_lm/kernel", DECODER, "linear"),
        Key("masked_lm/bias", "decoder.bias"),
        *linear("classifier", "classifier"),
        *linear("token_classifier", "classifier"),
        *linear("span", "classifier"),
    ),
    heads=("head.", "decoder.", "classifier."),
)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "ModernBertForMaskedLM": {"head": "masked_lm"},
    "ModernBertModel": {},
    "ModernBertForSequenceClassification": {"head": "classifier"},
    "ModernBertForTokenClassification": {"head": "token_classifier"},
    "ModernBertForQuestionAnswering": {"head": "span"},
}


def _rotary_base(settings: Settings, kind: str, old_name: str, default: float) -> float:
    """The rotary base of one kind of layer, from rope_parameters (new) or its own setting (old)."""
    old = settings.number(old_name, None)
    given = settings.values.get("rope_parameters", {})
    own = given.get(kind, {}) if isinstance(given, dict) else given
    if not isinstance(own, dict) or (isinstance(given, dict) and set(given) - {GLOBAL, LOCAL}):
        raise settings.fault(f'rope_parameters is {given!r}; it must hold "{GLOBAL}" and "{LOCAL}"')
    if own.get("rope_type", "default") != "default" or set(own) - {"rope_type", "rope_theta"}:
        raise settings.fault(f"rope_parameters: {kind} is {own!r}; only rope_theta is supported")
    base = own.get("rope_theta", default if old is None else old)
    if not is_number(base) or base <= 0:
        raise settings.fault(f"rope_parameters: rope_theta of {kind} is {base!r}; it must be a number above 0")
    if old is not None and old != base:
        raise settings.fault(f"{old_name} is {old!r} but rope_parameters has {base!r}")
    return float(base)


def _pattern(settings: Settings, num_layers: int, window: int, local_base: float) -> tuple[LayerConfig, ...]:
    every = settings.whole("global_attn_every_n_layers", 3)
    settings.known.add("layer_types")
    if num_layers > MAX_LAYERS:
        return (LayerConfig(),)  # ModelConfig refuses the number
    kinds = settings.values.get("layer_types", [LOCAL if i % every else GLOBAL for i in range(num_layers)])
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in (GLOBAL, LOCAL) for kind in kinds):
        raise settings.fault(f'layer_types must name "{GLOBAL}" or "{LOCAL}" for each of {num_layers} layers')
    layers = [
        LayerConfig(
            window=window if kind == LOCAL else None,
            rotary_base=local_base if kind == LOCAL else None,
            attention_norm=i > 0,
        )
        for i, kind in enumerate(kinds)
    ]
    return shortest_pattern(layers)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a ModernBERT folder; arguments as in zoo/checkpoints/bert.py."""
    num_layers = settings.whole("num_hidden_layers", 22)
    settings.known |= {"rope_parameters"}
    global_base = _rotary_base(settings, GLOBAL, "global_rope_theta", 160000.0)
    local_base = _rotary_base(settings, LOCAL, "local_rope_theta", 10000.0)
    attention_bias = settings.flag("attention_bias", False)
    head = read_head(settings, names, architecture, ARCHITECTURES, {"masked_lm": "decoder.bias"})
    for name, value in (("decoder_bias", True), ("mlp_dropout", 0.0), ("rope_scaling", None)):
        settings.only(name, value)
    settings.only("position_embedding_type", "absolute", "rope", "sans_pos")
    settings.ignore("layer_norm_eps", "initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile")
    settings.ignore("sparse_prediction", "sparse_pred_ignore_index", "repad_logits_with_grad")
    return ModelConfig(
        family="modernbert",
        vocab_size=settings.whole("vocab_size", 50368),
        embed_dim=settings.whole("hidden_size", 768),
        num_layers=num_layers,
        num_heads=settings.whole("num_attention_heads", 12),
        mlp_dim=settings.whole("intermediate_size", 1152),
        max_positions=settings.whole("max_position_embeddings", 8192),
        layer_pattern=_pattern(settings, num_layers, settings.whole("local_attention", 128), local_base),
        visibility="full",
        positions="rotary",
        rotary_base=global_base,
        embed_norm=True,
        norm="layernorm",
        norm_placement="pre",
        norm_bias=settings.flag("norm_bias", False),
        norm_eps=settings.number("norm_eps", 1e-5),
        final_norm=True,
        attention_bias=attention_bias,
        attention_out_bias=attention_bias,
        mlp_bias=settings.flag("mlp_bias", False),
        activation=settings.choice("hidden_activation", "gelu", ACTIVATIONS),
        gated=True,
        embed_dropout=settings.number("embedding_dropout", 0.0),
        attention_dropout=settings.number("attention_dropout", 0.0),
        initializer_range=settings.number("initializer_range", 0.02),
        residual_init=True,
        **head,
        masked_lm_activation=(act := settings.choice("classifier_activation", "gelu", ACTIVATIONS)),
        head_bias=settings.flag("classifier_bias", False),
        classifier_hidden="every",
        classifier_activation=act,
        classifier_norm=True,
        pooling=settings.choice("classifier_pooling", "cls", {"cls": "cls", "mean": "mean"}),
        tie_embeddings=tied or head["head"] != "masked_lm",
        head_dropout=settings.number("classifier_dropout", 0.0),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json, with both spellings of the pattern and its rotary bases."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    local = next((layer for layer in layers if layer.window is not None), LayerConfig(128, 10000.0))
    in_head = config.masked_lm_activation if config.head == "masked_lm" else config.classifier_activation
    local_base = local.rotary_base or config.rotary_base
    return {
        "model_type": "modernbert",
        "architectures": [architecture_of(config, "ModernBert")],
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        "layer_types": [GLOBAL if layer.window is None else LOCAL for layer in layers],
        "local_attention": local.window,
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": local_base,
        "norm_eps": config.norm_eps,
        "norm_bias": config.norm_bias,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_activation": PUBLISHED_ACTIVATIONS[config.activation],
        "embedding_dropout": config.embed_dropout,
        "attention_dropout": config.attention_dropout,
        "mlp_dropout": 0.0,
        "initializer_range": config.initializer_range,
        "decoder_bias": True,
        "classifier_bias": config.head_bias,
        "classifier_activation": PUBLISHED_ACTIVATIONS.get(in_head or config.activation, "gelu"),
        "classifier_pooling": config.pooling if config.pooling in ("cls", "mean") else "cls",
        "classifier_dropout": config.head_dropout if config.head in (*CLASSES, "span") else 0.0,
        "tie_word_embeddings": config.tie_embeddings,
        **write_labels(config),
    }


FORMATS = {
    "modernbert": Format(
        table=TABLE,
        architectures=ARCHITECTURES,
        read=read_config,
        write=write_config,
        read_out=DECODER,
        token_table=TOKEN_TABLE,
        tied=True,
        bare=("ModernBertModel",),
        writes=lambda config: config.family == "modernbert",
    )
}
