"""What fsdp sends: the weights twice, their gradients once as a reduce-scatter; and the product itself."""

import functools
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from train.config import TrainConfig
from train.mesh import make_driver
from train.mesh_axes import make_mesh
from train.objectives import next_token
from train.optimizer import make_optimizer
from train.plan.collectives import collectives
from train.state import initial_state
from train.step import make_train_step
from zoo.sharded_product import product

LAYERS, ROWS, LENGTH = 3, 16, 8
CONFIG = zoo.create(
    "llama3-tiny", vocab_size=24, embed_dim=64, num_heads=8, num_kv_heads=4, mlp_dim=128, num_layers=LAYERS,
    max_positions=16, scan=True,
).config  # fmt: skip
MESHES = ("fsdp=8", "slice=2,fsdp=2,tensor=2")


@functools.cache
def traffic(mesh):
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
    step = make_train_step(model, next_token, optimizer, TrainConfig(batch_size=ROWS))
    text = driver.trace(step, state, batch).lower().compile().as_text()
    return state, collectives(text, dict(driver.mesh.shape), platform="cpu")


def kernels(state):
    return {path: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.params["blocks"]) if leaf.ndim > 2}


@pytest.mark.parametrize("mesh", MESHES)
def test_fsdp_sends_two_gathers_and_one_scatter(mesh):
    """Bytes within 15 % of the least, with embeddings and norms; of the blocks' kernels alone exactly the least."""
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
    assert (sent["all-gather"], sent["reduce-scatter"]) == (2 * least, least)
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


@pytest.mark.parametrize("path,x,kernel,contracted", [
    ("attention/query/kernel", (8, 4, 16), (16, 4, 8), 1),
    ("attention/out/kernel", (8, 4, 4, 8), (4, 8, 16), 2),
    ("mlp/down/kernel", (8, 4, 32), (32, 16), 1),
    ("mlp/up/kernel", (8, 3, 18), (18, 8), 1),  # 3 tokens do not divide; 18 goes over fsdp=2
    ("mlp/up/kernel", (8, 4, 15), (15, 8), 1),  # 15 does not: fsdp splits the 8 beside tensor
    ("attention/key/kernel", (8, 4, 16), (16, 1, 8), 1),  # one key-value head on both devices of tensor
    ("mlp/up/kernel", (8, 16), (16, 32), 1),
])  # fmt: skip
def test_the_product_is_the_plain_one(path, x, kernel, contracted, rng):
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in (x, kernel))
    dims = ((tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted))), ((), ()))

    def slopes(dot):
        return jax.value_and_grad(lambda x, kernel: jnp.sum(jnp.sin(dot(x, kernel, dims))), argnums=(0, 1))

    wanted = slopes(jax.lax.dot_general)(x, kernel)
    with jax.set_mesh(make_mesh("fsdp=2,tensor=2,sequence=2")):
        lowered = jax.jit(slopes(product(path))).lower(x, kernel)
        assert "reduce_scatter" in lowered.as_text()
        found = lowered.compile()(x, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-5), found, wanted)


def test_without_fsdp_it_is_dot_general():
    x, kernel, dims = jnp.ones((4, 2, 8)), jnp.ones((8, 8)), (((2,), (0,)), ((), ()))
    assert "custom_vjp" not in str(jax.make_jaxpr(lambda: product("mlp/up/kernel")(x, kernel, dims))())
    for mesh, rows in (("data=8", 8), ("fsdp=8", 4)):  # no fsdp; rows that it does not divide
        with jax.set_mesh(make_mesh(mesh)):
            jaxpr = jax.make_jaxpr(lambda x: product("mlp/up/kernel")(x, kernel, dims))(jnp.ones((rows, 2, 8)))
        assert "custom_vjp" not in str(jaxpr)
