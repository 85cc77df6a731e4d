"""OLMo 2 folders: LLaMA with norms after each update and over whole query and key projections (arXiv:2501.00656)."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import LAYER, THEIRS, decoder_format, published_decoder, read_decoder, table
from zoo.checkpoints.keys import Key
from zoo.checkpoints.rotary_settings import read_rotary
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig

AFTER = (
    Key(f"{LAYER}attention_post_norm/scale", f"{THEIRS}post_attention_layernorm.weight"),
    Key(f"{LAYER}mlp_post_norm/scale", f"{THEIRS}post_feedforward_layernorm.weight"),
    Key(f"{LAYER}attention/query_norm/scale", f"{THEIRS}self_attn.q_norm.weight", "heads_bias"),
    Key(f"{LAYER}attention/key_norm/scale", f"{THEIRS}self_attn.k_norm.weight", "heads_bias"),
)
DEFAULTS = dict(
    vocab_size=50304,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=None,
    intermediate_size=11008,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of an OLMo 2 folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"])
    bias = settings.flag("attention_bias", False)
    return ModelConfig(
        **fields
        | dict(
            family="olmo2",
            head_dim=settings.whole("head_dim", None),
            rotary_base=rotary.base,
            rotary_scaling=rotary.scaling,
            norm_placement="after",
            qk_norm=True,
            qk_norm_over="projection",
            attention_bias=bias,
            attention_out_bias=bias,
        )
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    values = published_decoder(config, "olmo2", "Olmo2")
    return values | {"head_dim": config.head_dim, "attention_bias": config.attention_bias}


FORMATS = decoder_format("olmo2", "Olmo2", table("OLMo 2", norms=AFTER), read_config, write_config)
