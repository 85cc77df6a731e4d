"""The compiled train step sends what fully sharded training must, and what the formulas say."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import zoo
from train.mesh import MeshDriver, make_mesh
from train.plan.collectives import by_kind_and_axes, collectives
from train.plan.compile import compile_on
from train.plan.job import make_job
from train.plan.roofline import estimate
from train.plan.slices import parse_slice

# float32: the CPU's compiler gathers bfloat16 as float32, so that its bytes would not be those of a TPU.
TINY = {"embed_dim": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "mlp_dim": 128,
        "vocab_size": 256, "dtype": "float32"}  # fmt: skip


def compiled(model, mesh, accumulate=1):
    job = make_job(model, parse_slice("v5e:2x4"), batch=16, seq=32, mesh=mesh, accumulate=accumulate, changes=TINY)
    step = compile_on(job, MeshDriver(make_mesh(job.mesh_shape)))
    formula = estimate(job.model, job.train, job.mesh_shape, job.slice.chip, job.slice.shape)
    return job, collectives(step.text, job.mesh_shape, "cpu"), formula.collectives


def least(found, kinds, axes):
    rows = by_kind_and_axes(found)
    return sum(row["least"] for (kind, over), row in rows.items() if kind in kinds and set(over) & set(axes))


PARAMETERS = ("all-gather", "reduce-scatter", "all-reduce")


@pytest.mark.parametrize("model,accumulate", [("llama-tiny", 2), ("bert-tiny", 1)])
def test_two_gathers_and_one_scatter(model, accumulate):
    """fsdp sends (1 - 1/n) times the kernels' bytes, three times a micro-batch; no less is possible."""
    job, found, formula = compiled(model, "fsdp=8", accumulate)
    params = jax.tree_util.tree_leaves_with_path(zoo.create(job.model).init_shapes())
    kernels = sum(leaf.size for path, leaf in params if "kernel" in str(path[-1]))
    minimum = accumulate * 7 / 8 * 3 * 4 * kernels
    sent = least(found, PARAMETERS, ["fsdp"])
    assert 0.85 * minimum < sent < 1.15 * minimum, sent / minimum
    assert sent == pytest.approx(least(formula, PARAMETERS, ["fsdp"]), rel=0.03)
    # Gradients are scattered: what is summed whole are vectors and scalars.
    assert least(found, ["all-reduce"], ["fsdp"]) < 0.03 * sent
    # No gather brings more together than one kernel does: nothing is gathered for all layers at once.
    largest = max(leaf.size / (4 if "blocks" in str(path[0]) else 1) for path, leaf in params)
    assert max(one.payload for one in found if one.kind == "all-gather") <= 4 * largest
    assert all(one.exact for one in found)


def test_every_axis_has_its_own():
    job, found, formula = compiled("llama-tiny", "data=2,fsdp=2,tensor=2")
    for kinds, axis in ((["all-gather", "reduce-scatter"], "fsdp"), (["all-reduce"], "data")):
        sent, expected = least(found, kinds, [axis]), least(formula, kinds, [axis])
        assert sent == pytest.approx(expected, rel=0.2), (axis, sent / expected)
    # Two sums of the stream a layer forward and two backward: parts of query, key and value, of gate and up are added
    # before they are summed over chips.
    sent = least(found, ["all-reduce"], ["tensor"])
    assert sent == pytest.approx(least(formula, ["all-reduce"], ["tensor"]), rel=0.05)


def test_a_gather_of_everything_at_once_is_seen():
    """The control: a loop over layers that first asks for all of them whole."""
    mesh = make_mesh("fsdp=8")
    spread, whole = NamedSharding(mesh, PartitionSpec(None, "fsdp")), NamedSharding(mesh, PartitionSpec())
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))

    def loss(first, layers, x):
        layers = jax.lax.with_sharding_constraint(layers, whole) if first else layers

        def layer(x, w):
            return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, whole)), None

        return jnp.sum(jax.lax.scan(layer, x, layers)[0])

    def largest(first):
        layers = jax.ShapeDtypeStruct((5, 32, 32), jnp.float32, sharding=spread)
        x = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=rows)
        text = jax.jit(jax.grad(lambda w, x: loss(first, w, x)), out_shardings=spread).lower(layers, x)
        found = collectives(text.compile().as_text(), {"fsdp": 8}, "cpu")
        return max(one.payload for one in found if one.kind == "all-gather")

    assert largest(True) == 5 * 32 * 32 * 4 and largest(False) == 32 * 32 * 4
