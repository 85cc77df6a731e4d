"""The compiled step of a plan: bytes a chip, nothing whole that may be split, memory as measured; libtpu if present."""

import dataclasses
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import zoo
from train.mesh import MeshDriver, make_mesh
from train.optimizer import make_optimizer
from train.plan.between_slices import between_slices
from train.plan.chips import find_chip
from train.plan.collectives import collectives
from train.plan.compile import bytes_a_chip, compile_on, traced_step, widest_share
from train.plan.faults import faults, largest_gather
from train.plan.fitting import advice, memory_of, refuse_hopeless
from train.plan.job import make_job
from train.plan.report import Plan, make_plan, render
from train.plan.slices import Slice, parse_slice
from train.state import initial_state
from zoo import partition
from zoo.errors import InputError
from zoo.tpu_machine import has_library

EIGHT = parse_slice("v5e:2x4")
TINY = {"embed_dim": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "mlp_dim": 128,
        "vocab_size": 256}  # fmt: skip


def tiny(model="llama-tiny", mesh="fsdp=8", **changes):
    return make_job(model, EIGHT, batch=8, seq=32, mesh=mesh, changes=TINY | changes)


def driver_of(job, kind=MeshDriver):
    return kind(make_mesh(job.mesh_shape, jax.devices()))


@pytest.fixture(scope="module")
def compiled():
    job = tiny()
    return job, compile_on(job, driver_of(job))


def test_bytes_of_state(compiled):
    job, step = compiled
    numbers = sum(leaf.size for leaf in jax.tree.leaves(zoo.create(job.model).init_shapes()))
    assert step.parameters == 4 * numbers // 8 and step.whole == 0
    assert step.moments == 2 * step.parameters
    assert step.batch == 4 * (33 + 33 + 1)
    assert step.aliased == pytest.approx(step.parameters + step.moments, rel=0.01)  # the state's buffers are given away
    assert step.arguments - step.batch == pytest.approx(step.parameters + step.moments, rel=0.01)
    assert step.widest[0] == 1 / 8
    assert step.temporaries > step.parameters  # gradients at the least
    assert faults(job, step) == ()


def leaves(tree):
    return [(partition.path_string(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


@dataclasses.dataclass(frozen=True)
class WholeMoments(MeshDriver):
    """A driver that forgets to split the optimizer's moments."""

    def abstract(self, make):
        state = super().abstract(make)
        whole = NamedSharding(self.mesh, PartitionSpec())
        return state.replace(opt_state=jax.tree.map(partial(_placed, whole), state.opt_state))


@dataclasses.dataclass(frozen=True)
class WholeParameters(MeshDriver):
    """A driver that splits nothing."""

    def abstract(self, make):
        return jax.tree.map(partial(_placed, NamedSharding(self.mesh, PartitionSpec())), super().abstract(make))


@dataclasses.dataclass(frozen=True)
class SplitLayers(MeshDriver):
    """A driver that splits the stack between layers, so that the scan must gather all of them."""

    def abstract(self, make):
        split = NamedSharding(self.mesh, PartitionSpec("fsdp"))
        state = super().abstract(make)
        for name in ("mlp", "attention"):
            state.params["blocks"][name] = jax.tree.map(partial(_placed, split), state.params["blocks"][name])
        return state


def _placed(sharding, leaf):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


@pytest.mark.parametrize(
    "kind,words,layers",
    [
        (WholeMoments, "times the moments", 4),
        (WholeParameters, "a chip holds 1/1 of", 4),
        (SplitLayers, "numbers over fsdp at once", 8),
    ],
)
def test_faults_are_found(kind, words, layers):
    job = tiny(num_layers=layers)
    found = faults(job, compile_on(job, driver_of(job, kind)))
    assert any(words in line for line in found), found


@pytest.mark.parametrize("model,chip,shape", [("llama-65b", "v5p", (4, 4, 8)), ("llama3-70b", "v5p", (4, 4, 8))])
def test_everything_is_split_at_full_size(model, chip, shape):
    """No parameter or moment above 1/100 of its size on any chip."""
    job = make_job(model, Slice(find_chip(chip), shape), batch=128, seq=2048)
    sizes = job.mesh_shape
    state = jax.eval_shape(initial_state(zoo.create(job.model).init, make_optimizer(job.train), 0))
    mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    total = held = 0
    for tree in (state.params, state.opt_state):
        for path, leaf in leaves(tree):
            if leaf.ndim == 0:
                continue
            spec = partition.shardings(mesh, {path: leaf})[path]
            shard = int(np.prod(spec.shard_shape(leaf.shape)))
            assert 100 * shard <= leaf.size, path
            total, held = total + leaf.size, held + shard
    assert 100 * held < total
    assert largest_gather(job) < total / 100


def test_a_plan_says_it_all_and_survives_json(compiled):
    job, step = compiled
    plan = make_plan(job, step)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict(1e12)))) == plan
    assert plan.to_dict(1e12)["cost"]["chip_hours"] == list(plan.chip_hours(1e12))
    assert plan.compiler == "cpu" and plan.fits
    assert plan.memory["total"] == step.total
    assert sum(plan.memory[part] for part in plan.memory if part != "total") == pytest.approx(step.total, rel=0.01)
    text = render(plan, 1e12)
    for words in ("fits:", "not by libtpu", "moments", "all-gather over fsdp", "MFU", "1 T tokens", plan.command):
        assert words in text
    again = plan.command.split()
    assert again[again.index("--mesh") + 1] == "fsdp=8"


@pytest.mark.parametrize("model", ["bert-tiny", "gpt2-tiny"])
def test_other_families(model):
    job = tiny(model, mesh="fsdp=4,tensor=2", **({"num_kv_heads": 4}))
    traced, state, batch = traced_step(job, driver_of(job))
    assert job.train.objective == ("masked_lm" if "bert" in model else "next_token")
    assert batch["tokens"].shape == (8, 32 + (job.train.objective == "next_token"))
    assert widest_share(state.params, job.mesh_shape)[0] <= 1 / 4
    assert bytes_a_chip(state.opt_state) > 1.9 * bytes_a_chip(state.params)
    assert traced.jaxpr.out_avals


def test_rows_of_128k_tokens_fit_by_formula():
    """README's plan of long rows: 16 of them on 256 chips, state and tokens in parts over both axes."""
    words = {"batch": 16, "seq": 131_072, "mesh": "fsdp=16,sequence=16", "changes": {"attention_kernel": "ring"}}
    job = make_job("llama-7b", parse_slice("v5e:16x16"), **words)
    found = memory_of(job)
    assert found["parameters"] == pytest.approx(4 * 6_738_415_616 / 256, rel=0.01) and job.model.remat == "full"
    assert found["activations kept"] == 2 * 32 * 4096 * 131_072 / 16  # bfloat16, a layer's stream of a chip's tokens
    assert sum(found.values()) < job.slice.chip.hbm_bytes
    whole = make_job("llama-7b", parse_slice("v5e:16x16"), **words | {"mesh": "fsdp=16,tensor=16", "changes": {}})
    assert sum(memory_of(whole).values()) > job.slice.chip.hbm_bytes
    assert "it would with --remat full --mesh fsdp=16,sequence=16 (about" in advice(whole)


def test_long_rows_are_split_in_the_compiled_step():
    """The same plan small: four chips share a row, and none has a row's scores, its keys, or a parameter whole."""
    length = 512
    job = make_job("llama-tiny", EIGHT, batch=2, seq=length, mesh="fsdp=2,sequence=4",
                   changes=TINY | {"num_layers": 2, "attention_kernel": "ring"})  # fmt: skip
    step = compile_on(job, driver_of(job))
    assert step.widest[0] == 1 / 8 and step.whole == 0 and faults(job, step) == ()
    shapes = [tuple(map(int, found.split(","))) for found in re.findall(r"(?:f32|bf16)\[([\d,]+)\]", step.text)]
    assert any(length // 4 in shape for shape in shapes) and not any(length in shape for shape in shapes)
    assert any(row.kind == "collective-permute" and row.axes == ("sequence",)
               for row in collectives(step.text, job.mesh_shape, "cpu"))  # fmt: skip


def test_what_cannot_fit_says_what_would():
    job = make_job("llama-65b", parse_slice("v5e:2x4"), batch=8, seq=2048)
    with pytest.raises(InputError) as caught:
        refuse_hopeless(job)
    assert "cannot fit" in str(caught.value) and "--slice v5e:" in str(caught.value)
    light = make_job("llama-7b", parse_slice("v5e:16x16"), batch=4096, seq=2048, changes={"remat": "none"})
    assert "--remat full" in advice(light)
    refuse_hopeless(light)


def test_planned_memory_is_what_a_run_takes():
    """Within 20 % of the peak of resident memory that eight devices' step adds to a process."""
    script = Path(__file__).with_name("measured_step.py")
    ended = subprocess.run([sys.executable, script, "fsdp=8", "full"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert found["planned"] > 2 * found["state"]
    assert found["planned"] == pytest.approx(found["measured"], rel=0.2)


@pytest.mark.skipif(not has_library(), reason="libtpu is not installed")
def test_libtpu_compiles_a_tiny_step(tmp_path):
    """In a process of its own, as the command runs: libtpu keeps what it has read of the environment."""
    plan = compiled_by_libtpu(tmp_path, "--slice", "v5e:2x2", "--batch", "8")
    assert plan.memory["parameters"] < plan.parameters * 4 / 4 * 1.02
    assert any(row["kind"] == "all-gather" and row["axes"] == ["fsdp"] for row in plan.collectives)


@pytest.mark.skipif(not has_library(), reason="libtpu is not installed")
def test_libtpu_compiles_a_tiny_step_of_two_slices(tmp_path):
    """Weights stay within a slice; between them gradients alone travel, as sums in float32."""
    plan = compiled_by_libtpu(tmp_path, "--slice", "2xv5e:2x2", "--batch", "16")
    assert (plan.mesh, plan.chips) == ("slice=2,fsdp=4", 8)
    rows = {(row["kind"], *row["axes"]): row for row in plan.collectives}
    assert {kind for kind, *axes in rows if "slice" in axes} == {"all-reduce"}
    assert ("all-gather", "fsdp") in rows and not any({"slice", "fsdp"} <= set(axes) for _, *axes in rows)
    config = zoo.create("llama-tiny").config
    table, sent = 4 * config.vocab_size * config.embed_dim, rows["all-reduce", "slice"]["payload"]
    least = 4 * plan.parameters / 4  # each chip's part
    # libtpu sums the token table's gradient over slices before it cuts it, where the formula has a chip's part.
    assert least < sent < 1.3 * (least - table / 4 + table)


def compiled_by_libtpu(folder, *words):
    """The plan of llama-tiny, rows of 32."""
    path = folder / "plan.json"
    command = [sys.executable, "-m", "train", "plan", "--model", "llama-tiny", "--seq", "32", "--json", str(path)]
    ended = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stderr == ""
    plan = Plan.from_dict(json.loads(path.read_text()))
    assert plan.compiler == "tpu" and plan.fits and plan.faults == () and "compiled by libtpu" in ended.stdout
    assert f"  {plan.command}\n" in ended.stdout and f"  {plan.run}\n" in ended.stdout
    return plan


SENT = """HloModule step, is_scheduled=true

%body (p: (s32[], f32[1024,8,128])) -> (s32[], f32[1024,8,128]) {
  %p = (s32[], f32[1024,8,128]) parameter(0)
  %part = f32[1024,8,128] get-tuple-element(%p), index=1
  %t = token[] after-all()
  %send.1 = (f32[1024,8,128], u32[], token[]) send(%part, %t), channel_id=2, is_host_transfer=true, \
frontend_attributes={_xla_megascale_reduce_operation="SUM",_xla_megascale_transfer_type="ALL_REDUCE"}
  ROOT %r = (s32[], f32[1024,8,128]) tuple(%part)
}

%condition (p.1: (s32[], f32[1024,8,128])) -> pred[] {
  %p.1 = (s32[], f32[1024,8,128]) parameter(0)
  ROOT %always = pred[] constant(true)
}

ENTRY %main (x: f32[1024,8,128]) -> (s32[], f32[1024,8,128]) {
  %x = f32[1024,8,128] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[1024,8,128]) tuple(%zero, %x)
  ROOT %loop = (s32[], f32[1024,8,128]) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_sums_between_slices_are_read_from_what_goes_to_the_host():
    (found,) = between_slices(SENT, 4)
    assert (found.kind, found.axes, found.group, found.count) == ("all-reduce", ("slice",), 4, 5)
    assert found.payload == 4 * 2**20 and found.wire == 2 * 3 / 4 * 4 * 2**20
    assert between_slices(SENT, 1) == []
