"""Whatever generates gives over a mesh of data x tensor what it gives on one device."""

import jax
import numpy as np
import pytest

import zoo
from zoo.generation.beams import beam_search
from zoo.generation.choosing import choose
from zoo.partition import shardings

NEW, PROMPTS = 5, [[1, 2, 3], [4, 5]]
SIZES = dict(vocab_size=48, embed_dim=16, num_heads=4, num_kv_heads=2, mlp_dim=32, num_layers=1, max_positions=64)


class Letters:
    """An id a letter."""

    vocab_size, bos_id, eos_id, cls_id, adds_bos = 48, None, None, None, False

    def encode(self, text):
        return [ord(letter) % 48 for letter in text]

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]


@pytest.fixture(scope="module")
def made():
    model = zoo.create("llama-tiny", **SIZES)
    return model, jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, model.init(jax.random.key(3)))


def texts(model, params, **asked):
    out = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, **asked)
    return out.tokens, out.log_probs


def searched(model, params):
    out = beam_search(model, params, PROMPTS, max_new_tokens=NEW, beams=3, stop_ids=[7])
    return np.concatenate([out.tokens.ravel(), out.lengths.ravel()]), out.scores


def chosen(model, params):
    out = choose(model, params, ["abc", "de"], [["f", "gh"], ["i", "jkl"]], tokenizer=Letters())
    return out.index, np.concatenate(out.log_probs)


WAYS = {
    "int8 cache": lambda model, params: texts(model, params, cache_dtype="int8"),
    "draft": lambda model, params: texts(model, params, draft=(model, params), draft_tokens=2),
    "beams": searched,
    "choose": chosen,
    "int8 weights": texts,
}


@pytest.mark.parametrize("way", WAYS)
def test_over_a_mesh_as_on_one_device(made, way):
    model, params = zoo.quantize(*made) if way == "int8 weights" else made
    ids, numbers = WAYS[way](model, params)
    devices = np.asarray(jax.devices()[:4]).reshape(2, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    placed = jax.device_put(params, shardings(mesh, params))
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(placed))
    with jax.set_mesh(mesh):
        spread_ids, spread_numbers = WAYS[way](model, placed)
    np.testing.assert_array_equal(spread_ids, ids)
    np.testing.assert_allclose(spread_numbers, numbers, atol=1e-5)
