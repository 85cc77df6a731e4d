"""Weights laid out for generation on a CPU: kernels in tiles of 64 outputs, each of them in one piece.

    W [I, O]  ->  blocks [O / 64, I, 64],   x W = x blocks[0] | x blocks[1] | ...

A step of generation multiplies few rows by every weight, so it lasts as long as reading them does. A CPU's product of
few rows goes down a few columns at a time: in a matrix as it stands these are short pieces far apart, in a tile one
piece, which the processor fetches ahead. One row alone goes as two, the second of them zeros: XLA has no fast product
of one row in 16 bit, and a slower one in float32. The numbers are the same to rounding.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from zoo.partition import auto_mesh

WIDTH = 64
# Rows of a product that goes tile by tile, at most; more of them are worth writing the kernel out as it stood.
FEW_ROWS = 64
# How many of a kernel's dimensions are inputs, by the name of the room that holds it.
KERNELS = {"query": 1, "key": 1, "value": 1, "out": 2, "up": 1, "gate": 1, "down": 1, "lm_head": 1}


@struct.dataclass
class Tiles:
    """A kernel [*in, *out], or a token table [V, D] of inputs D and outputs V.

    Attributes:
        blocks: [..., O / WIDTH, I, WIDTH]; layers of a scanned stack come first.
        sizes: its dimensions but for these layers.
        inputs: which of them are met.
    """

    blocks: jax.Array
    sizes: tuple[int, ...] = struct.field(pytree_node=False)
    inputs: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """As the kernel stood; of parameters whose leaves are shapes, too."""
        blocks = self.blocks if isinstance(self.blocks, tuple) else self.blocks.shape
        return (*blocks[:-3], *self.sizes)

    def times(self, x: jax.Array, dtype: Any = None) -> jax.Array:
        """x [..., *in] by the kernel: [..., *out] in `dtype`, by default that of x."""
        inputs = [self.sizes[i] for i in self.inputs]
        out = [size for i, size in enumerate(self.sizes) if i not in self.inputs]
        free, blocks = x.shape[: x.ndim - len(inputs)], self.blocks.astype(x.dtype)
        x = x.reshape(-1, math.prod(inputs))
        return multiplied(x, blocks, dtype or x.dtype).reshape(*free, *out)

    def look_up(self, ids: jax.Array) -> jax.Array:
        """[..., D] of a token table; ids outside 0 to V - 1 give NaN."""
        known = (ids >= 0) & (ids < self.sizes[0])
        at = jnp.where(known, ids, 0)
        rows = self.blocks[at // WIDTH, :, at % WIDTH]
        return jnp.where(known[..., None], rows, jnp.nan)


def multiplied(x: jax.Array, blocks: jax.Array, dtype: Any) -> jax.Array:
    """x [M, I] by tiles [C, I, WIDTH]: [M, C WIDTH], summed in `dtype` or wider."""
    rows, count = x.shape[0], blocks.shape[0]
    if rows > FEW_ROWS:
        return jnp.matmul(x, jnp.swapaxes(blocks, 0, 1).reshape(x.shape[1], -1), preferred_element_type=dtype)
    x = jnp.pad(x, ((0, 1), (0, 0))) if rows == 1 else x
    x = jax.lax.optimization_barrier(x)  # or what made x is done anew for each tile
    x = jnp.broadcast_to(x, (count, *x.shape))
    y = jax.lax.dot_general(x, blocks, (((2,), (1,)), ((0,), (0,))), preferred_element_type=dtype)
    return jnp.swapaxes(y[:, :rows], 0, 1).reshape(rows, -1)


def tiled(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters laid out anew, for generation on a CPU: the same numbers, which the same model reads.

    Such parameters are run and neither trained nor exported; keep the others for that. Float kernels of attention and
    FFN and the token table (or read-out) with a multiple of 64 outputs are laid out anew. On other devices, and under
    jax.set_mesh, the parameters come back as they are.
    """
    if jax.default_backend() != "cpu" or auto_mesh() is not None:
        return params
    return _laid_out(params)


def _laid_out(params: dict[str, Any]) -> dict[str, Any]:
    layers = 0 if any(name.startswith(("layer_", "shared")) for name in params.get("blocks", {})) else 1

    def visit(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        out = {}
        for name, below in tree.items():
            if isinstance(below, dict):
                out[name] = visit(below, (*path, name))
            elif name == "kernel" and path[-1] in KERNELS and jnp.issubdtype(below.dtype, jnp.floating):
                first = layers if path[0] == "blocks" else 0
                out[name] = _tiles(below, first, tuple(range(KERNELS[path[-1]])))
            elif path == ("embed", "token") and name == "embedding" and "lm_head" not in params:
                out[name] = _tiles(below, 0, (1,)) if jnp.issubdtype(below.dtype, jnp.floating) else below
            else:
                out[name] = below
        return out

    return visit(params, ())


def _tiles(kernel: jax.Array, layers: int, inputs: tuple[int, ...]) -> jax.Array | Tiles:
    sizes = kernel.shape[layers:]
    met = math.prod(sizes[i] for i in inputs)
    if math.prod(sizes) // met % WIDTH:
        return kernel
    stacked = kernel.shape[:layers]
    if inputs == (1,):
        blocks = jnp.swapaxes(kernel.reshape(*stacked, -1, WIDTH, met), -1, -2)
    else:
        blocks = jnp.swapaxes(kernel.reshape(*stacked, met, -1, WIDTH), -2, -3)
    return Tiles(jnp.asarray(blocks), sizes, inputs)
