"""SmolLM3 folders: LLaMA in which every fourth layer turns nothing (Bakouch et al. 2025; arXiv:2501.18795).

SmolLM2 calls itself llama and is one.
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import (
    FULL,
    SLIDING,
    TOKENS_AND_OLD_SPANS,
    decoder_format,
    each_layer,
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

TABLE = table("SmolLM3")
DEFAULTS = dict(
    vocab_size=128256,
    hidden_size=2048,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=4,
    intermediate_size=11008,
    max_position_embeddings=32768,
)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a SmolLM3 folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"], base=2000000.0)
    bias = settings.flag("attention_bias", False)
    window = read_window(settings, None)
    window = window if settings.flag("use_sliding_window", False) else None
    turned = _turned(settings, fields["num_layers"])
    kinds = read_layer_types(settings, [FULL if turns or not window else SLIDING for turns in turned])
    if SLIDING in kinds and not window:
        raise settings.fault(f'layer_types has "{SLIDING}" but use_sliding_window and sliding_window set no window')
    layers = [
        LayerConfig(window=window if kind == SLIDING else None, rotary=turns)
        for kind, turns in zip(kinds, turned, strict=True)
    ]
    settings.ignore("pretraining_tp", "max_window_layers")
    return ModelConfig(
        **fields
        | dict(
            family="smollm3",
            head_dim=settings.whole("head_dim", None),
            rotary_base=rotary.base,
            rotary_scaling=rotary.scaling,
            layer_pattern=shortest_pattern(layers),
            attention_bias=bias,
            attention_out_bias=bias,
            mlp_bias=settings.flag("mlp_bias", False),
        )
    )


def _turned(settings: Settings, num_layers: int) -> list[bool]:
    """Whether each layer turns queries and keys; the file's 1 says that it does."""
    every = settings.whole("no_rope_layer_interval", 4)
    settings.ignore("no_rope_layers")
    found = settings.values.get("no_rope_layers", [int((i + 1) % every != 0) for i in range(num_layers)])
    if not isinstance(found, list) or len(found) < num_layers or any(one not in (0, 1) for one in found):
        raise settings.fault(f"no_rope_layers must be a list of 0 and 1, at least {num_layers} long")
    return [bool(one) for one in found[:num_layers]]


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    window = one_window(config)
    return published_decoder(config, "smollm3", "SmolLM3") | {
        "head_dim": config.head_dim,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "no_rope_layers": [int(layer.rotary) for layer in each_layer(config)],
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": published_layer_types(config),
    }


FORMATS = decoder_format(
    "smollm3", "SmolLM3", TABLE, read_config, write_config, tied=True, **TOKENS_AND_OLD_SPANS
)
