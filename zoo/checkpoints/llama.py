"""LLaMA folders, 1 to 3: their settings and key table (Touvron et al. 2023, arXiv:2302.13971, and its successors)."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, linear_to_heads
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings, published_rotary
from zoo.config import ModelConfig

LAYER = "blocks/layer_{layer}/"
THEIRS = "layers.{layer}."


TABLE = Table(
    name="LLaMA",
    prefix="model.",
    keys=(
        Key("embed/token/embedding", "embed_tokens.weight", aliases=("lm_head.weight",)),
        Key(f"{LAYER}attention_norm/scale", f"{THEIRS}input_layernorm.weight"),
        *linear_to_heads(f"{LAYER}attention/query", f"{THEIRS}self_attn.q_proj"),
        *linear_to_heads(f"{LAYER}attention/key", f"{THEIRS}self_attn.k_proj"),
        *linear_to_heads(f"{LAYER}attention/value", f"{THEIRS}self_attn.v_proj"),
        *linear(f"{LAYER}attention/out", f"{THEIRS}self_attn.o_proj", "linear_from_heads"),
        Key(f"{LAYER}mlp_norm/scale", f"{THEIRS}post_attention_layernorm.weight"),
        *linear(f"{LAYER}mlp/up", f"{THEIRS}mlp.up_proj"),
        *linear(f"{LAYER}mlp/gate", f"{THEIRS}mlp.gate_proj"),
        *linear(f"{LAYER}mlp/down", f"{THEIRS}mlp.down_proj"),
        Key("final_norm/scale", "norm.weight"),
        Key("lm_head/kernel", "lm_head.weight", "linear"),
    ),
    buffers=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq"),
)

ARCHITECTURES: dict[str, dict[str, Any]] = {"LlamaForCausalLM": {}, "LlamaModel": {}}


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a LLaMA folder; arguments as in zoo/checkpoints/bert.py."""
    num_heads = settings.whole("num_attention_heads", 32)
    max_positions = settings.whole("max_position_embeddings", 2048)
    rotary_base, rotary_scaling = settings.rotary(max_positions)
    attention_bias = settings.flag("attention_bias", False)
    bare = architecture != "LlamaForCausalLM" and not tied and "lm_head.weight" not in names
    settings.only("sliding_window", None)
    settings.only("use_sliding_window", False)
    settings.only("rope_interleaved", False)
    settings.ignore("pretraining_tp", "is_llama_config")
    return ModelConfig(
        family="llama",
        vocab_size=settings.whole("vocab_size", 32000),
        embed_dim=settings.whole("hidden_size", 4096),
        num_layers=settings.whole("num_hidden_layers", 32),
        num_heads=num_heads,
        num_kv_heads=settings.whole("num_key_value_heads", num_heads),
        head_dim=settings.whole("head_dim", None),
        mlp_dim=settings.whole("intermediate_size", 11008),
        max_positions=max_positions,
        visibility="causal",
        positions="rotary",
        rotary_base=rotary_base,
        rotary_scaling=rotary_scaling,
        norm="rmsnorm",
        norm_placement="pre",
        norm_eps=settings.number("rms_norm_eps", 1e-6),
        final_norm=True,
        attention_bias=attention_bias,
        attention_out_bias=attention_bias,
        mlp_bias=settings.flag("mlp_bias", False),
        activation=settings.choice("hidden_act", "silu", ACTIVATIONS),
        gated=True,
        attention_dropout=settings.number("attention_dropout", 0.0),
        initializer_range=settings.number("initializer_range", 0.02),
        tie_embeddings=tied,
        pooling="last",
        head="none" if bare else "lm",
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaModel" if config.head == "none" else "LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        **published_rotary(config.rotary_base, config.rotary_scaling),
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": PUBLISHED_ACTIVATIONS[config.activation],
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
    }


FORMATS = {
    "llama": Format(
        table=TABLE,
        architectures=ARCHITECTURES,
        read=read_config,
        write=write_config,
        read_out="lm_head.weight",
        token_table="embed_tokens.weight",
        tied=False,
        bare=("LlamaModel",),
        writes=lambda config: config.family == "llama",
    )
}
