"""zoo.norms: the formulas, in float32, with the config's eps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.config import ModelConfig
from zoo.norms import Norm, layer_norm, rms_norm


def test_layer_norm_is_the_formula(rng):
    x, scale, bias = rng.standard_normal((3, 6)) * 2 + 1, rng.standard_normal(6), rng.standard_normal(6)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1) * scale + bias
    found = layer_norm(*(jnp.asarray(a, jnp.float32) for a in (x, scale, bias)), 0.1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_rms_norm_is_the_formula(rng):
    x, scale = rng.standard_normal((3, 6)) * 2 + 1, rng.standard_normal(6)
    expected = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 0.1) * scale
    np.testing.assert_allclose(rms_norm(jnp.asarray(x, jnp.float32), jnp.asarray(scale), 0.1), expected, atol=1e-6)


def test_norms_literal():
    """[3, 1, -1, -3]: mean 0, variance 5; eps 4 makes the divisor 3 exactly."""
    x, ones = jnp.asarray([3.0, 1.0, -1.0, -3.0]), jnp.ones(4)
    np.testing.assert_allclose(layer_norm(x, ones, ones, 4.0), [2, 4 / 3, 2 / 3, 0], atol=1e-6)
    np.testing.assert_allclose(rms_norm(x, 2 * ones, 4.0), [2, 2 / 3, -2 / 3, -2], atol=1e-6)
    # A constant row is all bias; a shift changes RMS norm alone.
    assert np.array_equal(layer_norm(5 * ones, ones, ones, 1e-5), ones)
    np.testing.assert_allclose(layer_norm(x + 7, ones, ones, 4.0), [2, 4 / 3, 2 / 3, 0], atol=1e-5)
    assert float(jnp.abs(rms_norm(x + 7, ones, 4.0) - rms_norm(x, ones, 4.0)).max()) > 0.1


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_statistics_are_float32_under_bfloat16(kind):
    """In bfloat16 the mean of 1000 and 1008 and the sum of 256 such squares would be lost."""
    x = jnp.asarray([[1000.0, 1008.0] * 128], jnp.bfloat16)
    config = ModelConfig(norm=kind, dtype="bfloat16", norm_eps=1e-6)
    params = Norm(config).init(jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert sorted(params["params"]) == (["bias", "scale"] if kind == "layernorm" else ["scale"])
    found = Norm(config).apply(params, x)
    assert found.dtype == jnp.bfloat16
    expected = [-1, 1] if kind == "layernorm" else [1000 / 1004.008, 1008 / 1004.008]
    np.testing.assert_allclose(found[0, :2].astype(jnp.float32), expected, rtol=2**-8)
