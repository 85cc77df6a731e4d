"""Kernels in tiles are the same kernels: the same logits, read and continued, looped and scanned, tied and not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.generation.sampling import first_largest
from zoo.tiles import Tiles, tiled

TOKENS = np.random.default_rng(1).integers(0, 128, (2, 9))
SIZES = dict(embed_dim=64, num_layers=2, num_heads=4, num_kv_heads=4, mlp_dim=128, vocab_size=128, max_positions=256)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-tiny", {}),
        ("llama-tiny", {"scan": True, "tie_embeddings": False}),
        ("gpt-tiny", {"vocab_size": 131}),  # no multiple of 64: the table stays
        ("mixtral-tiny", {}),
    ],
)
def test_the_model_is_the_same(name, changes):
    model = zoo.create(name, **SIZES | changes)
    params = model.init(jax.random.key(0))
    laid = tiled(params)
    assert any(isinstance(leaf, Tiles) for leaf in jax.tree.leaves(laid, is_leaf=lambda x: isinstance(x, Tiles)))
    assert sum(x.nbytes for x in jax.tree.leaves(laid)) == sum(x.nbytes for x in jax.tree.leaves(params))
    for tokens in (TOKENS, TOKENS[:1, :1], np.resize(TOKENS, (2, 40))):  # a few rows, one, and more than are few
        expected = model.apply(params, tokens).logits
        np.testing.assert_allclose(model.apply(laid, tokens).logits, expected, atol=1e-5)
    np.testing.assert_allclose(
        model.unembed(laid, model.apply(laid, TOKENS).hidden), model.apply(params, TOKENS).logits, atol=1e-5
    )


def test_it_generates_the_same_text():
    model = zoo.create("llama-tiny", **SIZES)
    params = model.init(jax.random.key(0))
    plain, laid = (zoo.generate(model, p, TOKENS.tolist(), max_new_tokens=6) for p in (params, tiled(params)))
    assert plain.tokens.tolist() == laid.tokens.tolist()
    np.testing.assert_allclose(plain.log_probs, laid.log_probs, atol=1e-5)


def test_ids_outside_the_table_give_nan_and_bfloat16_is_summed_in_float32():
    table = jax.random.normal(jax.random.key(0), (128, 7))
    laid = tiled({"embed": {"token": {"embedding": table}}})["embed"]["token"]["embedding"]
    ids = jnp.array([[0, 127, 65], [-1, 128, 3]])
    found = laid.look_up(ids)
    np.testing.assert_array_equal(found[0], table[ids[0]])
    assert np.isnan(found).all(axis=-1).tolist() == [[False] * 3, [True, True, False]]
    x = jax.random.normal(jax.random.key(1), (1, 7)).astype(jnp.bfloat16)
    expected = np.asarray(x, np.float32) @ np.asarray(table.astype(jnp.bfloat16), np.float32).T
    np.testing.assert_allclose(laid.times(x, jnp.float32), expected, atol=1e-5)


def test_under_a_mesh_nothing_is_laid_out():
    params = {"embed": {"token": {"embedding": jnp.zeros((64, 4))}}}
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert tiled(params) is params


def test_the_first_of_the_largest_is_found():
    rows = jnp.array([[1.0, 3.0, 3.0], [np.nan, 1.0, np.nan], [-np.inf] * 3, [0.0, -np.inf, np.inf], [1, 2, np.nan]])
    assert first_largest(rows).tolist() == jnp.argmax(rows, axis=-1).tolist() == [1, 0, 0, 2, 2]
