"""What the folders of LLaMA and its relatives share: settings, rows of key tables, heads, kinds of layer.

A family's module gives its own defaults, since the reference library fills what config.json leaves out, and adds or
refuses what sets the family apart.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, linear_to_heads
from zoo.checkpoints.rotary_settings import published_scaling
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig
from zoo.config_checks import MAX_LAYERS
from zoo.layer_config import LayerConfig

LAYER = "blocks/layer_{layer}/"
THEIRS = "layers.{layer}."
PARTS = ("query", "key", "value")
OLD_PREFIX = "transformer."  # some classes for question answering keep it
TOKENS, SPANS = "ForTokenClassification", "ForQuestionAnswering"
TOKENS_AND_SPANS: dict[str, Any] = {"answers": (TOKENS, SPANS)}
TOKENS_AND_OLD_SPANS: dict[str, Any] = {"answers": (TOKENS, SPANS), "prefixes": {SPANS: OLD_PREFIX}}
ROTARY_BUFFERS = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq")
FULL, SLIDING = "full_attention", "sliding_attention"

# -- key tables --------------------------------------------------------------------------------------------------------

ENDS = (
    Key("embed/token/embedding", "embed_tokens.weight", aliases=("lm_head.weight",)),
    Key("final_norm/scale", "norm.weight"),
    Key("lm_head/kernel", "lm_head.weight", "linear"),
    Key("classifier/kernel", "score.weight", "linear"),
    *linear("token_classifier", "score"),
    *linear("span", "qa_outputs"),
)
ATTENTION = (
    *linear_to_heads(f"{LAYER}attention/query", f"{THEIRS}self_attn.q_proj"),
    *linear_to_heads(f"{LAYER}attention/key", f"{THEIRS}self_attn.k_proj"),
    *linear_to_heads(f"{LAYER}attention/value", f"{THEIRS}self_attn.v_proj"),
    *linear(f"{LAYER}attention/out", f"{THEIRS}self_attn.o_proj", "linear_from_heads"),
)
HEAD_NORMS = (
    Key(f"{LAYER}attention/query_norm/scale", f"{THEIRS}self_attn.q_norm.weight"),
    Key(f"{LAYER}attention/key_norm/scale", f"{THEIRS}self_attn.k_norm.weight"),
)
FEED_FORWARD = (
    *linear(f"{LAYER}mlp/up", f"{THEIRS}mlp.up_proj"),
    *linear(f"{LAYER}mlp/gate", f"{THEIRS}mlp.gate_proj"),
    *linear(f"{LAYER}mlp/down", f"{THEIRS}mlp.down_proj"),
)
PRE_NORMS = (
    Key(f"{LAYER}attention_norm/scale", f"{THEIRS}input_layernorm.weight"),
    Key(f"{LAYER}mlp_norm/scale", f"{THEIRS}post_attention_layernorm.weight"),
)


def table(name: str, *more: Key, norms: tuple[Key, ...] = PRE_NORMS) -> Table:
    """LLaMA's rows under the name of a family, and the rows of its own."""
    keys = (*ENDS, *norms, *ATTENTION, *FEED_FORWARD, *more)
    return Table(name=name, prefix="model.", keys=keys, buffers=ROTARY_BUFFERS, other_prefixes=(OLD_PREFIX,))


# -- settings ----------------------------------------------------------------------------------------------------------


def architectures(stem: str, text: str = "", answers: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """The classes of the reference library that we take, the language model first; `answers` of TOKENS and SPANS."""
    ends = ("ForCausalLM", f"{text}ForSequenceClassification", f"{text}Model", *answers)
    return {f"{stem}{end}": {} for end in ends}


# Tensors that tell a head where the settings name no class.
SIGNS = {
    "score.bias": TOKENS,
    "classifier.bias": TOKENS,
    "score.weight": "ForSequenceClassification",
    "qa_outputs.weight": SPANS,
}


def read_head(
    settings: Settings, names: Set[str], architecture: str | None, tied: bool, read_out: str = "lm_head.weight"
) -> dict[str, Any]:
    """Fields of the head: a backbone that cannot read out through its own table has none."""
    kind = architecture or next((kind for name, kind in SIGNS.items() if name in names), "")
    fields: dict[str, Any] = {"tie_embeddings": tied, "pooling": "last"}
    if kind.endswith(SPANS):
        return fields | {"head": "span"}
    if kind.endswith(("ForSequenceClassification", TOKENS)):
        count = settings.num_labels()
        fields |= {"num_labels": count, "label_names": settings.labels(count)}
        if not kind.endswith(TOKENS):
            return fields | {"head": "classifier", "classifier_bias": False}
        rate = settings.number("classifier_dropout", settings.number("hidden_dropout", 0.1))
        return fields | {"head": "token_classifier", "head_dropout": rate}
    speaks = kind.endswith(("ForCausalLM", "LMHeadModel")) or tied or read_out in names
    return fields | {"head": "lm" if speaks else "none"}


def read_decoder(
    settings: Settings, names: Set[str], architecture: str | None, tied: bool, defaults: dict[str, Any]
) -> dict[str, Any]:
    """The fields of ModelConfig that all relatives of LLaMA spell alike; LLaMA's block where they do not differ.

    Args:
        settings, names, architecture, tied: as in zoo/checkpoints/bert.py.
        defaults: of the reference library's config class: its names of sizes; num_key_value_heads None for as many as
            query heads.
    """
    num_heads = settings.whole("num_attention_heads", defaults["num_attention_heads"])
    num_layers = settings.whole("num_hidden_layers", defaults["num_hidden_layers"])
    if num_layers > MAX_LAYERS:  # before lists of that length are made
        raise settings.fault(f"num_hidden_layers is {num_layers}; it must be {MAX_LAYERS} at most")
    kv_heads = None if settings.is_null("num_key_value_heads") else defaults["num_key_value_heads"]
    return dict(
        vocab_size=settings.whole("vocab_size", defaults["vocab_size"]),
        embed_dim=settings.whole("hidden_size", defaults["hidden_size"]),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=settings.whole("num_key_value_heads", kv_heads) or num_heads,
        mlp_dim=settings.whole("intermediate_size", defaults["intermediate_size"]),
        max_positions=settings.whole("max_position_embeddings", defaults["max_position_embeddings"]),
        visibility="causal",
        positions="rotary",
        norm="rmsnorm",
        norm_placement="pre",
        norm_eps=settings.number("rms_norm_eps", defaults.get("rms_norm_eps", 1e-6)),
        final_norm=True,
        attention_bias=False,
        attention_out_bias=False,
        mlp_bias=False,
        activation=settings.choice("hidden_act", "silu", ACTIVATIONS),
        gated=True,
        attention_dropout=settings.number("attention_dropout", 0.0),
        initializer_range=settings.number("initializer_range", 0.02),
        **read_head(settings, names, architecture, tied),
    )


def head_of(fields: dict[str, Any], head_dim: int | None) -> int:
    """Features of a head: as set, or the width over the heads."""
    return head_dim or max(fields["embed_dim"] // fields["num_heads"], 1)


def published_head(config: ModelConfig, stem: str, speaks: str = "ForCausalLM") -> dict[str, Any]:
    """The architecture and its labels; `speaks` ends the name of the language model."""
    ends = {"none": "Model", "classifier": "ForSequenceClassification", "token_classifier": TOKENS, "span": SPANS}
    out: dict[str, Any] = {"architectures": [stem + ends.get(config.head, speaks)]}
    if config.head == "token_classifier":
        out["classifier_dropout"] = config.head_dropout
    if config.head in ("classifier", "token_classifier"):
        labels = config.label_names or tuple(f"LABEL_{index}" for index in range(config.num_labels))
        out["id2label"] = {str(index): name for index, name in enumerate(labels)}
        out["label2id"] = {name: index for index, name in enumerate(labels)}
    return out


def published_decoder(config: ModelConfig, model_type: str, stem: str) -> dict[str, Any]:
    """The settings that all relatives of LLaMA spell alike."""
    return {
        "model_type": model_type,
        **published_head(config, stem),
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rotary_base,
        "rope_scaling": published_scaling(config.rotary_scaling, config.max_positions),
        "rms_norm_eps": config.norm_eps,
        "hidden_act": PUBLISHED_ACTIVATIONS[config.activation],
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
    }


def decoder_format(
    model_type: str,
    stem: str,
    keys: Table,
    read: Callable[..., ModelConfig],
    write: Callable[[ModelConfig], dict[str, Any]],
    *,
    tied: bool = False,
    read_out: str = "lm_head.weight",
    token_table: str = "embed_tokens.weight",
    family: str | None = None,
    text: str = "",
    own_code: tuple[str, ...] = (),
    answers: tuple[str, ...] = (),
    prefixes: Mapping[str, str] | None = None,
) -> dict[str, Format]:
    """The one entry of FORMATS of a family.

    `text` stands in the names of classes other than the language model; `answers` are the heads of tokens and of spans
    that the reference library has for it, `prefixes` what those put before the backbone's names.
    """
    return {
        model_type: Format(
            table=keys,
            architectures=architectures(stem, text, answers),
            read=read,
            write=write,
            read_out=read_out,
            token_table=token_table,
            tied=tied,
            bare=(f"{stem}{text}Model",),
            writes=lambda config: config.family == (family or model_type),
            own_code=own_code,
            prefixes={f"{stem}{end}": prefix for end, prefix in (prefixes or {}).items()},
        )
    }


# -- kinds of layer ----------------------------------------------------------------------------------------------------


def read_window(settings: Settings, default: int | None) -> int | None:
    """sliding_window: null is none, and what is not set the family's default."""
    return settings.whole("sliding_window", None if settings.is_null("sliding_window") else default)


def read_layer_types(settings: Settings, default: Sequence[str]) -> list[str]:
    """FULL or SLIDING for each layer."""
    settings.ignore("layer_types")
    found = settings.values.get("layer_types", list(default))
    if not isinstance(found, list) or len(found) != len(default):
        raise settings.fault(f"layer_types must be a list of {len(default)} names, one a layer")
    for kind in found:
        if kind not in (FULL, SLIDING):
            raise settings.fault(f'layer_types holds {kind!r}; "{FULL}" and "{SLIDING}" are supported')
    return found


def published_layer_types(config: ModelConfig) -> list[str]:
    """layer_types of a config whose layers differ by their window alone."""
    return [SLIDING if layer.window else FULL for layer in each_layer(config)]


def each_layer(config: ModelConfig) -> list[LayerConfig]:
    """The LayerConfig of layers 0 to L - 1."""
    return [config.layer(index) for index in range(config.num_layers)]


def one_window(config: ModelConfig) -> int | None:
    """The window of the first layer that has one."""
    return next((layer.window for layer in config.layer_pattern if layer.window), None)
