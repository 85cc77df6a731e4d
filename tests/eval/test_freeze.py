"""What a way trains and what it leaves: parts that make the whole, levels of layers, no moments for what is frozen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from eval import finetune as tuning
from eval.finetune import FinetuneConfig, finetune, with_task_head
from eval.ways import freeze, lora
from eval.ways.planned_rate import make_plan, planned_optimizer
from train.config import TrainConfig
from zoo import InputError
from zoo.layer_config import LayerConfig
from zoo.partition import path_string

TINY = {"vocab_size": 40, "embed_dim": 8, "num_heads": 2, "mlp_dim": 16, "max_positions": 8}
CONFIG = FinetuneConfig(learning_rate=3e-3, epochs=0, steps=2, batch_size=8, max_length=16)


def filled(model, seed=0):
    """Parameters of a model from NumPy, without compiling its init."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), jnp.float32), model.init_shapes())


def flat(tree):
    return {path_string(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def network(layers, slots=1, scan=False, preset="gpt2-tiny"):
    pattern = tuple(LayerConfig(window=4 if slot else None) for slot in range(slots))
    changes = {"layer_pattern": pattern, "num_layers": layers, "scan": scan, "head": "classifier", "num_labels": 2}
    return zoo.create(preset, **TINY, pooling="last", **changes)


@given(
    layers=st.integers(1, 5), slots=st.integers(1, 3), scan=st.booleans(), top=st.integers(1, 5),
    way=st.sampled_from(["top", "head", "full"]),
)  # fmt: skip
def test_two_parts_make_the_whole(layers, slots, scan, top, way):
    """Every number is in one part alone, the upper `top` layers and the head are trained, and nothing below them is."""
    slots, top = min(slots, layers), min(top, layers)
    model = network(layers, slots, scan)
    params = filled(model)
    trained, frozen = freeze.split(params, model.config, CONFIG.replace(way=way, top_layers=top), "classifier")
    whole = freeze.join(trained, frozen)
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(params), strict=True))
    assert freeze.count(trained) + freeze.count(frozen) == freeze.count(params)
    block = (freeze.count(params["blocks"]) + freeze.count(params.get("tail", {}))) // layers
    above = freeze.count(params["classifier"]) + freeze.count(params["final_norm"])
    expected = {"full": freeze.count(params), "head": freeze.count(params["classifier"]), "top": above + top * block}
    assert freeze.count(trained) == expected[way]
    if way == "top" and scan:
        looped = zoo.unstack_layers(params, model.config)
        same = network(layers, slots, False).config
        upper, _ = freeze.split(looped, same, CONFIG.replace(way=way, top_layers=top), "classifier")
        assert sorted(leaf.sum() for leaf in flat(upper["blocks"]).values()) == pytest.approx(
            sorted(
                part.sum()
                for name in ("blocks", "tail")
                for path, leaf in flat(trained.get(name, {})).items()
                for part in ([leaf] if "layer_" in path else leaf)
            ),
            abs=1e-5,
        )


def test_the_head_of_each_kind_is_what_is_trained():
    for head in ("token_classifier", "span"):
        model = zoo.create(network(2).config, head=head)
        params = filled(model)
        for way, names in (("head", {head}), ("top", {head, "blocks", "final_norm"})):
            trained, frozen = freeze.split(params, model.config, CONFIG.replace(way=way), head)
            assert set(trained) == names and head not in frozen


def test_rates_by_layer_are_the_golden_table():
    """d^(L + 1 - l): embeddings lowest, the head 1; a scanned stack has the same as a looped one."""
    table = {"embed": 0.0625, 1: 0.125, 2: 0.25, 3: 0.5, "above": 1.0}
    for scan in (False, True):
        model = network(3, scan=scan)
        scales = freeze.layer_scales(filled(model), model.config, 0.5)
        found = flat(scales)
        assert {float(v) for k, v in found.items() if k.startswith("embed/")} == {table["embed"]}
        assert {float(v) for k, v in found.items() if k.split("/")[0] in ("classifier", "final_norm")} == {1.0}
        if scan:
            kernel = found["blocks/mlp/up/kernel"]
            assert kernel.shape == (3, 1, 1) and kernel.ravel().tolist() == [table[1], table[2], table[3]]
        else:
            for layer in range(3):
                assert float(found[f"blocks/layer_{layer}/mlp/up/kernel"]) == table[layer + 1]
    model = network(5, slots=2, scan=True)
    found = flat(freeze.layer_scales(filled(model), model.config, 0.5))
    assert found["blocks/pattern_0/mlp/up/bias"].ravel().tolist() == [2.0**-5, 2.0**-3]
    assert found["blocks/pattern_1/mlp/up/bias"].ravel().tolist() == [2.0**-4, 2.0**-2]
    assert float(found["tail/layer_4/mlp/up/bias"]) == 0.5


def test_cut_stacks_and_adapters_learn_at_the_rate_of_their_layers():
    model = network(3, scan=True)
    params = filled(model)
    trained, _ = freeze.split(params, model.config, CONFIG.replace(way="top", top_layers=2), "classifier")
    found = flat(freeze.layer_scales(trained, model.config, 0.5))
    assert found["blocks/mlp/up/kernel"].ravel().tolist() == [0.25, 0.5]
    adapters = {lora.NAME: lora.create(params, ("query",), 2, jax.random.key(0))}
    found = flat(freeze.layer_scales(adapters, model.config, 0.5))
    assert found["lora/blocks/attention/query/lora_a"].ravel().tolist() == [0.125, 0.25, 0.5]


def test_an_update_is_the_rate_times_the_scale():
    model = network(2)
    params = filled(model)
    config = TrainConfig(optimizer="sgd", clip_norm=None)
    optimizer = planned_optimizer(config, freeze.scale_by_layer(model.config, 0.5))
    state = optimizer.init(params)._replace(plan=make_plan(0.1, 10, 0.0, "constant"))
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
    scales = flat(freeze.layer_scales(params, model.config, 0.5))
    for path, update in flat(updates).items():
        np.testing.assert_allclose(update, np.broadcast_to(-0.1 * scales[path], update.shape), rtol=1e-6)


@pytest.fixture(scope="module")
def stacks(tokenizer):
    """Three layers of one network, looped and scanned."""
    sizes = {"embed_dim": 16, "num_heads": 2, "num_layers": 3, "max_positions": 32, "initializer_range": 0.1}
    looped = zoo.create("bert-tiny", vocab_size=tokenizer.vocab_size, **sizes)
    params = filled(looped)
    scanned = zoo.create(looped.config, scan=True)
    return {"loop": (looped, params), "scan": (scanned, zoo.stack_layers(params, looped.config))}


@pytest.mark.parametrize("way", ["head", "top", "lora"])
@pytest.mark.parametrize("stack", ["loop", "scan"])
def test_what_is_frozen_keeps_its_bits(way, stack, stacks, tokenizer, topics, one):
    model, params = stacks[stack]
    config = CONFIG.replace(way=way, lora_rank=2, lora_targets=("query", "down"), layer_decay=0.9)
    tuned = finetune(model, params, tokenizer, topics.train[:16], config, 2, devices=one)
    begun = with_task_head(model, params, config, 2)[1]
    if stack == "scan":
        begun, ended = (zoo.unstack_layers(tree, model.config) for tree in (begun, tuned.params))
    else:
        ended = tuned.params
    moved = {path for path, leaf in flat(ended).items() if not np.array_equal(leaf, flat(begun)[path])}
    # The pooled vector is blind to a bias of the keys: softmax is; its gradient is rounding, its update may be none.
    paths = {path for path in flat(begun) if not path.endswith("key/bias")}
    expected = {path for path in paths if path.startswith("classifier/")}
    if way == "top":
        expected |= {path for path in paths if path.startswith("blocks/layer_2/")}
    if way == "lora":
        expected |= {path for path in paths if path.endswith(("query/kernel", "down/kernel"))}
    assert moved - {"blocks/layer_2/attention/key/bias"} == expected
    assert tuned.trainable < tuned.total and (tuned.adapter is not None) == (way == "lora")


def test_loop_and_scan_train_alike(stacks, tokenizer, topics, one):
    """Cut stacks and whole layers are the same numbers: the same losses and the same parameters."""
    config = CONFIG.replace(way="top", top_layers=2, layer_decay=0.8, dropout=0.0, optimizer="sgd", learning_rate=0.1)
    runs = [finetune(*stacks[s], tokenizer, topics.train[:16], config, 2, devices=one) for s in ("loop", "scan")]
    looped = zoo.unstack_layers(runs[1].params, runs[1].model.config)
    assert runs[0].trainable == runs[1].trainable
    for path, leaf in flat(runs[0].params).items():
        np.testing.assert_allclose(flat(looped)[path], leaf, atol=1e-5, err_msg=path)


@pytest.mark.parametrize("way", ["head", "top", "lora"])
def test_what_is_frozen_has_no_moments(way, stacks):
    model, params = stacks["scan"]
    config = CONFIG.replace(way=way, lora_rank=2)
    model, params = with_task_head(model, params, config, 2)
    trained, _ = freeze.split(params, model.config, config, "classifier")
    if way == "lora":
        trained = {**trained, lora.NAME: lora.create(params, ("query",), 2, jax.random.key(0))}
    optimizer = planned_optimizer(tuning.Recipe.of(config).train)
    state = jax.eval_shape(optimizer.init, trained)
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, optax.ScaleByAdamState))
    (adam,) = (node for node in nodes if isinstance(node, optax.ScaleByAdamState))
    assert jax.tree.structure(adam.mu) == jax.tree.structure(trained) == jax.tree.structure(adam.nu)
    assert freeze.count(adam.mu) == freeze.count(trained) < 0.5 * freeze.count(params)


def test_a_frozen_backbone_runs_forward_alone(stacks):
    """By the compiler's own count: the gradient of the head costs no pass back through the blocks."""
    model, params = with_task_head(*stacks["loop"], CONFIG.replace(dropout=0.0), 2)
    tokens = jnp.ones((4, 16), jnp.int32)

    def flops(way):
        trained, frozen = freeze.split(params, model.config, CONFIG.replace(way=way), "classifier")

        def loss(part, rest):
            return model.apply(freeze.join(part, rest), tokens).logits.var()

        found = jax.jit(jax.value_and_grad(loss)).lower(trained, frozen).cost_analysis()
        return found["flops"]

    forward = jax.jit(lambda p: model.apply(p, tokens).logits.var()).lower(params).cost_analysis()["flops"]
    assert flops("head") < 1.05 * forward < 2 * forward < flops("full")


def test_layers_that_are_one_cannot_be_told_apart(tokenizer):
    model = zoo.create("albert-tiny", **TINY, head="classifier", num_labels=2)
    params = filled(model)
    with pytest.raises(InputError, match="top_layers tells layers apart, and this model has one block"):
        freeze.split(params, model.config, CONFIG.replace(way="top"), "classifier")
    with pytest.raises(InputError, match="layer_decay tells layers apart"):
        freeze.layer_scales(params, model.config, 0.9)
    model = network(2)
    with pytest.raises(InputError, match="top_layers is 3; this model has 2"):
        freeze.split(filled(model), model.config, CONFIG.replace(way="top", top_layers=3), "classifier")
