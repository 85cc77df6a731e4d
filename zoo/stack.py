"""The stack of blocks: a Python loop or lax.scan over the repeats of the layer pattern, with rematerialisation.

Parameter paths: loop `blocks/layer_0/...`; scan `blocks/...` with a leading axis of layers, and for patterns of several
entries `blocks/pattern_0/...` with a leading axis of repeats. stack_layers and unstack_layers go from one to the other.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo.block import Block, Call
from zoo.config import ModelConfig

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class LoopedLayers(nn.Module):
    """Blocks layer_0 .. layer_{L-1}, one after the other."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, caches: Any, call: Call):
        """x [B, T, D], caches a list of L (keys, values) or None -> stream, and the L outputs of the blocks."""
        block_class = _with_remat(Block, self.config)
        outputs = []
        for index in range(self.config.num_layers):
            block = block_class(self.config, index % len(self.config.layer_pattern), name=f"layer_{index}")
            x, output = block(x, (jnp.uint32(index), None if caches is None else caches[index]), call)
            outputs.append(output)
        return x, outputs


class Pattern(nn.Module):
    """The blocks of one repeat of a layer pattern of several entries."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, layer_inputs: Any, call: Call):
        outputs = []
        for slot, layer_input in enumerate(layer_inputs):
            x, output = Block(self.config, slot, name=f"pattern_{slot}")(x, layer_input, call)
            outputs.append(output)
        return x, tuple(outputs)


def scanned_layers(config: ModelConfig, name: str) -> nn.Module:
    """The stack under lax.scan; called with (x, one layer input a pattern slot, stacked over repeats, call)."""
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
        the stream; new (keys, values) in the same layout or None; a list of L attention weights [B, N, T, S] (or None);
        a list of L streams [B, T, D] (or None).
    """
    if not config.scan:
        caches = None if cache is None else list(zip(*cache, strict=True))
        x, outputs = LoopedLayers(config, name=name)(x, caches, call)
        new_cache = None if cache is None else tuple(zip(*(output[0] for output in outputs), strict=True))
        return x, new_cache, [output[1] for output in outputs], [output[2] for output in outputs]
    slots = len(config.layer_pattern)
    indices = jnp.arange(config.num_layers, dtype=jnp.uint32).reshape(config.num_repeats, slots)
    inputs = tuple(
        (indices[:, slot], None if cache is None else (cache[0][slot], cache[1][slot])) for slot in range(slots)
    )
    x, outputs = scanned_layers(config, name)(x, inputs[0] if slots == 1 else inputs, call)
    outputs = (outputs,) if slots == 1 else outputs
    new_cache = None if cache is None else tuple(zip(*(output[0] for output in outputs), strict=True))
    per_layer = [divmod(layer, slots) for layer in range(config.num_layers)]
    weights = [None if outputs[slot][1] is None else outputs[slot][1][repeat] for repeat, slot in per_layer]
    streams = [None if outputs[slot][2] is None else outputs[slot][2][repeat] for repeat, slot in per_layer]
    return x, new_cache, weights, streams


def stack_layers(params: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Parameters of a looped model as those of the scanned one: the leaves of the layers joined on a leading axis."""
    slots = len(config.layer_pattern)
    layers = params["blocks"]
    stacked = {
        f"pattern_{slot}": jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(layers[f"layer_{i}"] for i in range(slot, config.num_layers, slots))
        )
        for slot in range(slots)
    }
    return {**params, "blocks": stacked["pattern_0"] if slots == 1 else stacked}


def unstack_layers(params: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The inverse of stack_layers."""
    slots = len(config.layer_pattern)
    blocks = {"pattern_0": params["blocks"]} if slots == 1 else params["blocks"]

    def one(layer: int) -> Any:
        repeat, slot = divmod(layer, slots)
        return jax.tree.map(lambda leaf: leaf[repeat], blocks[f"pattern_{slot}"])

    return {**params, "blocks": {f"layer_{layer}": one(layer) for layer in range(config.num_layers)}}


def _with_remat(module_class: type[nn.Module], config: ModelConfig) -> type[nn.Module]:
    if config.remat == "none":
        return module_class
    return nn.remat(module_class, policy=REMAT_POLICIES[config.remat], prevent_cse=not config.scan)
