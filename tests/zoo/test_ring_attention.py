"""Attention split over eight virtual devices: the unsplit numbers and gradients, and no array of the whole length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import zoo
from zoo.attention import attend
from zoo.blockwise import Scoring
from zoo.config import ModelConfig
from zoo.dropout import at_site, row_seeds
from zoo.errors import InputError
from zoo.masks import Mask
from zoo.ring_attention import Layout, Plan, better_way, layout_of, splits_tokens

B, T, N, K, H = 2, 16, 4, 2, 4


def mesh_of(**axes):
    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes), devices=jax.devices()[:count]
    )


def normal(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


@pytest.fixture(scope="module")
def parts():
    """Everything a call may bring; row 1 begins with padding, so its first queries see nothing."""
    rng = np.random.default_rng(0)
    segments = np.sort(rng.integers(0, 3, (B, T)), axis=1)
    valid = rng.random((B, T)) < 0.7
    valid[1, :7] = False
    return {
        "arrays": (normal(rng, B, T, N, H), normal(rng, B, T, K, H), normal(rng, B, T, K, H)),
        "segments": jnp.asarray(segments),
        "valid": jnp.asarray(valid),
        "prefix": jnp.asarray(rng.random((B, T)) < 0.3),
        "order": jnp.asarray(np.cumsum(rng.integers(0, 2, (B, T)), axis=1)),
        "bias": normal(rng, 1, N, T, T),
        "row_bias": normal(rng, B, N, T, T),
        "dropout": at_site(row_seeds(jax.random.key(5), B), 0.3, 1, "attention_weights"),
    }


def mask_of(parts, causal=True, window=None, segments=False, valid=False, prefix=False, order=False):
    return Mask(
        causal=causal,
        window=window,
        query_segments=parts["segments"] if segments else None,
        key_segments=parts["segments"] if segments else None,
        key_valid=parts["valid"] if valid else None,
        prefix_keys=parts["prefix"] if prefix else None,
        query_order=parts["order"] if order else None,
        key_order=parts["order"] if order else None,
    )


def results(kernel, arrays, mask, bias=None, dropout=None, soft_cap=None, mesh=None):
    """(out, gradients of query, key, value and of the bias if there is one) of a weighted sum."""
    weights = jnp.cos(jnp.arange(B * T * N * H, dtype=jnp.float32)).reshape(B, T, N, H)

    @jax.jit
    def program(arrays, mask, dropout):
        def loss(arrays):
            query, key, value, *rest = arrays
            options = {"mask": mask, "bias": rest[0] if rest else None, "dropout": dropout, "soft_cap": soft_cap}
            out = attend(query, key, value, kernel=kernel, **options)[0]
            return jnp.sum(out * weights), out

        (_, out), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
        return out, *gradients

    arrays = arrays if bias is None else (*arrays, bias)
    if mesh is None:
        return program(arrays, mask, dropout)
    with jax.set_mesh(mesh):
        return program(arrays, mask, dropout)


# Together: every axis with each of the others, every structure of a mask, bias of one and of all rows, cap, dropout.
CASES = [
    ({"sequence": 8}, {}, {}),
    ({"sequence": 2}, {"valid": True, "prefix": True}, {"soft_cap": 2.0}),
    ({"data": 2, "sequence": 4}, {"causal": False, "valid": True}, {"bias": "bias", "dropout": True}),
    ({"fsdp": 2, "tensor": 2, "sequence": 2}, {"segments": True, "valid": True}, {"dropout": True, "soft_cap": 2.0}),
    ({"tensor": 4, "sequence": 2}, {"window": 5, "order": True}, {"bias": "row_bias"}),  # 2 KV heads over tensor=4
    ({"slice": 2, "sequence": 4}, {"causal": False, "window": 6, "segments": True}, {"bias": "row_bias"}),
    ({"data": 2, "tensor": 2}, {"segments": True, "valid": True}, {"bias": "bias"}),  # tokens whole
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_split_is_unsplit(parts, number):
    """Outputs to 1e-6, gradients to 1e-5, for each way; dropout keeps the same bits; blind rows give and get 0."""
    axes, structure, options = CASES[number]
    mask = mask_of(parts, **structure)
    options = {
        "soft_cap": options.get("soft_cap"),
        "bias": parts[options["bias"]] if "bias" in options else None,
        "dropout": parts["dropout"] if "dropout" in options else None,
    }
    oracle = results("einsum", parts["arrays"], mask, **options)
    ways = ("ring", "gathered") if "sequence" in axes else ("blockwise",)
    for kernel in ways:
        found = results(kernel, parts["arrays"], mask, **options, mesh=mesh_of(**axes))
        np.testing.assert_allclose(found[0], oracle[0], atol=1e-6, err_msg=kernel)
        for a, b in zip(oracle[1:], found[1:], strict=True):
            np.testing.assert_allclose(b, a, atol=1e-5, err_msg=kernel)
        if structure == {"segments": True, "valid": True}:
            blind = (np.asarray(oracle[0]) == 0).all(axis=(2, 3))
            assert blind.any()
            assert (np.asarray(found[0])[blind] == 0).all() and (np.asarray(found[1])[blind] == 0).all()


def test_odd_parts_and_grouped_heads_and_a_cache(parts):
    """15 tokens over 5 devices (no half-parts), other keys than queries, and queries that go on at slot 5."""
    query, key, value = (x[:, :15] for x in parts["arrays"])
    mesh = mesh_of(sequence=5)

    def both(query, mask):
        with jax.set_mesh(mesh):
            outs = [jax.jit(lambda q, way=way: attend(q, key, value, mask=mask, kernel=way)[0])(query) for way in WAYS]
        expected = attend(query, key, value, mask=mask, kernel="einsum")[0]
        for out in outs:
            np.testing.assert_allclose(out, expected, atol=1e-6)

    both(query, Mask(causal=True))
    both(query[:, :10], Mask(key_valid=parts["valid"][:, :15]))
    both(query[:, :10], Mask(causal=True, query_start=5))


WAYS = ("ring", "gathered")


def shapes_inside(jaxpr, inside=False):
    """Shapes of all values within shard_map, where they are one device's."""
    for equation in jaxpr.eqns:
        here = inside or equation.primitive.name == "shard_map"
        if inside:
            yield from (v.aval.shape for v in (*equation.invars, *equation.outvars) if hasattr(v.aval, "shape"))
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            nested = getattr(parameter, "jaxpr", parameter)
            if hasattr(nested, "eqns"):
                yield from shapes_inside(nested, here)


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_linear_in_length_over_devices(way):
    """T = 8192 over 8, forward and backward: in a ring no array on a device is as large as all keys; and none is T x S
    over the devices."""
    length, ways = 8192, 8
    x = jax.ShapeDtypeStruct((1, length, 1, 128), jnp.bfloat16)

    def loss(query, key, value):
        out = attend(query, key, value, mask=Mask(causal=True), kernel=way)[0]
        return jnp.sum(out.astype(jnp.float32))

    with jax.set_mesh(mesh_of(sequence=ways)):
        jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(x, x, x)
    sizes = [np.prod(shape, dtype=np.int64) for shape in shapes_inside(jaxpr.jaxpr)]
    assert len(sizes) > 200 and max(sizes) < length * length // ways
    assert (max(sizes) >= length * 128) == (way == "gathered")


def test_causal_work_is_dealt_out_evenly():
    """Half-parts i and 2n - 1 - i: each device's queries see as many keys, at each step of the ring too."""
    layout = Layout(mesh_of(sequence=8).abstract_mesh, (), None, "sequence")
    plan = Plan(layout, Scoring(1.0, None, (1, 64, 64)), ring=True, balanced=True)
    slots = [np.asarray(plan.slots(jnp.asarray(device), 64)) for device in range(8)]
    assert sorted(np.concatenate(slots)) == list(range(64))
    work = np.asarray([[(mine[:, None] >= theirs[None, :]).sum() for theirs in slots] for mine in slots])
    assert set(work.sum(axis=1)) == {64 * 65 // 2 // 8}
    for step in range(1, 8):
        assert len({work[device, (device - step) % 8] for device in range(8)}) == 1


# Through the model ----------------------------------------------------------------------------------------------------

LLAMA = ModelConfig(
    vocab_size=17,
    embed_dim=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    mlp_dim=12,
    num_layers=2,
    positions="rotary",
    norm="rmsnorm",
    gated=True,
    scan=True,
    remat="full",
    initializer_range=0.4,
    dropout=0.1,
    attention_dropout=0.1,
)


def test_the_whole_model_with_tokens_split(rng):
    """Loss and gradients of packed, padded rows with dropout, scanned and rematerialised: as on one device to 1e-5."""
    model = zoo.Model(LLAMA)
    params = model.init(jax.random.key(0))
    tokens = jnp.asarray(rng.integers(0, 17, (2, 16)))
    segments = jnp.asarray([[1] * 6 + [2] * 10, [1] * 11 + [0] * 5])

    def program(params):
        def loss(params):
            out = model.apply(
                params,
                tokens,
                padding_mask=segments > 0,
                segment_ids=segments,
                dropout_key=jax.random.split(jax.random.key(1), 2),
            )
            return jnp.mean(jnp.square(out.logits) * (segments > 0)[..., None])

        return jax.value_and_grad(loss)(params)

    expected = jax.jit(program)(params)
    with jax.set_mesh(mesh_of(data=2, sequence=4)):
        text = jax.jit(program).lower(params).as_text()
        found = jax.jit(program)(params)
    assert "collective_permute" in text  # "auto" took the ring
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)


def test_a_kept_result_spares_the_ring():
    """Under remat "minimal" the backward pass starts no second forward ring; under "full" it does."""

    def rings(remat):
        model = zoo.Model(LLAMA.replace(remat=remat, attention_kernel="ring"))
        params = jax.eval_shape(model.init, jax.random.key(0))
        with jax.set_mesh(mesh_of(sequence=2)):
            jaxpr = jax.make_jaxpr(jax.grad(lambda p: jnp.sum(model.apply(p, jnp.ones((1, 16), int)).hidden)))(params)
        return str(jaxpr).count("shard_map[")

    assert rings("full") == rings("minimal") + 1


def test_a_scan_over_layers_keeps_no_masks():
    """What depends on no layer is worked out before a scan over layers: never who sees whom, block by block."""
    length, ways = 4096, 4
    model = zoo.Model(LLAMA.replace(attention_kernel="ring", attention_dropout=0.0, num_heads=2, head_dim=2))
    params = jax.eval_shape(model.init, jax.random.key(0))
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def loss(params, tokens, segments):
        out = model.apply(params, tokens, segment_ids=segments, padding_mask=segments > 0, logits_at=False)
        return jnp.sum(out.hidden)

    with jax.set_mesh(mesh_of(sequence=ways)):
        jaxpr = jax.make_jaxpr(jax.grad(loss))(params, ids, ids)
    # The largest is one block of scores: 2 heads x 512 x 512.
    assert max(np.prod(shape, dtype=np.int64) for shape in shapes_inside(jaxpr.jaxpr)) <= 2 * 512 * 512


# Choices and refusals -------------------------------------------------------------------------------------------------


def test_auto_splits_tokens_where_they_divide():
    def chosen(length, heads, kv_heads, **axes):
        query, key = (jax.ShapeDtypeStruct((2, length, n, 4), jnp.float32) for n in (heads, kv_heads))
        with jax.set_mesh(mesh_of(**axes)):
            return better_way(query, key) if splits_tokens(query, key) else None

    assert chosen(16, 4, 4, sequence=4) == "ring"
    assert chosen(16, 16, 2, sequence=4) == "gathered"  # 2 x 2 heads of keys against a quarter of 16
    assert chosen(16, 16, 2, sequence=8) == "ring"
    assert chosen(15, 4, 4, sequence=4) is None and chosen(16, 3, 3, tensor=2, sequence=2) is None
    assert chosen(16, 4, 4, data=4) is None


def test_layout_leaves_whole_what_does_not_divide():
    query, key = jnp.zeros((3, 16, 8, 4)), jnp.zeros((3, 16, 2, 4))
    layout, trouble = layout_of(query, key, mesh_of(data=2, tensor=4).abstract_mesh)
    assert (layout.rows, layout.heads, layout.tokens, layout.repeat, trouble) == ((), "tensor", None, 2, "")


@pytest.mark.parametrize("way", WAYS)
def test_refusals(way):
    def refusal(length, heads, kv_heads, **axes):
        query, key = jnp.zeros((1, length, heads, 4)), jnp.zeros((1, length, kv_heads, 4))
        with pytest.raises(InputError) as caught, jax.set_mesh(mesh_of(**axes)):
            attend(query, key, key, kernel=way)
        return str(caught.value)

    no_mesh = (
        f'attention kernel "{way}" splits tokens over the mesh axis "sequence", and no such mesh is set; '
        'use --mesh sequence=N, or kernel "blockwise"'
    )
    assert refusal(16, 4, 4, data=2) == no_mesh
    with pytest.raises(InputError, match="no such mesh is set"):
        attend(*(jnp.zeros((1, 4, 1, 4)),) * 3, kernel=way)
    start = f'attention kernel "{way}": '
    assert refusal(15, 4, 4, sequence=4) == (
        start + "15 tokens cannot be split over sequence=4; choose sizes that divide"
    )
    assert refusal(16, 6, 3, sequence=2, tensor=4) == (
        start + "6 heads over 3 key-value heads cannot be split over tensor=4; choose sizes that divide"
    )
    with pytest.raises(InputError, match=f'^attention kernel "{way}" never forms the weights; return_weights needs "e'):
        attend(*(jnp.zeros((1, 4, 1, 4)),) * 3, kernel=way, return_weights=True)


def test_dropout_whose_numbers_would_repeat_is_refused():
    query = jax.ShapeDtypeStruct((1, 1 << 15, 8, 4), jnp.float32)
    dropout = at_site(row_seeds(jax.random.key(0), 1), 0.1, 0, "attention_weights")
    with pytest.raises(InputError, match="^attention_dropout numbers weights with 32 bits; 8 heads x 32768 que"):
        jax.eval_shape(lambda q: attend(q, q, q, dropout=dropout, kernel="blockwise")[0], query)
