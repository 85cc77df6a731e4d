"""What each token of the whole model may depend on: the future, other documents, padding, position numbers.

Every property is held bit for bit or to 1e-5 for each kernel, with and without remat, scan, dropout, cache and weights.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

SIZES = {"vocab_size": 17, "embed_dim": 8, "num_heads": 4, "head_dim": 4, "mlp_dim": 12, "num_layers": 2}
SIZES |= {"max_positions": 16, "initializer_range": 0.4}
FAMILIES = {
    "bert": ModelConfig(
        **SIZES, visibility="full", token_types=2, embed_norm=True, norm_placement="post", final_norm=False
    ),
    "gpt": ModelConfig(**SIZES, dropout=0.1, embed_dropout=0.1, attention_dropout=0.1),
    "llama": ModelConfig(
        **SIZES, num_kv_heads=2, positions="rotary", norm="rmsnorm", gated=True, activation="silu", tie_embeddings=False
    ),
}
ROWS = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
CHANGED = ROWS.at[:, -1].set(jnp.asarray([11, 12]))
KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def params():
    return {name: zoo.Model(config).init(jax.random.key(0)) for name, config in FAMILIES.items()}


# The eight tokens of a row over four devices, its two rows over two.
SPLIT = jax.make_mesh((2, 4), ("data", "sequence"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def apply(config, params, tokens, **call):
    params = zoo.stack_layers(params, config) if config.scan else params
    if config.attention_kernel not in ("ring", "gathered") or not jax.sharding.get_abstract_mesh().empty:
        return zoo.Model(config).apply(params, tokens, **call)
    with jax.set_mesh(SPLIT):
        return jax.device_put(zoo.Model(config).apply(params, tokens, **call), jax.devices()[0])


# The future ----------------------------------------------------------------------------------------------------------

# kernel, remat, scan, dropout, weights, cache, window: each kernel meets each other setting.
CAUSAL = [
    ("gpt", "auto", "none", False, False, False, True, None),
    ("gpt", "auto", "full", True, True, True, False, None),
    ("llama", "xla", "dots", True, False, False, False, None),
    ("llama", "xla", "none", False, False, False, True, 3),
    ("gpt", "einsum", "full", False, True, False, True, 3),
    ("llama", "einsum", "dots", True, False, True, False, None),
    ("gpt", "blockwise", "dots", True, True, False, False, 3),
    ("llama", "blockwise", "none", False, False, False, True, None),
    ("gpt", "ring", "full", True, True, False, False, None),
    ("llama", "ring", "none", False, False, False, False, 3),
    ("gpt", "gathered", "dots", True, True, False, False, 3),
    ("llama", "gathered", "full", True, False, False, False, None),
    ("llama", "splash_interpreted", "full", True, False, False, False, None),
    ("gpt", "splash_interpreted", "none", False, False, False, False, 3),
]


@pytest.mark.parametrize(("family", "kernel", "remat", "scan", "dropout", "weights", "cache", "window"), CAUSAL)
def test_the_last_token_changes_no_earlier_logit(params, family, kernel, remat, scan, dropout, weights, cache, window):
    """Bit-equal before it, different at it; returned weights are 0 above the diagonal."""
    config = FAMILIES[family].replace(
        attention_kernel=kernel, remat=remat, scan=scan, layer_pattern=(LayerConfig(window=window),)
    )
    call = {"dropout_key": KEY if dropout else None, "want": ("attentions",) if weights else ()}
    call["cache"] = zoo.Model(config).init_cache(2, 10) if cache else None
    before, after = (apply(config, params[family], tokens, **call) for tokens in (ROWS, CHANGED))
    assert np.isfinite(before.logits).all()
    assert np.array_equal(before.logits[:, :-1], after.logits[:, :-1])
    assert np.abs(np.asarray(before.logits - after.logits))[:, -1].max() > 1e-3
    for layer in before.attentions or ():
        assert (np.asarray(layer)[..., :, :8][..., np.triu(np.ones((8, 8), bool), 1)] == 0).all()
        assert layer.shape == (2, 4, 8, 10 if cache else 8)


@pytest.mark.parametrize(
    ("kernel", "remat"),
    [("xla", "full"), ("blockwise", "dots"), ("einsum", "none"), ("ring", "minimal"), ("splash_interpreted", "full")],
)
def test_no_gradient_comes_from_the_future(params, kernel, remat):
    """d(logits before t) / d(input t) is exactly 0, remat and scan included; d(logits at t) is not."""
    config = FAMILIES["llama"].replace(attention_kernel=kernel, remat=remat, scan=True)
    inputs = params["llama"]["embed"]["token"]["embedding"][ROWS]

    @jax.jit
    def gradients(inputs):
        def of(part):
            return jax.grad(lambda x: jnp.sum(jnp.sin(apply(config, params["llama"], x).logits[:, part])))(inputs)

        return of(slice(0, 5)), of(slice(5, 6))

    with jax.set_mesh(SPLIT) if kernel == "ring" else contextlib.nullcontext():
        earlier, at = gradients(inputs)
    assert (np.asarray(earlier)[:, 5:] == 0).all() and (np.abs(np.asarray(earlier)[:, :5]).max(-1) > 0).all()
    assert (np.abs(np.asarray(at)[:, 5]) > 0).all()


def test_bert_sees_both_ways(params):
    before, after = (apply(FAMILIES["bert"], params["bert"], tokens).logits for tokens in (ROWS, CHANGED))
    assert (np.abs(np.asarray(before - after)).max(-1) > 1e-4).all()


def test_prefix_is_seen_both_ways_and_the_rest_is_causal(params):
    """Prefix of 3: changing token 2 reaches token 0; changing token 5 reaches tokens 5.. alone."""
    config = FAMILIES["llama"].replace(visibility="prefix")
    prefix = jnp.zeros((2, 8), int).at[:, :3].set(1)
    logits = [
        np.asarray(apply(config, params["llama"], tokens, prefix_mask=prefix).logits)
        for tokens in (ROWS, ROWS.at[:, 2].set(13), ROWS.at[:, 5].set(13))
    ]
    moved = [np.abs(other - logits[0]).max((0, 2)) > 0 for other in logits[1:]]
    assert moved[0].all() and moved[1].tolist() == [False] * 5 + [True] * 3


# Documents in one row ------------------------------------------------------------------------------------------------

SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 2]] * 2)


@pytest.fixture(scope="module")
def unpacked(params):
    """Logits of the four documents of ROWS, each in a row of its own, by the oracle: [2, 8, V]."""
    return {
        family: apply(FAMILIES[family].replace(attention_kernel="einsum"), params[family], ROWS.reshape(4, 4)).logits
        for family in ("bert", "llama")
    }


@pytest.mark.parametrize("kernel", ["einsum", "xla", "blockwise", "ring", "gathered", "splash_interpreted"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_packed_is_unpacked(params, unpacked, family, kernel):
    """To 1e-5; and changing document 1 leaves document 2 bit-identical."""
    config = FAMILIES[family].replace(attention_kernel=kernel)
    packed = apply(config, params[family], ROWS, segment_ids=SEGMENTS).logits
    np.testing.assert_allclose(packed.reshape(4, 4, -1), unpacked[family], atol=1e-5)
    changed = apply(config, params[family], ROWS.at[:, 1].set(15), segment_ids=SEGMENTS).logits
    assert np.array_equal(packed[:, 4:], changed[:, 4:]) and not np.allclose(packed[:, 1:4], changed[:, 1:4])


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("kernel", ["einsum", "blockwise", "ring"])
def test_a_segment_in_two_runs_is_one_document(params, window, kernel):
    """Visibility and positions go by the id, wherever in the row its tokens stand."""
    config = FAMILIES["llama"].replace(layer_pattern=(LayerConfig(window=window),), attention_kernel=kernel)
    split = jnp.asarray([[1, 1, 2, 2, 1, 2, 2, 1]] * 2)
    order = jnp.argsort(split[0], stable=True)
    packed = apply(config, params["llama"], ROWS, segment_ids=split).logits[:, order]
    alone = apply(config, params["llama"], ROWS[:, order].reshape(4, 4)).logits
    np.testing.assert_allclose(packed.reshape(4, 4, -1), alone, atol=1e-5)


# Padding -------------------------------------------------------------------------------------------------------------

WANT = {"bert": (), "gpt": ("attentions",), "llama": ()}


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_either_side_changes_nothing(params, family):
    """Real tokens alone, with 2 pads right, and with 2 pads left: the same logits, whatever ids the pads have."""
    config, p = FAMILIES[family], params[family]
    alone = apply(config, p, ROWS[:, :6]).logits
    for side in ((0, 2), (2, 0)):
        real = slice(side[0], side[0] + 6)
        mask = jnp.zeros((2, 8), int).at[:, real].set(1)
        for pad in (0, 9):
            tokens = jnp.full((2, 8), pad).at[:, real].set(ROWS[:, :6])
            out = apply(config, p, tokens, padding_mask=mask, want=WANT[family])
            np.testing.assert_allclose(out.logits[:, real], alone, atol=1e-5)
            for weights in out.attentions or ():
                assert (np.asarray(weights)[..., np.asarray(mask[0]) == 0] == 0).all()


def test_the_pad_id_in_text_is_an_ordinary_token(params):
    """Ids 0 and 3 swapped, in the text and in the table: nothing changes. The mask decides, never an id."""
    p = params["bert"]
    table = p["embed"]["token"]["embedding"]
    swap = jnp.arange(17).at[jnp.asarray([0, 3])].set(jnp.asarray([3, 0]))
    swapped = {**p, "embed": {**p["embed"], "token": {"embedding": table[swap]}}}
    tokens, mask = ROWS.at[:, 2].set(0), jnp.ones((2, 8), int).at[:, 7].set(0)
    first = apply(FAMILIES["bert"], p, tokens, padding_mask=mask).logits
    second = apply(FAMILIES["bert"], swapped, swap[tokens], padding_mask=mask).logits
    assert np.array_equal(first, second[..., swap])


def test_a_row_of_padding_is_finite(params):
    """One row has no real token: its numbers and all gradients stay finite, and the other row is as alone."""
    mask = jnp.ones((2, 8), int).at[1].set(0)

    @jax.jit
    def run(p):
        def loss(p):
            out = apply(FAMILIES["gpt"], p, ROWS, padding_mask=mask).logits
            return jnp.sum(jnp.square(out)), out

        return jax.value_and_grad(loss, has_aux=True)(p)

    (_, logits), gradients = run(params["gpt"])
    assert all(np.isfinite(leaf).all() for leaf in (logits, *jax.tree.leaves(gradients)))
    np.testing.assert_allclose(logits[0], apply(FAMILIES["gpt"], params["gpt"], ROWS).logits[0], atol=1e-5)


def test_left_padding_does_not_narrow_a_window(params):
    """Windows count real tokens: the same logits with 2 pads between two real parts as without."""
    config = FAMILIES["llama"].replace(layer_pattern=(LayerConfig(window=3),))
    alone = apply(config, params["llama"], ROWS[:, :6]).logits
    places = jnp.asarray([0, 1, 4, 5, 6, 7])
    mask = jnp.zeros((2, 8), int).at[:, places].set(1)
    gapped = apply(config, params["llama"], jnp.zeros((2, 8), int).at[:, places].set(ROWS[:, :6]), padding_mask=mask)
    np.testing.assert_allclose(gapped.logits[:, places], alone, atol=1e-5)


# Dropout -------------------------------------------------------------------------------------------------------------


def test_dropout_is_one_function_whatever_the_kernel(params):
    """Blockwise, ring and einsum under the same key; other keys give other numbers; no key means evaluation."""
    config = FAMILIES["gpt"]
    dropped = [
        apply(config.replace(attention_kernel=kernel), params["gpt"], ROWS, dropout_key=KEY).logits
        for kernel in ("einsum", "blockwise", "ring", "gathered")
    ]
    for other in dropped[1:]:
        np.testing.assert_allclose(other, dropped[0], atol=1e-5)
    other = apply(config.replace(attention_kernel="einsum"), params["gpt"], ROWS, dropout_key=jax.random.key(8)).logits
    still = apply(config, params["gpt"], ROWS).logits
    assert float(jnp.abs(dropped[0] - other).max()) > 0.01 and float(jnp.abs(dropped[0] - still).max()) > 0.01
    without = config.replace(dropout=0.0, embed_dropout=0.0, attention_dropout=0.0)
    assert np.array_equal(still, apply(without, params["gpt"], ROWS).logits)
    assert np.array_equal(apply(without, params["gpt"], ROWS, dropout_key=KEY).logits, still)


def test_dropout_of_a_row_depends_on_its_key_alone(params):
    """Row keys: the same row in another batch and place gives the same numbers; equal rows differ by their keys."""
    config = FAMILIES["gpt"].replace(attention_kernel="einsum")
    keys = jax.random.split(KEY, 2)
    both = apply(config, params["gpt"], ROWS, dropout_key=keys).logits
    turned = apply(config, params["gpt"], ROWS[::-1], dropout_key=keys[::-1]).logits
    np.testing.assert_allclose(both, turned[::-1], atol=1e-6)
    twins = apply(config, params["gpt"], ROWS[jnp.asarray([0, 0])], dropout_key=keys).logits
    assert float(jnp.abs(twins[0] - twins[1]).max()) > 0.01
