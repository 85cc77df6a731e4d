"""Which parameters a way of adapting trains, which stay as they are, and how fast each layer learns.

    trained, frozen = split(params, model.config, tuning, head="classifier")
    params = join(trained, frozen)

The optimizer sees `trained` alone, so what is frozen has no gradient and no moments, and comes out with the same bits.
A layer is frozen in a scanned stack by cutting its leaves along the axis of layers: `join` puts the two parts together.

Levels, of a model with L blocks: embeddings 0, block l (from 1) l, everything above the blocks L + 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eval.ways import lora
from eval.ways.finetune_config import FinetuneConfig
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.partition import path_string

Tree = dict[str, Any]


def split(params: Tree, config: ModelConfig, tuning: FinetuneConfig, head: str) -> tuple[Tree, Tree]:
    """Parts of `params` by tuning.way, as two nested dicts of the same paths.

    Args:
        params: of the model under the task's head.
        config: the model's.
        tuning: way and top_layers are read. "lora" trains the head here; eval.ways.lora makes the adapters.
        head: the name of the head's parameters.

    Returns:
        trained, frozen: a leaf is in one of them, or in both where a scanned stack is cut: the lower layers in
        `frozen`, the upper ones in `trained`.

    Raises:
        InputError: more top_layers than the model has, or top layers of a model whose layers are one.
    """
    if tuning.way == "full":
        return params, {}
    if tuning.way != "top":
        return {head: params[head]}, {name: tree for name, tree in params.items() if name != head}
    layers = config.num_layers
    if tuning.top_layers > layers:
        raise InputError(f"top_layers is {tuning.top_layers}; this model has {layers}")
    _refuse_shared(config, "top_layers")
    trained: Tree = {}
    frozen: Tree = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = path_string(path).split("/")
        level = levels(keys, leaf.shape, config)
        below = int(np.sum(level <= layers - tuning.top_layers))
        if below < level.size:
            _put(trained, keys, leaf[below:] if below else leaf)
        if below:
            _put(frozen, keys, leaf[:below] if below < level.size else leaf)
    return trained, frozen


def join(trained: Tree, frozen: Tree, lora_scale: float = 0.0) -> Tree:
    """The whole parameters of `split`'s two parts; adapters under "lora" are added to their kernels, lora_scale times.

    Arrays that are whole in one part are passed on as they are.
    """
    adapters = trained.get(lora.NAME)
    whole = _overlay(frozen, {name: tree for name, tree in trained.items() if name != lora.NAME})
    return whole if adapters is None else lora.merge(whole, adapters, lora_scale)


def levels(keys: list[str], shape: tuple[int, ...], config: ModelConfig) -> np.ndarray:
    """The level of a parameter: an integer, or [n] of them for n stacked layers (the last n, where there are fewer)."""
    layers, slots = config.num_layers, len(config.layer_pattern)
    keys = keys[1:] if keys[0] == lora.NAME else keys
    if keys[0] not in ("blocks", "tail"):
        return np.array(0 if keys[0] == "embed" else layers + 1)
    name, _, number = keys[1].partition("_")
    if name == "layer":
        return np.array(int(number) + 1)
    if name == "shared":
        return np.array(layers)
    slot = int(number) if name == "pattern" and slots > 1 else 0
    return (np.arange(config.num_repeats) * slots + slot + 1)[config.num_repeats - shape[0] :]


def layer_scales(params: Tree, config: ModelConfig, decay: float) -> Tree:
    """What each parameter's rate is multiplied by: decay^(L + 1 - level), as float32 arrays that broadcast to it.

    1 above the blocks (head, final norm, pooler), d at the last block, d^L at the first, d^(L + 1) at the embeddings.
    Howard and Ruder 2018, arXiv:1801.06146, 3.2 ("discriminative fine-tuning"); Clark et al. 2020, arXiv:2003.10555,
    whose code has d^2 at the last block.
    """
    if decay != 1:
        _refuse_shared(config, "layer_decay")

    def one(path, leaf):
        level = levels(path_string(path).split("/"), leaf.shape, config)
        scale = np.asarray(decay ** (config.num_layers + 1.0 - level), np.float32)
        return scale.reshape(scale.shape + (1,) * (leaf.ndim - 1)) if scale.ndim else scale

    return jax.tree_util.tree_map_with_path(one, params)


def scale_by_layer(config: ModelConfig, decay: float) -> optax.GradientTransformation:
    """Multiplies updates by `layer_scales`; without state."""

    def update(updates, state, params=None):
        del params
        scales = layer_scales(updates, config, decay)
        return jax.tree.map(lambda u, scale: u * scale.astype(u.dtype), updates, scales), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def count(tree: Any) -> int:
    """Numbers in all arrays of a tree."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def _put(tree: Tree, keys: list[str], leaf: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = leaf


def _overlay(lower: Any, upper: Any) -> Any:
    if not isinstance(lower, dict):
        return jnp.concatenate([lower, upper])
    both = {name: _overlay(lower[name], upper[name]) for name in lower.keys() & upper.keys()}
    return {**lower, **upper, **both}


def _refuse_shared(config: ModelConfig, name: str) -> None:
    if config.shared_layers:
        raise InputError(f"{name} tells layers apart, and this model has one block in the place of all")
