"""Phi-3 and Phi-4 folders: LLaMA with query, key and value in one tensor, gate and up in another (arXiv:2404.14219)."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.decoder import (
    ENDS,
    LAYER,
    PARTS,
    PRE_NORMS,
    THEIRS,
    TOKENS,
    decoder_format,
    head_of,
    one_window,
    published_decoder,
    read_decoder,
    read_window,
)
from zoo.checkpoints.keys import Key, Table
from zoo.checkpoints.rotary_settings import published_partial, read_rotary, rotated_features
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

TABLE = Table(
    name="Phi-3",
    prefix="model.",
    keys=(
        *ENDS,
        *PRE_NORMS,
        Key(
            tuple(f"{LAYER}attention/{part}/kernel" for part in PARTS),
            f"{THEIRS}self_attn.qkv_proj.weight",
            "linear_stacked",
        ),
        Key(f"{LAYER}attention/out/kernel", f"{THEIRS}self_attn.o_proj.weight", "linear_from_heads"),
        Key((f"{LAYER}mlp/gate/kernel", f"{LAYER}mlp/up/kernel"), f"{THEIRS}mlp.gate_up_proj.weight", "linear_stacked"),
        Key(f"{LAYER}mlp/down/kernel", f"{THEIRS}mlp.down_proj.weight", "linear"),
    ),
    buffers=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq"),
)
DEFAULTS = dict(
    vocab_size=32064,
    hidden_size=3072,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=None,
    intermediate_size=8192,
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
)
# Phi-3's folders carry a copy of the reference library's code, which it passes over, and so do we.
OWN_CODE = ("configuration_phi3", "modeling_phi3")


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a Phi-3 folder; arguments as in zoo/checkpoints/bert.py."""
    fields = read_decoder(settings, names, architecture, tied, DEFAULTS)
    older = {"su": "longrope", "yarn": "longrope"}
    rotary = read_rotary(settings, fields["max_positions"], partial=1.0, also=older, trained=4096)
    if rotary.scaling is not None and rotary.scaling.kind != "longrope":
        raise settings.fault(f'rope_type "{rotary.scaling.kind}" is not Phi-3\'s; "longrope" is')
    for name, value in {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}.items():
        settings.only(name, value)
    for name in ("full_attn_mod", "interpolate_factor"):  # in Phi-4-mini's folders, and read by nobody
        settings.only(name, 1)
    head_dim = settings.whole("head_dim", None)
    return ModelConfig(
        **fields,
        family="phi3",
        head_dim=head_dim,
        rotary_base=rotary.base,
        rotary_dim=rotated_features(settings, rotary.partial, head_of(fields, head_dim)),
        rotary_scaling=rotary.scaling,
        layer_pattern=(LayerConfig(window=read_window(settings, None)),),
        dropout=settings.number("resid_pdrop", 0.0),
        embed_dropout=settings.number("embd_pdrop", 0.0),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json; of a scaling what older versions of the reference library take, and no more."""
    values = published_decoder(config, "phi3", "Phi3")
    if config.rotary_scaling is not None:
        trained = values["rope_scaling"].pop("original_max_position_embeddings", config.max_positions)
        values["original_max_position_embeddings"] = trained
        values["rope_scaling"].pop("rope_type")
    return values | {
        "head_dim": config.head_dim,
        "partial_rotary_factor": published_partial(config.rotary_dim, config.head_dim),
        "sliding_window": one_window(config),
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.embed_dropout,
    }


FORMATS = decoder_format("phi3", "Phi3", TABLE, read_config, write_config, own_code=OWN_CODE, answers=(TOKENS,))
