"""Plain folders: our settings beside one safetensors file."""

import json

import jax
import numpy as np
import pytest

import zoo
from tests import made_up
from zoo.checkpoints import plain_folder
from zoo.checkpoints.belongings import trained_with
from zoo.checkpoints.placing import flatten
from zoo.checkpoints.safetensors_out import write_file
from zoo.errors import InputError

CONFIG = zoo.ModelConfig(
    vocab_size=360, embed_dim=16, num_layers=2, num_heads=2, max_positions=24, positions="rotary", visibility="full"
)


@pytest.fixture
def model():
    return zoo.create(CONFIG)


@pytest.fixture
def params(model):
    leaves, tree = jax.tree.flatten(model.init_shapes())
    draw = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [draw.normal(size=leaf.shape).astype(np.float32) for leaf in leaves])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_saved_and_loaded_gives_the_rounded_numbers(model, params, dtype, tmp_path):
    plain_folder.save(model, params, tmp_path / "m", made_up.tokenizer(), dtype)
    found, loaded = zoo.load(tmp_path / "m")
    assert found.config == CONFIG == zoo.checkpoints.load_config(tmp_path / "m")
    for path, leaf in flatten(params).items():
        got = np.asarray(flatten(loaded)[path])
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, np.asarray(leaf.astype(jax.numpy.dtype(dtype)), np.float32))
    assert zoo.load_tokenizer(tmp_path / "m") == made_up.tokenizer()
    assert trained_with(tmp_path / "m") == made_up.tokenizer().fingerprint
    _, halves = zoo.load(tmp_path / "m", dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(halves)} == {"bfloat16"}


def test_a_scanned_model_too(params, tmp_path):
    scanned = zoo.create(CONFIG.replace(scan=True))
    stacked = zoo.stack_layers(params, scanned.config)
    plain_folder.save(scanned, stacked, tmp_path / "m", dtype="float32")
    _, loaded = zoo.load(tmp_path / "m")
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), loaded, stacked))


def test_every_tensor_is_accounted_for(model, params, tmp_path):
    plain_folder.save(model, params, tmp_path, dtype="float32")
    flat = {path: np.asarray(leaf) for path, leaf in flatten(params).items()}
    wrong = {path: leaf for path, leaf in flat.items() if path != "final_norm/bias"}
    wrong |= {"extra": np.ones(2, np.float32), "final_norm/scale": np.ones(3, np.float32)}
    wrong["embed/token/embedding"] = np.ones((360, 16), np.int32)
    write_file(tmp_path / "model.safetensors", wrong)
    with pytest.raises(InputError) as told:
        zoo.load(tmp_path)
    line = str(told.value)
    assert "1 missing: final_norm/bias" in line and "1 unexpected: extra" in line
    assert "1 wrong shape: final_norm/scale [3] for [16]" in line and "embed/token/embedding (I32)" in line
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="truncated"):
        zoo.load(tmp_path)


def test_what_cannot_be_written(model, params, tmp_path):
    params["final_norm"]["scale"] = np.full(16, 1e5, np.float32)
    with pytest.raises(InputError, match="final_norm/scale has numbers that float16 cannot hold; take bfloat16"):
        plain_folder.save(model, params, tmp_path / "m")
    plain_folder.save(model, params, tmp_path / "m", dtype="bfloat16")
    with pytest.raises(InputError, match='dtype "half" is not supported'):
        plain_folder.save(model, params, tmp_path / "n", dtype="half")


def test_a_config_of_anothers_is_no_plain_folder(model, params, tmp_path):
    plain_folder.save(model, params, tmp_path, dtype="float32")
    assert plain_folder.is_folder(tmp_path) and plain_folder.fingerprint(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert not plain_folder.is_folder(tmp_path)
