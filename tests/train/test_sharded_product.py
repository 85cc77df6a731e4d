"""What fsdp sends: the weights twice, their gradients once as a float32 reduce-scatter; and the product itself."""

import functools
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from train.config import TrainConfig
from train.cross_entropy import LossOptions
from train.mesh import make_driver
from train.mesh_axes import make_mesh
from train.objectives import next_token
from train.optimizer import make_optimizer
from train.plan.collectives import collectives
from train.state import initial_state
from train.step import make_train_step
from zoo.dense import add_bias
from zoo.sharded_product import fanned, product

LAYERS, ROWS, LENGTH = 3, 16, 8
CONFIG = zoo.create(
    "llama3-tiny", vocab_size=24, embed_dim=64, num_heads=8, num_kv_heads=4, mlp_dim=128, num_layers=LAYERS,
    max_positions=16, scan=True,
).config  # fmt: skip
MESHES = ("fsdp=8", "slice=2,fsdp=2,tensor=2")


@functools.cache
def traffic(mesh, chunk_bytes=1 << 24):
    """Collectives of the step of CONFIG, with remat full; and what it keeps where."""
    model, optimizer = zoo.create(CONFIG.replace(remat="full")), make_optimizer(TrainConfig())
    driver = make_driver("mesh", mesh)
    state = driver.abstract(initial_state(model.init, optimizer, 0))
    batch = {
        name: jax.ShapeDtypeStruct(shape, np.int32)
        for name, shape in (
            ("tokens", (ROWS, LENGTH + 1)), ("segment_ids", (ROWS, LENGTH + 1)), ("row_ids", (ROWS,)),
        )
    }  # fmt: skip
    objective = functools.partial(next_token, options=LossOptions(chunk_bytes=chunk_bytes))
    step = make_train_step(model, objective, optimizer, TrainConfig(batch_size=ROWS))
    text = driver.trace(step, state, batch).lower().compile().as_text()
    return state, collectives(text, dict(driver.mesh.shape), platform="cpu")


def kernels(state):
    return {path: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.params["blocks"]) if leaf.ndim > 2}


@pytest.mark.parametrize("mesh", MESHES)
def test_fsdp_sends_two_gathers_and_one_scatter(mesh):
    """Bytes within 15 % of the least, with embeddings and norms; of the blocks' kernels alone exactly the least.

    Numbers are float32 here, so that all bytes are of one size; under bfloat16 the scatter alone has 4 bytes a number
    (test_gradients_are_summed_in_float32).
    """
    state, found = traffic(mesh)
    sizes = make_mesh(mesh).shape
    ways, tensor = sizes["fsdp"], sizes.get("tensor", 1)
    own = [one for one in found if one.axes == ("fsdp",)]
    held = sum(leaf.size for leaf in kernels(state).values()) // tensor
    least = 4 * held * (ways - 1) / ways
    sent = defaultdict(float)
    for one in own:
        if "Transformer/while" in one.source:
            sent[one.kind] += one.count * one.wire
    vectors = 4 * 2 * LAYERS * CONFIG.embed_dim * (ways - 1) / ways  # gathered before the layers, all at once
    assert sent["all-gather"] == 2 * least
    assert least <= sent["reduce-scatter"] <= least + vectors
    whole = 4 * sum(leaf.size for leaf in jax.tree.leaves(state.params)) / tensor * (ways - 1) / ways
    assert sum(one.count * one.wire for one in own) < 1.15 * 3 * whole


@pytest.mark.parametrize("mesh", MESHES)
def test_layers_are_gathered_one_at_a_time_and_gradients_never_whole(mesh):
    state, found = traffic(mesh)
    largest = max(leaf.size // LAYERS for leaf in kernels(state).values())
    tensor = make_mesh(mesh).shape.get("tensor", 1)
    for one in found:
        if one.kind == "all-gather" and "fsdp" in one.axes:
            # No stack of layers, and no activations: of those, ids alone.
            assert one.payload <= max(4 * largest // tensor, 4 * CONFIG.vocab_size * CONFIG.embed_dim), one
        if one.kind == "all-reduce" and "Transformer/while" in one.source and "tensor" not in one.axes:
            # Norm scales and, over slices, the parts that each device keeps.
            assert one.payload <= 4 * sum(leaf.size for leaf in kernels(state).values()) // LAYERS // 4, one


def test_parts_alone_cross_between_slices():
    state, found = traffic("slice=2,fsdp=2,tensor=2")
    crossing = [one for one in found if one.axes == ("slice",) and "Transformer/while" in one.source]
    held = 4 * sum(leaf.size for leaf in kernels(state).values()) // 4
    assert sum(one.count * one.payload for one in crossing) == held and {one.kind for one in crossing} == {"all-reduce"}


@pytest.mark.parametrize("mesh", MESHES)
def test_the_read_out_is_gathered_once_and_its_gradient_summed_once(mesh):
    """However many chunks of logits there are: here eight."""
    sizes = make_mesh(mesh).shape
    _, one = traffic(mesh)
    _, many = traffic(mesh, chunk_bytes=4 * ROWS * CONFIG.vocab_size)

    def of_read_out(found):
        # Sums over tensor of the logits' softmax go on in each chunk: a number a position.
        return sorted(
            (c.kind, c.axes, c.count, c.payload)
            for c in found
            if "tensor" not in c.axes and c.payload >= CONFIG.embed_dim * CONFIG.vocab_size * 4 / 64
        )

    assert of_read_out(many) == of_read_out(one)
    own = [c for c in many if c.kind == "reduce-scatter" and "Transformer" not in c.source and c.axes == ("fsdp",)]
    size = CONFIG.embed_dim * CONFIG.vocab_size // sizes.get("tensor", 1)
    assert [c.count for c in own if c.payload * sizes["fsdp"] == 4 * size or c.payload == 4 * size] != []
    assert all(c.count == 1 for c in own)


CASES = [
    ("attention/query/kernel", (8, 4, 16), (16, 4, 8), 1),
    ("attention/out/kernel", (8, 4, 4, 8), (4, 8, 16), 2),
    ("mlp/down/kernel", (8, 4, 32), (32, 16), 1),
    ("mlp/up/kernel", (8, 3, 18), (18, 8), 1),  # 3 tokens do not divide; 18 goes over fsdp=2
    ("mlp/up/kernel", (8, 3, 16), (16, 8), 1),  # sequence keeps a part of what fsdp scatters
    ("mlp/up/kernel", (8, 4, 15), (15, 8), 1),  # 15 does not: fsdp splits the 8 beside tensor
    ("attention/key/kernel", (8, 4, 16), (16, 1, 8), 1),  # one key-value head on both devices of tensor
    ("mlp/up/kernel", (8, 16), (16, 32), 1),
]


@pytest.mark.parametrize("path,x,kernel,contracted", CASES)
def test_the_product_is_the_plain_one(path, x, kernel, contracted, rng):
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in (x, kernel))

    def slopes(x, kernel):
        return jax.value_and_grad(
            lambda x, kernel: jnp.sum(jnp.sin(product(path, x, kernel, contracted))), argnums=(0, 1)
        )(x, kernel)

    wanted = slopes(x, kernel)
    with jax.set_mesh(make_mesh("fsdp=2,tensor=2,sequence=2")):
        lowered = jax.jit(slopes).lower(x, kernel)
        assert "reduce_scatter" in lowered.as_text()
        found = lowered.compile()(x, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-5), found, wanted)


@pytest.mark.parametrize("mesh", ["fsdp=8", "data=8", "slice=2,fsdp=2,sequence=2", "data=2,sequence=4"])
def test_gradients_are_summed_in_float32(mesh):
    """One device's part is 256 and the others' are 1: in bfloat16 sums these are lost, and 263 is no number of it."""
    parts = jnp.ones((8, 8, 1)).at[0, 0].set(256.0).at[0, 1:].set(0.0).at[:, 1:].set(0.0)
    x = jnp.broadcast_to(parts, (8, 8, 16)).astype(jnp.bfloat16)

    def slope(kernel):
        y = jnp.sum(product("mlp/up/kernel", x, kernel).astype(jnp.float32))
        return y + jnp.sum(add_bias(x, kernel[0]).astype(jnp.float32) * x)

    kernel = jnp.zeros((16, 16), jnp.float32)
    with jax.set_mesh(make_mesh(mesh)):
        lowered = jax.jit(jax.grad(slope)).lower(kernel)
        found = np.asarray(lowered.compile()(kernel))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[1:], 263.0)
    np.testing.assert_array_equal(found[0], 263.0 + 263.0)
    sums = [line for line in lowered.as_text().splitlines() if "reduce_scatter" in line or "all_reduce" in line]
    assert sums and not any("bf16" in line for line in sums)


def test_without_a_mesh_or_rows_that_divide_it_is_dot_general():
    x, kernel = jnp.ones((4, 2, 8)), jnp.ones((8, 8))
    assert "custom_vjp" not in str(jax.make_jaxpr(lambda: product("mlp/up/kernel", x, kernel))())
    for mesh, rows in (("data=8", 8), ("fsdp=8", 4), ("tensor=8", 8)):  # nothing stored in parts; rows that do not go
        with jax.set_mesh(make_mesh(mesh)):
            jaxpr = jax.make_jaxpr(lambda x: product("mlp/up/kernel", x, kernel))(jnp.ones((rows, 2, 8)))
        assert "custom_vjp" not in str(jaxpr)


def test_products_of_one_stream_send_one_sum_back_over_tensor():
    """The gradients that query, key and value send back are added up before they are sent, and those of up and gate."""
    _, found = traffic("slice=2,fsdp=2,tensor=2")
    stream = 4 * ROWS * LENGTH * CONFIG.embed_dim // 4
    inside = [c for c in found if c.axes == ("tensor",) and "Transformer/while" in c.source]
    assert {c.kind for c in inside} == {"all-reduce"}
    # Two forward, attention's once more as remat full computes it again, two backward.
    assert sum(c.count * c.payload for c in inside) == 5 * LAYERS * stream


@pytest.mark.parametrize("mesh", ["fsdp=2,tensor=2,sequence=2", "data=2,tensor=4", "tensor=8"])
def test_a_fanned_stream_gives_the_plain_gradients(mesh, rng):
    """Heads that tensor divides and, of the key, heads that it does not."""
    x = jnp.asarray(rng.normal(size=(8, 4, 16)), jnp.float32)
    wide, narrow = (jnp.asarray(rng.normal(size=(16, n, 4)) / 4, jnp.float32) for n in (8, 1))

    def slopes(x, wide, narrow):
        def loss(x, wide, narrow):
            many = fanned(jnp.sin(x))
            query, key = product("attention/query/kernel", many, wide), product("attention/key/kernel", many, narrow)
            return jnp.sum(jnp.sin(query * key))

        return jax.value_and_grad(loss, argnums=(0, 1, 2))(x, wide, narrow)

    wanted = slopes(x, wide, narrow)
    with jax.set_mesh(make_mesh(mesh)):
        found = jax.jit(slopes)(x, wide, narrow)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, wanted)


def test_the_axis_sequence_stores_parameters_as_fsdp_does():
    """Two gathers and one scatter over both axes; of an embedding the table travels, and no stream of tokens."""
    state, found = traffic("fsdp=2,sequence=4")
    least = 4 * sum(leaf.size for leaf in kernels(state).values()) * 7 / 8
    sent = defaultdict(float)
    for one in found:
        if one.axes == ("fsdp", "sequence") and "Transformer/while" in one.source:
            sent[one.kind] += one.count * one.wire
    assert sent["all-gather"] == 2 * least and least <= sent["reduce-scatter"] <= 1.01 * least
    outside = [c for c in found if c.kind == "all-gather" and "Transformer/while" not in c.source]
    assert max(c.count * c.payload for c in outside) <= 4 * CONFIG.vocab_size * CONFIG.embed_dim
