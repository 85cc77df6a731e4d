"""Every decoder that has a name, made small: with a ring cache its logits are those of one pass over the row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo

LENGTH = 6


def small(config: zoo.ModelConfig) -> zoo.ModelConfig:
    """The same structure: sizes and numbers that no cache depends on are the same for all."""
    same = dict(rotary_base=None, rotary_scaled=True)
    layers = (dataclasses.replace(layer, window=layer.window and 3, **same) for layer in config.layer_pattern)
    pattern = tuple(dict.fromkeys(layers))
    return config.replace(
        **dict(vocab_size=17, embed_dim=16, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=24, max_positions=16),
        **dict(num_layers=len(pattern), layer_pattern=pattern, initializer_range=0.4, norm_eps=1e-5, rotary_base=100.0),
        **dict(dropout=0.0, embed_dropout=0.0, attention_dropout=0.0, head_dropout=0.0, tie_embeddings=True),
        **dict(lm_bias=False, attention_bias=True, activation="silu", score_scale=None),
        rotary_dim=config.rotary_dim and 2,
        rotary_scaling=None,
        embed_rank=config.embed_rank and 8,
        embed_scale=config.embed_scale and 4.0,
        num_experts=config.num_experts and 4,
    )


def structures() -> dict[zoo.ModelConfig, str]:
    """Each small config that some name leads to, and the first such name."""
    found = {}
    for name in zoo.list_models():
        config = zoo.create(name).config
        if config.head == "lm" and config.visibility == "causal" and not config.image_size:
            found.setdefault(small(config), name)
    return found


STRUCTURES = structures()


def test_every_family_of_decoders_is_among_them():
    families = "gpt llama mistral mixtral qwen2 qwen3 smollm3 gemma gemma2 gemma3 gpt_neox opt phi3 olmo2 stablelm"
    assert {config.family for config in STRUCTURES} == set(families.split())


@pytest.mark.parametrize("config", STRUCTURES, ids=STRUCTURES.values())
def test_cached_is_uncached_at_prefill_of_one_some_and_all(config):
    model = zoo.Model(config)
    params = model.init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, LENGTH), 0, 17)
    expected = model.apply(params, tokens).logits
    for prefill in (1, 4, LENGTH):
        cache, logits = model.init_cache(2, LENGTH, ring=True), []
        assert cache.ring == any(layer.window for layer in config.layer_pattern)
        for start, end in [(0, prefill), *((t, t + 1) for t in range(prefill, LENGTH))]:
            out = model.apply(params, tokens[:, start:end], cache=cache)
            cache, logits = out.cache, [*logits, out.logits]
        np.testing.assert_allclose(jnp.concatenate(logits, axis=1), expected, atol=1e-5)
