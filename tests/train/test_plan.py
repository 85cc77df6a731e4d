"""`train plan` without libtpu: slices by name, jobs and their errors, the step compiled for virtual CPU devices."""

import math

import jax
import pytest

from train.config import RunConfig, TrainConfig
from train.mesh_axes import default_axes, make_mesh
from train.plan import compile as compiling
from train.plan import slices
from train.plan.chips import find_chip
from train.plan.commands import tokens_of
from train.plan.job import make_job
from train.plan.slices import PLANNED, Slice, larger, parse_slice, shapes
from zoo.errors import InputError


@pytest.mark.parametrize(
    "name,topology,count,chips",
    [
        ("v5e:16x16", "v5e:16x16", 1, 256),
        ("v5p:4x4x8", "v5p:4x4x8", 1, 128),
        ("2xv5e:4x8", "v5e:4x8", 2, 64),
        ("V6E:2x4", "v6e:2x4", 1, 8),
        ("v5litepod-16", "v5e:4x4", 1, 16),
        ("v5p-256", "v5p:4x4x8", 1, 128),
        ("v4-16", "v4:2x2x2", 1, 8),
        ("4xv6e-256", "v6e:16x16", 4, 1024),
    ],
)
def test_slice_names(name, topology, count, chips):
    found = parse_slice(name)
    assert (found.topology, found.count, found.chips) == (topology, count, chips)
    assert parse_slice(str(found)) == found


@pytest.mark.parametrize(
    "name,words",
    [
        ("v5e:16x15", 'did you mean "v5e:16x16" (256 chips)'),
        ("v5e:16x32", 'did you mean "v5e:16x16" (256 chips)'),
        ("v5p:4x4", 'did you mean "v5p:2x2x4" (16 chips)'),
        ("v5p:8x4x4", 'did you mean "v5p:4x4x8" (128 chips)'),
        ("0xv5p-256", 'did you mean "v5p-256"'),
        ("v5p-0", 'did you mean "v5p-8"'),
        ("v5p-100", 'did you mean "v5p:4x4x4" (64 chips)'),
        ("v5ee:16x16", 'did you mean "v5e"'),
        ("v5litpod-16", 'did you mean "v5litepod"'),
        ("sixteen", "such as v5e:16x16"),
        ("v3:4x4", "each v3 chip as 2 devices, and a plan counts one a chip; plan for one of v4, v5e, v5p, v6e"),
        ("tpu7x:4x4x4", "jax sees each tpu7x chip as 2 devices"),
        ("7x:4x4x4", "jax sees each tpu7x chip as 2 devices"),
        ("v3-8", "jax sees each v3 chip as 2 devices"),
    ],
)
def test_slices_that_do_not_exist(name, words):
    with pytest.raises(InputError) as caught:
        parse_slice(name)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_every_slice_has_a_larger_one_but_the_largest():
    assert set(PLANNED) == {"v4", "v5e", "v5p", "v6e"}
    for chip in map(find_chip, PLANNED):
        sizes = [math.prod(shape) for shape in shapes(chip)]
        assert sizes == sorted(sizes) and sizes[0] == 1
        first = parse_slice(f"{chip.name}:{'x'.join(map(str, shapes(chip)[0]))}")
        grown = [slice.chips for slice in larger(first)]
        assert all(b >= 2 * a for a, b in zip([1, *grown], grown, strict=False))
        assert grown[-1] > max(sizes) / 2


def test_tokens():
    assert tokens_of("") is None
    assert tokens_of("1T") == 1e12 and tokens_of("300b") == 3e11 and tokens_of("2e11") == 2e11
    for text in ("1X", "-1B", "nan", "T"):
        with pytest.raises(InputError, match="1T, 300B"):
            tokens_of(text)


@pytest.mark.parametrize(
    "slice,options,mesh",
    [
        ("v5e:16x16", {"batch": 512}, "fsdp=256"),
        ("v5e:16x16", {"batch": 64, "reaching": True}, "fsdp=64,tensor=4"),
        ("v5e:16x16", {"batch": 512, "accumulate": 8, "reaching": True}, "fsdp=64,tensor=4"),
        ("2xv5e:4x4", {"batch": 8, "reaching": True}, "slice=2,fsdp=4,tensor=4"),
        ("v5e:16x16", {"batch": 512, "mesh": "auto"}, "fsdp=256"),
        ("v5e:16x16", {"batch": 512, "mesh": "tensor=4,fsdp=-1"}, "fsdp=64,tensor=4"),
        ("2xv5e:4x4", {"batch": 64}, "slice=2,fsdp=16"),
        ("2xv5e:4x4", {"batch": 64, "mesh": "fsdp=8,tensor=2"}, "slice=2,fsdp=8,tensor=2"),
    ],
)
def test_default_mesh(slice, options, mesh):
    assert make_job("llama-7b", parse_slice(slice), **options).train.mesh == mesh


def test_without_a_mesh_the_plan_is_of_the_mesh_of_a_run_without_one(tmp_path):
    job = make_job("llama-tiny", parse_slice("v5e:2x4"), batch=8, seq=32)
    assert job.mesh_shape == dict(make_mesh("", jax.devices()[:8]).shape)
    chip = type("Chip", (), {"platform": "tpu"})
    devices = [type("Chip", (chip,), {"slice_index": part})() for part in (0, 0, 1, 1)]
    two = make_job("llama-tiny", Slice(find_chip("v5e"), (2, 1), 2), batch=8, seq=32)
    assert two.mesh_shape == default_axes(devices)
    train = TrainConfig(driver="mesh", mesh="fsdp=-1,tensor=2", batch_size=8)
    RunConfig(job.model, train).save(tmp_path / "config.json")
    for name, mesh in ((tmp_path, "fsdp=4,tensor=2"), (tmp_path / "config.json", "fsdp=4,tensor=2")):
        assert make_job(str(name), parse_slice("v5e:2x4")).train.mesh == mesh
    assert make_job(str(tmp_path), parse_slice("v5e:2x4"), mesh="fsdp=8").train.mesh == "fsdp=8"


@pytest.mark.parametrize(
    "model,options,words",
    [
        ("llama-7c", {}, 'did you mean "llama-7b"'),
        ("llama-7b", {"mesh": "fdsp=256"}, 'did you mean "fsdp"'),
        ("llama-7b", {"mesh": "fsdp=100"}, "has 100 places and v5e:16x16 has 256 chips"),
        ("llama-7b", {"mesh": "fsdp=-1,tensor=3"}, "3 does not divide the 256 chips"),
        ("llama-7b", {"mesh": "fsdp=-1,tensor=64"}, "tensor=64 does not divide 32 heads"),
        (
            "llama-7b",
            {"mesh": "fsdp=16,sequence=16", "seq": 2040, "batch": 256},
            "sequence=16 does not divide seq_len 2040; the nearest sizes that do: 4, 8; the nearest lengths for 16: "
            "2032, 2048",
        ),
        ("llama-7b", {"mesh": "fsdp=big"}, "not of the form axis=size"),
        ("llama-7b", {"mesh": "fsdp=256", "batch": 128}, "give --batch 256"),
        ("llama-7b", {"mesh": "fsdp=256", "batch": 256, "accumulate": 4}, "give --batch 1024"),
        ("llama-7b", {"batch": 3}, "batch 3 is too small or uneven for mesh fsdp=256"),
        ("llama-7b", {"batch": 64}, "give --batch 256 or --mesh fsdp=64,tensor=4"),
        ("llama-33b", {"mesh": "fsdp=32,tensor=8"}, "tensor=8 does not divide 52 heads"),
        ("llama-7b", {"mesh": "slice=4,fsdp=64"}, 'come in one slice; did you mean "data=4,fsdp=64"'),
        ("bert-large", {"seq": 1024}, "learned 512 positions"),
        ("llama-7b", {"changes": {"remat": "everything"}}, "remat"),
    ],
)
def test_bad_jobs(model, options, words):
    with pytest.raises(InputError) as caught:
        make_job(model, parse_slice("v5e:16x16"), **{"batch": 256} | options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("mesh", ["slice=1,fsdp=512", "slice=4,fsdp=128"])
def test_slices_are_those_of_the_pod(mesh):
    """As a run on the pod has it: train.mesh_axes.make_mesh."""
    with pytest.raises(InputError, match='come in 2 slices; name them, as in "slice=2,fsdp=256"'):
        make_job("llama-7b", parse_slice("2xv5e:16x16"), batch=512, mesh=mesh)


def test_without_libtpu_the_cpus_compiler_stands_in(monkeypatch):
    taken = []
    for module in (compiling, slices):
        monkeypatch.setattr(module, "has_library", lambda: False)
    monkeypatch.setattr(
        compiling, "compile_on", lambda job, driver, compiler, say: taken.append((driver.mesh.size, compiler))
    )
    job = make_job("llama-tiny", parse_slice("v5e:2x4"), batch=8, seq=32)
    compiling.compile_step(job)
    assert taken == [(8, "cpu")]
    with pytest.raises(InputError, match=r'pip install "oneblock\[plan\]", or --compiler cpu'):
        compiling.compile_step(job, "tpu")
