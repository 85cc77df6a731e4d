"""Layer norm and RMS norm: plain functions in float32, and the module that declares their parameters."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo.config import ModelConfig


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """(x - mean) / sqrt(var + eps) * scale + bias over the last axis, in float32, returned in x's dtype.

    Reference: Ba, Kiros and Hinton 2016 (arXiv:1607.06450), eq. 4.
    """
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + eps) * scale + bias).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, in float32, returned in x's dtype.

    Reference: Zhang and Sennrich 2019 (arXiv:1910.07467), eq. 4.
    """
    wide = x.astype(jnp.float32)
    mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + eps) * scale).astype(x.dtype)


class Norm(nn.Module):
    """The config's norm over the last axis; parameters scale (ones) and, for layer norm, bias (zeros).

    With config.norm_unit_offset the factor is 1 + scale and scale starts at zeros.
    """

    config: ModelConfig
    kind: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dim = x.shape[-1]
        scale = norm_scale(self, self.config, (dim,))
        if (self.kind or self.config.norm) == "rmsnorm":
            return rms_norm(x, scale, self.config.norm_eps)
        if not self.config.norm_bias:
            return layer_norm(x, scale, jnp.zeros((dim,), jnp.float32), self.config.norm_eps)
        bias = self.param("bias", nn.initializers.zeros_init(), (dim,), jnp.float32)
        return layer_norm(x, scale, bias, self.config.norm_eps)


class HeadsNorm(nn.Module):
    """Norm of queries or keys [B, T, N, H] before scoring, over what config.qk_norm_over says. Parameter scale."""

    config: ModelConfig

    @nn.compact
    def __call__(self, heads: jax.Array) -> jax.Array:
        config = self.config
        over = config.qk_norm_over
        scale = norm_scale(self, config, heads.shape[-1:] if over == "head" else heads.shape[-2:])
        shape = heads.shape
        if over == "projection":
            heads, scale = heads.reshape(*shape[:-2], -1), scale.reshape(-1)
        if config.qk_norm_kind == "rmsnorm":
            normed = rms_norm(heads, scale, config.norm_eps)
        else:
            normed = layer_norm(heads, scale, jnp.zeros((), jnp.float32), config.norm_eps)
        return normed.reshape(shape)


def norm_scale(module: nn.Module, config: ModelConfig, shape: tuple[int, ...]) -> jax.Array:
    """The factor of a norm, out of the parameter `scale` of `module`."""
    if config.norm_unit_offset:
        return 1.0 + module.param("scale", nn.initializers.zeros_init(), shape, jnp.float32)
    return module.param("scale", nn.initializers.ones_init(), shape, jnp.float32)
