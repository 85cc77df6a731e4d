"""Rooflines: links of a torus, times by hand, ranges that hold published runs, and formulas on real sizes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import zoo
from tests.train import published_runs
from tests.train.published_runs import PUBLISHED, SEQ
from train.config import TrainConfig
from train.mesh import make_mesh
from train.plan import formulas
from train.plan.chips import CHIPS, chip_of, find_chip
from train.plan.collectives import KINDS, collectives, make
from train.plan.formulas import Work
from train.plan.roofline import BEST, HOP, WORST, as_run, collective_seconds, estimate, lay_out, predict
from train.plan.slices import parse_slice, tpu_devices
from zoo.errors import InputError
from zoo.tpu_machine import has_library


def test_chips_are_whole_and_found():
    kinds = [kind for chip in CHIPS.values() for kind in chip.device_kinds]
    assert len(kinds) == len(set(kinds)) and all(CHIPS[name].name == name for name in CHIPS)
    for chip in CHIPS.values():
        assert (
            1e13 < chip.bf16_flops < 1e16 and 1e9 < chip.dcn_bandwidth <= chip.link_bandwidth * 2 < chip.hbm_bandwidth
        )
        assert chip.torus in (0, 2, 3) and bool(chip.torus) == bool(chip.ring) and set(chip.source) <= set("GSN")
    assert chip_of("TPU v5 lite") is find_chip("v5e") and chip_of("cpu") is None
    assert find_chip("v5e").bf16_flops == 197e12 and find_chip("h100").hbm_bytes == 80 * 2**30
    with pytest.raises(InputError, match='did you mean "v5e"'):
        find_chip("v5ee")


@pytest.mark.parametrize(
    "mesh,topology,layout",
    [
        ({"fsdp": 256}, (16, 16), {"fsdp": [(1, 16), (0, 16)]}),
        ({"data": 16, "fsdp": 16}, (16, 16), {"data": [(0, 16)], "fsdp": [(1, 16)]}),
        ({"fsdp": 64, "tensor": 4}, (16, 16), {"tensor": [(0, 4)], "fsdp": [(0, 4), (1, 16)]}),
        ({"fsdp": 16, "tensor": 4}, (4, 4, 4), {"tensor": [(2, 4)], "fsdp": [(1, 4), (0, 4)]}),
        ({"fsdp": 8, "tensor": 16}, (4, 4, 8), {"tensor": [(1, 4), (0, 4)], "fsdp": [(2, 8)]}),
        ({"slice": 2, "data": 1, "fsdp": 8}, (2, 4), {"fsdp": [(1, 4), (0, 2)]}),
    ],
)
def test_meshes_on_a_torus(mesh, topology, layout):
    assert {axis: sorted(parts) for axis, parts in lay_out(mesh, topology).items()} == {
        axis: sorted(parts) for axis, parts in layout.items()
    }


def test_times_of_collectives_by_hand():
    v5e, link = find_chip("v5e"), 45e9
    whole, rows = {"fsdp": 256}, {"data": 16, "fsdp": 16}
    gather = make("all-gather", ("fsdp",), whole, 256e9, 2)
    # Two closed rings, two links in each.
    assert collective_seconds(gather, v5e, (16, 16), whole) == pytest.approx(2 * (255e9 / (4 * link) + 16 * HOP))
    one = make("all-gather", ("fsdp",), rows, 16e9, 1)
    assert collective_seconds(one, v5e, (16, 16), rows) == pytest.approx(15e9 / (2 * link) + 8 * HOP)
    line = make("all-gather", ("fsdp",), {"fsdp": 8}, 8e9, 1)  # 2 x 4: lines, not rings
    assert collective_seconds(line, v5e, (2, 4), {"fsdp": 8}) == pytest.approx(7e9 / (2 * link) + 3 * HOP)
    # Over all of a torus a TPU sums whole arrays: twice the bytes over twice the links, as long as over one dimension.
    scatter = make("reduce-scatter", ("fsdp",), whole, 256e9, 1)
    run = as_run(scatter, v5e, (16, 16), whole)
    assert (run.wire, run.least, run.sliced) == (2 * 255e9, 255e9, True)
    assert as_run(make("reduce-scatter", ("fsdp",), rows, 1e9, 1), v5e, (16, 16), rows).sliced is False
    assert collective_seconds(run, v5e, (16, 16), whole) == pytest.approx(255e9 / (2 * link) + 16 * HOP)
    # Between slices: what a chip holds after the sum within its slice, over the data-centre network.
    two = {"slice": 2, "fsdp": 16}
    across = make("all-reduce", ("slice",), two, 1e9, 1)
    assert collective_seconds(across, v5e, (4, 4), two) == pytest.approx(1e9 / v5e.dcn_bandwidth)
    both = make("all-reduce", ("slice", "fsdp"), two, 16e9, 1)
    inside = 2 * 15e9 / (2 * link) + 4 * HOP  # 4 x 4 is not closed: one link a dimension
    assert collective_seconds(both, v5e, (4, 4), two) == pytest.approx(1e9 / v5e.dcn_bandwidth + inside)
    # GPUs: a switch within the host, the network between hosts.
    h100 = find_chip("h100")
    near = make("all-gather", ("fsdp",), {"fsdp": 8}, 8e9, 1)
    assert collective_seconds(near, h100, (8,), {"fsdp": 8}) == pytest.approx(7e9 / 450e9 + HOP)
    far = make("all-gather", ("fsdp",), {"fsdp": 16}, 16e9, 1)
    assert collective_seconds(far, h100, (16,), {"fsdp": 16}) == pytest.approx(1e9 / 50e9 + 14e9 / 450e9 + HOP)


def test_prediction_by_hand():
    v5e = find_chip("v5e")
    gather = make("all-gather", ("fsdp",), {"fsdp": 256}, 256e9, 1)
    found = predict(
        model_flops=3 * 256 * 197e12, hardware_flops=4 * 256 * 197e12, traffic=819e9, collectives=[gather],
        tokens=1e6, chip=v5e, chips=256, topology=(16, 16), mesh_shape={"fsdp": 256},
    )  # fmt: skip
    wires = 255e9 / 180e9 + 16 * HOP
    assert (found.compute, found.memory) == pytest.approx((4, 1)) and found.interconnect == pytest.approx(wires)
    assert found.step == pytest.approx((4 / BEST, 4 / WORST + 1 + wires))
    assert found.mfu == pytest.approx((3 / found.step[0], 3 / found.step[1]))
    assert found.chip_hours(3.6e9)[0] == pytest.approx(3600 * found.step[0] * 256 / 3600)
    assert "compute takes longest" in found.assumptions[0]


def published(name):
    """(Estimate of a published run, its seconds a step)."""
    where, train = parse_slice(PUBLISHED[name][0]), TrainConfig(batch_size=published_runs.batch(name), seq_len=SEQ)
    model, sizes = zoo.create("llama-7b", **published_runs.fields(name)).config, published_runs.mesh_shape(name)
    # They sum gradients in the dtype of their products; the step here sums in float32.
    found = estimate(model, train, sizes, where.chip, where.shape, gradient_bytes=2)
    return found, published_runs.seconds(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_runs_lie_in_the_range(name):
    """The range holds each of them, and its middle is within 16 % (README.md has the table)."""
    found, seconds = published(name)
    best, worst = found.prediction.step
    assert best < seconds < worst
    assert (best + worst) / 2 == pytest.approx(seconds, rel=0.16)


def test_estimate_at_full_size():
    """LLaMA-7B on 256 chips: each of its parts by hand."""
    model = zoo.create("llama-7b", scan=True, remat="full", dtype="bfloat16").config
    train = TrainConfig(batch_size=256, seq_len=2048)
    found = estimate(model, train, {"fsdp": 256}, find_chip("v5e"), (16, 16))
    state = found.memory["parameters"] + found.memory["moments"]
    assert state == pytest.approx(12 * 6_738_415_616 / 256)
    assert found.memory["activations kept"] == 32 * 2048 * 4096 * 2
    assert found.model_flops == pytest.approx(6 * 6.61e9 * 256 * 2048, rel=0.06)  # attention is the rest
    assert 1.25 < found.hardware_flops / found.model_flops < 1.4
    # Two gathers in bfloat16 and one scatter in float32 of all but the embedding's table.
    sent = {kind: sum(c.count * c.payload for c in found.collectives if c.kind == kind) for kind in KINDS}
    assert sent["all-gather"] == pytest.approx(2 * 2 * 6.6e9, rel=0.03)
    assert sent["reduce-scatter"] == pytest.approx(4 * 6.6e9, rel=0.03)


def test_what_is_written_to_memory():
    base = zoo.create("llama-7b", scan=True, dtype="bfloat16").config
    train, mesh = TrainConfig(batch_size=256, seq_len=2048), {"fsdp": 256}
    assert formulas.traffic(Work(base, train, mesh))["scores"] > 0
    assert "scores" not in formulas.traffic(Work(base.replace(attention_kernel="splash"), train, mesh))
    assert "scores" not in formulas.traffic(Work(base, train, mesh, "tpu"))  # where "auto" is splash


@pytest.mark.skipif(not has_library(), reason="libtpu is not installed")
def test_what_libtpu_makes_of_a_scatter():
    """Both printed forms of a psum_scatter are read as one: fused on one ring; all summed, then cut, on a torus."""

    def scatter(x):
        return jax.lax.psum_scatter(x[0], "fsdp", scatter_dimension=0, tiled=True)

    for name, sliced in (("v5e:4x8", False), ("v5e:4x4", True)):
        where = parse_slice(name)
        mesh = make_mesh({"fsdp": where.chips}, tpu_devices(where))
        spread = PartitionSpec("fsdp")
        mapped = jax.shard_map(scatter, mesh=mesh, in_specs=spread, out_specs=spread)
        x = jax.ShapeDtypeStruct(
            (where.chips, 1024, 512), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, spread)
        )
        text = jax.jit(mapped).trace(x).lower(lowering_platforms=("tpu",)).compile().as_text()
        (one,) = collectives(text, {"fsdp": where.chips})
        assert (one.kind, one.axes, one.payload, one.sliced) == ("reduce-scatter", ("fsdp",), 1024 * 512 * 4, sliced)
        assert one.least == pytest.approx(one.payload * (where.chips - 1) / where.chips)
        assert one.wire == pytest.approx(one.least * (1 + sliced))
