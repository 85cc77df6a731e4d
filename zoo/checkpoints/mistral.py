"""Mistral folders: LLaMA with a sliding window in every layer, or none (Jiang et al. 2023, arXiv:2310.06825)."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import (
    FULL,
    SLIDING,
    decoder_format,
    one_window,
    published_decoder,
    read_decoder,
    read_layer_types,
    read_window,
    table,
)
from zoo.checkpoints.rotary_settings import read_rotary
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

TABLE = table("Mistral")
DEFAULTS = dict(
    vocab_size=32000,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    max_position_embeddings=131072,
)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Mistral folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"])
    window = read_window(settings, 4096)
    wanted = [SLIDING if window else FULL] * fields["num_layers"]
    if read_layer_types(settings, wanted) != wanted:
        raise settings.fault(f"layer_types mixes kinds, but Mistral's layers are all alike (sliding_window is {window})")
    return ModelConfig(
        **fields,
        family="mistral",
        head_dim=settings.whole("head_dim", None),
        rotary_base=rotary.base,
        rotary_scaling=rotary.scaling,
        layer_pattern=(LayerConfig(window=window),),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    values = published_decoder(config, "mistral", "Mistral")
    return values | {"head_dim": config.head_dim, "sliding_window": one_window(config)}


FORMATS = decoder_format("mistral", "Mistral", TABLE, read_config, write_config)
