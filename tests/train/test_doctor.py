"""`train doctor`: in two real processes; the exchange it measures; its bench of a step, beside the plan's."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import zoo
from tests.train.processes import ROOT, environment, free_port, told_by
from train import distributed, interconnect, metrics, step_speed
from train.config import TrainConfig
from train.distributed import Job, cluster_of, find_job
from train.plan.chips import find_chip
from train.plan.roofline import estimate
from zoo import tpu_machine
from zoo.errors import InputError


def doctors(folder, devices):
    """Exit codes, outputs and errors of a doctor a process, each with so many devices."""
    port, running = str(free_port()), []
    for number, count in enumerate(devices):
        env = environment(count) | told_by("Slurm", len(devices), number) | {"JAX_COORDINATOR_PORT": port}
        words = [sys.executable, "-m", "train", "doctor", "--run-folder", str(folder), "--join-within", "60"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(words, env=env, cwd=ROOT, **pipes))
    ended = [process.communicate(timeout=240) for process in running]
    return [process.returncode for process in running], *zip(*ended, strict=True)


def test_two_processes_are_seen_exchange_share_a_folder_and_train(tmp_path):
    """Of other numbers of devices, too, which it says."""
    codes, (said, other), errors = doctors(tmp_path / "runs", (2, 1))
    assert codes == [0, 0], errors
    assert "2 processes on 1 host, 3 devices in all" in said and re.search(r"process 1: \S+, 1 device\n", said)
    assert "look at this: processes have 1 or 2 devices; a mesh needs as many in each" in said
    assert "writable, and shared by all processes" in said and not list((tmp_path / "runs").iterdir())
    for kind in ("all-reduce", "all-gather"):
        assert re.search(rf"{kind} over 3 devices, 1 MiB: .* GB/s", said)
        assert re.search(rf"{kind} over 2 processes, 1 MiB: .* GB/s", said)
    assert re.search(r"test training on 3 devices: loss 4\.\d+ -> [0-2]\.\d+", said)
    others = [line for line in other.splitlines() if not line.startswith("[Gloo]")]
    assert others == [] and not any(errors)  # the first alone speaks


def test_processes_of_other_numbers_of_devices_exchange_with_as_many_as_the_fewest_have(monkeypatch):
    devices = jax.devices()
    monkeypatch.setattr(interconnect, "by_process", lambda _: [devices[:5], devices[5:]])
    found = [(one.kind, one.ways, one.across, one.payload) for one in interconnect.measure(devices, 240, 1)]
    assert found == [
        ("all-reduce", 8, "devices", 240),
        ("all-gather", 8, "devices", 4 * 8 * (60 // 8)),
        ("all-reduce", 2, "processes", 240),
        ("all-gather", 2, "processes", 240),
    ]


def test_sums_over_any_pod_are_exact_in_float32():
    """12,288 chips: the whole numbers below would add up to more than 2^24, after which float32 skips odd ones."""
    numbers = np.arange(12_288)
    sums = np.cumsum(interconnect.given(numbers).astype(np.float32), dtype=np.float32)
    assert sums[-1] == interconnect.given(numbers).sum() < 2**24
    assert len(set(interconnect.given(numbers[:1000]))) == 1000


def test_a_sum_that_comes_out_wrong_is_the_interconnects(monkeypatch):
    monkeypatch.setattr(interconnect.jax.lax, "psum", lambda x, axes: jax.lax.pmax(x, axes))
    with pytest.raises(InputError, match="all-reduce over process and device came out wrong"):
        list(interconnect.measure(jax.devices(), 64, 1))


TINY = {"vocab_size": 64, "embed_dim": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "mlp_dim": 64,
        "max_positions": 32}  # fmt: skip


def test_the_bench_says_what_was_measured_beside_the_plan(monkeypatch):
    """As if a CPU were a v5e of 197 TFLOP/s."""
    for module in (step_speed, metrics):
        monkeypatch.setattr(module, "chip_of", lambda kind: find_chip("v5e"))
    first, measured, planned = step_speed.bench(TINY, rows=2)
    count = 2 * 64 * 32 + 4 * 32 * 32 + 3 * 32 * 64 + 3 * 32
    assert first == f"bench: LLaMA of {count / 1e6:.3g} M parameters, 16 rows of 32 tokens, fsdp=8, float32"
    number = r"([\d,.]+(?:e[-+]\d+)?)"
    found = re.fullmatch(rf"measured: {number} ms a step, {number} tokens/s, MFU {number}%", measured)
    seconds, rate, share = (float(text.replace(",", "")) for text in found.groups())
    assert rate == pytest.approx(16 * 32 / (seconds / 1e3), rel=0.2)  # printed in tenths of a millisecond
    per_token = 3 * (2 * (64 * 32 + 4 * 32 * 32 + 3 * 32 * 64) + 4 * 32 * 16.5)
    assert share == pytest.approx(100 * rate * per_token / (8 * 197e12), abs=0.051)
    best, worst, low, high = map(float, re.findall(r"([\d.]+)", planned.split(" (by")[0]))
    train = TrainConfig(batch_size=16, seq_len=32)
    plan = estimate(zoo.create("llama-7b", **TINY).config, train, {"fsdp": 8}, find_chip("v5e")).prediction
    assert (best, worst) == pytest.approx([1e3 * time for time in plan.step], abs=0.051)
    assert (low, high) == pytest.approx([100 * share for share in reversed(plan.mfu)], abs=0.051)
    assert "by formula" in planned


def test_a_bench_that_does_not_fit_says_so(monkeypatch):
    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")

    monkeypatch.setattr(step_speed, "_seconds", full)
    with pytest.raises(InputError, match="the bench's step does not fit the memory of cpu; it needs about"):
        list(step_speed.bench(TINY))


MPI = {"PMI_SIZE": "4", "PMI_RANK": "3"}


def test_mpich_and_intel_mpi_are_found(monkeypatch):
    """By what their mpiexec sets: where the first process is, a coordinator that is given says, or mpi4py."""
    assert cluster_of(MPI) == "MPI" and cluster_of({"PMI_SIZE": "1", "PMI_RANK": "0"}) == ""
    assert find_job("a:1", environ=MPI) == Job("a:1", 4, 3, "options")
    assert find_job(environ=MPI | {"JAX_COORDINATOR_ADDRESS": "a:1"}) == Job("a:1", 4, 3, "options")
    monkeypatch.setattr(distributed.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="MPI has started 4 processes, .* pip install mpi4py, or give coordinator"):
        find_job(environ=MPI)
    monkeypatch.setattr(distributed.importlib.util, "find_spec", lambda name: name)
    assert find_job(environ=MPI) == Job(cluster="MPI")
    asked = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: asked.update(options))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    assert distributed.join(Job(cluster="MPI")) is False and asked["cluster_detection_method"] == "mpi4py"


@pytest.mark.parametrize("platforms,cluster", [("tpu", "Cloud TPU"), ("tpu,cpu", "Cloud TPU"), ("", "Cloud TPU"),
                                               (None, "Cloud TPU"), ("cpu", "")])  # fmt: skip
def test_a_cloud_tpu_is_one_whatever_stands_behind_it(monkeypatch, platforms, cluster):
    monkeypatch.setattr(distributed, "on_tpu_machine", lambda: True)
    assert cluster_of({} if platforms is None else {"JAX_PLATFORMS": platforms}) == cluster


@pytest.mark.parametrize("name", ["JAX_NUM_PROCESSES", "JAX_PROCESS_ID"])
def test_a_small_two_is_no_number(name):
    with pytest.raises(InputError, match=f'{name} is "²"; it must be a whole number'):
        find_job(environ={name: "²"})
    with pytest.raises(InputError, match="not of the form host:port"):
        find_job("a:²", 2, 0, environ={})
    assert cluster_of({"OMPI_COMM_WORLD_SIZE": "²"}) == ""


@pytest.mark.parametrize(
    "vendor,device,chips",
    [("0x1ae0", "0x0063", True), ("0x1ae0", "0x0042", False), ("0x10de", "0x2330", False), ("", "", False)],
)
def test_what_is_handed_through_is_a_tpu_by_the_bus(monkeypatch, tmp_path, vendor, device, chips):
    """A v5e, Google's network card, an NVIDIA GPU, a bus that tells nothing."""
    card = tmp_path / "bus" / "0000:00:04.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "device").write_text(f"{device}\n")
    (tmp_path / "vfio0").touch()
    monkeypatch.setattr(tpu_machine, "GIVEN", str(tmp_path / "accel[0-9]*"))
    monkeypatch.setattr(tpu_machine, "HANDED_THROUGH", str(tmp_path / "vfio[0-9]*"))
    monkeypatch.setattr(tpu_machine, "ON_THE_BUS", str(tmp_path / "bus" / "*"))
    assert tpu_machine.has_chips() is chips
    (tmp_path / "vfio0").unlink()
    assert tpu_machine.has_chips() is False
    (tmp_path / "accel0").touch()
    assert tpu_machine.has_chips() is True
