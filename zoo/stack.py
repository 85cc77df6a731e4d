"""The stack of blocks: a Python loop or lax.scan over the repeats of the layer pattern.

Parameter paths: loop `blocks/layer_0/...`; scan `blocks/...` with a leading axis of layers, and for patterns of several
entries `blocks/pattern_0/...` with a leading axis of repeats. Shared layers stand once in both, at `blocks/shared/...`.
Where the last repeat of a pattern is cut short, its layers follow the scan as `tail/layer_24/...`. stack_layers and
unstack_layers go from one to the other.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo.block import Block, Call
from zoo.config import ModelConfig
from zoo.probe import Found
from zoo.remat import policy


class LoopedLayers(nn.Module):
    """Blocks layer_{first} .. layer_{L-1}, one after the other."""

    config: ModelConfig
    first: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, caches: Any, call: Call):
        """x [B, T, D], caches a list of (keys, values) or None -> stream, and the outputs of the blocks."""
        block_class = _with_remat(Block, self.config)
        outputs = []
        shared = block_class(self.config, name="shared") if self.config.shared_layers else None
        for index in range(self.first, self.config.num_layers):
            slot = index % len(self.config.layer_pattern)
            block = shared or block_class(_of_layer(self.config, index), slot, name=f"layer_{index}")
            cache = None if caches is None else caches[index - self.first]
            x, output = block(x, (jnp.uint32(index), cache), call.on(index))
            outputs.append(output)
        return x, outputs


@functools.lru_cache(maxsize=1024)
def _of_layer(config: ModelConfig, index: int) -> ModelConfig:
    """The config as layer `index` reads it: int8 kernels may have another number of float columns in each."""
    return config if config.int8 is None else config.replace(int8=config.int8.layer(index))


class Pattern(nn.Module):
    """The blocks of one repeat of a layer pattern of several entries."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, layer_inputs: Any, call: Call):
        outputs = []
        for slot, layer_input in enumerate(layer_inputs):
            layers = range(slot, self.config.num_layers - self.config.num_tail, len(layer_inputs))
            x, output = Block(self.config, slot, name=f"pattern_{slot}")(x, layer_input, call.on(*layers))
            outputs.append(output)
        return x, tuple(outputs)


class Shared(nn.Module):
    """The one block of a model with shared_layers, under the path that the loop gives it."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, layer_input: Any, call: Call):
        return Block(self.config, name="shared")(x, layer_input, call)


def scanned_layers(config: ModelConfig, name: str) -> nn.Module:
    """The stack under lax.scan; called with (x, one layer input a pattern slot, stacked over repeats, call)."""
    if config.shared_layers:
        shared = nn.scan(
            _with_remat(Shared, config),
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=(0, nn.broadcast),
            length=config.num_layers,
        )
        return shared(config, name=name)
    single = len(config.layer_pattern) == 1
    scanned = nn.scan(
        _with_remat(Block if single else Pattern, config),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast),
        length=config.num_repeats,
    )
    return scanned(config, name=name)


def run_layers(config: ModelConfig, x: jax.Array, cache: Any, call: Call, name: str = "blocks"):
    """Applies the stack inside the caller's compact method.

    Args:
        x: the stream [B, T, D].
        cache: (tuple of keys, tuple of values) as zoo.cache keeps them, or None.
        call: what every block gets.

    Returns:
        the stream; new (keys, values) in the same layout or None; what call.probe asks of the blocks.
    """
    if not config.scan:
        caches = None if cache is None else list(zip(*cache, strict=True))
        x, outputs = LoopedLayers(config, name=name)(x, caches, call)
        new_cache = None if cache is None else tuple(zip(*(output[0] for output in outputs), strict=True))
        return x, new_cache, Found((), tuple(output[1] for output in outputs), 0)
    slots, whole = len(config.layer_pattern), config.num_layers - config.num_tail
    indices = jnp.arange(whole, dtype=jnp.uint32).reshape(config.num_repeats, slots)
    inputs = tuple(
        (indices[:, slot], None if cache is None else (cache[0][slot], cache[1][slot])) for slot in range(slots)
    )
    scanned_call = call.on(*range(whole))
    x, outputs = scanned_layers(config, name)(x, inputs[0] if slots == 1 else inputs, scanned_call)
    outputs = (outputs,) if slots == 1 else outputs
    tail = []
    if config.num_tail:
        caches = None if cache is None else list(zip(cache[0][slots:], cache[1][slots:], strict=True))
        x, tail = LoopedLayers(config, whole, name="tail")(x, caches, call)
    new_cache = None if cache is None else tuple(zip(*(output[0] for output in (*outputs, *tail)), strict=True))
    return x, new_cache, Found(tuple(o[1] for o in outputs), tuple(o[1] for o in tail), whole)


def stack_layers(params: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Parameters of a looped model as those of the scanned one: the leaves of the layers joined on a leading axis."""
    if config.shared_layers:
        return params
    slots, whole = len(config.layer_pattern), config.num_layers - config.num_tail
    layers = params["blocks"]
    stacked = {
        f"pattern_{slot}": jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(layers[f"layer_{i}"] for i in range(slot, whole, slots))
        )
        for slot in range(slots)
    }
    tail = {f"layer_{i}": layers[f"layer_{i}"] for i in range(whole, config.num_layers)}
    return {**params, "blocks": stacked["pattern_0"] if slots == 1 else stacked} | ({"tail": tail} if tail else {})


def unstack_layers(params: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The inverse of stack_layers."""
    if config.shared_layers:
        return params
    slots, whole = len(config.layer_pattern), config.num_layers - config.num_tail
    blocks = {"pattern_0": params["blocks"]} if slots == 1 else params["blocks"]

    def one(layer: int) -> Any:
        repeat, slot = divmod(layer, slots)
        return jax.tree.map(lambda leaf: leaf[repeat], blocks[f"pattern_{slot}"])

    layers = {f"layer_{layer}": one(layer) for layer in range(whole)} | params.get("tail", {})
    return {**{name: tree for name, tree in params.items() if name != "tail"}, "blocks": layers}


def _with_remat(module_class: type[nn.Module], config: ModelConfig) -> type[nn.Module]:
    if config.remat == "none":
        return module_class
    return nn.remat(module_class, policy=policy(config), prevent_cse=not config.scan)
