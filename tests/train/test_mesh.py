"""Three drivers, one result: 8 virtual devices, uneven masks, SGD (Adam hides a gradient 8 times too large)."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from train.config import TrainConfig
from train.corruption import Vocabulary
from train.mesh import make_driver
from train.mesh_axes import make_mesh
from train.objectives import Objective, masked_lm, masked_lm_weights
from train.optimizer import make_optimizer
from train.state import initial_state
from train.step import make_eval_step, make_train_step
from zoo import partition
from zoo.errors import InputError

V = 24
MODEL = zoo.create(
    zoo.ModelConfig(
        vocab_size=V, embed_dim=16, num_layers=1, num_heads=2, max_positions=16, visibility="full", head="masked_lm",
        pooler=True, next_sentence=True, token_types=2, dropout=0.1,
    )
)  # fmt: skip
VOCABULARY = Vocabulary(V, 6, (0, 1, 2, 3, 4, 5, 6))
OBJECTIVE = Objective(
    partial(masked_lm, vocabulary=VOCABULARY, rate=0.3, next_sentence=True),
    partial(masked_lm_weights, vocabulary=VOCABULARY, rate=0.3),
)
SGD = TrainConfig(steps=5, batch_size=16, optimizer="sgd", learning_rate=0.5, schedule="constant", clip_norm=1.0)
DRIVERS = [("jit", ""), ("mesh", "data=2,fsdp=2,tensor=2"), ("pmap", "")]


def heads(name, count):
    """A kernel of an attention alone."""
    return {"attention": {name: {"kernel": jnp.ones((8, count, 4))}}}


def batches(steps=5, rows=16, length=12):
    rng = np.random.default_rng(0)
    for step in range(steps):
        lengths = rng.integers(1, length + 1, rows)
        lengths[: rows // 2] = 1  # the first devices have next to nothing to predict
        segments = (np.arange(length) < lengths[:, None]).astype(np.int32)
        yield {
            "tokens": np.where(segments, rng.integers(7, V, (rows, length)), 0).astype(np.int32),
            "segment_ids": segments,
            "token_types": np.zeros((rows, length), np.int32),
            "next_sentence": np.where(np.arange(rows) % 3 == 0, -1, np.arange(rows) % 2).astype(np.int32),
            "row_ids": (step * rows + np.arange(rows)).astype(np.int32),
        }


@pytest.fixture(scope="module")
def runs():
    """Per driver: initial parameters, losses, final state and an evaluation, all on the host."""
    results = {}
    for name, mesh in DRIVERS:
        driver = make_driver(name, mesh)
        config = SGD.replace(accumulate=2 if name == "mesh" else 1)
        optimizer = make_optimizer(config)
        state = driver.init(initial_state(MODEL.init, optimizer, 3))
        first = jax.device_get(state.params)
        step = driver.compile(make_train_step(MODEL, OBJECTIVE, optimizer, config))
        losses = []
        for batch in batches():
            state, metrics = step(state, driver.put(batch))
            losses.append(float(metrics["loss"][0]) / float(metrics["loss"][1]))
        evaluate = driver.compile_eval(make_eval_step(MODEL, OBJECTIVE))
        results[name, mesh] = first, losses, jax.device_get(state), jax.device_get(evaluate(state.params, batch))
    return results


@pytest.mark.parametrize("name,mesh", DRIVERS[1:])
def test_drivers_agree(runs, name, mesh):
    (first, losses, state, evaluation), (want_first, want_losses, want_state, want_evaluation) = (
        runs[name, mesh],
        runs["jit", ""],
    )
    jax.tree.map(np.testing.assert_array_equal, first, want_first)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    assert len(set(losses)) == 5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), state, want_state)
    assert jax.tree.structure(state) == jax.tree.structure(want_state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), evaluation, want_evaluation)


def test_moments_lie_as_their_parameters_and_bytes_fall_as_one_in_n():
    model = zoo.create(
        zoo.ModelConfig(vocab_size=64, embed_dim=32, num_layers=1, num_heads=8, gated=True, mlp_bias=False)
    )
    optimizer = make_optimizer(TrainConfig())

    def bytes_of(state, device):
        shards = [s.data.nbytes for x in jax.tree.leaves(state) for s in x.addressable_shards if s.device == device]
        return sum(shards)

    made = {}
    for mesh in ("data=8", "fsdp=8"):
        driver = make_driver("mesh", mesh)
        state = made[mesh] = driver.init(initial_state(model.init, optimizer, 0))
        moments = [s for s in state.opt_state if hasattr(s, "mu")][0]
        for moment in (moments.mu, moments.nu):
            jax.tree.map(lambda m, p: pytest.fail("moved") if m.sharding != p.sharding else None, moment, state.params)
        shapes = driver.abstract(initial_state(model.init, optimizer, 0))
        jax.tree.map(lambda a, b: pytest.fail("other") if a.sharding != b.sharding else None, shapes, state)
    device = jax.devices()[3]
    whole, part = bytes_of(made["data=8"], device), bytes_of(made["fsdp=8"], device)
    # Norms, biases and scalars stay whole: a small rest.
    rest = sum(x.nbytes for x in jax.tree.leaves(made["fsdp=8"]) if x.sharding.is_fully_replicated)
    assert rest < 0.1 * whole
    assert part == (whole - rest) / 8 + rest


def test_a_mesh_has_automatic_axes():
    mesh = make_mesh("tensor=2,fsdp=4")  # in the order of the table, whatever the text's
    assert mesh.axis_names == ("fsdp", "tensor") and mesh.devices.shape == (4, 2)
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}
    assert dict(make_mesh({"data": 2, "fsdp": -1}).shape) == {"data": 2, "fsdp": 4}
    assert dict(make_mesh().shape) == dict(make_mesh("auto").shape) == {"fsdp": 8}
    assert partition.batch_spec(mesh) == jax.sharding.PartitionSpec(("fsdp",))
    halves = make_mesh("fsdp=2,slice=2,tensor=2")
    assert halves.axis_names == ("slice", "fsdp", "tensor")
    assert [[d.id for d in part.flat] for part in halves.devices] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert partition.batch_spec(halves) == jax.sharding.PartitionSpec(("slice", "fsdp"))


@dataclass(frozen=True)
class Chip:
    """What a mesh asks of one chip of a TPU pod."""

    id: int
    slice_index: int
    coords: tuple[int, int, int]
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"
    core_on_chip: int = 0
    process_index: int = 0


def test_slices_of_a_pod_lie_on_the_axis_slice():
    """Chips of two slices, given in any order: each half of the mesh is one slice."""
    chips = [Chip(4 * part + 2 * y + x, part, (x, y, 0)) for y in range(2) for part in range(2) for x in range(2)]
    mesh = make_mesh("slice=2,fsdp=2,tensor=-1", chips)
    assert dict(mesh.shape) == {"slice": 2, "fsdp": 2, "tensor": 2}
    assert [{chip.slice_index for chip in part.flat} for part in mesh.devices] == [{0}, {1}]
    assert dict(make_mesh("", chips).shape) == {"slice": 2, "fsdp": 4}
    for wrong in ("fsdp=8", "slice=1,fsdp=8", "slice=4,fsdp=2"):
        with pytest.raises(InputError, match='the devices come in 2 slices; name them, as in "slice=2,fsdp=4"'):
            make_mesh(wrong, chips)
    with pytest.raises(InputError, match='the devices come in one slice; did you mean "data=4,tensor=2"'):
        make_mesh("slice=2,data=2,tensor=2", [Chip(n, 0, (n % 2, n // 2, 0)) for n in range(8)])


def test_a_step_uses_up_the_state_it_is_given():
    driver = make_driver("mesh", "fsdp=4,tensor=2")
    config = SGD.replace(optimizer="adamw")
    optimizer = make_optimizer(config)
    make = initial_state(MODEL.init, optimizer, 3)
    state = driver.init(make)
    step = make_train_step(MODEL, OBJECTIVE, optimizer, config)
    batch = next(batches())
    new, _ = driver.compile(step)(state, batch)
    assert all(x.is_deleted() for x in jax.tree.leaves((state.params, state.opt_state)))
    # What a plan compiles is that program, out of shapes alone; it gives each buffer to its successor.
    memory = driver.trace(step, driver.abstract(make), batch).lower().compile().memory_analysis()
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(new))
    assert memory.alias_size_in_bytes >= 0.95 * held


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: make_mesh("dat=8"), 'mesh has no axis "dat"; did you mean "data"'),
        (
            lambda: make_mesh("data=3"),
            'mesh "data=3" does not use each of the 8 devices once: .* multiply to 8; did you mean "data=8"',
        ),
        (lambda: make_mesh("fsdp=4,tensor=3"), 'did you mean "fsdp=4,tensor=2"'),
        (lambda: make_mesh("fsdp=-1,tensor=3"), 'mesh "fsdp=-1,tensor=3" .* did you mean "fsdp=4,tensor=2"'),
        (lambda: make_mesh("data=16"), 'did you mean "data=8"'),
        (lambda: make_mesh("data=2,data=4"), "names data twice"),
        (
            lambda: make_driver("mesh", "tensor=8").init(lambda: {"classifier": {"kernel": jnp.ones((8, 3))}}),
            'tensor=8 divides no heads, FFN width or vocabulary of this model; leave "tensor" out',
        ),
        (
            lambda: make_driver("mesh", "tensor=8").abstract(lambda: {"mlp": {"up": {"kernel": jnp.ones((8, 12))}}}),
            "tensor=8 does not divide 12 FFN units of this model; the nearest sizes that do: 4$",
        ),
        (  # all heads on each device, though embeddings and FFN are split
            lambda: make_driver("mesh", "fsdp=2,tensor=4").abstract(
                lambda: heads("query", 6) | {"mlp": {"up": {"kernel": jnp.ones((8, 12))}}}
            ),
            "tensor=4 does not divide 6 heads of this model; the nearest sizes that do: 2$",
        ),
        (
            lambda: make_driver("mesh", "fsdp=2,tensor=4").init(lambda: heads("key", 3)),
            "tensor=4 does not divide 3 key-value heads of this model; leave .tensor. out",
        ),
        (lambda: make_mesh("fsdp=²"), 'mesh part "fsdp=²" is not of the form axis=size'),
        (
            lambda: make_driver("mesh", "fsdp=8").put({"row_ids": np.arange(12)}),
            "12 rows a batch cannot be split over 8 devices; make batch_size a multiple of 8, such as 16",
        ),
        (
            lambda: make_driver("mesh", "fsdp=8").trace(
                make_train_step(MODEL, OBJECTIVE, make_optimizer(SGD), SGD.replace(accumulate=4)),
                make_driver("mesh", "fsdp=8").abstract(initial_state(MODEL.init, make_optimizer(SGD), 3)),
                next(batches()),
            ),
            "4 micro-batches of 4 rows cannot be split over 8 devices; make batch_size a multiple of 32",
        ),
        (lambda: make_mesh("data"), 'mesh part "data" is not of the form axis=size'),
        (lambda: make_mesh("data=-1,fsdp=-1"), "leaves more than one size open"),
        (lambda: make_driver("jit", "data=8"), 'did you mean driver "mesh"'),
        (lambda: make_driver("pmap").put({"row_ids": np.arange(9)}), "9 rows a batch cannot be split over 8 devices"),
    ],
)
def test_bad_meshes_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
