"""Mistral folders: LLaMA with a sliding window in every layer, or none (Jiang et al. 2023, arXiv:2310.06825).

And Mixtral: Mistral with several feed-forward networks behind a router (Jiang et al. 2024, arXiv:2401.04088).
"""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import (
    ATTENTION,
    ENDS,
    FULL,
    LAYER,
    PRE_NORMS,
    ROTARY_BUFFERS,
    SLIDING,
    THEIRS,
    TOKENS_AND_SPANS,
    decoder_format,
    one_window,
    published_decoder,
    read_decoder,
    read_layer_types,
    read_window,
    table,
)
from zoo.checkpoints.keys import Key, Table
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
MIXTRAL_DEFAULTS = DEFAULTS | dict(rms_norm_eps=1e-5)
MOST_EXPERTS = 64
EXPERTS = f"{THEIRS}block_sparse_moe."
MIXTRAL_TABLE = Table(
    name="Mixtral",
    prefix="model.",
    keys=(
        *ENDS,
        *PRE_NORMS,
        *ATTENTION,
        Key(f"{LAYER}mlp/router/kernel", f"{EXPERTS}gate.weight", "linear"),
        *(
            Key(f"{LAYER}mlp/expert_{expert}/{ours}/kernel", f"{EXPERTS}experts.{expert}.{theirs}.weight", "linear")
            for expert in range(MOST_EXPERTS)
            for ours, theirs in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
        ),
    ),
    buffers=ROTARY_BUFFERS,
)


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Mistral folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"])
    window = read_window(settings, 4096)
    wanted = [SLIDING if window else FULL] * fields["num_layers"]
    if read_layer_types(settings, wanted) != wanted:
        raise settings.fault(f"layer_types: Mistral's layers are all alike, and sliding_window is {window}")
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


def read_mixtral(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Mixtral folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, MIXTRAL_DEFAULTS)
    rotary = read_rotary(settings, fields["max_positions"])
    experts = settings.whole("num_local_experts", 8, "num_experts")
    if experts > MOST_EXPERTS:
        raise settings.fault(f"num_local_experts is {experts}; it must be {MOST_EXPERTS} at most")
    # Of training alone.
    settings.ignore("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
    return ModelConfig(
        **fields,
        family="mixtral",
        head_dim=settings.whole("head_dim", None),
        rotary_base=rotary.base,
        rotary_scaling=rotary.scaling,
        layer_pattern=(LayerConfig(window=read_window(settings, None)),),
        num_experts=experts,
        experts_per_token=settings.whole("num_experts_per_tok", 2),
    )


def write_mixtral(config: ModelConfig) -> dict[str, Any]:
    """The settings of a Mixtral config.json."""
    return published_decoder(config, "mixtral", "Mixtral") | {
        "head_dim": config.head_dim,
        "sliding_window": one_window(config),
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
    }


FORMATS = {
    **decoder_format("mistral", "Mistral", TABLE, read_config, write_config, **TOKENS_AND_SPANS),
    **decoder_format("mixtral", "Mixtral", MIXTRAL_TABLE, read_mixtral, write_mixtral, **TOKENS_AND_SPANS),
}
