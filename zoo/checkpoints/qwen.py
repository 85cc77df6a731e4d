"""Qwen2, Qwen2.5 and Qwen3 folders: LLaMA with biases on query, key and value, or with a norm on query and key.

References: Qwen Team 2024 (arXiv:2407.10671 and 2412.15115), Qwen Team 2025 (arXiv:2505.09388).
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import (
    FULL,
    HEAD_NORMS,
    SLIDING,
    TOKENS_AND_OLD_SPANS,
    decoder_format,
    one_window,
    published_decoder,
    published_layer_types,
    read_decoder,
    read_layer_types,
    read_window,
    table,
)
from zoo.checkpoints.rotary_settings import read_rotary
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig, shortest_pattern

DEFAULTS = dict(
    vocab_size=151936,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    intermediate_size=22016,
    max_position_embeddings=32768,
)


def _read(settings: Settings, names: Set[str], architecture: str | None, tied: bool, more: dict[str, Any]):
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"])
    window = read_window(settings, 4096)
    settings.only("use_mrope", False)
    first = settings.count("max_window_layers", 28)  # layers before this one see everything
    window = window if settings.flag("use_sliding_window", False) else None
    count = fields["num_layers"]
    kinds = read_layer_types(settings, [SLIDING if window and i >= first else FULL for i in range(count)])
    if SLIDING in kinds and not window:
        raise settings.fault(f'layer_types has "{SLIDING}" but use_sliding_window and sliding_window set no window')
    pattern = shortest_pattern([LayerConfig(window=window if kind == SLIDING else None) for kind in kinds])
    rotary_fields = dict(rotary_base=rotary.base, rotary_scaling=rotary.scaling, layer_pattern=pattern)
    return ModelConfig(**fields | rotary_fields | more)


def read_qwen2(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Qwen2 or Qwen2.5 folder; arguments as in zoo/checkpoints/bert.py."""
    more = dict(family="qwen2", head_dim=settings.whole("head_dim", None), attention_bias=True)
    return _read(settings, names, architecture, tied, more)


def read_qwen3(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Qwen3 folder; arguments as in zoo/checkpoints/bert.py."""
    bias = settings.flag("attention_bias", False)
    more = dict(family="qwen3", head_dim=settings.whole("head_dim", 128), qk_norm=True)
    return _read(settings, names, architecture, tied, more | dict(attention_bias=bias, attention_out_bias=bias))


def _published(config: ModelConfig, model_type: str, stem: str) -> dict[str, Any]:
    window = one_window(config)
    kinds = published_layer_types(config)
    return published_decoder(config, model_type, stem) | {
        "head_dim": config.head_dim,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": kinds.index(SLIDING) if SLIDING in kinds else config.num_layers,
        "layer_types": kinds,
    }


def write_qwen2(config: ModelConfig) -> dict[str, Any]:
    """The settings of a Qwen2 config.json."""
    return _published(config, "qwen2", "Qwen2")


def write_qwen3(config: ModelConfig) -> dict[str, Any]:
    """The settings of a Qwen3 config.json."""
    return _published(config, "qwen3", "Qwen3") | {"attention_bias": config.attention_bias}


FORMATS = {
    **decoder_format("qwen2", "Qwen2", table("Qwen2"), read_qwen2, write_qwen2, **TOKENS_AND_OLD_SPANS),
    **decoder_format(
        "qwen3", "Qwen3", table("Qwen3", *HEAD_NORMS), read_qwen3, write_qwen3, **TOKENS_AND_OLD_SPANS
    ),
}
