"""GPT-NeoX and Pythia folders: attention beside FFN, each with its norm (Black et al. 2022, arXiv:2204.06745).

Query, key and value are one tensor, head by head: the three of head 0, the three of head 1, and so on.
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import LAYER, PARTS, SPANS, THEIRS, TOKENS, decoder_format, published_head, read_head
from zoo.checkpoints.keys import Key, Table, linear, norm
from zoo.checkpoints.rotary_settings import published_partial, published_scaling, read_rotary, rotated_features
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig

# The read-out is embed_out in published folders and lm_head in the newest of the reference library.
READ_OUT = "embed_out.weight"
FUSED = f"{THEIRS}attention.query_key_value"
TABLE = Table(
    name="GPT-NeoX",
    prefix="gpt_neox.",
    keys=(
        Key("embed/token/embedding", "embed_in.weight", aliases=(READ_OUT,)),
        *norm(f"{LAYER}attention_norm", f"{THEIRS}input_layernorm"),
        *norm(f"{LAYER}mlp_norm", f"{THEIRS}post_attention_layernorm"),
        Key(tuple(f"{LAYER}attention/{part}/kernel" for part in PARTS), f"{FUSED}.weight", "linear_interleaved_heads"),
        Key(tuple(f"{LAYER}attention/{part}/bias" for part in PARTS), f"{FUSED}.bias", "interleaved_heads_bias"),
        *linear(f"{LAYER}attention/out", f"{THEIRS}attention.dense", "linear_from_heads"),
        *linear(f"{LAYER}mlp/up", f"{THEIRS}mlp.dense_h_to_4h"),
        *linear(f"{LAYER}mlp/down", f"{THEIRS}mlp.dense_4h_to_h"),
        *norm("final_norm", "final_layer_norm"),
        Key("lm_head/kernel", READ_OUT, "linear"),
        Key("classifier/kernel", "score.weight", "linear"),
        *linear("token_classifier", "classifier"),
        *linear("span", "qa_outputs"),
    ),
    buffers=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)", r"rotary_emb\.inv_freq"),
    renamed=(("lm_head.weight", READ_OUT),),
    heads=("embed_out.", "score.", "classifier.", "qa_outputs."),
)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a GPT-NeoX folder; arguments as in zoo/checkpoints/bert.py."""
    embed_dim, num_heads = settings.whole("hidden_size", 6144), settings.whole("num_attention_heads", 64)
    max_positions = settings.whole("max_position_embeddings", 2048)
    rotary = read_rotary(
        settings, max_positions, base_name="rotary_emb_base", partial=0.25, partial_name="rotary_pct"
    )
    bias = settings.flag("attention_bias", True)
    parallel = settings.flag("use_parallel_residual", True)
    dropout = settings.number("hidden_dropout", 0.0)
    # Of token classification, and of the 20B model's folder; the reference library reads none of them here.
    settings.ignore("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob")
    return ModelConfig(
        family="gpt_neox",
        vocab_size=settings.whole("vocab_size", 50432),
        embed_dim=embed_dim,
        num_layers=settings.whole("num_hidden_layers", 44),
        num_heads=num_heads,
        mlp_dim=settings.whole("intermediate_size", 24576),
        max_positions=max_positions,
        visibility="causal",
        positions="rotary",
        rotary_base=rotary.base,
        rotary_dim=rotated_features(settings, rotary.partial, max(embed_dim // num_heads, 1)),
        rotary_scaling=rotary.scaling,
        norm="layernorm",
        norm_placement="pre",
        norm_eps=settings.number("layer_norm_eps", 1e-5),
        final_norm=True,
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=True,
        parallel_block=parallel,
        parallel_mlp_norm=parallel,
        activation=settings.choice("hidden_act", "gelu", ACTIVATIONS),
        dropout=dropout,
        embed_dropout=dropout,
        attention_dropout=settings.number("attention_dropout", 0.0),
        initializer_range=settings.number("initializer_range", 0.02),
        **read_head(settings, names, architecture, tied, READ_OUT),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    return {
        "model_type": "gpt_neox",
        **published_head(config, "GPTNeoX"),
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        "rotary_emb_base": config.rotary_base,
        "rotary_pct": published_partial(config.rotary_dim, config.head_dim),
        "rope_scaling": published_scaling(config.rotary_scaling, config.max_positions),
        "layer_norm_eps": config.norm_eps,
        "attention_bias": config.attention_bias,
        "use_parallel_residual": config.parallel_block,
        "hidden_act": PUBLISHED_ACTIVATIONS[config.activation],
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
    }


FORMATS = decoder_format(
    *("gpt_neox", "GPTNeoX", TABLE, read_config, write_config),
    read_out=READ_OUT,
    token_table="embed_in.weight",
    answers=(TOKENS, SPANS),
)
