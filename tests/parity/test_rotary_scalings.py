"""Whole rotary tables against the reference library: all frequencies of a head, and the factor of cos and sin."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from zoo.layer_config import RotaryScaling
from zoo.positions import frequencies_by_length, rotary_frequencies

BASE, TRAINED = 500000.0, 4096


def reference(parameters, longest, max_positions=32768):
    """inv_freq and attention_scaling after a call whose highest position is `longest` - 1."""
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=max_positions,
        rope_parameters=dict(rope_theta=BASE) | parameters,
    )
    embedding = LlamaRotaryEmbedding(config)
    embedding(torch.zeros(1), torch.tensor([[0, longest - 1]]))
    return embedding.inv_freq.numpy(), float(embedding.attention_scaling)


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ({}, {}),
        (dict(beta_fast=16.0, beta_slow=4.0, truncate=False), dict(beta_fast=16.0, beta_slow=4.0, truncate=False)),
        (dict(attention_factor=1.25), dict(attention_factor=1.25)),
    ],
    ids=["paper", "bounds", "factor"],
)
def test_yarn(theirs, ours):
    parameters = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=TRAINED)
    expected, magnitude = reference(parameters | theirs, 100)
    scaling = RotaryScaling("yarn", 8.0, original_max_positions=TRAINED, **ours)
    found = rotary_frequencies(128, BASE, scaling)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-7)
    plain = rotary_frequencies(128, BASE)
    kept, divided = np.isclose(found, plain, rtol=1e-6), np.isclose(found, plain / 8, rtol=1e-6)
    assert kept.any() and divided.any() and not (kept | divided).all()


@pytest.mark.parametrize("length", [100, TRAINED, TRAINED + 1, 10000])
@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_dynamic(length, factor):
    expected, magnitude = reference(dict(rope_type="dynamic", factor=factor), length, TRAINED)
    scaling = RotaryScaling("dynamic", factor, original_max_positions=TRAINED)
    found = frequencies_by_length(128, BASE, scaling, jnp.asarray([[length]]))[0, 0]
    # The reference raises the stretched base to each power in float32: up to a few parts in a million.
    np.testing.assert_allclose(found, expected, rtol=5e-6, atol=0)
    assert (scaling.magnitude, magnitude) == (1.0, 1.0)


@pytest.mark.parametrize("length", [100, TRAINED, TRAINED + 1, 10000])
def test_longrope(length):
    short, long = [list(np.linspace(1.0, top, 64)) for top in (2.0, 30.0)]
    parameters = dict(
        rope_type="longrope",
        short_factor=short,
        long_factor=long,
        factor=8.0,
        original_max_position_embeddings=TRAINED,
    )
    expected, magnitude = reference(parameters, length)
    scaling = RotaryScaling(
        "longrope", 8.0, original_max_positions=TRAINED, short_factors=tuple(short), long_factors=tuple(long)
    )
    found = frequencies_by_length(128, BASE, scaling, jnp.asarray([[length]]))[0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-7)
