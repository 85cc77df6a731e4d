"""The key-value cache: cached equals uncached, ragged rows go on as if alone, and nothing is written past the end."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.attention import attend
from zoo.cache import cut, grow, init_cache, remember, take_rows
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.layer_config import LayerConfig, RotaryScaling
from zoo.masks import Mask

SIZES = {"vocab_size": 17, "embed_dim": 8, "num_heads": 4, "head_dim": 4, "mlp_dim": 12, "num_layers": 2}
SIZES |= {"max_positions": 16, "initializer_range": 0.4}
CONFIGS = {
    "gpt": ModelConfig(**SIZES),
    "llama": ModelConfig(
        **SIZES,
        num_kv_heads=2,
        positions="rotary",
        norm="rmsnorm",
        scan=True,
        layer_pattern=(LayerConfig(window=3), LayerConfig()),
    ),
    "relative": ModelConfig(
        **SIZES | {"num_layers": 1}, positions="relative", relative_buckets=4, relative_max_distance=5
    ),
}
ROWS = jnp.asarray([[3, 1, 4, 1, 5, 9], [5, 3, 5, 8, 9, 7]])
CAPACITY = 9


@pytest.fixture(scope="module", params=CONFIGS)
def case(request):
    """(model, parameters, logits of ROWS without a cache)."""
    model = zoo.Model(CONFIGS[request.param])
    params = model.init(jax.random.key(0))
    return model, params, model.apply(params, ROWS).logits


def feed(model, params, cache, tokens, **masks):
    out = model.apply(params, tokens, cache=cache, **masks)
    return out.logits, out.cache


@pytest.mark.parametrize("prefill", [1, 4, 6])
def test_cached_is_uncached(case, prefill):
    """Prefill of 1, k or all tokens, then one a step."""
    model, params, expected = case
    logits, cache = feed(model, params, model.init_cache(2, CAPACITY), ROWS[:, :prefill])
    found = [logits]
    for t in range(prefill, 6):
        logits, cache = feed(model, params, cache, ROWS[:, t : t + 1])
        found.append(logits)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), expected, atol=1e-5)
    assert int(cache.length) == 6 and cache.capacity == CAPACITY
    assert np.asarray(cache.valid).tolist() == [[True] * 6 + [False] * 3] * 2
    assert np.asarray(cache.order[:, :6]).tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("side", ["right", "left"])
def test_ragged_prompts_go_on_as_if_alone(case, side):
    """Prompts of 4 and 2 tokens, padded to 4 on either side, then steps: each row as in its own full pass."""
    model, params, expected = case
    lengths = (4, 2)
    prompt, mask = np.full((2, 4), 11), np.zeros((2, 4), int)
    for row, length in enumerate(lengths):
        real = slice(0, length) if side == "right" else slice(4 - length, 4)
        prompt[row, real], mask[row, real] = ROWS[row, :length], 1
    logits, cache = feed(
        model, params, model.init_cache(2, CAPACITY), jnp.asarray(prompt), padding_mask=jnp.asarray(mask)
    )
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(logits[row][mask[row] == 1], expected[row, :length], atol=1e-5)
    for step in range(2):
        tokens = jnp.stack([ROWS[row, length + step] for row, length in enumerate(lengths)])[:, None]
        logits, cache = feed(model, params, cache, tokens)
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(logits[row, 0], expected[row, length + step], atol=1e-5)
    assert np.asarray(cache.order[:, 4:6]).tolist() == [[4, 5], [2, 3]]


def test_a_packed_prompt_goes_on_in_its_last_document(case):
    """Two tokens of another document first: they are neither seen nor counted."""
    model, params, expected = case
    prompt = jnp.concatenate([jnp.asarray([[13, 2], [2, 14]]), ROWS[:, :2]], axis=1)
    segments = jnp.asarray([[1, 1, 2, 2]] * 2)
    logits, cache = feed(model, params, model.init_cache(2, CAPACITY), prompt, segment_ids=segments)
    np.testing.assert_allclose(logits[:, 2:], expected[:, :2], atol=1e-5)
    for t in (2, 3):
        step = {"segment_ids": jnp.full((2, 1), 2)}
        logits, cache = feed(model, params, cache, ROWS[:, t : t + 1], **step)
        np.testing.assert_allclose(logits[:, 0], expected[:, t], atol=1e-5)
    # One call that ends document 2 and begins document 3, which is counted from 0.
    both = jnp.stack([ROWS[:, 4], ROWS[:, 0]], axis=1)
    logits, cache = feed(model, params, cache, both, segment_ids=jnp.asarray([[2, 3]] * 2))
    np.testing.assert_allclose(logits, expected[:, jnp.asarray([4, 0])], atol=1e-5)
    assert np.asarray(cache.segments[0]).tolist() == [1, 1, 2, 2, 2, 2, 2, 3, 0]
    assert np.asarray(cache.order[0, :8]).tolist() == [0, 1, 0, 1, 2, 3, 4, 0]


def test_documents_that_take_turns_in_the_cache_go_on_each(case):
    """ROWS[0] and ROWS[1] interleaved in one row: each is seen and counted by its id, over calls and within one."""
    model, params, expected = case
    turns = jnp.asarray([[1, 2, 2, 1, 1, 2, 1, 2]])
    tokens = ROWS[turns - 1, jnp.asarray([[0, 0, 1, 1, 2, 2, 3, 3]])]
    cache, logits = model.init_cache(1, CAPACITY), []
    for part in (slice(0, 3), slice(3, 6), slice(6, 8)):
        part_logits, cache = feed(model, params, cache, tokens[:, part], segment_ids=turns[:, part])
        logits.append(part_logits)
    logits = jnp.concatenate(logits, axis=1)[0]
    for document in (1, 2):
        np.testing.assert_allclose(logits[turns[0] == document], expected[document - 1, :4], atol=1e-5)
    assert np.asarray(cache.order[0, :8]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_cache_that_went_in_is_unchanged(case):
    model, params, _ = case
    empty = model.init_cache(2, CAPACITY)
    feed(model, params, empty, ROWS[:, :4])
    assert int(empty.length) == 0 and all((np.asarray(keys) == 0).all() for keys in empty.keys)


def test_overrun_raises_and_under_jit_is_nan(case):
    """The slots would be clamped: JAX would write over the last tokens in silence."""
    model, params, _ = case
    _, cache = feed(model, params, model.init_cache(2, 6), ROWS)
    with pytest.raises(InputError) as caught:
        feed(model, params, cache, ROWS[:, :1])
    assert str(caught.value) == "the cache has 6 slots and 6 are filled: 1 more do not fit"
    assert np.isnan(jax.jit(functools.partial(feed, model))(params, cache, ROWS[:, :1])[0]).all()
    with pytest.raises(InputError) as caught:
        feed(model, params, model.init_cache(2, 5), ROWS)
    assert str(caught.value) == "6 tokens exceed the cache's 5 slots"


def test_layout_and_dtype():
    loop, scan = zoo.Model(CONFIGS["gpt"]).init_cache(3, 5), zoo.Model(CONFIGS["llama"]).init_cache(3, 5, "bfloat16")
    assert [keys.shape for keys in loop.keys] == [(3, 4, 5, 4)] * 2 and loop.keys[0].dtype == jnp.float32
    assert [values.shape for values in scan.values] == [(1, 3, 2, 5, 4)] * 2 and scan.values[0].dtype == jnp.bfloat16
    model = zoo.Model(CONFIGS["llama"])
    out = model.apply(model.init(jax.random.key(0)), ROWS[:, :4], cache=model.init_cache(2, CAPACITY, "bfloat16"))
    assert out.cache.keys[0].dtype == jnp.bfloat16 and out.logits.dtype == jnp.float32


WINDOWS = {
    "scan": CONFIGS["llama"].replace(num_layers=5, layer_pattern=(LayerConfig(window=3), LayerConfig())),  # cut short
    "loop": CONFIGS["llama"].replace(scan=False, layer_pattern=(LayerConfig(window=2), LayerConfig(window=3))),
    "learned": CONFIGS["gpt"].replace(layer_pattern=(LayerConfig(window=4),)),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("pieces", [(1,) * 10, (6, 1, 1, 2), (2, 4, 1, 3)], ids=str)
def test_a_ring_is_the_whole_cache(name, pieces):
    """Pieces shorter and longer than the window, one row padded on the left: the same logits, in window slots."""
    config = WINDOWS[name]
    model = zoo.Model(config)
    params = model.init(jax.random.key(3))
    tokens = jax.random.randint(jax.random.key(4), (2, 10), 0, 17)
    mask = jnp.ones((2, 10), int).at[1, :3].set(0)
    expected = model.apply(params, tokens, padding_mask=mask).logits
    caches, start = [model.init_cache(2, 10, ring=ring) for ring in (False, True)], 0
    for length in pieces:
        part = slice(start, start + length)
        found = [model.apply(params, tokens[:, part], padding_mask=mask[:, part], cache=cache) for cache in caches]
        real = np.asarray(mask[:, part] == 1)
        for out in found:
            np.testing.assert_allclose(out.logits[real], expected[:, part][real], atol=1e-5)
        caches, start = [out.cache for out in found], start + length
    windows = [config.layer_pattern[i % len(config.layer_pattern)].window or 10 for i in range(config.num_layers)]
    if config.scan:
        windows = [*windows[: len(config.layer_pattern)], *windows[config.num_layers - config.num_tail :]]
    assert [keys.shape[-2] for keys in caches[1].keys] == windows and caches[1].ring and not caches[0].ring


def test_what_a_ring_cannot_hold_is_refused_and_under_jit_nan():
    model = zoo.Model(WINDOWS["learned"])
    params, ring = model.init(jax.random.key(0)), model.init_cache(2, 9, ring=True)
    padded = {"padding_mask": jnp.asarray([[0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1]])}
    with pytest.raises(InputError) as caught:
        feed(model, params, ring, ROWS, **padded)
    assert str(caught.value) == (
        "padding after real tokens in a ring cache; pad on the left, or make it with ring=False"
    )
    logits = jax.jit(functools.partial(feed, model))(params, ring, ROWS, **padded)[0]
    assert np.isnan(logits[1]).all() and np.isfinite(logits[0]).all()
    assert message(lambda: feed(model, params, ring, ROWS, segment_ids=jnp.ones((2, 6), int))) == (
        "a ring cache serves rows of one text; for segment_ids make it with ring=False"
    )
    assert message(lambda: cut(ring, jnp.asarray([1, 2]))) == (
        "a ring cache cannot go back; make it with init_cache(..., ring=False)"
    )
    relative = zoo.Model(CONFIGS["relative"].replace(layer_pattern=(LayerConfig(window=2),)))
    assert not relative.init_cache(1, 9, ring=True).ring


def test_rows_go_back_to_places_of_their_own(case):
    """Six tokens, back to three and to five, on with other ones: each row as if it had never gone further."""
    model, params, expected = case
    wrong = ROWS.at[0, 3:].set(2).at[1, 5:].set(2)
    _, cache = feed(model, params, model.init_cache(2, CAPACITY), wrong)
    cache = cut(cache, jnp.asarray([3, 5]))
    tokens = jnp.stack([ROWS[0, 3:5], jnp.asarray([ROWS[1, 5], 11])])
    logits, cache = feed(model, params, cache, tokens)
    np.testing.assert_allclose(logits[0], expected[0, 3:5], atol=1e-5)
    np.testing.assert_allclose(logits[1, 0], expected[1, 5], atol=1e-5)
    assert cache.length.tolist() == [5, 7] and int(cache.valid[0].sum()) == 5
    cache = take_rows(cut(cache, jnp.asarray([5, 6])), jnp.asarray([0]))
    np.testing.assert_allclose(feed(model, params, cache, ROWS[:1, 5:])[0][0, 0], expected[0, 5], atol=1e-5)


@pytest.mark.parametrize("name, ring, dtype", [("scan", True, None), ("loop", False, None), ("learned", True, "int8")])
def test_a_cache_that_grows_is_the_whole_one(name, ring, dtype):
    """Room for two tokens, then five, ten, below and above the windows; a row dropped on the way."""
    config = WINDOWS[name]
    model = zoo.Model(config)
    params = model.init(jax.random.key(3))
    tokens = jax.random.randint(jax.random.key(4), (2, 10), 0, 17)
    mask = jnp.ones((2, 10), int).at[1, :1].set(0)
    whole, small, start = model.init_cache(2, 10, dtype, ring), model.init_cache(2, 2, dtype, ring), 0
    for room, length in ((2, 2), (5, 2), (10, 2), (10, 2)):
        small = grow(small, config=config, length=room, ring=ring)
        part = slice(start, start + length)
        if start == 4:
            whole, small, tokens, mask = *(take_rows(x, jnp.asarray([1])) for x in (whole, small)), tokens[1:], mask[1:]
        asked = dict(padding_mask=mask[:, part])
        out, expected = (model.apply(params, tokens[:, part], cache=cache, **asked) for cache in (small, whole))
        np.testing.assert_allclose(out.logits, expected.logits, atol=1e-5)
        small, whole, start = out.cache, expected.cache, start + length
    assert jax.tree.map(jnp.shape, small) == jax.tree.map(jnp.shape, whole)
    for one, other in zip(jax.tree.leaves(small), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("dtype, r", [("int8", 1 / 254), ("bfloat16", 2**-9)])
def test_fewer_bits_move_attention_by_no_more_than_is_said(ring, dtype, r):
    """The bound of zoo.cache, on random keys and values with an outlier, whole and in a ring; zeros stay zeros."""
    window = 3 if ring else None
    config = CONFIGS["llama"].replace(layer_pattern=(LayerConfig(window=window),), scan=False)
    keys = jax.random.split(jax.random.key(0), 3)
    query = jax.random.normal(keys[0], (2, 1, 4, 4))
    key, value = (jax.random.normal(k, (2, 6, 2, 4)).at[0, 2, 0, 1].set(9.0).at[:, 1].set(0.0) for k in keys[1:])
    mask = Mask(causal=True, window=window, query_start=5, key_valid=jnp.arange(9)[None] < 6)
    outs = []
    for kind in ("float32", dtype):
        cache = init_cache(config, 2, 9, kind, ring)
        held, start = (cache.keys[0], cache.values[0]), 0
        for count in (1, 4, 1):
            part = slice(start, start + count)
            here = mask.replace(query_start=start)
            held, seen_key, seen_value, here = remember(held, key[:, part], value[:, part], jnp.asarray(start), here)
            start += count
        outs.append(attend(query, seen_key, seen_value, mask=here)[0])
    if dtype == "int8":
        assert held[0].numbers.dtype == jnp.int8 and held[0].scales.dtype == jnp.float32
    else:
        assert held[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(attend(query, key, value, mask=mask.replace(key_valid=None))[0], outs[0], atol=1e-5)
    near = slice(3, 6) if ring else slice(0, 6)
    largest = [np.abs(np.asarray(x[:, near])).max(axis=(1, 3)).repeat(2, axis=1) for x in (key, value)]  # [B, N]
    slack = np.abs(np.asarray(query[:, 0])).sum(-1) * largest[0] * 4**-0.5 * r
    bound = largest[1] * (r + np.exp(2 * slack) - 1)
    moved = np.abs(np.asarray(outs[1] - outs[0]))[:, 0].max(-1)
    assert (moved <= bound + 1e-6).all() and moved.max() > 1e-4


def test_bytes_of_each_dtype():
    sizes = {}
    for dtype in ("float32", "bfloat16", "int8"):
        cache = init_cache(CONFIGS["llama"], 1, 8, dtype)
        leaves = jax.tree.leaves((cache.keys, cache.values))
        sizes[dtype] = sum(leaf.nbytes for leaf in leaves) / (8 * 2 * 2)  # slots, layers, heads
    assert sizes == {"float32": 8 * 4, "bfloat16": 4 * 4, "int8": 2 * 4 + 8}
    assert message(lambda: init_cache(CONFIGS["llama"], 1, 8, "int4")) == (
        'cache dtype "int4" is none of float32, bfloat16, float16, int8; did you mean "int8"?'
    )


def message(call) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


def test_refusals():
    gpt = zoo.Model(CONFIGS["gpt"])
    shapes = gpt.init_shapes()
    assert message(lambda: gpt.init_cache(2, 17)) == "cache length 17 exceeds the model's 16 positions"
    assert message(lambda: gpt.init_cache(2, 0)) == "cache length is 0; it must be at least 1"
    small = gpt.init_cache(2, 8)
    assert message(lambda: grow(small, config=gpt.config, length=7)) == "a cache of 8 slots does not shrink to 7"
    assert message(lambda: grow(small, config=gpt.config, length=17)) == (
        "cache length 17 exceeds the model's 16 positions"
    )
    scaling = RotaryScaling("dynamic", 2.0, original_max_positions=8)
    by_length = zoo.Model(CONFIGS["llama"].replace(rotary_scaling=scaling))
    assert message(lambda: grow(by_length.init_cache(2, 8), config=by_length.config, length=9)) == (
        'the angles of "dynamic" rotary scaling go by the cache\'s length: make it whole at once'
    )
    full = zoo.create(CONFIGS["gpt"], visibility="full")
    assert message(lambda: full.init_cache(2, 4)) == (
        'a cache serves causal models; this one has visibility "full": run it on whole rows'
    )
    assert message(lambda: full.apply(shapes, ROWS, cache=gpt.init_cache(2, 9))) == (
        'a cache was given to a model with visibility "full": run it on whole rows'
    )
    assert message(lambda: gpt.apply(shapes, ROWS, cache=gpt.init_cache(3, 9))) == (
        "the cache holds 3 rows; inputs have 2"
    )
    other = zoo.Model(CONFIGS["relative"]).init_cache(2, 9)
    assert message(lambda: gpt.apply(shapes, ROWS, cache=other)) == (
        "the cache is another model's: make it with this one's init_cache"
    )
