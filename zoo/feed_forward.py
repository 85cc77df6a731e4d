"""The feed-forward network: D -> F -> D, one token at a time, plain or gated."""

import jax
from flax import linen as nn

from zoo.config import ModelConfig

ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


class FeedForward(nn.Module):
    """down(act(up x)), or gated down(act(gate x) * up x) (Shazeer 2020, arXiv:2002.05202). x is [B, T, D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        act = ACTIVATIONS[config.activation]
        up = self._dense(config.mlp_dim, config.initializer_range, "up")(x)
        hidden = act(self._dense(config.mlp_dim, config.initializer_range, "gate")(x)) * up if config.gated else act(up)
        return self._dense(config.embed_dim, residual_stddev(config), "down")(hidden)

    def _dense(self, features: int, stddev: float, name: str) -> nn.Dense:
        return nn.Dense(
            features,
            use_bias=self.config.mlp_bias,
            dtype=self.config.dtype,
            kernel_init=nn.initializers.normal(stddev),
            name=name,
        )


def residual_stddev(config: ModelConfig) -> float:
    """Initial standard deviation of projections that write to the stream; see ModelConfig.residual_init."""
    if config.residual_init:
        return config.initializer_range / (2 * config.num_layers) ** 0.5
    return config.initializer_range
