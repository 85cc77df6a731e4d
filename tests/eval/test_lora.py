"""Adapters: nothing at the start, exact to merge and to take away, alone on disk, bound to their base."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from eval.cli import evaluate as command
from eval.encode import encode
from eval.finetune import FinetuneConfig, finetune, with_task_head
from eval.predict import predict_encoded
from eval.ways import adapter_folder, lora
from tests.eval.test_freeze import filled, flat, network
from zoo import InputError
from zoo.checkpoints import run_folder

CONFIG = FinetuneConfig(way="lora", learning_rate=0.01, epochs=6, max_length=32, lora_rank=4, lora_targets=("all",))


@given(
    layers=st.integers(1, 3), scan=st.booleans(), rank=st.integers(1, 4), scale=st.floats(0.01, 8.0),
    seed=st.integers(0, 9),
    targets=st.lists(
        st.sampled_from(["query", "value", "out", "up", "down", "all", "*key/kernel"]), min_size=1, max_size=3
    ),
)  # fmt: skip
def test_merging_is_a_product_added_and_taken_away_again(layers, scan, rank, scale, seed, targets):
    """W + s A B by NumPy in float64; and back to W within two roundings of the larger of the two."""
    model = network(layers, scan=scan)
    params = filled(model, seed)
    adapters = lora.create(params, targets, rank, jax.random.key(seed))
    fresh = lora.merge(params, adapters, scale)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (fresh, params)), strict=True))
    draw = np.random.default_rng(seed)
    adapters = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), jnp.float32), adapters)
    merged = lora.merge(params, adapters, scale)
    back = lora.unmerge(merged, adapters, scale)
    pairs, before, during, after = flat(adapters), flat(params), flat(merged), flat(back)
    targeted = lora.targeted(params, targets)
    assert len(pairs) == 2 * len(targeted)
    for path, kernel in before.items():
        if path not in targeted:
            assert np.array_equal(kernel, during[path])
            continue
        name = path.removesuffix("kernel")
        a, b = (pairs[name + part].astype(np.float64) for part in (lora.A, lora.B))
        stacked = scan and kernel.shape[0] == layers
        for i in range(layers) if stacked else [...]:
            inner = a[i].reshape(-1, rank)
            delta = scale * (inner @ b[i].reshape(rank, -1)).reshape(kernel[i].shape)
            np.testing.assert_allclose(during[path][i], kernel[i] + delta, rtol=1e-5, atol=1e-5 * scale)
        largest = np.maximum(np.abs(kernel), np.abs(during[path]))
        assert (np.abs(after[path] - kernel) <= 2.0**-23 * (largest + np.abs(during[path] - kernel))).all()


def test_a_stack_and_its_layers_merge_alike():
    looped = network(2)
    params = filled(looped)
    stacked = zoo.stack_layers(params, looped.config)
    adapters = lora.create(stacked, ("all",), 2, jax.random.key(0))
    adapters = jax.tree.map(lambda leaf: leaf + 0.3, adapters)
    own = {"blocks": {f"layer_{i}": jax.tree.map(lambda leaf, i=i: leaf[i], adapters["blocks"]) for i in range(2)}}
    found = zoo.unstack_layers(lora.merge(stacked, adapters, 0.5), network(2, scan=True).config)
    for path, leaf in flat(lora.merge(params, own, 0.5)).items():
        np.testing.assert_allclose(flat(found)[path], leaf, atol=1e-6, err_msg=path)


def test_targets_are_kernels_of_the_blocks():
    model = network(2)
    shapes = model.init_shapes()
    assert lora.targeted(shapes, ("query", "value")) == [
        f"blocks/layer_{i}/attention/{name}/kernel" for i in range(2) for name in ("query", "value")
    ]
    assert len(lora.targeted(shapes, ("all",))) == 2 * 6
    assert lora.targeted(shapes, ("*layer_1/mlp*",)) == [
        "blocks/layer_1/mlp/down/kernel",
        "blocks/layer_1/mlp/up/kernel",
    ]
    for word in ("quer", "classifier", "bias"):
        with pytest.raises(InputError, match=f'no kernel of the blocks is named "{word}"'):
            lora.targeted(shapes, (word,))
    with pytest.raises(InputError, match="lora_rank is 9; blocks/layer_0/attention/query/kernel is a matrix of 8 x 8"):
        lora.create(shapes, ("query",), 9, jax.random.key(0))
    mixtral = zoo.create("mixtral-tiny", vocab_size=40).init_shapes()
    assert not [path for path in lora.targeted(mixtral, ("all",)) if "router" in path]


def test_adapters_of_another_model_are_refused():
    params = filled(network(1))
    adapters = lora.create(filled(network(2)), ("query",), 2, jax.random.key(0))
    with pytest.raises(InputError, match="the adapters are of another model: this one has no blocks/layer_1/"):
        lora.merge(params, adapters, 1.0)
    adapters = lora.create(params, ("query",), 2, jax.random.key(0))
    adapters["blocks"]["layer_0"]["attention"]["query"][lora.A] = jnp.zeros((4, 2))
    with pytest.raises(InputError, match="of another model: blocks/layer_0/attention/query/kernel has shape"):
        lora.merge(params, adapters, 1.0)


@pytest.fixture(scope="module")
def tuned(bert, topics, tokenizer):
    return finetune(*bert, tokenizer, topics.train, CONFIG, 2, devices=jax.devices()[:1])


def test_the_first_loss_is_that_of_the_base(bert, topics, tokenizer, one):
    """B is zero at the start: one update of rate next to nothing sees the very loss that the plain model has."""
    config = CONFIG.replace(epochs=0, steps=1, learning_rate=1e-30, dropout=0.0)
    losses = [
        finetune(*bert, tokenizer, topics.train[:16], config.replace(way=way), 2, devices=one).history[0]["loss"]
        for way in ("lora", "head")
    ]
    assert losses[0] == losses[1]


def test_adapters_learn_what_the_head_alone_does_not(tuned, bert, topics, tokenizer, one):
    model, params = bert
    found = predict_encoded(tuned.model, tuned.params, encode(topics.test, tokenizer, model.config, 32), devices=one)
    assert np.mean(found.argmax(axis=1) == [e.label for e in topics.test]) > 0.9
    assert tuned.trainable == sum(leaf.size for leaf in jax.tree.leaves([tuned.adapter, tuned.params["classifier"]]))
    start = with_task_head(model, params, CONFIG, 2)[1] | {"classifier": tuned.params["classifier"]}
    again = lora.merge(start, tuned.adapter, CONFIG.lora_alpha / CONFIG.lora_rank)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (again, tuned.params)), strict=True))


@pytest.fixture(scope="module")
def saved(tuned, bert, tokenizer, tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    run_folder.save(*bert, base, tokenizer)
    folder = tmp_path_factory.mktemp("adapters")
    adapter_folder.save(tuned, folder, tokenizer, CONFIG, str(base), bert[1])
    return folder, base


def test_a_folder_holds_the_adapters_alone_and_loads_whole(saved, tuned, bert):
    folder, _ = saved
    assert {path.name for path in folder.iterdir()} == {"adapter.safetensors", "config.json", "tokenizer"}
    size = (folder / "adapter.safetensors").stat().st_size
    assert 4 * tuned.trainable <= size < 4 * tuned.trainable + 8192
    model, params = adapter_folder.load(folder)
    assert model == tuned.model
    assert flat(params).keys() == flat(tuned.params).keys()
    for path, leaf in flat(params).items():
        assert np.array_equal(leaf, flat(tuned.params)[path]), path


def test_a_base_that_changed_is_refused(saved, bert, tokenizer, tmp_path):
    folder, base = saved
    (tmp_path / "other").mkdir()
    model, params = bert
    run_folder.save(model, jax.tree.map(lambda leaf: leaf + 1e-3, params), tmp_path / "other", tokenizer)
    with pytest.raises(InputError, match=f"its adapters belong to {base} with weights"):
        adapter_folder.load(folder, str(tmp_path / "other"))


def test_the_command_merges_into_a_run_folder(saved, tuned, tmp_path, capsys):
    folder, _ = saved
    assert command(["merge", str(folder), str(tmp_path / "merged")]) == 0
    model, params = zoo.load(tmp_path / "merged")
    assert model == tuned.model
    for path, leaf in flat(params).items():
        assert np.array_equal(leaf, flat(tuned.params)[path]), path
    assert zoo.load_tokenizer(tmp_path / "merged").fingerprint == zoo.load_tokenizer(folder).fingerprint
    assert command(["merge", str(folder), str(tmp_path / "merged")]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["no rank", "rank 0", "no model", "not json", "no tensors"])
def test_damaged_folders_are_one_line(change, saved, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(saved[0], folder)
    settings = json.loads((folder / "config.json").read_text())
    if change == "no rank":
        del settings["adapter"]["rank"]
    if change == "rank 0":
        settings["adapter"]["rank"] = 0
    if change == "no model":
        settings["model"] = 3
    (folder / "config.json").write_text("{" if change == "not json" else json.dumps(settings))
    if change == "no tensors":
        (folder / "adapter.safetensors").unlink()
    with pytest.raises(InputError) as error:
        adapter_folder.load(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
