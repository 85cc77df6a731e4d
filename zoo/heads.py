"""From the stream to answers: language-model read-outs, BERT's pooler and next-sentence head, pooling."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo.config import ModelConfig
from zoo.feed_forward import ACTIVATIONS
from zoo.norms import Norm


def read_out(hidden: jax.Array, matrix: jax.Array, soft_cap: float | None = None) -> jax.Array:
    """Logits over the vocabulary, summed in float32: hidden [..., D] times matrix [D, V] -> [..., V], soft-capped."""
    logits = jnp.matmul(hidden, matrix.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)


class LMHead(nn.Module):
    """hidden E^T, or hidden W where embeddings are not tied; parameters kernel [D, V] (untied), bias [V] (lm_bias)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        config = self.config
        matrix = table.T
        if not config.tie_embeddings:
            shape = (config.embed_dim, config.vocab_size)
            matrix = self.param("kernel", nn.initializers.normal(config.initializer_range), shape, jnp.float32)
        logits = read_out(hidden, matrix, config.logit_soft_cap)
        if config.lm_bias:
            logits = logits + self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,), jnp.float32)
        return logits


class MaskedLMHead(nn.Module):
    """BERT's read-out: norm(act(hidden W + b)) E^T + bias (Devlin et al. 2018, released code)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        config = self.config
        init = nn.initializers.normal(config.initializer_range)
        hidden = nn.Dense(config.embed_dim, dtype=config.dtype, kernel_init=init, name="dense")(hidden)
        hidden = Norm(config, name="norm")(ACTIVATIONS[config.activation](hidden))
        matrix = table.T
        if not config.tie_embeddings:
            matrix = self.param("kernel", init, (config.embed_dim, config.vocab_size), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,), jnp.float32)
        return read_out(hidden, matrix, config.logit_soft_cap) + bias


class Pooler(nn.Module):
    """tanh(first W + b): the first token's [B, D] (Devlin et al. 2018)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, first: jax.Array) -> jax.Array:
        kernel = self.param(
            "kernel",
            nn.initializers.normal(self.config.initializer_range),
            (self.config.embed_dim, self.config.embed_dim),
            jnp.float32,
        )
        bias = self.param("bias", nn.initializers.zeros_init(), (self.config.embed_dim,), jnp.float32)
        return jnp.tanh(first @ kernel.astype(first.dtype) + bias.astype(first.dtype))


class Linear(nn.Module):
    """x W + b in float32; parameters kernel [D, features], bias [features]."""

    config: ModelConfig
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.normal(self.config.initializer_range), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
        return x.astype(jnp.float32) @ kernel + bias


def pool(hidden: jax.Array, padding_mask: jax.Array | None, how: str) -> jax.Array:
    """One vector a row: its first real token ("cls"), the mean of real tokens ("mean") or its last real one ("last").

    Args:
        hidden: [B, T, D].
        padding_mask: [B, T], non-zero on real tokens; None for all real.

    Returns:
        [B, D]; zeros for the mean of a row without real tokens.
    """
    batch, length = hidden.shape[:2]
    real = jnp.ones((batch, length), bool) if padding_mask is None else padding_mask != 0
    if how == "mean":
        total = jnp.sum(jnp.where(real[..., None], hidden, 0).astype(jnp.float32), axis=1)
        count = jnp.maximum(real.sum(axis=1, keepdims=True), 1)
        return (total / count).astype(hidden.dtype)
    first = jnp.argmax(real, axis=1)
    last = length - 1 - jnp.argmax(real[:, ::-1], axis=1)
    index = first if how == "cls" else last
    return jnp.take_along_axis(hidden, index[:, None, None], axis=1)[:, 0]
