"""The feed-forward network: D -> F -> D, one token at a time, plain or gated; or several of them behind a router."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo.config import ModelConfig
from zoo.dense import Dense
from zoo.probe import NOTHING, Look
from zoo.remat import mark
from zoo.sharded_product import fanned


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x) = x (1 + erf(x / sqrt 2)) / 2, in float32, in x's dtype (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    Its slope Phi(x) + x phi(x) is computed with it, and is all that is kept for the way back.
    """
    wide = x.astype(jnp.float32)
    return (wide * _normal(wide)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(given, tangents):
    (x,), (tangent,) = given, tangents
    # The barrier has each pass compute its own erf: XLA would compute it once, and write it out for both to read.
    wide = jax.lax.optimization_barrier(x).astype(jnp.float32)
    slope = _normal(wide) + wide * jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    return gelu(x), tangent * slope.astype(x.dtype)


def _normal(x):
    return 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


class FeedForward(nn.Module):
    """down(act(up x)), or gated down(act(gate x) * up x) (Shazeer 2020, arXiv:2002.05202). x is [B, T, D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, look: Look = NOTHING) -> jax.Array:
        config = self.config
        act = ACTIVATIONS[config.activation]
        x = fanned(x) if config.gated else x
        up = mark(self._dense(config.mlp_dim, config.initializer_range, "up")(x), "up")
        hidden = act(up)
        if config.gated:
            hidden = act(mark(self._dense(config.mlp_dim, config.initializer_range, "gate")(x), "gate")) * up
        return self._dense(config.embed_dim, residual_stddev(config), "down")(look("mlp.act", hidden))

    def _dense(self, features: int, stddev: float, name: str) -> Dense:
        config = self.config
        outliers = config.int8 and (config.int8.down if name == "down" else config.int8.mlp)[0]
        bias = config.mlp_bias
        return Dense(
            features,
            f"mlp/{name}",
            config.dtype,
            stddev,
            use_bias=bias,
            outliers=outliers,
            factors=config.matmul_dtype,
            name=name,
        )


def route(logits: jax.Array, chosen: int) -> jax.Array:
    """Weights of the experts: the softmax over the `chosen` largest logits, 0 for the others.

    Args:
        logits: float32 [..., X], one an expert.
        chosen: how many experts a token goes to.

    Returns:
        float32 [..., X], summing to 1. Reference: Shazeer et al. 2017 (arXiv:1701.06538), eq. 3 to 5, without noise.
    """
    top, index = jax.lax.top_k(logits, chosen)
    kept = jax.nn.one_hot(index, logits.shape[-1], dtype=logits.dtype)
    return jnp.sum(kept * jax.nn.softmax(top)[..., None], axis=-2)


class Experts(nn.Module):
    """sum over experts e of route(x R)_e FeedForward_e(x) (Jiang et al. 2024, arXiv:2401.04088, section 2.1).

    Every expert computes every token and the weights decide: exact, static in shape, and X / chosen times the work of
    a kernel that gathers each expert's own tokens. Parameters router/kernel [D, X] and expert_0/... to expert_{X-1}/...
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, look: Look = NOTHING) -> jax.Array:
        config = self.config
        stddev = config.initializer_range
        router = Dense(config.num_experts, "mlp/router", config.dtype, stddev, use_bias=False, name="router")
        many = fanned(x)
        weights = route(router(many).astype(jnp.float32), config.experts_per_token).astype(x.dtype)
        weights = look("mlp.router", weights)
        outputs = [FeedForward(config, name=f"expert_{e}")(many) for e in range(config.num_experts)]
        return sum(weights[..., e, None] * output for e, output in enumerate(outputs))


def residual_stddev(config: ModelConfig) -> float:
    """Initial standard deviation of projections that write to the stream; see ModelConfig.residual_init."""
    if config.residual_init:
        return config.initializer_range / (2 * config.num_layers) ** 0.5
    return config.initializer_range
