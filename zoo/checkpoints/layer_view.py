"""Parameters as those of a loop of layers, whatever their stack: one array at a time on this host, none kept."""

import re
from typing import Any

import jax
import numpy as np

from zoo.checkpoints.placing import flatten
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.stack import unstack_layers

LAYER = re.compile(r"blocks/layer_(\d+)/(.*)")


class LayerView:
    """Looped or scanned parameters under the paths of the loop.

    Attributes:
        shapes: path -> ShapeDtypeStruct of every parameter of the loop.

    Args:
        params: of the model.
        config: of the model, which says whether they are stacked.
        number_type: of the arrays that are read; None for that of the parameters.
    """

    def __init__(self, params: dict[str, Any], config: ModelConfig, number_type: Any = None):
        self.flat, self.config, self.number_type = flatten(params), config, number_type
        looped = jax.eval_shape(lambda tree: unstack_layers(tree, config), params) if config.scan else params
        self.shapes = {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype if number_type is None else number_type)
            for path, leaf in flatten(looped).items()
        }

    def read(self, path: str) -> np.ndarray:
        """The array on this host."""
        array = gather(self._leaf(path))
        return array if self.number_type is None else array.astype(self.number_type, copy=False)

    def _leaf(self, path: str) -> Any:
        config, found = self.config, LAYER.fullmatch(path)
        if path in self.flat or not found:
            return self.flat[path]
        layer, rest = int(found[1]), found[2]
        slots = len(config.layer_pattern)
        if layer >= config.num_layers - config.num_tail:
            return self.flat[f"tail/layer_{layer}/{rest}"]
        repeat, slot = divmod(layer, slots)
        return self.flat[f"blocks/{rest}" if slots == 1 else f"blocks/pattern_{slot}/{rest}"][repeat]


def gather(leaf: jax.Array) -> np.ndarray:
    """`leaf` as one array on this host; asked for as a whole, a jax array would keep that copy as long as it lives."""
    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    if not leaf.is_fully_addressable:
        raise InputError("parameters lie on devices of other hosts too; load them on one host to write them")
    host = jax.local_devices(backend="cpu")[0]

    def piece(data: jax.Array) -> np.ndarray:
        return np.asarray(data if data.device.platform == "cpu" else jax.device_put(data, host))

    if len(leaf.sharding.device_set) == 1:
        return piece(leaf)
    out = np.empty(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            out[shard.index] = piece(shard.data)
    return out
