"""Tiny models of every family's shape, with weights whose every scale and bias counts, and one text for all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import zoo
from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

SIZES = dict(vocab_size=17, embed_dim=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=12)
SIZES |= dict(max_positions=16, initializer_range=0.4)
RMS = SIZES | dict(norm="rmsnorm", positions="rotary", gated=True, activation="silu", scan=True)
NO_BIAS = dict(attention_bias=False, attention_out_bias=False, mlp_bias=False)
LOCAL = (LayerConfig(window=3), LayerConfig())
CONFIGS = {
    "bert": ModelConfig(
        **SIZES,
        norm_placement="post",
        final_norm=False,
        visibility="full",
        head="masked_lm",
        token_types=2,
        embed_norm=True,
    ),
    "gpt2": ModelConfig(**SIZES, scan=True),
    "llama": ModelConfig(**RMS, **NO_BIAS, tie_embeddings=False),
    # Three layers of a pattern of two: the last repeat is cut short.
    "gemma": ModelConfig(
        **RMS | dict(num_layers=3),
        norm_placement="both",
        norm_unit_offset=True,
        qk_norm=True,
        attention_soft_cap=2.0,
        logit_soft_cap=3.0,
        layer_pattern=LOCAL,
    ),
    "olmo2": ModelConfig(**RMS, norm_placement="after", lm_bias=True),
    "neox": ModelConfig(**SIZES, parallel_block=True, parallel_mlp_norm=True, embed_rank=6, embed_projection="tokens"),
    "albert": ModelConfig(
        **SIZES, norm_placement="post", final_norm=False, visibility="full", head="none", shared_layers=True, scan=True
    ),
    "mixtral": ModelConfig(**RMS, num_experts=3, experts_per_token=2),
    "dinov2": ModelConfig(
        **SIZES | dict(vocab_size=0, max_positions=5),
        visibility="full",
        layer_scale=0.5,
        image_size=4,
        patch_size=2,
        class_token=True,
        head="classifier",
        num_labels=3,
    ),
}
# Of attribution alone.
MORE = {"shared": ModelConfig(**SIZES, shared_layers=True, scan=True, layer_scale=0.5)}
TOKENS = jnp.asarray([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 8, 8]])
OTHER = jnp.asarray([[3, 1, 7, 1, 5, 9], [2, 6, 5, 0, 8, 8]])
REAL = jnp.asarray([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 4, 3)), jnp.float32)


@functools.cache
def made(name):
    """(model, parameters, inputs, what else the call takes)."""
    model = zoo.Model((CONFIGS | MORE)[name])
    rng = np.random.default_rng(7)
    draw = lambda leaf: jnp.asarray(rng.normal(0.0 if leaf.ndim > 2 else 0.3, 0.4, leaf.shape), jnp.float32)  # noqa: E731
    params = jax.tree.map(draw, model.init_shapes())
    return (model, params, IMAGES, {}) if model.config.image_size else (model, params, TOKENS, {"padding_mask": REAL})
