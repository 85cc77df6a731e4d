"""Blockwise attention: block sizes do not show in the result, and no array of T x S is ever made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.attention import attend
from zoo.blockwise import blockwise_attention
from zoo.masks import Mask


def arrays_inside(jaxpr):
    """Shapes of every value in a jaxpr and in those nested in it."""
    for equation in jaxpr.eqns:
        for variable in (*equation.invars, *equation.outvars):
            if hasattr(variable.aval, "shape"):
                yield variable.aval.shape
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            nested = getattr(parameter, "jaxpr", parameter)
            if hasattr(nested, "eqns"):
                yield from arrays_inside(nested)


@pytest.mark.parametrize(("kernel", "stored"), [("blockwise", False), ("einsum", True), ("xla", True)])
def test_memory_is_linear_in_length(kernel, stored):
    """T = S = 2048, two heads, forward and backward: the largest array is far below T x S, where others hold it."""
    length = 2048
    x = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
    valid, segments = jax.ShapeDtypeStruct((1, length), bool), jax.ShapeDtypeStruct((1, length), jnp.int32)

    def loss(query, key, value, valid, segments):
        mask = Mask(True, window=100, key_valid=valid, query_segments=segments, key_segments=segments)
        return jnp.sum(attend(query, key, value, mask=mask, kernel=kernel)[0])

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1, 2)))(x, x, x, valid, segments)
    shapes = list(arrays_inside(jaxpr.jaxpr))
    assert len(shapes) > 100
    # The largest of ours: the backward pass of one block of queries keeps its running output, a block of keys each.
    assert (max(np.prod(shape, dtype=np.int64) for shape in shapes) >= length * length) == stored


@pytest.mark.parametrize(("length", "keys"), [(1, 1), (5, 12), (12, 5)])
def test_any_block_size(rng, length, keys):
    """Lengths below, at, and beyond the block, multiples or not."""
    query = jnp.asarray(rng.standard_normal((1, length, 2, 4)), jnp.float32)
    key, value = (jnp.asarray(rng.standard_normal((1, keys, 1, 4)), jnp.float32) for _ in range(2))
    expected = attend(query, key, value, kernel="einsum")[0]
    for block in (1, 4, 5, 512):
        found = blockwise_attention(query, key, value, Mask(), None, 0.5, None, None, block=block)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_large_scores_stay_finite(rng):
    """The running maximum keeps e^x in range: scores of several hundred, as the oracle has them."""
    query, key, value = (jnp.asarray(rng.standard_normal((1, 9, 1, 4)), jnp.float32) * 30 for _ in range(3))
    found = blockwise_attention(query, key, value, Mask(causal=True), None, 0.5, None, None, block=2)
    np.testing.assert_allclose(found, attend(query, key, value, mask=Mask(causal=True), kernel="einsum")[0], rtol=1e-5)
