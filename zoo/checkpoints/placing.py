"""Where loaded parameters go: number type, devices, and the nested dict that holds them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.model import Model
from zoo.partition import path_string, shardings

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Placing:
    """Number type and devices of the parameters that are loaded.

    Attributes:
        mesh: parameters are split over it by the table of zoo.partition; None for the default device.
        dtype: of parameters and activations; None keeps float32 parameters and the config's activations.
    """

    mesh: Mesh | None = None
    dtype: str | None = None

    def __post_init__(self):
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InputError(f'dtype "{self.dtype}" is not supported{nearest(str(self.dtype), DTYPES)}')

    @property
    def number_type(self) -> Any:
        return jnp.dtype(self.dtype or "float32")

    def config(self, config: ModelConfig) -> ModelConfig:
        """`config` with the activations' number type that `dtype` asks for."""
        return config if self.dtype is None else config.replace(dtype=self.dtype)

    def shardings(self, abstract: Any) -> dict[str, Any]:
        """path -> sharding (or None without a mesh) of every parameter."""
        if self.mesh is None:
            return dict.fromkeys(flatten(abstract))
        return flatten(shardings(self.mesh, abstract))

    def put(self, array: np.ndarray, sharding: Any) -> jax.Array:
        """`array` on its devices, and there when this returns; over a mesh each device gets its piece alone."""
        number_type = self.number_type

        def piece(index: Any) -> np.ndarray:
            part = array[index]
            return part.astype(number_type) if part.dtype != number_type else np.array(part, order="C")

        if sharding is None:
            return jax.block_until_ready(jnp.array(np.asarray(array).astype(number_type, copy=False)))
        return jax.block_until_ready(jax.make_array_from_callback(array.shape, sharding, piece))

    def place(self, model: Model, sources: Iterable[Any]) -> dict[str, Any]:
        """The parameters of `model`, from sources that give (path, array) pairs; one array is on the host at a time."""
        shardings = {} if self.mesh is None else self.shardings(model.init_shapes())
        flat = {}
        for source in sources:
            for path, array in source.read():
                flat[path] = self.put(array, shardings.get(path))
                del array
        return nest(flat)


def flatten(tree: Any) -> dict[str, Any]:
    """path -> leaf of a nested dict, names joined by `/`."""
    return {path_string(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree
