"""LLaMA folders, 1 to 3, and SmolLM2: their settings (Touvron et al. 2023, arXiv:2302.13971, and its successors)."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import TOKENS_AND_OLD_SPANS, decoder_format, published_decoder, read_decoder, table
from zoo.checkpoints.rotary_settings import read_rotary
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig

TABLE = table("LLaMA")
DEFAULTS = dict(
    vocab_size=32000,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=None,
    intermediate_size=11008,
    max_position_embeddings=2048,
)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a LLaMA folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"])
    bias = settings.flag("attention_bias", False)
    settings.only("sliding_window", None)
    settings.only("use_sliding_window", False)
    settings.only("rope_interleaved", False)
    settings.ignore("pretraining_tp", "is_llama_config")
    return ModelConfig(
        **fields
        | dict(
            family="llama",
            head_dim=settings.whole("head_dim", None),
            rotary_base=rotary.base,
            rotary_scaling=rotary.scaling,
            attention_bias=bias,
            attention_out_bias=bias,
            mlp_bias=settings.flag("mlp_bias", False),
        )
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    return published_decoder(config, "llama", "Llama") | {
        "head_dim": config.head_dim,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }


FORMATS = decoder_format("llama", "Llama", TABLE, read_config, write_config, **TOKENS_AND_OLD_SPANS)
