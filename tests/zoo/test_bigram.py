"""The bigram model: counts, the closed form, and gradient descent that goes there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo import InputError
from zoo.baselines import bigram

# Rows of three tokens; every pair occurs, so that all frequencies lie inside (0, 1).
FULL = np.array([[0, 0, 1], [0, 2, 0], [1, 1, 2], [2, 2, 1], [1, 0, 1], [2, 0, 2], [0, 1, 0]])
FULL_COUNTS = np.array([[1, 3, 2], [2, 1, 1], [2, 1, 1]])


def test_counts_are_those_of_the_listed_pairs():
    np.testing.assert_array_equal(bigram.count(FULL, 3), FULL_COUNTS)
    listed = np.zeros((3, 3))
    for row in FULL:
        for i, j in bigram.pairs(row.tolist()):
            listed[i, j] += 1
    np.testing.assert_array_equal(bigram.count(FULL, 3), listed)


def test_segments_part_documents_and_hide_padding():
    tokens, segments = np.array([[0, 1, 2, 0, 0]]), np.array([[1, 1, 2, 2, 0]])
    np.testing.assert_array_equal(np.argwhere(bigram.count(tokens, 3, segments) > 0), [[0, 1], [2, 0]])
    total, weight = bigram.loss(bigram.init(3), tokens, segments)
    assert weight == 2
    np.testing.assert_allclose(total / weight, np.log(3), rtol=1e-6)


def test_gradient_descent_goes_to_the_empirical_conditional_frequencies():
    params, losses = bigram.fit(bigram.init(3), FULL, steps=1000)
    frequencies = FULL_COUNTS / FULL_COUNTS.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(jax.nn.softmax(params["table"]), frequencies, atol=1e-5)
    exact = bigram.closed_form(bigram.count(FULL, 3))
    np.testing.assert_allclose(jax.nn.softmax(exact["table"]), frequencies, atol=1e-6)
    total, weight = bigram.loss(exact, FULL)
    np.testing.assert_allclose(losses[0], np.log(3), rtol=1e-6)
    np.testing.assert_allclose(losses[-1], total / weight, atol=1e-6)
    assert np.all(np.diff(losses) <= 1e-6)


def test_the_steepest_corpus_does_not_overshoot_at_the_default_rate():
    """One pair alone and two tokens: the greatest curvature that the stated bound allows for."""
    _, losses = bigram.fit({"table": jnp.array([[3.0, -3.0], [0.0, 0.0]])}, np.array([[0, 0, 1, 0, 0, 1]]), steps=50)
    assert np.all(np.diff(losses) <= 1e-6)


def test_a_pair_never_seen_is_impossible_and_costs_infinity():
    exact = bigram.closed_form(bigram.count(np.array([[0, 1, 0, 2]]), 3))
    np.testing.assert_allclose(jax.nn.softmax(exact["table"]), [[0, 0.5, 0.5], [1, 0, 0], [1 / 3] * 3], atol=1e-6)
    assert bigram.loss(exact, np.array([[1, 1]]))[0] == np.inf
    hidden = bigram.loss(exact, np.array([[1, 1, 0]]), np.array([[1, 2, 2]]))
    assert hidden == (0.0, 1.0)
    smoothed = bigram.closed_form(bigram.count(np.array([[0, 1, 0, 2]]), 3), smoothing=1.0)
    np.testing.assert_allclose(jax.nn.softmax(smoothed["table"])[0], [0.2, 0.4, 0.4], atol=1e-6)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=3, max_size=3),
    st.lists(st.floats(-3, 3, width=32), min_size=16, max_size=16),
)
def test_no_table_beats_the_closed_form(rows, table):
    tokens = np.array(rows)
    exact, weight = bigram.loss(bigram.closed_form(bigram.count(tokens, 4)), tokens)
    other, _ = bigram.loss({"table": jnp.array(table).reshape(4, 4)}, tokens)
    assert weight == 15
    assert exact <= other + 1e-4


def test_only_the_current_token_counts():
    params = {"table": jnp.arange(9.0).reshape(3, 3)}
    logits = bigram.apply(params, jnp.array([[0, 1, 2], [2, 1, 0]]))
    np.testing.assert_array_equal(logits[0, 1], logits[1, 1])
    np.testing.assert_array_equal(logits[:, :, 0], [[0, 3, 6], [6, 3, 0]])


def test_ids_outside_the_vocabulary():
    assert np.all(np.isnan(bigram.apply(bigram.init(3), jnp.array([3, -1]))))
    with pytest.raises(InputError, match=r"token id 3 is outside the vocabulary: 0 to 2"):
        bigram.count(np.array([[0, 3]]), 3)
    with pytest.raises(InputError, match="vocab_size is 0"):
        bigram.init(0)
