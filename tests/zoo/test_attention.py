"""attend(): every kernel gives the same numbers and gradients, or refuses by name."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo import attention
from zoo.attention import attend, masked_softmax
from zoo.blockwise import blockwise_attention
from zoo.dropout import at_site, row_seeds
from zoo.errors import InputError
from zoo.masks import Mask, materialise

B, T, S, N, H = 2, 7, 9, 4, 5
FACTORS = (
    "causal",
    "window",
    "segments",
    "padding",
    "prefix",
    "bias",
    "soft_cap",
    "dropout",
    "grouped",
    "square",
    "scale",
)
# Plackett and Burman 1946: 12 runs of 11 two-level factors; every pair of factors takes each of its four settings.
_ROW = (1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0)
DESIGN = [tuple(_ROW[(i + shift) % 11] for i in range(11)) for shift in range(11)] + [(0,) * 11]
CASES = [dict(zip(FACTORS, run, strict=True)) for run in DESIGN]


def make_case(case, seed=0):
    """(query, key, value, bias or None) and the keyword arguments of attend."""
    rng = np.random.default_rng(seed)
    keys = T if case["square"] else S
    heads = 2 if case["grouped"] else N
    segments = np.sort(rng.integers(0, 3, (B, keys)), axis=1)
    order = np.cumsum(rng.integers(0, 2, (B, keys)), axis=1)
    start = keys - T
    valid = rng.random((B, keys)) < 0.7
    valid[0] = [True] * (keys - 2) + [False] * 2
    mask = Mask(
        causal=bool(case["causal"]),
        window=3 if case["window"] else None,
        query_start=start or None,
        key_valid=jnp.asarray(valid) if case["padding"] else None,
        query_segments=jnp.asarray(segments[:, start:]) if case["segments"] else None,
        key_segments=jnp.asarray(segments) if case["segments"] else None,
        query_order=jnp.asarray(order[:, start:]) if case["window"] else None,
        key_order=jnp.asarray(order) if case["window"] else None,
        prefix_keys=jnp.asarray(rng.random((B, keys)) < 0.3) if case["prefix"] and case["causal"] else None,
    )
    draw = functools.partial(_normal, rng)
    arrays = (draw(B, T, N, H), draw(B, keys, heads, H), draw(B, keys, heads, H), draw(1, N, T, keys))
    dropout = at_site(row_seeds(jax.random.key(5), B), 0.3, 1, "attention_weights") if case["dropout"] else None
    options = {"mask": mask, "soft_cap": 2.0 if case["soft_cap"] else None, "scale": 0.7 if case["scale"] else None}
    return (*arrays[:3], arrays[3] if case["bias"] else None), options | {"dropout": dropout}


def _normal(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def run(kernel, arrays, options, block=None):
    query, key, value, bias = arrays
    if block is None:
        return attend(query, key, value, bias=bias, kernel=kernel, **options)[0]
    scale = H**-0.5 if options["scale"] is None else options["scale"]
    rest = (options["mask"], bias, scale, options["soft_cap"], options["dropout"])
    return blockwise_attention(query, key, value, *rest, block=block)


def results(calls, arrays, options):
    """One program: for each (kernel, block) the output, and the gradients of a weighted sum of it."""
    weights = jnp.cos(jnp.arange(B * T * N * H, dtype=jnp.float32)).reshape(B, T, N, H)

    static = {name: options[name] for name in ("soft_cap", "scale")}
    traced = {name: options[name] for name in ("mask", "dropout")}

    @jax.jit
    def program(arrays, traced):
        def one(kernel, block):
            def loss(arrays):
                out = run(kernel, arrays, traced | static, block)
                return jnp.sum(out * weights), out

            (_, out), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
            return out, gradients

        return [one(kernel, block) for kernel, block in calls]

    return program(arrays, traced)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_kernels_agree(number):
    """Outputs and gradients of query, key, value and bias, to 1e-5; what xla cannot honour it refuses."""
    case = CASES[number]
    arrays, options = make_case(case)
    honoured = not (case["soft_cap"] or case["dropout"])
    calls = [("einsum", None), ("blockwise", (3, 4)[number % 2])]
    calls += [("xla", None)] if honoured else [("blockwise", None)]
    oracle, *others = results(calls, arrays, options)
    for (kernel, block), found in zip(calls[1:], others, strict=True):
        for a, b in zip(jax.tree.leaves(oracle), jax.tree.leaves(found), strict=True):
            assert np.isfinite(a).all()
            np.testing.assert_allclose(b, a, atol=1e-5, err_msg=f"{kernel} {block}")
    if not honoured:
        with pytest.raises(InputError, match='^attention kernel "xla" does not honour'):
            run("xla", arrays, options)


def test_the_design_covers_every_pair():
    for i, j in itertools.combinations(range(11), 2):
        assert {(run[i], run[j]) for run in DESIGN} == {(0, 0), (0, 1), (1, 0), (1, 1)}


# hidden and fully hidden ---------------------------------------------------------------------------------------------

KERNELS = [("einsum", None), ("xla", None), ("blockwise", None), ("blockwise", 4)]


@pytest.fixture(scope="module")
def everything():
    """A compiled program of all kernels under causal, segments, padding, prefix and bias; and einsum's weights."""

    @jax.jit
    def program(arrays, mask):
        options = {"mask": mask, "soft_cap": None, "scale": None, "dropout": None}
        weights = attend(*arrays[:3], bias=arrays[3], mask=mask, return_weights=True)[1]

        def loss(arrays):
            outs = [run(kernel, arrays, options, block) for kernel, block in KERNELS]
            return sum(jnp.sum(jnp.sin(out)) for out in outs), outs

        (_, outs), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
        return outs, gradients, weights, jnp.broadcast_to(materialise(mask, T, T), weights.shape)

    return program


@settings(max_examples=15)
@given(st.data())
def test_hidden_keys_weigh_nothing(everything, data):
    """Over random masks, all of a row hidden included: weights exactly 0 where hidden, sums 1 or 0, outputs equal."""
    cells = st.lists(st.integers(0, 1), min_size=T, max_size=T)
    valid, segments, prefix = (jnp.asarray([data.draw(cells), data.draw(cells)]) for _ in range(3))
    mask = Mask(True, key_valid=valid == 1, query_segments=segments, key_segments=segments, prefix_keys=prefix == 1)
    arrays, _ = make_case(CASES[0] | {"square": 1, "grouped": 1, "bias": 1})
    outs, gradients, weights, seen = everything(arrays, mask)
    weights, seen = np.asarray(weights), np.asarray(seen)
    assert (weights[~seen] == 0).all() and (weights[seen] > 0).all()
    any_seen = seen.any(axis=-1)
    np.testing.assert_allclose(weights.sum(axis=-1), any_seen, atol=1e-6)
    blind = ~any_seen[:, 0]
    for out in outs:
        np.testing.assert_allclose(out, outs[0], atol=1e-5)
        assert (np.asarray(out)[blind] == 0).all()
    assert all(np.isfinite(g).all() for g in gradients)
    assert (np.asarray(gradients[0])[blind] == 0).all()  # a query that sees nothing gets no gradient
    unseen = ~seen.any(axis=(1, 2))
    assert (np.asarray(gradients[1])[unseen] == 0).all() and (np.asarray(gradients[2])[unseen] == 0).all()


def test_a_batch_of_padding_alone_is_zero(everything):
    arrays, _ = make_case(CASES[0] | {"square": 1, "grouped": 1, "bias": 1})
    nothing = jnp.zeros((B, T), bool)
    mask = Mask(True, key_valid=nothing, query_segments=jnp.zeros((B, T), int), key_segments=jnp.zeros((B, T), int))
    outs, gradients, weights, _ = everything(arrays, mask.replace(prefix_keys=nothing))
    assert all((np.asarray(x) == 0).all() for x in (*outs, *gradients, weights))


def test_masked_softmax():
    scores = jnp.asarray([[2.0, 1.0, 0.0, 500.0], [2.0, 1.0, 0.0, 5.0]])
    seen = jnp.asarray([[True, True, True, False], [False] * 4])
    np.testing.assert_allclose(masked_softmax(scores, seen)[0], [0.66524096, 0.24472847, 0.09003057, 0], atol=1e-6)
    assert np.array_equal(masked_softmax(scores, seen)[1], [0, 0, 0, 0])
    np.testing.assert_allclose(masked_softmax(scores, None)[1].sum(), 1, atol=1e-6)


# heads, shapes, dtypes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["einsum", "xla", "blockwise"])
def test_query_head_reads_key_value_head_by_group(rng, kernel):
    """N = 4, K = 2: heads 0, 1 read 0 and heads 2, 3 read 1. Tiled heads (0, 1, 0, 1) would pass no line of this."""
    query, key, value = (_normal(rng, 1, 3, heads, H) for heads in (4, 2, 2))
    grouped = attend(query, key, value, kernel=kernel)[0]
    for head in range(4):
        own = slice(head // 2, head // 2 + 1)
        alone = attend(query[:, :, head : head + 1], key[:, :, own], value[:, :, own], kernel=kernel)[0]
        np.testing.assert_allclose(grouped[:, :, head], alone[:, :, 0], atol=1e-6)
    assert float(jnp.abs(grouped[:, :, 0] - grouped[:, :, 2]).max()) > 0.1


def test_attention_literal():
    """One head of size 1, scale 1: scores log 1 and log 3 give weights 1/4 and 3/4; the third key is hidden."""
    query = jnp.ones((1, 1, 1, 1))
    key = jnp.log(jnp.asarray([1.0, 3.0, 100.0])).reshape(1, 3, 1, 1)
    value = jnp.asarray([[1.0], [3.0], [9.0]]).reshape(1, 3, 1, 1)
    mask = Mask(key_valid=jnp.asarray([[True, True, False]]))
    out, weights = attend(query, key, value, mask=mask, scale=1.0, return_weights=True)
    np.testing.assert_allclose(weights, [[[[0.25, 0.75, 0.0]]]], atol=1e-6)
    np.testing.assert_allclose(out, [[[[2.5]]]], atol=1e-6)


def test_returned_weights_are_those_that_multiplied_the_values():
    arrays, options = make_case(CASES[0] | {"dropout": 1, "grouped": 0})
    out, weights = attend(*arrays[:3], bias=arrays[3], return_weights=True, **options)
    np.testing.assert_allclose(jnp.einsum("bnts,bsnh->btnh", weights, arrays[2]), out, atol=1e-6)
    kept = float((weights > 0).sum() / (attend(*arrays[:3], mask=options["mask"], return_weights=True)[1] > 0).sum())
    assert 0.5 < kept < 0.9


@pytest.mark.parametrize("kernel", ["einsum", "xla", "blockwise"])
def test_bfloat16(kernel):
    """8 bits of mantissa leave 2^-8 of each weight and value: 1e-2."""
    arrays, options = make_case(CASES[0] | {"dropout": 0, "soft_cap": 0})
    expected = run("einsum", arrays, options)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), arrays)
    found = run(kernel, half, options)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=2e-2, rtol=1e-2)


# refusals ------------------------------------------------------------------------------------------------------------


def test_16_bit_on_a_cpu_is_float32_rounded_once(rng):
    query, key, value = (jnp.asarray(rng.normal(size=(2, 20, n, 8)), jnp.bfloat16) for n in (4, 2, 2))
    mask = Mask(causal=True)
    found, _ = attend(query, key, value, mask=mask, kernel="xla")
    exact, _ = attend(*(x.astype(jnp.float32) for x in (query, key, value)), mask=mask, kernel="xla")
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


def refusal(**options) -> str:
    arrays, _ = make_case(CASES[-1])
    with pytest.raises(InputError) as caught:
        attend(*arrays[:3], **options)
    return str(caught.value)


def test_refusals_by_name():
    dropout = at_site(row_seeds(jax.random.key(0), B), 0.1, 0, "attention_weights")
    assert refusal(kernel="flsh") == 'attention kernel "flsh" is unknown; did you mean "splash"?'
    assert refusal(kernel="xla", dropout=dropout, soft_cap=1.0) == (
        'attention kernel "xla" does not honour dropout or a soft cap; use "einsum" or "auto"'
    )
    assert refusal(kernel="cudnn", return_weights=True) == (
        'attention kernel "cudnn" does not honour returned weights; use "einsum" or "auto"'
    )
    assert refusal(kernel="blockwise", return_weights=True) == (
        'attention kernel "blockwise" never forms the weights; return_weights needs "einsum"'
    )
    assert refusal(kernel="cudnn") == ('attention kernel "cudnn" needs bfloat16 or float16, not float32; use "auto"')
    half = jnp.ones((1, 2, 4, 8), jnp.bfloat16)
    with pytest.raises(InputError, match='^attention kernel "cudnn" needs a CUDA device and none is here; use "auto"'):
        attend(half, half, half, kernel="cudnn")
    with pytest.raises(InputError, match="^attention: 3 key-value heads do not divide 4 query heads$"):
        attend(jnp.ones((1, 2, 4, 2)), jnp.ones((1, 2, 3, 2)), jnp.ones((1, 2, 3, 2)))


def test_cudnn_is_told_all_that_xla_is(monkeypatch):
    """No CUDA device is here: with that check left out and the library's xla in cuDNN's place, cuDNN's call carries
    causality, mask, bias and scale in full (equal to the oracle), and blind rows are zeroed after it."""
    told = []
    library = jax.nn.dot_product_attention

    def stand_in(*args, implementation, **options):
        told.append((implementation, options.get("is_causal", False)))
        return library(*args, implementation="xla", **options)

    monkeypatch.setattr(attention, "only_on", lambda platform, kernel, x: x)
    monkeypatch.setattr(attention.jax.nn, "dot_product_attention", stand_in)
    arrays, options = make_case(CASES[0] | {"dropout": 0, "soft_cap": 0, "bias": 1})
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), arrays)
    found = run("cudnn", half, options)
    np.testing.assert_allclose(found.astype(jnp.float32), run("einsum", half, options), atol=2e-2)  # bfloat16
    square = half[0], half[0], half[0], None
    run("cudnn", square, options | {"mask": Mask(causal=True)})
    assert told == [("cudnn", False), ("cudnn", True)]
    with pytest.raises(InputError, match='^attention kernel "cudnn" needs bfloat16 or float16, not float32; use "a'):
        run("cudnn", arrays, options)
