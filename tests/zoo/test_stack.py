"""The stack: scan and loop, every remat and every pattern give one function; trees go from one layout to the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

ONE = ModelConfig(
    vocab_size=13, embed_dim=8, num_layers=2, num_heads=2, mlp_dim=12, max_positions=16, dropout=0.2, positions="rotary"
)
TWO = ONE.replace(num_layers=4, layer_pattern=(LayerConfig(window=2), LayerConfig(rotary_base=50.0)))
TOKENS = jnp.asarray([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def value_and_gradients(config, params):
    """The loss under dropout, its gradients in the loop's layout, and every stream."""

    @jax.jit
    def run(params):
        def loss(params):
            out = zoo.Model(config).apply(params, TOKENS, dropout_key=jax.random.key(1), want=("hidden_states",))
            return jnp.sum(jnp.square(out.logits)), out.hidden_states

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, streams), gradients = run(zoo.stack_layers(params, config) if config.scan else params)
    return loss, streams, zoo.unstack_layers(gradients, config) if config.scan else gradients


@pytest.fixture(scope="module")
def oracle(request):
    """A config, parameters, and what the loop without remat makes of them."""
    config = request.param
    params = zoo.Model(config).init(jax.random.key(0))
    # Larger than the initial ones, so that each layer, window and rotary base shows.
    params = jax.tree.map(lambda leaf: leaf * 5 if leaf.ndim > 1 else leaf, params)
    return config, params, value_and_gradients(config, params)


@pytest.mark.parametrize(
    ("oracle", "changes"),
    [
        (ONE, {"scan": True, "remat": "dots"}),
        (ONE, {"scan": True, "attention_kernel": "blockwise"}),
        (ONE, {"remat": "full"}),
        (TWO, {"scan": True, "remat": "full"}),
    ],
    indirect=["oracle"],
    ids=["one-scan-dots", "one-scan-blockwise", "one-loop-full", "two-scan-full"],
)
def test_scan_and_remat_change_nothing(oracle, changes):
    """Values and gradients under dropout."""
    config, params, expected = oracle
    found = value_and_gradients(config.replace(**changes), params)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert len(expected[1]) == config.num_layers + 1
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * float(jnp.abs(a).max()))


@pytest.mark.parametrize("oracle", [TWO], indirect=True, ids=["two"])
def test_each_layer_takes_its_entry_of_the_pattern(oracle):
    """Swapping the entries changes the streams from the first layer on: windows and bases are not ignored."""
    config, params, (_, streams, _) = oracle
    assert [config.layer(i).window for i in range(4)] == [2, None, 2, None]
    changed = config.replace(layer_pattern=config.layer_pattern[::-1])
    key = jax.random.key(1)
    out = zoo.Model(changed).apply(params, TOKENS, dropout_key=key, want=("hidden_states",))
    assert np.array_equal(out.hidden_states[0], streams[0])
    assert float(jnp.abs(out.hidden_states[1] - streams[1]).max()) > 1e-2


def test_layers_do_not_share_dropout_masks():
    """Two layers with one set of parameters and zero updates but for a bias: the update's zeros show the mask."""
    config = ONE.replace(dropout=0.5, scan=True)
    params = jax.tree.map(jnp.zeros_like, zoo.Model(config).init(jax.random.key(0)))
    params["blocks"]["mlp"]["down"]["bias"] = jnp.ones((2, 8))
    out = zoo.Model(config).apply(params, TOKENS, dropout_key=jax.random.key(1), want=("hidden_states",))
    embed, first, second = (np.asarray(stream) for stream in out.hidden_states)
    masks = [first - embed != 0, second - first != 0]
    assert (embed == 0).all() and all(0.3 < mask.mean() < 0.7 for mask in masks)
    assert not np.array_equal(*masks) and not np.array_equal(masks[0][0], masks[0][1])


@pytest.mark.parametrize("config", [ONE, TWO], ids=["one", "two"])
def test_stack_and_unstack_are_inverse(config):
    params = zoo.Model(config).init(jax.random.key(0))
    stacked = zoo.stack_layers(params, config)
    shapes = zoo.Model(config.replace(scan=True)).init_shapes()
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), stacked) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), shapes
    )
    again = zoo.unstack_layers(stacked, config)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True))


def test_scanned_layers_start_apart():
    """Each layer of a scanned stack is drawn with a key of its own."""
    kernel = zoo.Model(ONE.replace(scan=True)).init(jax.random.key(0))["blocks"]["mlp"]["up"]["kernel"]
    assert kernel.shape == (2, 8, 12) and not np.allclose(kernel[0], kernel[1])
    assert float(kernel.std()) == pytest.approx(0.02, rel=0.3)
