"""Weight decay reaches exactly the leaves that the path patterns name, in scanned and unscanned trees."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import zoo
from train.config import TrainConfig
from train.optimizer import clip_by_norm, make_optimizer, matches, scale_by_adam
from zoo.errors import InputError
from zoo.partition import path_string

BASE = zoo.ModelConfig(vocab_size=11, embed_dim=8, num_layers=2, num_heads=2)
CONFIGS = {
    "bert": BASE.replace(
        visibility="full", token_types=2, embed_norm=True, norm_placement="post", final_norm=False, pooler=True,
        next_sentence=True, head="masked_lm",
    ),
    "llama": BASE.replace(
        positions="rotary", norm="rmsnorm", gated=True, mlp_bias=False, attention_bias=False, attention_out_bias=False,
        tie_embeddings=False,
    ),
    "relative": BASE.replace(positions="relative", qk_norm=True),
}  # fmt: skip


def init(config):
    model = zoo.create(config)
    # Norm scales and biases start at 1 and 0: random values make a move visible everywhere.
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), model.init_shapes())


@pytest.mark.parametrize("scan", [False, True], ids=["loop", "scan"])
@pytest.mark.parametrize("family", CONFIGS)
def test_with_zero_gradients_exactly_the_kernels_move(family, scan):
    params = init(CONFIGS[family].replace(scan=scan))
    config = TrainConfig(steps=10, learning_rate=0.5, schedule="constant", weight_decay=0.1)
    optimizer = make_optimizer(config)
    state = optimizer.init(params)
    updates, state = jax.jit(optimizer.update)(jax.tree.map(jnp.zeros_like, params), state, params)
    moved = set()
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        before = params
        for key in path:
            before = before[key.key]
        if np.any(np.asarray(update)):
            moved.add(path_string(path))
            np.testing.assert_allclose(update, -0.05 * before, rtol=1e-6)
    names = {path_string(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert moved == {name for name in names if name.split("/")[-1] == "kernel"}
    assert not any(part in name for name in moved for part in ("norm/", "bias", "embed/"))
    layers = 1 if scan else 2
    assert sum("mlp/down" in name for name in moved) == layers


def test_scanned_and_unscanned_trees_decay_the_same_leaves():
    config = CONFIGS["bert"]
    looped = matches(zoo.create(config).init_shapes(), ("*kernel",))
    scanned = matches(zoo.create(config.replace(scan=True)).init_shapes(), ("*kernel",))
    assert scanned["blocks"] == looped["blocks"]["layer_0"] == looped["blocks"]["layer_1"]
    assert {k: v for k, v in scanned.items() if k != "blocks"} == {k: v for k, v in looped.items() if k != "blocks"}


def test_moments_are_float32_and_shaped_as_the_parameters():
    params = init(CONFIGS["llama"])
    state = make_optimizer(TrainConfig()).init(params)
    moments = [s for s in state if hasattr(s, "mu")][0]
    for tree in (moments.mu, moments.nu):
        assert jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree) == jax.tree.map(
            lambda x: (x.shape, "float32"), params
        )


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(InputError, match='pattern "\\*kernal" matches no parameter'):
        make_optimizer(TrainConfig(decay=("*kernal",))).update(
            {"kernel": jnp.zeros(2)},
            make_optimizer(TrainConfig()).init({"kernel": jnp.zeros(2)}),
            {"kernel": jnp.ones(2)},
        )


def test_clipping_scales_the_whole_gradient_to_the_norm():
    config = TrainConfig(steps=2, learning_rate=1.0, schedule="constant", optimizer="sgd", clip_norm=1.0)
    optimizer = make_optimizer(config)
    params = {"kernel": jnp.zeros(1), "bias": jnp.zeros(1)}
    updates, _ = optimizer.update(
        {"kernel": jnp.array([3.0]), "bias": jnp.array([4.0])}, optimizer.init(params), params
    )
    np.testing.assert_allclose([updates["kernel"][0], updates["bias"][0]], [-0.6, -0.8], rtol=1e-6)


def test_one_adamw_step_by_hand():
    config = TrainConfig(
        steps=2,
        learning_rate=0.1,
        schedule="constant",
        weight_decay=0.01,
        clip_norm=None,
        beta1=0.9,
        beta2=0.99,
        eps=1e-8,
    )
    optimizer = make_optimizer(config)
    params = {"kernel": jnp.array([2.0])}
    state = optimizer.init(params)
    updates, state = optimizer.update({"kernel": jnp.array([0.5])}, state, params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * (0.5 / 0.5 + 0.01 * 2.0), rtol=1e-6)
    updates, state = optimizer.update({"kernel": jnp.array([-1.0])}, state, params)
    m = (0.9 * 0.05 - 0.1) / (1 - 0.81)
    v = (0.99 * 0.0025 + 0.01) / (1 - 0.9801)
    np.testing.assert_allclose(updates["kernel"], -0.1 * (m / np.sqrt(v) + 0.01 * 2.0), rtol=1e-5)


def test_adam_and_clipping_are_the_library_s():
    """Ten updates of changing gradients, some of them beyond the norm: those of optax's links, and its states."""
    config = TrainConfig(steps=10, learning_rate=0.1, schedule="constant", weight_decay=0.1, clip_norm=2.0)
    links = [optax.clip_by_global_norm(2.0), optax.scale_by_adam(config.beta1, config.beta2, config.eps)]
    ours = optax.chain(clip_by_norm(2.0), scale_by_adam(config.beta1, config.beta2, config.eps))
    theirs = optax.chain(*links)
    params = init(CONFIGS["llama"])
    states = [optimizer.init(params) for optimizer in (ours, theirs)]
    rng = np.random.default_rng(0)
    for step in range(10):
        size = 0.01 * 4**step
        gradient = jax.tree.map(lambda x, s=size: jnp.asarray(s * rng.normal(size=x.shape), jnp.float32), params)
        found, states[0] = jax.jit(ours.update)(gradient, states[0])
        expected, states[1] = jax.jit(theirs.update)(gradient, states[1])
        for x, y in zip(jax.tree.leaves((found, states[0])), jax.tree.leaves((expected, states[1])), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-7)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
