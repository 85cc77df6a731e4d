"""What LLaMA's relatives add to the block, by formula or identity, with the cache, under scan, in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.block import Attention, Block, Call
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.feed_forward import Experts, FeedForward, route
from zoo.layer_config import LayerConfig, RotaryScaling, shortest_pattern
from zoo.masks import Mask
from zoo.norms import HeadsNorm, Norm
from zoo.positions import frequencies_by_length, known_lengths, rotary_frequencies, rotary_tables
from zoo.stack import stack_layers, unstack_layers

SIZES = dict(vocab_size=17, embed_dim=8, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=12, num_layers=2)
SIZES |= dict(max_positions=32, initializer_range=0.4, norm="rmsnorm", positions="rotary", rotary_base=100.0)
TRAINED = 5
DYNAMIC = RotaryScaling("dynamic", 3.0, original_max_positions=TRAINED)
LONGROPE = RotaryScaling(
    "longrope",
    4.0,
    original_max_positions=TRAINED,
    short_factors=(1.0, 1.1, 1.3),
    long_factors=(2.0, 5.0, 9.0),
)
LOCAL = (LayerConfig(window=3, rotary_base=10.0, rotary_scaled=False), LayerConfig())
CONFIGS = {
    "gemma": ModelConfig(
        **SIZES | dict(num_layers=3),
        norm_placement="both",
        norm_unit_offset=True,
        qk_norm=True,
        embed_scale=8**0.5,
        score_scale=0.3,
        attention_soft_cap=2.0,
        logit_soft_cap=3.0,
        layer_pattern=LOCAL,
        rotary_scaling=RotaryScaling("linear", 4.0),
    ),
    "olmo": ModelConfig(
        **SIZES,
        norm_placement="after",
        qk_norm=True,
        qk_norm_over="projection",
        rotary_scaling=RotaryScaling("yarn", 4.0, original_max_positions=TRAINED),
    ),
    "neox": ModelConfig(
        **SIZES | dict(norm="layernorm", rotary_dim=4),
        parallel_block=True,
        parallel_mlp_norm=True,
        rotary_scaling=DYNAMIC,
    ),
    "opt-350m": ModelConfig(
        **SIZES | dict(norm="layernorm", positions="learned", rotary_base=10000.0),
        norm_placement="post",
        final_norm=False,
        position_offset=2,
        embed_rank=5,
        embed_projection="tokens",
    ),
    "stablelm": ModelConfig(
        **SIZES | dict(norm="layernorm", rotary_dim=4),
        parallel_block=True,
        qk_norm=True,
        qk_norm_over="own_head",
        qk_norm_kind="layernorm",
    ),
    "smollm": ModelConfig(
        **SIZES | dict(num_layers=3),
        layer_pattern=(LayerConfig(window=4), LayerConfig(rotary=False)),
        rotary_scaling=LONGROPE,
        num_experts=3,
        experts_per_token=2,
    ),
}
ROWS = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
WANT = ("hidden_states", "attentions")


def shaken(params):
    """The same tree with every leaf moved, so that scales and biases count."""
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(3)
    return jax.tree.unflatten(tree, [leaf + 0.3 * jnp.asarray(rng.standard_normal(leaf.shape)) for leaf in leaves])


@pytest.fixture(scope="module", params=CONFIGS)
def case(request):
    """(looped model, its parameters, its output on ROWS)."""
    model = zoo.Model(CONFIGS[request.param])
    params = shaken(model.init(jax.random.key(0)))
    return model, params, model.apply(params, ROWS, want=WANT)


# -- the cache and the scan --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefill, scan", [(1, False), (4, False), (8, False), (4, True)])
def test_cached_is_uncached(case, prefill, scan):
    """Prefill, then one a step; the row fills the cache and is longer than windows and trained lengths."""
    model, params, expected = case
    if scan:
        model, params = zoo.Model(model.config.replace(scan=True)), stack_layers(params, model.config)
    cache, found, start = model.init_cache(2, 8), [], 0
    for stop in (prefill, *range(prefill + 1, 9)):
        out = model.apply(params, ROWS[:, start:stop], cache=cache)
        cache, start = out.cache, stop
        found.append(out.logits)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), expected.logits, atol=1e-5)


def test_scan_is_loop(case):
    """Logits, streams and weights; three layers of a pattern of two leave one for the tail."""
    model, params, expected = case
    scanned = zoo.Model(model.config.replace(scan=True))
    stacked = stack_layers(params, model.config)
    shapes = jax.tree.map(lambda leaf: leaf.shape, stacked)
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, scanned.init_shapes())
    assert ("tail" in stacked) == (len(model.config.layer_pattern) == 2)
    back = unstack_layers(stacked, model.config)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), back, params))
    found = scanned.apply(stacked, ROWS, want=WANT)
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)
    assert len(found.hidden_states) == len(found.attentions) + 1 == model.config.num_layers + 1
    for field in WANT:
        for a, b in zip(getattr(expected, field), getattr(found, field), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_left_padding_and_packing_change_nothing(case):
    """Rows of 8 and 3 tokens, padded on the left or packed one after the other, as each alone."""
    model, params, expected = case
    alone = model.apply(params, ROWS[:1, :3]).logits
    tokens = jnp.stack([ROWS[1], jnp.concatenate([jnp.full(5, 11), ROWS[0, :3]])])
    mask = jnp.asarray([[1] * 8, [0] * 5 + [1] * 3])
    padded = model.apply(params, tokens, padding_mask=mask).logits
    np.testing.assert_allclose(padded[0], expected.logits[1], atol=1e-5)
    np.testing.assert_allclose(padded[1, 5:], alone[0], atol=1e-5)
    packed = jnp.concatenate([ROWS[0, :3], ROWS[1]])[None]
    logits = model.apply(params, packed, segment_ids=jnp.asarray([[1] * 3 + [2] * 8])).logits
    np.testing.assert_allclose(logits[0, :3], alone[0], atol=1e-5)
    np.testing.assert_allclose(logits[0, 3:], expected.logits[1], atol=1e-5)


def test_bfloat16_stays(case):
    model, params, expected = case
    half = zoo.Model(model.config.replace(dtype="bfloat16"))
    out = half.apply(params, ROWS, want=WANT)
    assert {state.dtype for state in (out.hidden, *out.hidden_states)} == {jnp.dtype(jnp.bfloat16)}
    assert out.logits.dtype == jnp.float32
    cached = jax.eval_shape(lambda p: half.apply(p, ROWS, cache=half.init_cache(2, 8)), params)
    assert {leaf.dtype for leaf in (*cached.cache.keys, cached.hidden)} == {jnp.dtype(jnp.bfloat16)}
    # 8 bits through up to three layers
    assert jnp.abs(out.logits - expected.logits).max() < 0.1 * jnp.abs(expected.logits).max()


# -- scalings that depend on the length --------------------------------------------------------------------------------


def test_a_padded_prompt_goes_on_as_if_alone():
    """Prompts of 4 and 2 tokens in 4 slots, then 3 steps: each row as in a cache of its own 7 and 5 slots."""
    model = zoo.Model(CONFIGS["neox"])
    params = shaken(model.init(jax.random.key(0)))
    prompt = jnp.stack([ROWS[0, :4], jnp.concatenate([jnp.full(2, 11), ROWS[1, :2]])])
    out = model.apply(
        params, prompt, padding_mask=jnp.asarray([[1] * 4, [0, 0, 1, 1]]), cache=model.init_cache(2, 7)
    )
    found = [out.logits]
    for step in range(3):
        out = model.apply(params, jnp.stack([ROWS[0, 4 + step], ROWS[1, 2 + step]])[:, None], cache=out.cache)
        found.append(out.logits)
    found = jnp.concatenate(found, axis=1)
    np.testing.assert_allclose(found[0], model.apply(params, ROWS[:1, :7]).logits[0], atol=1e-5)
    np.testing.assert_allclose(found[1, 2:], model.apply(params, ROWS[1:, :5]).logits[0], atol=1e-5)


def test_known_lengths():
    positions = jnp.asarray([[0, 1, 2, 0, 1, 2]])
    assert known_lengths(positions).tolist() == [[3] * 6]
    assert known_lengths(positions, jnp.asarray([[True] * 2 + [False] * 4])).tolist() == [[2] * 6]
    segments = jnp.asarray([[7, 7, 2, 2, 2, 7]])
    assert known_lengths(jnp.asarray([[0, 1, 0, 1, 2, 2]]), None, segments).tolist() == [[3, 3, 3, 3, 3, 3]]
    assert known_lengths(jnp.asarray([[0, 1, 0, 1, 2, 9]]), None, segments).tolist() == [[10, 10, 3, 3, 3, 10]]


def test_frequencies_by_length():
    """base (3 n / 5 - 2)^(6 / 4) beyond 5 tokens; longrope's long divisors beyond 5."""
    lengths = jnp.asarray([[3, 5, 6, 10]])
    found = frequencies_by_length(6, 100.0, DYNAMIC, lengths)[0]
    for row, n in enumerate((5, 5, 6, 10)):
        base = 100.0 * (3 * n / 5 - 2) ** 1.5
        np.testing.assert_allclose(found[row], base ** -np.array([0, 1 / 3, 2 / 3]), rtol=1e-5)
    found = frequencies_by_length(6, 100.0, LONGROPE, lengths)[0]
    plain = 100.0 ** -np.array([0, 1 / 3, 2 / 3])
    np.testing.assert_allclose(found[1], plain / [1.0, 1.1, 1.3], rtol=1e-6)
    np.testing.assert_allclose(found[2], plain / [2.0, 5.0, 9.0], rtol=1e-6)


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones():
    scaling = RotaryScaling("yarn", 4.0, original_max_positions=4096)
    found, plain = rotary_frequencies(64, 10000.0, scaling), rotary_frequencies(64, 10000.0)
    turns = 4096 * plain / (2 * np.pi)
    np.testing.assert_allclose(found[turns > 64], plain[turns > 64], rtol=1e-6)
    np.testing.assert_allclose(found[turns < 0.5], plain[turns < 0.5] / 4, rtol=1e-6)
    assert scaling.magnitude == pytest.approx(0.1 * np.log(4) + 1)
    cos, sin = rotary_tables(jnp.asarray([[0]]), found, scaling.magnitude)
    np.testing.assert_allclose(cos[0, 0], scaling.magnitude, rtol=1e-6)
    assert LONGROPE.magnitude == pytest.approx(np.sqrt(1 + np.log(4) / np.log(5)))


def test_what_a_cache_cannot_keep_is_refused_and_poisoned():
    model = zoo.Model(CONFIGS["neox"])
    params = model.init(jax.random.key(0))
    for name in ("positions", "segment_ids"):
        with pytest.raises(InputError, match=f'{name} and a cache do not go together under "dynamic" rotary scaling'):
            model.apply(params, ROWS, **{name: jnp.arange(8)[None].repeat(2, 0)}, cache=model.init_cache(2, 8))
    cache = model.apply(params, ROWS[:, :4], cache=model.init_cache(2, 8)).cache
    mask = jnp.asarray([[1] * 4, [1, 1, 1, 0]])
    with pytest.raises(InputError, match="padding after real tokens in a cache"):
        model.apply(params, ROWS[:, 4:], padding_mask=mask, cache=cache)
    logits = jax.jit(lambda m: model.apply(params, ROWS[:, 4:], padding_mask=m, cache=cache).logits)(mask)
    assert bool(jnp.isfinite(logits[0]).all()) and bool(jnp.isnan(logits[1]).all())
    # A row that has not begun may be padded for as many calls as it takes: it is what it is in one.
    mask = jnp.asarray([[1] * 8, [0] * 5 + [1] * 3])
    whole = model.apply(params, ROWS, padding_mask=mask, cache=model.init_cache(2, 8)).logits
    cache = model.apply(params, ROWS[:, :4], padding_mask=mask[:, :4], cache=model.init_cache(2, 8)).cache
    parts = jax.jit(lambda m: model.apply(params, ROWS[:, 4:], padding_mask=m, cache=cache).logits)(mask[:, 4:])
    np.testing.assert_allclose(parts[1, 1:], whole[1, 5:], atol=1e-5)


# -- norms -------------------------------------------------------------------------------------------------------------


def test_unit_offset_is_a_scale_less_one():
    plain = zoo.Model(CONFIGS["gemma"].replace(norm_unit_offset=False))
    offset = zoo.Model(CONFIGS["gemma"])
    params = shaken(plain.init(jax.random.key(0)))

    def less_one(path, leaf):
        return leaf - 1 if path[-1].key == "scale" else leaf

    moved = jax.tree_util.tree_map_with_path(less_one, params)
    np.testing.assert_allclose(offset.apply(moved, ROWS).logits, plain.apply(params, ROWS).logits, atol=1e-5)
    fresh = offset.init(jax.random.key(0))
    assert float(jnp.abs(fresh["final_norm"]["scale"]).max()) == 0.0


def test_heads_norm_by_formula(rng):
    heads = rng.standard_normal((2, 3, 4, 6)).astype(np.float32)
    config = ModelConfig(**SIZES, qk_norm=True)
    scale = rng.standard_normal((4, 6)).astype(np.float32)

    def found(over, scale, kind="rmsnorm"):
        changed = config.replace(qk_norm_over=over, qk_norm_kind=kind)
        return HeadsNorm(changed).apply({"params": {"scale": scale}}, heads)

    def root(axes, heads=heads):
        return np.sqrt(np.square(heads).mean(axes, keepdims=True) + 1e-5)

    np.testing.assert_allclose(found("head", scale[0]), heads / root(-1) * scale[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found("own_head", scale), heads / root(-1) * scale, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found("projection", scale), heads / root((-2, -1)) * scale, rtol=1e-5, atol=1e-6)
    for over, axes, own in (("head", -1, scale[0]), ("own_head", -1, scale), ("projection", (-2, -1), scale)):
        centred = heads - heads.mean(axes, keepdims=True)
        wanted = centred / root(axes, centred) * own
        np.testing.assert_allclose(found(over, own, "layernorm"), wanted, rtol=1e-5, atol=2e-6)


def parts(config, x):
    """The block's parameters, and what attention and feed-forward make of an input."""
    call = Call(mask=Mask(causal=True))
    inputs = (jnp.uint32(0), None)
    params = shaken(Block(config).init(jax.random.key(1), x, inputs, call)["params"])

    def attend(y):
        return Attention(config, LayerConfig()).apply({"params": params["attention"]}, y, y, call, jnp.uint32(0))[0]

    def feed(y):
        return FeedForward(config).apply({"params": params["mlp"]}, y)

    def norm(name, y):
        return Norm(config).apply({"params": params[name]}, y)

    return params, Block(config).apply({"params": params}, x, inputs, call)[0], attend, feed, norm


def test_norms_after_each_update(rng):
    x = jnp.asarray(rng.standard_normal((2, 5, 8)), jnp.float32)
    params, found, attend, feed, norm = parts(CONFIGS["olmo"], x)
    assert set(params) == {"attention", "attention_post_norm", "mlp", "mlp_post_norm"}
    middle = x + norm("attention_post_norm", attend(x))
    np.testing.assert_allclose(found, middle + norm("mlp_post_norm", feed(middle)), atol=1e-5)


def test_parallel_block_with_two_norms(rng):
    x = jnp.asarray(rng.standard_normal((2, 5, 8)), jnp.float32)
    params, found, attend, feed, norm = parts(CONFIGS["neox"], x)
    assert set(params) == {"attention", "attention_norm", "mlp", "mlp_norm"}
    expected = x + attend(norm("attention_norm", x)) + feed(norm("mlp_norm", x))
    np.testing.assert_allclose(found, expected, atol=1e-5)


# -- experts -----------------------------------------------------------------------------------------------------------


def test_route():
    """Softmax over the two largest of (0, ln 3, ln 1, 2 ln 3 ...): the rest have nothing."""
    logits = jnp.log(jnp.asarray([[1.0, 3.0, 0.5, 9.0], [4.0, 1.0, 1.0, 0.1]]))
    np.testing.assert_allclose(route(logits, 2)[0], [0, 0.25, 0, 0.75], atol=1e-6)
    np.testing.assert_allclose(route(logits, 2)[1], [0.8, 0.2, 0, 0], atol=1e-6)  # of equals the first
    np.testing.assert_allclose(route(logits, 1)[:, [3, 0]], np.eye(2), atol=1e-6)
    np.testing.assert_allclose(route(logits, 4), jax.nn.softmax(logits), atol=1e-6)


def test_experts_by_formula(rng):
    config = ModelConfig(**SIZES, gated=True, num_experts=3, experts_per_token=2)
    x = jnp.asarray(rng.standard_normal((2, 5, 8)), jnp.float32)
    params = shaken(Experts(config).init(jax.random.key(0), x)["params"])
    assert set(params) == {"router", "expert_0", "expert_1", "expert_2"}
    found = Experts(config).apply({"params": params}, x)
    weights = route(x @ params["router"]["kernel"], 2)
    assert bool(((weights > 0).sum(-1) == 2).all()) and bool((weights.sum((0, 1)) > 0).all())
    expected = sum(
        weights[..., e, None] * FeedForward(config).apply({"params": params[f"expert_{e}"]}, x) for e in range(3)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_equal_experts_are_one():
    """Whatever the router says, three equal networks with weights that sum to 1 are that network."""
    one = zoo.Model(ModelConfig(**SIZES))
    params = shaken(one.init(jax.random.key(0)))
    router = {"kernel": jax.random.normal(jax.random.key(1), (8, 3))}
    layers = {
        name: layer | {"mlp": {"router": router} | {f"expert_{e}": layer["mlp"] for e in range(3)}}
        for name, layer in params["blocks"].items()
    }
    several = zoo.Model(one.config.replace(num_experts=3))
    found = several.apply(params | {"blocks": layers}, ROWS).logits
    np.testing.assert_allclose(found, one.apply(params, ROWS).logits, atol=1e-5)


# -- embeddings, positions, heads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, scale", [("float32", 3072**0.5), ("bfloat16", 55.5)])
def test_embedding_scale_is_rounded_to_the_compute_dtype(dtype, scale):
    """sqrt(3072) is 55.4256, of which bfloat16 makes 55.5."""
    model = zoo.Model(ModelConfig(**SIZES, embed_scale=3072**0.5, dtype=dtype))
    params = model.init(jax.random.key(0))
    table = params["embed"]["token"]["embedding"]
    stream = model.apply(params, ROWS, want=("hidden_states",)).hidden_states[0]
    np.testing.assert_array_equal(stream, (table[ROWS] * jnp.float32(scale)).astype(dtype))


def test_layers_without_rotary_do_not_read_positions():
    moved = 3 * jnp.arange(8)[None].repeat(2, 0)
    for rotary in (True, False):
        model = zoo.Model(ModelConfig(**SIZES, layer_pattern=(LayerConfig(rotary=rotary),)))
        params = model.init(jax.random.key(0))
        same = jnp.abs(model.apply(params, ROWS, positions=moved).logits - model.apply(params, ROWS).logits).max() == 0
        assert bool(same) == (not rotary)


def test_classifier_without_bias():
    model = zoo.Model(ModelConfig(**SIZES, head="classifier", num_labels=3, pooling="last", classifier_bias=False))
    params = model.init(jax.random.key(0))
    assert {name: leaf.shape for name, leaf in params["classifier"].items()} == {"kernel": (8, 3)}
    mask = jnp.asarray([[1] * 8, [1] * 3 + [0] * 5])
    out = model.apply(params, ROWS, padding_mask=mask)
    last = jnp.stack([out.hidden[0, 7], out.hidden[1, 2]])
    np.testing.assert_allclose(out.logits, last @ params["classifier"]["kernel"], atol=1e-6)
    _, fresh = zoo.with_head(
        zoo.Model(ModelConfig(**SIZES)), params, key=jax.random.key(1), head="classifier", num_labels=2, pooling="last"
    )
    assert fresh["classifier"]["bias"].shape == (2,)


def test_the_shortest_pattern():
    a, b = LayerConfig(window=3), LayerConfig()
    assert shortest_pattern([a, a, a]) == (a,)
    assert shortest_pattern([a, a, b, a, a, b, a, a]) == (a, a, b)
    assert shortest_pattern([b, a, a]) == (b, a, a) and shortest_pattern([a]) == (a,)
