"""Oneblock's models: BERT, GPT and LLaMA as one Transformer block, set differently.

    import jax, zoo
    model = zoo.create("gpt2")
    params = model.init(jax.random.key(0))
    out = model.apply(params, tokens)          # out.logits [B, T, V]
"""

from zoo.cache import Cache
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.forward import Output
from zoo.layer_config import LayerConfig, RotaryScaling
from zoo.model import Model, with_head, with_image_size
from zoo.registry import create, list_models
from zoo.stack import stack_layers, unstack_layers

# Names imported when first used: they bring readers that models alone do not need.
_HOMES = {
    "Tokenizer": "zoo.tokenizer",
    "export": "zoo.checkpoints",
    "generate": "zoo.generation",
    "load": "zoo.checkpoints",
    "load_tokenizer": "zoo.tokenizer",
    "summarise": "zoo.summary",
}

__all__ = [
    "Cache",
    "InputError",
    "LayerConfig",
    "Model",
    "ModelConfig",
    "Output",
    "RotaryScaling",
    "Tokenizer",
    "create",
    "export",
    "generate",
    "list_models",
    "load",
    "load_tokenizer",
    "stack_layers",
    "summarise",
    "unstack_layers",
    "with_head",
    "with_image_size",
]


def __getattr__(name: str):
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'zoo' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
