"""TPU flash attention through Pallas's interpreter: the oracle's numbers and gradients, on one device and on meshes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from zoo import attention
from zoo.attention import attend
from zoo.dropout import at_site, row_seeds
from zoo.errors import InputError
from zoo.masks import Mask, materialise
from zoo.splash import _nearest_keys

B, T, N, K, H = 2, 150, 4, 2, 8


def mesh_of(**axes):
    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes), devices=jax.devices()[:count]
    )


def arrays_of(length, heads=(N, K, K)):
    rng = np.random.default_rng(length)
    return tuple(jnp.asarray(rng.standard_normal((B, length, n, H)), jnp.float32) for n in heads)


def documents(length):
    """(segments, valid): row 0 packed with padding as segment 0 at its end, row 1 one padded document."""
    segments = np.ones((B, length), int)
    segments[0] = np.repeat(
        [1, 2, 3, 0], [length // 3, length // 4, length // 4, length - length // 3 - length // 4 * 2]
    )
    segments[1, -9:] = 0
    return jnp.asarray(segments), jnp.asarray(segments > 0)


def results(kernel, arrays, mask, soft_cap=None, mesh=None):
    weights = jnp.cos(jnp.arange(arrays[0].size, dtype=jnp.float32)).reshape(arrays[0].shape)

    @jax.jit
    def program(arrays, mask):
        def loss(arrays):
            out = attend(*arrays, mask=mask, soft_cap=soft_cap, kernel=kernel)[0]
            return jnp.sum(out * weights), out

        (_, out), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
        return out, *gradients

    if mesh is None:
        return program(arrays, mask)
    with jax.set_mesh(mesh):
        return program(arrays, mask)


def same(found, oracle):
    for a, b in zip(oracle, found, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)


SEGMENTS, VALID = documents(T)
SCATTERED = jnp.asarray(np.random.default_rng(1).random((B, T)) < 0.6).at[1, :20].set(False)
ORDER = jnp.maximum(jnp.cumsum(VALID, axis=1) - 1, 0)
PACKED = {"key_valid": VALID, "query_segments": SEGMENTS, "key_segments": SEGMENTS}
MASKS = {
    "causal": (Mask(causal=True), None),
    "padding": (Mask(key_valid=SCATTERED), None),
    "packed": (Mask(causal=True, **PACKED), 3.0),
    "window": (Mask(causal=True, window=20, key_valid=SCATTERED), None),
    "window both ways": (Mask(window=21, key_valid=SCATTERED), 3.0),
    "window in documents": (Mask(causal=True, window=20, query_order=ORDER, key_order=ORDER, **PACKED), None),
}


@pytest.mark.parametrize("name", MASKS)
def test_splash_is_the_oracle(name):
    """150 tokens, filled up to one block of 256; outputs and gradients to 1e-5, queries that see nothing included."""
    mask, soft_cap = MASKS[name]
    arrays = arrays_of(T)
    oracle, found = (results(kernel, arrays, mask, soft_cap) for kernel in ("einsum", "splash_interpreted"))
    same(found, oracle)
    seen = materialise(mask, T, T)
    blind = ~np.broadcast_to(seen.any(axis=-1)[:, 0], (B, T))
    assert blind.any() == (mask.key_valid is not None and name != "padding")
    assert (np.asarray(found[0])[blind] == 0).all() and (np.asarray(found[1])[blind] == 0).all()


def test_several_blocks():
    """520 tokens are two blocks of 512, of which causality leaves three of four."""
    arrays = arrays_of(520, (2, 1, 1))
    oracle, found = (results(kernel, arrays, Mask(causal=True)) for kernel in ("einsum", "splash_interpreted"))
    same(found, oracle)


@pytest.mark.parametrize(
    ("axes", "name"),
    [
        ({"data": 2, "tensor": 4}, "packed"),
        ({"fsdp": 2, "tensor": 2, "sequence": 2}, "causal"),
        ({"sequence": 4}, "window in documents"),
        ({"data": 2, "sequence": 2}, "padding"),
    ],
    ids=str,
)
def test_splash_on_a_mesh(axes, name):
    """Rows, heads (2 of keys over tensor=4, too) and tokens split: the unsplit numbers."""
    length = 512
    segments, valid = documents(length)
    packed = {"key_valid": valid, "query_segments": segments, "key_segments": segments}
    order = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    mask = {
        "packed": Mask(causal=True, **packed),
        "causal": Mask(causal=True),
        "window in documents": Mask(causal=True, window=90, query_order=order, key_order=order, **packed),
        "padding": Mask(key_valid=valid),
    }[name]
    arrays = arrays_of(length)
    same(results("splash_interpreted", arrays, mask, mesh=mesh_of(**axes)), results("einsum", arrays, mask))


def test_other_keys():
    """Attention to a memory of another length, padded."""
    query, memory = arrays_of(140)[0], arrays_of(T)[1]
    mask = Mask(key_valid=SCATTERED)
    outs = [
        jax.jit(lambda kernel: attend(query, memory, memory, mask=mask, kernel=kernel)[0], static_argnums=0)(kernel)
        for kernel in ("einsum", "splash_interpreted")
    ]
    np.testing.assert_allclose(*outs, atol=1e-5)


def test_a_window_over_a_gap_is_poisoned():
    """Real tokens apart in slots but neighbours in order: the kernel's window would be too narrow. The row is NaN."""
    valid = VALID.at[1, 50].set(False)
    order = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    mask = Mask(causal=True, window=20, key_valid=valid, query_order=order, key_order=order)
    out = jax.jit(lambda m: attend(*arrays_of(T), mask=m, kernel="splash_interpreted")[0])(mask)
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()


def test_nearest_keys(rng):
    """Against a plain search over all pairs."""
    query_ids, key_ids = jnp.asarray(rng.integers(0, 3, (2, 7))), jnp.asarray(rng.integers(0, 3, (2, 9)))
    valid = jnp.asarray(rng.random((2, 9)) < 0.6)
    last, following = _nearest_keys(query_ids, key_ids, valid)
    for row in range(2):
        for t in range(7):
            slots = [s for s in range(9) if valid[row, s] and key_ids[row, s] == query_ids[row, t]]
            assert last[row, t] == max((s for s in slots if s <= t), default=-1)
            assert following[row, t] == min((s for s in slots if s >= t), default=9)


def test_bfloat16():
    """8 bits of mantissa in weights and values: 2e-2."""
    half = tuple(x.astype(jnp.bfloat16) for x in arrays_of(T))
    with jax.default_matmul_precision("default"):
        outs = [results(kernel, half, Mask(causal=True))[0] for kernel in ("einsum", "splash_interpreted")]
    assert outs[1].dtype == jnp.bfloat16
    np.testing.assert_allclose(*(out.astype(jnp.float32) for out in outs), atol=2e-2)


# Choices and refusals -------------------------------------------------------------------------------------------------


def test_refusals():
    arrays = arrays_of(8)

    def refusal(**options):
        query, key, value = options.pop("arrays", arrays)
        with pytest.raises(InputError) as caught:
            attend(query, key, value, **{"kernel": "splash"} | options)
        return str(caught.value)

    start, end = 'attention kernel "splash" does not honour ', '; use "blockwise" or "auto"'
    dropout = at_site(row_seeds(jax.random.key(0), B), 0.1, 0, "attention_weights")
    assert refusal(dropout=dropout, bias=jnp.zeros((1, N, 8, 8))) == start + "dropout or a bias" + end
    assert refusal(return_weights=True) == start + "returned weights" + end
    assert refusal(mask=Mask(True, prefix_keys=jnp.ones((B, 8), bool))) == start + "a prefix" + end
    assert refusal(mask=Mask(True, query_start=1)) == start + "queries that continue a cache" + end
    other = (arrays[0][:, :4], *arrays[1:])
    assert refusal(arrays=other, mask=Mask(True)) == start + "causal attention to another sequence" + end
    assert refusal(arrays=other, mask=Mask(window=3)) == start + "a window over another sequence" + end
    half = tuple(x.astype(jnp.bfloat16) for x in arrays)
    assert refusal(arrays=half) == start + 'matmul precision "highest" of 16-bit arrays' + end
    assert refusal() == 'attention kernel "splash" needs a TPU and none is here; use "auto" or "blockwise"'
    with jax.set_mesh(mesh_of(sequence=2)):
        assert refusal(kernel="splash_interpreted") == (
            'attention kernel "splash": 8 tokens over sequence=2 are not multiples of 128 on each device; choose a '
            'length that is, or kernel "ring"'
        )


def test_auto_takes_splash_on_a_tpu(monkeypatch):
    """By the platform of the mesh, or of the default backend without one; only where the call is honoured exactly."""
    chosen = []
    monkeypatch.setattr(attention.jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(attention, "splash_attention", lambda query, *_, **__: chosen.append(True) or query)

    def takes(length, **options):
        chosen.clear()
        query = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)
        jax.eval_shape(lambda q: attend(q, q, q, **options)[0], query)
        return bool(chosen)

    orders = {"query_order": jnp.zeros((1, 1024), int), "key_order": jnp.zeros((1, 1024), int)}
    assert takes(1024, mask=Mask(True)) and takes(1024, mask=Mask(True, window=9)) and takes(1024, soft_cap=2.0)
    assert takes(1024, mask=Mask(True, **orders))  # orders belong to another layer's window
    assert not takes(1024, mask=Mask(True, window=9, **orders)) and not takes(1023, mask=Mask(True))
    assert not takes(1024, return_weights=True)
    with jax.set_mesh(mesh_of(data=2)):  # CPUs
        assert not takes(1024, mask=Mask(True))
