"""OPT folders: GPT with ReLU and two spare rows before position 0 (Zhang et al. 2022, arXiv:2205.01068).

The 350M model alone has embeddings narrower than the stream, two projections between them, and norms after the sums.
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import LAYER, SPANS, decoder_format, published_head, read_head
from zoo.checkpoints.keys import Key, Table, linear, linear_to_heads, norm
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig

THEIRS = "decoder.layers.{layer}."
TABLE = Table(
    name="OPT",
    prefix="model.",
    keys=(
        Key("embed/token/embedding", "decoder.embed_tokens.weight", aliases=("lm_head.weight",)),
        Key("embed/position/embedding", "decoder.embed_positions.weight"),
        Key("embed/projection/kernel", "decoder.project_in.weight", "linear"),
        *norm(f"{LAYER}attention_norm", f"{THEIRS}self_attn_layer_norm"),
        *linear_to_heads(f"{LAYER}attention/query", f"{THEIRS}self_attn.q_proj"),
        *linear_to_heads(f"{LAYER}attention/key", f"{THEIRS}self_attn.k_proj"),
        *linear_to_heads(f"{LAYER}attention/value", f"{THEIRS}self_attn.v_proj"),
        *linear(f"{LAYER}attention/out", f"{THEIRS}self_attn.out_proj", "linear_from_heads"),
        *norm(f"{LAYER}mlp_norm", f"{THEIRS}final_layer_norm"),
        *linear(f"{LAYER}mlp/up", f"{THEIRS}fc1"),
        *linear(f"{LAYER}mlp/down", f"{THEIRS}fc2"),
        *norm("final_norm", "decoder.final_layer_norm"),
        Key("final_projection/kernel", "decoder.project_out.weight", "linear"),
        Key("lm_head/kernel", "lm_head.weight", "linear"),
        Key("classifier/kernel", "score.weight", "linear"),
        *linear("span", "qa_outputs"),
    ),
    buffers=(r"decoder\.version",),
)
OFFSET = 2


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of an OPT folder; arguments as in zoo/checkpoints/bert.py."""
    embed_dim = settings.whole("hidden_size", 768)
    before = settings.flag("do_layer_norm_before", True)
    removed = settings.flag("_remove_final_layer_norm", False)
    bias = settings.flag("enable_bias", True)
    width = settings.whole("word_embed_proj_dim", embed_dim)
    narrow = {} if width == embed_dim else {"embed_rank": width, "embed_projection": "tokens"}
    settings.only("layer_norm_elementwise_affine", True)
    settings.only("learned_embeddings", True)  # Galactica's folders say so
    settings.only("scale_embeddings", False)
    settings.ignore("layerdrop", "activation_dropout")
    return ModelConfig(
        family="opt",
        vocab_size=settings.whole("vocab_size", 50272),
        embed_dim=embed_dim,
        **narrow,
        num_layers=settings.whole("num_hidden_layers", 12),
        num_heads=settings.whole("num_attention_heads", 12),
        mlp_dim=settings.whole("ffn_dim", 3072),
        max_positions=settings.whole("max_position_embeddings", 2048),
        visibility="causal",
        positions="learned",
        position_offset=OFFSET,
        norm="layernorm",
        norm_placement="pre" if before else "post",
        norm_eps=1e-5,
        final_norm=before and not removed,
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bias,
        activation=settings.choice("activation_function", "relu", ACTIVATIONS),
        dropout=settings.number("dropout", 0.1),
        attention_dropout=settings.number("attention_dropout", 0.0),
        initializer_range=settings.number("init_std", 0.02),
        **read_head(settings, names, architecture, tied),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    return {
        "model_type": "opt",
        **published_head(config, "OPT"),
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "word_embed_proj_dim": config.embed_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "ffn_dim": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        "do_layer_norm_before": config.norm_placement == "pre",
        "_remove_final_layer_norm": not config.final_norm and config.norm_placement == "pre",
        "enable_bias": config.attention_bias,
        "activation_function": PUBLISHED_ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "init_std": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
    }


FORMATS = decoder_format(
    *("opt", "OPT", TABLE, read_config, write_config),
    tied=True,
    token_table="decoder.embed_tokens.weight",
    answers=(SPANS,),
)
