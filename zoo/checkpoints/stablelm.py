"""StableLM folders: LLaMA with layer norms and partly turned heads (Bellagente et al. 2024, arXiv:2402.17834).

StableLM 2 12B normalises each head of queries and keys by a layer norm of its own, without bias, in a tensor a head.
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import (
    LAYER,
    PRE_NORMS,
    THEIRS,
    TOKENS,
    decoder_format,
    head_of,
    published_decoder,
    read_decoder,
    table,
)
from zoo.checkpoints.keys import Key
from zoo.checkpoints.rotary_settings import published_partial, read_rotary, rotated_features
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig

HEAD_NORMS = (
    Key(f"{LAYER}attention/query_norm/scale", f"{THEIRS}self_attn.q_layernorm.norms.{{head}}.weight"),
    Key(f"{LAYER}attention/key_norm/scale", f"{THEIRS}self_attn.k_layernorm.norms.{{head}}.weight"),
)
BIASES = (
    Key(f"{LAYER}attention_norm/bias", f"{THEIRS}input_layernorm.bias"),
    Key(f"{LAYER}mlp_norm/bias", f"{THEIRS}post_attention_layernorm.bias"),
    Key("final_norm/bias", "norm.bias"),
)
DEFAULTS = dict(
    vocab_size=50304,
    hidden_size=2560,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    intermediate_size=6912,
    max_position_embeddings=4096,
)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a StableLM folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"], partial=0.25)
    normed = settings.flag("qk_layernorm", False)
    by_head = dict(qk_norm=True, qk_norm_over="own_head", qk_norm_kind="layernorm") if normed else {}
    return ModelConfig(
        **fields
        | by_head
        | dict(
            family="stablelm",
            rotary_base=rotary.base,
            rotary_dim=rotated_features(settings, rotary.partial, head_of(fields, None)),
            rotary_scaling=rotary.scaling,
            norm="layernorm",
            norm_eps=settings.number("layer_norm_eps", 1e-5),
            attention_bias=settings.flag("use_qkv_bias", False),
            parallel_block=settings.flag("use_parallel_residual", False),
            dropout=settings.number("hidden_dropout", 0.0),
        )
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    values = published_decoder(config, "stablelm", "StableLm")
    values["layer_norm_eps"] = values.pop("rms_norm_eps")
    return values | {
        "partial_rotary_factor": published_partial(config.rotary_dim, config.head_dim),
        "use_qkv_bias": config.attention_bias,
        "use_parallel_residual": config.parallel_block,
        "qk_layernorm": config.qk_norm,
        "hidden_dropout": config.dropout,
    }


FORMATS = decoder_format(
    *("stablelm", "StableLm", table("StableLM", *BIASES, *HEAD_NORMS, norms=PRE_NORMS), read_config, write_config),
    answers=(TOKENS,),
)
