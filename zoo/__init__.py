"""Oneblock's models: BERT, GPT and LLaMA as one Transformer block, set differently.

    import jax, zoo
    model = zoo.create("gpt2")
    params = model.init(jax.random.key(0))
    out = model.apply(params, tokens)          # out.logits [B, T, V]
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors, which run nothing
    from zoo.cache import Cache
    from zoo.calibration import quantize
    from zoo.checkpoints import export, load
    from zoo.config import ModelConfig
    from zoo.errors import InputError
    from zoo.forward import Output
    from zoo.generation.beams import beam_search
    from zoo.generation.choosing import Choices, choose
    from zoo.generation.generate import generate, stream
    from zoo.layer_config import LayerConfig, RotaryScaling
    from zoo.masked_texts import fill_mask
    from zoo.model import Model, with_head, with_image_size
    from zoo.registry import create, list_models
    from zoo.stack import stack_layers, unstack_layers
    from zoo.summary import summarise
    from zoo.text_vectors import embed
    from zoo.tiles import tiled
    from zoo.tokenizer import Tokenizer, load_tokenizer

# Every name is imported when it is first used, so that `python -m zoo list` waits for no JAX.
_HOMES = {
    "Cache": "zoo.cache",
    "Choices": "zoo.generation.choosing",
    "InputError": "zoo.errors",
    "LayerConfig": "zoo.layer_config",
    "Model": "zoo.model",
    "ModelConfig": "zoo.config",
    "Output": "zoo.forward",
    "RotaryScaling": "zoo.layer_config",
    "Tokenizer": "zoo.tokenizer",
    "beam_search": "zoo.generation.beams",
    "choose": "zoo.generation.choosing",
    "create": "zoo.registry",
    "embed": "zoo.text_vectors",
    "export": "zoo.checkpoints",
    "fill_mask": "zoo.masked_texts",
    "generate": "zoo.generation.generate",
    "list_models": "zoo.registry",
    "load": "zoo.checkpoints",
    "load_tokenizer": "zoo.tokenizer",
    "quantize": "zoo.calibration",
    "stack_layers": "zoo.stack",
    "stream": "zoo.generation.generate",
    "summarise": "zoo.summary",
    "tiled": "zoo.tiles",
    "unstack_layers": "zoo.stack",
    "with_head": "zoo.model",
    "with_image_size": "zoo.model",
}

__all__ = [
    "Cache",
    "Choices",
    "InputError",
    "LayerConfig",
    "Model",
    "ModelConfig",
    "Output",
    "RotaryScaling",
    "Tokenizer",
    "beam_search",
    "choose",
    "create",
    "embed",
    "export",
    "fill_mask",
    "generate",
    "list_models",
    "load",
    "load_tokenizer",
    "quantize",
    "stack_layers",
    "stream",
    "summarise",
    "tiled",
    "unstack_layers",
    "with_head",
    "with_image_size",
]


def __getattr__(name: str):
    if name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"zoo.{name}")  # zoo.check, zoo.masks ...
        except ModuleNotFoundError as error:
            if error.name != f"zoo.{name}":
                raise
    raise AttributeError(f"module 'zoo' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
