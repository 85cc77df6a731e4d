"""Backward passes by hand against autodiff of the zoo's functions; four views of one product against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.cross_entropy import cross_entropy
from zoo import by_hand
from zoo.attention import attend, masked_softmax
from zoo.embedding import look_up
from zoo.masks import Mask, materialise
from zoo.norms import layer_norm

seeds = st.integers(0, 2**32 - 1)


def normals(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def near(actual, expected, atol=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@given(seeds)
def test_four_views_of_one_product(seed):
    left, right = normals(seed, (3, 4), (4, 2))
    for product in by_hand.PRODUCT_VIEWS.values():
        near(product(left, right), left @ right)


def test_views_are_named_by_what_they_do():
    """A row of the left alone moves a row of the result; a term of the outer products is one column with one row."""
    left, right = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for name, product in by_hand.PRODUCT_VIEWS.items():
        moved = product(left + np.array([[0.0], [1.0]]), right) != product(left, right)
        assert moved.any(axis=1).tolist() == [False, True], name
    np.testing.assert_array_equal(by_hand.outer_products(left, right)[1], np.outer(left[:, 1], right[1]))


@given(seeds)
def test_linear_backward_over_batch_axes(seed):
    x, weight, bias, d_y = normals(seed, (2, 3, 4), (4, 5), (5,), (2, 3, 5))
    expected = jax.vjp(lambda x, w, b: x @ w + b, x, weight, bias)[1](d_y)
    for ours, theirs in zip(by_hand.linear_backward(x, weight, d_y), expected, strict=True):
        near(ours, theirs)


@given(seeds)
def test_look_up_backward_adds_up_repeated_tokens(seed):
    table, d_y = normals(seed, (4, 3), (2, 5, 3))
    ids = jnp.array([[0, 2, 2, 3, 2], [0, 0, 3, 3, 3]])  # token 1 never comes
    ours = by_hand.look_up_backward(ids, d_y, 4)
    near(ours, jax.vjp(lambda table: look_up(table, ids), table)[1](d_y)[0])
    np.testing.assert_array_equal(ours[1], 0)


@given(seeds, st.lists(st.booleans(), min_size=6, max_size=6))
def test_softmax_backward_under_a_mask(seed, seen):
    scores, d_weights = normals(seed, (2, 6), (2, 6))
    weights, pull_back = jax.vjp(lambda s: masked_softmax(s, jnp.array(seen)), scores)
    ours = by_hand.softmax_backward(weights, d_weights)
    near(ours, pull_back(d_weights)[0])
    np.testing.assert_array_equal(np.asarray(ours)[:, ~np.array(seen)], 0)
    near(ours.sum(axis=-1), 0)


@given(seeds)
def test_cross_entropy_backward(seed):
    (logits,) = normals(seed, (3, 7))
    labels = jnp.array([0, 6, 3])
    ours = by_hand.cross_entropy_backward(logits, labels)
    near(ours, jax.grad(lambda z: cross_entropy(z, labels).sum())(logits))
    near(ours.sum(axis=-1), 0)


def test_negative_log_likelihood_is_the_cross_entropy_of_its_softmax(rng):
    logits, labels = rng.standard_normal((5, 7)).astype(np.float32), np.arange(5)
    probability = jax.nn.softmax(logits)[np.arange(5), labels]
    near(by_hand.negative_log_likelihood(probability), cross_entropy(logits, labels))


@given(seeds)
def test_layer_norm_backward(seed):
    x, scale, bias, d_y = normals(seed, (2, 3, 6), (6,), (6,), (2, 3, 6))
    expected = jax.vjp(lambda x, s, b: layer_norm(x, s, b, 1e-5), x, scale, bias)[1](d_y)
    for ours, theirs in zip(by_hand.layer_norm_backward(x, scale, 1e-5, d_y), expected, strict=True):
        near(ours, theirs, atol=2e-5)


def test_layer_norm_backward_uses_the_given_eps():
    x, one, d_y = jnp.array([[1.0, -1.0]]), jnp.ones(2), jnp.array([[1.0, 0.0]])
    d_x, _, _ = by_hand.layer_norm_backward(x, one, 3.0, d_y)
    near(d_x, [[0.1875, -0.1875]], atol=1e-6)  # s = 2, z = [.5, -.5]: (dz - 1/2 - z / 4) / 2 is 3/16 and its negative
    near(d_x, jax.vjp(lambda x: layer_norm(x, one, 0 * one, 3.0), x)[1](d_y)[0], atol=1e-6)


@pytest.mark.parametrize("window", [None, 2])
def test_attention_backward_over_heads_and_lengths(window, rng):
    """Two rows, two heads, three queries after two cached keys, another scale: equal to autodiff of attend."""
    shapes = (2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4), (2, 3, 2, 4)
    query, key, value, d_out = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    valid = jnp.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1]], bool)
    mask = Mask(causal=True, query_start=2, window=window, key_valid=valid)
    expected = jax.vjp(lambda *x: attend(*x, mask=mask, scale=0.3, kernel="einsum")[0], query, key, value)[1](d_out)
    by_head = [np.swapaxes(x, 1, 2) for x in (query, key, value, d_out)]
    ours = by_hand.attention_backward(*by_head, seen=materialise(mask, 3, 5), scale=0.3)
    for mine, theirs in zip((ours.query, ours.key, ours.value), expected, strict=True):
        near(np.swapaxes(mine, 1, 2), theirs)
    assert ours.weights.shape == ours.scores.shape == (2, 2, 3, 5)


def test_attention_backward_of_a_query_that_sees_nothing_is_zero(rng):
    query, key, value, d_out = (rng.standard_normal((2, 3)).astype(np.float32) for _ in range(4))
    ours = by_hand.attention_backward(query, key, value, d_out, seen=jnp.array([[True, False], [False, False]]))
    np.testing.assert_array_equal(ours.query[1], 0)
    np.testing.assert_array_equal(ours.key[1], 0)
    near(ours.value, [d_out[0], [0, 0, 0]])
