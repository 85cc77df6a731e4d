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
    """The config's norm over the last axis; parameters scale (ones) and, for layer norm, bias (zeros)."""

    config: ModelConfig
    kind: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dim = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones_init(), (dim,), jnp.float32)
        if (self.kind or self.config.norm) == "rmsnorm":
            return rms_norm(x, scale, self.config.norm_eps)
        bias = self.param("bias", nn.initializers.zeros_init(), (dim,), jnp.float32)
        return layer_norm(x, scale, bias, self.config.norm_eps)
