"""Whether a tree of parameters is the one that a model has, told in one line with the first path that is not."""

import functools
from typing import Any

import jax

from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.forward import initialise
from zoo.tiles import Tiles


def check_parameters(config: ModelConfig, params: Any, only: tuple[str, ...] = (), where: str = "") -> None:
    """Paths and shapes are those of the config's own parameters; dtypes may be any.

    A tree that passed is known again by its structure and shapes, so that a call costs microseconds.

    Args:
        config: of the model.
        params: nested dict.
        only: beginnings of the paths that count; () for all.
        where: what the message begins with.

    Raises:
        InputError: a path too many, too few or of another shape; looped parameters in a scanned model or the reverse.
    """
    if params is None:
        raise InputError(f"{where}params are None; give what model.init or zoo.load returned")
    leaves, structure = jax.tree.flatten(params)
    _check(config, structure, tuple(getattr(leaf, "shape", type(leaf)) for leaf in leaves), only, where)


@functools.lru_cache(maxsize=512)
def _check(config: ModelConfig, structure: Any, shapes: tuple, only: tuple[str, ...], where: str) -> None:
    found, wanted = _by_path(jax.tree.unflatten(structure, shapes)), _expected(config)
    for path in sorted({*found, *wanted}):
        if only and not path.startswith(only):
            continue
        if path not in wanted:
            raise InputError(f"{where}params have {path}, which this model has not{_way_over(config, found)}")
        if path not in found:
            none = "; there are none at all: use model.init or zoo.load" if not found else _way_over(config, found)
            raise InputError(f"{where}params lack {path}{none}")
        if isinstance(found[path], type):
            raise InputError(f"{where}params: {path} is a {found[path].__name__} and no array")
        if found[path] != wanted[path]:
            raise InputError(f"{where}params: {path} has shape {found[path]}; this model's has {wanted[path]}")


@functools.lru_cache(maxsize=128)
def _expected(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes = jax.eval_shape(lambda: initialise(jax.random.key(0), config=config))
    return _by_path(jax.tree.map(lambda leaf: tuple(leaf.shape), shapes))


def _by_path(tree: Any) -> dict[str, Any]:
    pairs = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: isinstance(node, tuple | type | Tiles))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape if isinstance(leaf, Tiles) else leaf
        for path, leaf in pairs
    }


def _way_over(config: ModelConfig, found: dict[str, Any]) -> str:
    looped = any(path.startswith("blocks/layer_") for path in found)
    if config.shared_layers or looped != config.scan or not any(path.startswith("blocks/") for path in found):
        return ""
    kind, way = ("looped", "stack_layers") if looped else ("scanned", "unstack_layers")
    return f"; these are {kind}: zoo.{way}(params, model.config) turns them"
