"""The Block against a few lines of direct formula, and what its parts may and may not mix."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.block import Attention, Block, Call
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.feed_forward import ACTIVATIONS, FeedForward
from zoo.layer_config import LayerConfig
from zoo.masks import Mask

B, T, S, D, N, K, H, F = 2, 4, 7, 6, 4, 2, 3, 10
BASE = ModelConfig(
    vocab_size=11, embed_dim=D, num_layers=2, num_heads=N, num_kv_heads=K, head_dim=H, mlp_dim=F, norm_eps=0.01
)


def fresh(module, *args):
    """Parameters with no zeros or ones in them, so that every scale and bias counts."""
    shapes = jax.eval_shape(functools.partial(module.init, jax.random.key(0)), *args)
    leaves, tree = jax.tree.flatten(shapes)
    rng = np.random.default_rng(1)
    return jax.tree.unflatten(
        tree, [jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32) * 0.5 for leaf in leaves]
    )


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.standard_normal((B, T, D)), jnp.float32)


# The block by hand, in NumPy -----------------------------------------------------------------------------------------


def norm(p, x, config):
    if config.norm == "rmsnorm":
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config.norm_eps) * p["scale"]
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + config.norm_eps) * p["scale"] + p["bias"]


def attention(p, x, source, causal):
    q, k, v = (
        np.einsum("btd,dnh->bnth", y, p[name]["kernel"]) + p[name]["bias"][None, :, None]
        for name, y in (("query", x), ("key", source), ("value", source))
    )
    k, v = (np.repeat(a, N // K, axis=1) for a in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(H)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnth,nhd->btd", weights @ v, p["out"]["kernel"]) + p["out"]["bias"]


def feed_forward(p, x, config):
    act = {"relu": lambda y: np.maximum(y, 0), "silu": lambda y: y / (1 + np.exp(-y))}[config.activation]
    up = x @ p["up"]["kernel"] + p["up"]["bias"]
    hidden = act(x @ p["gate"]["kernel"] + p["gate"]["bias"]) * up if config.gated else act(up)
    return hidden @ p["down"]["kernel"] + p["down"]["bias"]


FORMULAS = {
    "pre": lambda n, a, f, x: _then(x + a(n("attention_norm", x)), lambda y: y + f(n("mlp_norm", y))),
    "post": lambda n, a, f, x: _then(n("attention_norm", x + a(x)), lambda y: n("mlp_norm", y + f(y))),
    "both": lambda n, a, f, x: _then(
        x + n("attention_post_norm", a(n("attention_norm", x))), lambda y: y + n("mlp_post_norm", f(n("mlp_norm", y)))
    ),
    "parallel": lambda n, a, f, x: x + a(n("attention_norm", x)) + f(n("attention_norm", x)),
}


def _then(value, function):
    return function(value)


CASES = {
    "pre": BASE.replace(activation="relu"),
    "post": BASE.replace(norm_placement="post", activation="silu", gated=True, norm="rmsnorm"),
    "both": BASE.replace(norm_placement="both", activation="silu", norm="rmsnorm"),
    "parallel": BASE.replace(parallel_block=True, activation="relu", gated=True),
}


@pytest.mark.parametrize("name", CASES)
def test_block_is_its_formula(x, name):
    config, call = CASES[name], Call(mask=Mask(causal=True))
    layer = (jnp.uint32(0), None)
    params = fresh(Block(config), x, layer, call)
    found, (cache, values) = jax.jit(lambda p, y: Block(config).apply(p, y, layer, call))(params, x)
    assert cache is None and values == {}
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    expected = FORMULAS[name](
        lambda key, y: norm(p[key], y, config),
        lambda y: attention(p["attention"], y, y, causal=True),
        lambda y: feed_forward(p["mlp"], y, config),
        np.asarray(x, np.float64),
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert {key for key in p if key.endswith("norm")} == {
        "pre": {"attention_norm", "mlp_norm"},
        "post": {"attention_norm", "mlp_norm"},
        "both": {"attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm"},
        "parallel": {"attention_norm"},
    }[name]


@pytest.mark.parametrize("placement", ["pre", "post", "both"])
def test_cross_attention_stands_between(rng, x, placement):
    """Memory of another length: x + C(N x, memory) and its variants, with the formula's own norms."""
    config = BASE.replace(cross_attention=True, norm_placement=placement, activation="relu")
    memory = jnp.asarray(rng.standard_normal((B, S, D)), jnp.float32)
    call = Call(mask=Mask(causal=True), memory=memory, memory_mask=Mask())
    layer = (jnp.uint32(0), None)
    params = fresh(Block(config), x, layer, call)
    found = jax.jit(lambda p: Block(config).apply(p, x, layer, call)[0])(params)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    y, pre, post, both = np.asarray(x, np.float64), placement != "post", placement == "post", placement == "both"
    updates = {
        "attention": lambda y: attention(p["attention"], y, y, causal=True),
        "cross": lambda y: attention(p["cross"], y, np.asarray(memory, np.float64), causal=False),
        "mlp": lambda y: feed_forward(p["mlp"], y, config),
    }
    for name, update in updates.items():
        step = update(norm(p[f"{name}_norm"], y, config) if pre else y)
        y = y + (norm(p[f"{name}_post_norm"], step, config) if both else step)
        y = norm(p[f"{name}_norm"], y, config) if post else y
    np.testing.assert_allclose(found, y, atol=1e-5)
    with pytest.raises(InputError, match="^cross_attention: this model reads an encoder's output"):
        Block(config).apply(params, x, layer, Call(mask=Mask(causal=True)))


def test_cross_attention_reads_memory_alone(rng, x):
    """Each query row reads the memory by itself: rows of x do not mix, and no causal mask applies."""
    module = Attention(BASE, LayerConfig(), cross=True)
    memory = jnp.asarray(rng.standard_normal((B, S, D)), jnp.float32)
    call = Call(mask=Mask(causal=True), memory_mask=Mask())
    params = fresh(module, x, memory, call, jnp.uint32(0))
    run = jax.jit(lambda y, m: module.apply(params, y, m, call, jnp.uint32(0))[0])
    before, after = run(x, memory), run(x.at[:, 1].add(1.0), memory)
    assert before.shape == (B, T, D)
    assert np.array_equal(before[:, [0, 2, 3]], after[:, [0, 2, 3]]) and not np.allclose(before[:, 1], after[:, 1])
    moved = run(x, memory.at[:, S - 1].add(1.0))
    assert (
        np.abs(np.asarray(moved - before)).max(axis=(0, 2)) > 1e-4
    ).all()  # the first query sees the last memory row


# What is done token by token -----------------------------------------------------------------------------------------


def test_projections_and_feed_forward_work_token_by_token(x):
    """Perturbing token 1 leaves the query, key and value of the others, and their FFN output, bit-identical."""
    config = BASE.replace(gated=True, activation="silu", norm_placement="post")
    block, layer, call = Block(config), (jnp.uint32(0), None), Call(mask=Mask(causal=True))
    params = fresh(block, x, layer, call)
    mlp_params = {"params": params["params"]["mlp"]}
    projections = ("query", "key", "value")

    @jax.jit
    def run(y):
        caught = block.apply(params, y, layer, call, capture_intermediates=lambda module, _: module.name in projections)
        return caught[1]["intermediates"]["attention"], FeedForward(config).apply(mlp_params, y)

    first, second = (jax.tree.leaves(run(y)) for y in (x, x.at[:, 1].add(1.0)))
    assert [leaf.shape for leaf in first] == [(B, T, K, H), (B, T, N, H), (B, T, K, H), (B, T, D)]
    for before, after in zip(first, second, strict=True):
        assert np.array_equal(before[:, [0, 2, 3]], after[:, [0, 2, 3]])
        assert not np.allclose(before[:, 1], after[:, 1])


@pytest.mark.parametrize(
    ("name", "at_plus", "at_minus"),
    [
        ("gelu", 2.2753345, -0.0246655),
        ("gelu_tanh", 2.2756730, -0.0243270),
        ("relu", 2.3, 0.0),
        ("silu", 2.0904172, -0.2095828),
    ],
)
def test_activations_at_2_3(name, at_plus, at_minus):
    """erf GELU and tanh GELU differ most about here, by 3e-4: x Phi(x) is 2.3 * 0.9892759."""
    found = ACTIVATIONS[name](jnp.asarray([2.3, -2.3]))
    np.testing.assert_allclose(found, [at_plus, at_minus], atol=1e-6)


def test_qk_norm_normalises_each_head(x):
    """Scaling the query kernel changes nothing under qk_norm (eps aside), and everything without it."""
    call = Call(mask=Mask(causal=True))
    for qk_norm in (True, False):
        module = Attention(BASE.replace(qk_norm=qk_norm, norm_eps=1e-12, attention_bias=False), LayerConfig())
        params = fresh(module, x, x, call, jnp.uint32(0))
        run = jax.jit(lambda p, module=module: module.apply(p, x, x, call, jnp.uint32(0))[0])
        louder = jax.tree.map(lambda leaf: leaf, params)
        louder["params"]["query"]["kernel"] = louder["params"]["query"]["kernel"] * 3
        assert (float(jnp.abs(run(params) - run(louder)).max()) < 1e-5) == qk_norm


def test_gelu_and_its_slopes():
    """Against jax.nn.gelu: values, first and second derivatives, forward and backward; in 16 bit rounded once."""
    x = jnp.linspace(-6, 6, 97)

    def curvature(f):
        return jax.vmap(jax.grad(jax.grad(f)))(x)

    def exact(y):
        return jax.nn.gelu(y, approximate=False)

    found = ACTIVATIONS["gelu"]
    np.testing.assert_allclose(found(x), exact(x), atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(found))(x), jax.vmap(jax.grad(exact))(x), atol=1e-6)
    np.testing.assert_allclose(jax.jvp(found, (x,), (x,))[1], jax.jvp(exact, (x,), (x,))[1], atol=1e-5)
    np.testing.assert_allclose(curvature(found), curvature(exact), atol=1e-5)
    half = x.astype(jnp.bfloat16)
    np.testing.assert_array_equal(found(half), found(half.astype(jnp.float32)).astype(jnp.bfloat16))
    assert jax.grad(lambda y: found(y).sum())(half).dtype == jnp.bfloat16
