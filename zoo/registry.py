"""Names of models: what `zoo.create` accepts and `python -m zoo list` prints."""

from typing import TYPE_CHECKING, Any

from zoo.config import ModelConfig
from zoo.config_checks import MAX_LAYERS
from zoo.errors import InputError, nearest
from zoo.families import (
    albert,
    bert,
    dinov2,
    distilbert,
    electra,
    gemma,
    gpt,
    llama,
    mistral,
    modernbert,
    neox,
    olmo,
    opt,
    phi,
    qwen,
    roberta,
    stablelm,
    vit,
)
from zoo.layer_config import shortest_pattern

if TYPE_CHECKING:
    from zoo.model import Model

FAMILIES = {
    "bert": bert.PRESETS,
    "roberta": roberta.PRESETS,
    "distilbert": distilbert.PRESETS,
    "albert": albert.PRESETS,
    "electra": electra.PRESETS,
    "modernbert": modernbert.PRESETS,
    "vit": vit.VIT_PRESETS,
    "deit": vit.DEIT_PRESETS,
    "dinov2": dinov2.PRESETS,
    "gpt": gpt.PRESETS,
    "llama": llama.PRESETS,
    "mistral": mistral.PRESETS,
    "qwen": qwen.PRESETS,
    "gemma": gemma.PRESETS,
    "neox": neox.PRESETS,
    "opt": opt.PRESETS,
    "phi": phi.PRESETS,
    "olmo": olmo.PRESETS,
    "stablelm": stablelm.PRESETS,
}
PRESETS: dict[str, ModelConfig] = {name: config for presets in FAMILIES.values() for name, config in presets.items()}


def list_models() -> list[str]:
    """The preset names, family by family, small to large."""
    return list(PRESETS)


def create(name_or_config: str | ModelConfig, **overrides: Any) -> "Model":
    """A model from a preset's name or a config.

    Args:
        name_or_config: a name from list_models(), or a ModelConfig.
        **overrides: fields of ModelConfig to change, such as vocab_size=8000. Sizes that follow from others (head_dim,
            mlp_dim, num_kv_heads) follow a changed embed_dim or num_heads unless they are named too.

    Raises:
        InputError: unknown name or field, with the nearest right one.
    """
    from zoo.model import Model  # and JAX, which the names alone do not need

    if isinstance(name_or_config, ModelConfig):
        config = name_or_config
    else:
        if not isinstance(name_or_config, str):
            raise InputError(f"create takes a name or a ModelConfig, not a {type(name_or_config).__name__}")
        if name_or_config not in PRESETS:
            raise InputError(f'there is no model "{name_or_config:.80}"{nearest(name_or_config, PRESETS)}')
        config = PRESETS[name_or_config]
    return Model(config.replace(**follow_sizes(config, overrides)) if overrides else config)


def follow_sizes(config: ModelConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` completed so that sizes keep their relation to embed_dim, num_heads and num_layers.

    So do the rotated part of a head and an embed_scale of sqrt(D). A pattern that spells every layer out (ModernBERT,
    whose first stands apart) is cut or continued by what repeats after its first layer; others are cut to fewer layers.
    """
    changes = dict(changes)
    if "embed_dim" in changes or "num_heads" in changes:
        changes.setdefault("head_dim", None)
    if "num_heads" in changes and config.num_groups == 1:
        changes.setdefault("num_kv_heads", None)
    if "embed_dim" in changes and config.mlp_dim == 4 * config.embed_dim:
        changes.setdefault("mlp_dim", None)
    width, heads = (changes.get(name, getattr(config, name)) for name in ("embed_dim", "num_heads"))
    sound = all(isinstance(size, int) and size > 0 for size in (width, heads))  # ModelConfig refuses what is not
    if sound and width != config.embed_dim and config.embed_scale == config.embed_dim**0.5:
        changes.setdefault("embed_scale", width**0.5)
    if sound and config.rotary_dim is not None and changes.get("head_dim", config.head_dim) is None:
        changes.setdefault("rotary_dim", config.rotary_dim * (width // heads) // config.head_dim)
    first, *rest = config.layer_pattern
    if "num_layers" in changes and 1 < len(config.layer_pattern) == config.num_layers and first not in rest:
        cycle = shortest_pattern(rest)
        count = changes["num_layers"] - 1 if isinstance(changes["num_layers"], int) else 0
        changes.setdefault("layer_pattern", (first, *(cycle[i % len(cycle)] for i in range(min(count, MAX_LAYERS)))))
    elif isinstance(changes.get("num_layers"), int) and 0 < changes["num_layers"] < len(config.layer_pattern):
        changes.setdefault("layer_pattern", config.layer_pattern[: changes["num_layers"]])
    return changes
