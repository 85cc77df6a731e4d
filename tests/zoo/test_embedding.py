"""From tokens to the stream: look-up, the sum of tables, scales, offsets, segments and relative biases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.config import ModelConfig
from zoo.embedding import Embed, look_up
from zoo.positions import relative_buckets, sinusoidal

B, T, D, V = 2, 3, 4, 7
BASE = ModelConfig(vocab_size=V, embed_dim=D, num_heads=2, max_positions=5)
TOKENS = jnp.asarray([[1, 6, 0], [2, 2, 5]])
POSITIONS = jnp.asarray([[0, 1, 2], [0, 1, 4]])


def embed(config, tokens=TOKENS, positions=POSITIONS, token_types=None, orders=(POSITIONS, POSITIONS)):
    """(stream, token table, bias, parameters), with parameters of unit size."""
    module = Embed(config)
    args = (tokens, positions, token_types, None, orders)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *args)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), shapes)
    stream, table, bias = jax.jit(module.apply)(params, *args)
    return stream, table, bias, params["params"]


def test_look_up_is_one_hot_times_matrix(rng):
    table = jnp.asarray(rng.standard_normal((V, D)), jnp.float32)
    assert np.array_equal(look_up(table, TOKENS), jax.nn.one_hot(TOKENS, V) @ table)
    gradient = jax.grad(lambda t: jnp.sum(look_up(t, TOKENS)))(table)
    assert np.array_equal(gradient[:, 0], np.bincount(np.ravel(TOKENS), minlength=V))


@pytest.mark.parametrize("wrong", [-1, V, V + 100, -V])
def test_ids_outside_the_table_are_nan(wrong):
    rows = jax.jit(look_up)(jnp.ones((V, D)), TOKENS.at[0, 1].set(wrong))
    assert np.isnan(rows[0, 1]).all() and np.isfinite(rows[0, 0]).all() and np.isfinite(rows[1]).all()


def test_ids_of_narrow_types():
    """A table larger than the type holds: 300 rows, ids in uint8."""
    table = jnp.arange(300.0)[:, None]
    assert np.array_equal(look_up(table, jnp.asarray([[0, 255]], jnp.uint8))[0, :, 0], [0, 255])


def test_learned_positions_are_added():
    stream, table, bias, p = embed(BASE)
    assert table.shape == (V, D) and bias is None
    assert set(p) == {"token", "position"} and p["position"]["embedding"].shape == (5, D)
    expected = p["token"]["embedding"][TOKENS] + p["position"]["embedding"][POSITIONS]
    np.testing.assert_allclose(stream, expected, atol=1e-6)


def test_position_offset():
    """RoBERTa's: row 2 is position 0, two rows more; a negative position is no row of the offset."""
    stream, _, _, p = embed(BASE.replace(position_offset=2))
    assert p["position"]["embedding"].shape == (7, D)
    expected = p["token"]["embedding"][TOKENS] + p["position"]["embedding"][POSITIONS + 2]
    np.testing.assert_allclose(stream, expected, atol=1e-6)
    beyond = embed(BASE.replace(position_offset=2), positions=jnp.asarray([[-1, 0, 4], [0, 4, 5]]))[0]
    assert np.isnan(beyond).any(axis=-1).tolist() == [[True, False, False], [False, False, True]]


def test_bert_adds_segments_then_normalises():
    config = BASE.replace(token_types=2, embed_norm=True, norm_eps=0.1)
    types = jnp.asarray([[0, 1, 1], [0, 0, 1]])
    stream, _, _, p = embed(config, token_types=types)
    total = p["token"]["embedding"][TOKENS] + p["position"]["embedding"][POSITIONS] + p["segment"]["embedding"][types]
    centred = total - total.mean(-1, keepdims=True)
    normed = centred / jnp.sqrt(total.var(-1, keepdims=True) + 0.1)
    np.testing.assert_allclose(stream, normed * p["norm"]["scale"] + p["norm"]["bias"], atol=1e-5)
    zeros = embed(config, token_types=jnp.zeros((B, T), int))[0]
    assert np.array_equal(embed(config)[0], zeros)


def test_scale_applies_to_tokens_alone():
    config = BASE.replace(positions="sinusoidal", embed_scale=2.0)
    stream, _, _, p = embed(config)
    assert set(p) == {"token"}
    np.testing.assert_allclose(stream, 2 * p["token"]["embedding"][TOKENS] + sinusoidal(POSITIONS, D), atol=1e-6)


def test_embeddings_may_take_the_tokens_place():
    stream, _, _, p = embed(BASE)
    given = embed(BASE, tokens=p["token"]["embedding"][TOKENS])[0]
    assert np.array_equal(stream, given)


def test_stream_is_in_the_compute_dtype_and_parameters_are_float32():
    stream, table, _, p = embed(BASE.replace(dtype="bfloat16"))
    assert stream.dtype == jnp.bfloat16 and table.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(p)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("visibility", ["causal", "full"])
def test_relative_bias_reads_its_table(visibility):
    """bias[b, n, t, s] = table[bucket(order s - order t), n]; no table of absolute positions."""
    config = BASE.replace(positions="relative", visibility=visibility, relative_buckets=8, relative_max_distance=20)
    keys = jnp.asarray([[0, 1, 2, 3], [0, 3, 6, 9]])
    _, _, bias, p = embed(config, orders=(POSITIONS, keys))
    assert set(p) == {"token", "relative"} and bias.shape == (B, 2, T, 4)
    for b in range(B):
        for t in range(T):
            for s in range(4):
                offset = keys[b, s] - POSITIONS[b, t]
                bucket = relative_buckets(offset, both_ways=visibility == "full", buckets=8, max_distance=20)
                assert np.array_equal(bias[b, :, t, s], p["relative"]["embedding"][int(bucket)])
