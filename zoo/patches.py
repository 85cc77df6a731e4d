"""From images to the stream: patches, the learned tokens before them, positions (Dosovitskiy et al. 2020)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from zoo.config import ModelConfig
from zoo.dense import add_bias
from zoo.dropout import at_site, drop
from zoo.embedding import Table
from zoo.initializers import normal
from zoo.sharded_product import product


def cut(images: jax.Array, patch_size: int) -> jax.Array:
    """Images [B, Y, X, C] as patches [B, n, P, P, C], left to right and then down."""
    batch, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    cells = images.reshape(batch, rows, patch_size, columns, patch_size, channels)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, patch_size, patch_size, channels)


class Patches(nn.Module):
    """Every patch [P, P, C] times one kernel [P, P, C, D], plus a bias [D]: a convolution with stride P."""

    config: ModelConfig

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        config = self.config
        shape = (config.patch_size, config.patch_size, config.channels, config.embed_dim)
        kernel = self.param("kernel", normal(config.initializer_range), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (config.embed_dim,), jnp.float32)
        cells = cut(images.astype(config.dtype), config.patch_size)
        return add_bias(product("embed/patches/kernel", cells, kernel, contracted=3), bias)


class EmbedImages(nn.Module):
    """[class] [distillation] [registers] patches; all but the registers get a learned position."""

    config: ModelConfig

    @nn.compact
    def __call__(self, images: jax.Array, dropout_seeds: jax.Array | None) -> jax.Array:
        """images float [B, Y, X, C], dropout_seeds uint32 [B, 2] or None -> the stream [B, T, D]."""
        config = self.config
        stddev = config.initializer_range
        x = Patches(config, name="patches")(images).astype(jnp.float32)
        heads = [
            self._token(name, (1, config.embed_dim))
            for name, there in (("class_token", config.class_token), ("distillation_token", config.distillation_token))
            if there
        ]
        places = Table(config.max_positions, config.embed_dim, stddev, name="position")()
        first = [jnp.broadcast_to(token, (x.shape[0], *token.shape)) for token in heads]
        x = jnp.concatenate([*first, x], axis=1) + places
        if config.registers:
            registers = self._token("registers", (config.registers, config.embed_dim))
            rows = jnp.broadcast_to(registers, (x.shape[0], *registers.shape))
            x = jnp.concatenate([x[:, : len(heads)], rows, x[:, len(heads) :]], axis=1)
        if config.mask_token:
            self._token("mask_token", (1, config.embed_dim))
        return drop(x, at_site(dropout_seeds, config.embed_dropout, 0, "embed")).astype(config.dtype)

    def _token(self, name: str, shape: tuple[int, int]) -> jax.Array:
        return self.param(name, normal(self.config.initializer_range), shape, jnp.float32)


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel of Keys 1981, eq. 4: 1 at 0, 0 at the other whole numbers and from 2 on."""
    x = np.abs(distance)
    near, far = ((a + 2) * x - (a + 3)) * x**2 + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def cubic_weights(old: int, new: int, smooth: bool = False) -> np.ndarray:
    """float32 [new, old]: each of `new` points, spread evenly over `old` ones, as a cubic of those around it.

    Points are areas of one pixel. Plain, each takes its four nearest with a = -0.75, edges repeated. Smooth, a = -0.5,
    points beyond the edge do not count, and a smaller picture averages over as much wider a range (no aliases).
    """
    place = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
    if smooth:
        weights = cubic((np.arange(old) - place) / max(old / new, 1.0), -0.5)
        return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    weights = np.zeros((new, old))
    taps = np.floor(place).astype(int) + np.arange(-1, 3)
    np.add.at(weights, (np.arange(new)[:, None], np.clip(taps, 0, old - 1)), cubic(taps - place, -0.75))
    return weights.astype(np.float32)


def resize_positions(table: jax.Array, old: int, new: int, smooth: bool) -> jax.Array:
    """The position table [prefix + old^2, D] of old x old patches for new x new ones; rows of the prefix stay."""
    prefix = table.shape[0] - old**2
    grid = table[prefix:].reshape(old, old, -1).astype(jnp.float32)
    weights = jnp.asarray(cubic_weights(old, new, smooth))
    resized = jnp.einsum("yr,xc,rcd->yxd", weights, weights, grid, precision="highest")
    return jnp.concatenate([table[:prefix], resized.reshape(new**2, -1).astype(table.dtype)])
