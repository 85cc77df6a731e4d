"""`python -m train doctor`: what this machine and the job have, what is usually wrong, and whether training works."""

import glob
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from train.distributed import cluster_of, gather, on_tpu_machine, versions
from zoo.errors import InputError

# Flags that experiments leave behind, and what they do to a run.
LEFTOVERS = {
    "xla_force_host_platform_device_count": "makes several devices of one CPU",
    "xla_backend_optimization_level": "leaves code unoptimised",
    "xla_dump_to": "writes every program to disk",
    "xla_disable_hlo_passes": "leaves compiler passes out",
}


def examine(run_folder: Path | None = None, bench: bool = False) -> Iterator[str]:
    """Lines about versions, devices, processes, folders, exchange between devices, and a test training.

    Args:
        run_folder: look whether all processes share this folder.
        bench: also time a step; see train/step_speed.py.

    Raises:
        InputError: what does not work.
    """
    import jax

    from train.interconnect import measure
    from train.metrics import peak_flops
    from zoo.packages import cache_folder

    yield f"python {platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield ", ".join(f"{name} {version}" for name, version in versions().items() if name not in ("python", "code"))
    yield from _processes()
    for device in jax.local_devices():
        peak = peak_flops(device)
        memory = (device.memory_stats() or {}).get("bytes_limit")
        facts = [f"{memory / 2**30:.1f} GiB"] if memory else []
        facts.append(f"published bf16 peak {peak / 1e12:g} TFLOP/s" if peak else "no published peak: MFU is not shown")
        yield f"device {device.id}: {device.device_kind} ({', '.join(facts)})"
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    yield f"cache folder {cache}: {'writable' if os.access(cache, os.W_OK) else 'NOT writable; set ONEBLOCK_CACHE'}"
    for line in mistakes(os.environ, jax.default_backend(), jax.process_count()):
        yield f"look at this: {line}"
    if run_folder is not None:
        yield _shared(run_folder)
    for found in measure(jax.devices()):
        yield found.line()
    yield _trained()
    if bench:
        from train.step_speed import bench as timed

        yield from timed()


def mistakes(environ: Mapping[str, str], backend: str, processes: int) -> Iterator[str]:
    """What is usually wrong, one line each.

    Args:
        environ: the environment.
        backend: jax's default: "cpu", "gpu", "tpu".
        processes: of the job.
    """
    seen = "an NVIDIA GPU" if os.path.exists("/dev/nvidia0") or shutil.which("nvidia-smi") else ""
    seen = seen or ("TPU chips" if on_tpu_machine() or glob.glob("/dev/accel[0-9]*") else "")
    if seen and backend == "cpu":
        if "cpu" in environ.get("JAX_PLATFORMS", ""):
            yield f"this machine has {seen}, which JAX_PLATFORMS={environ['JAX_PLATFORMS']} hides; unset it"
        else:
            extra = "cuda" if "GPU" in seen else "tpu"
            yield (
                f"this machine has {seen}, but jax is the build for CPUs: make ACCEL={extra}, or "
                f'pip install "oneblock[{extra}]"'
            )
    if processes == 1:
        yield from _alone(environ)
    found = {word: what for word, what in LEFTOVERS.items() if word in environ.get("XLA_FLAGS", "")}
    for word, what in found.items():
        yield f"XLA_FLAGS holds --{word}, which {what}: left over from an experiment?"
    for name, what in (("JAX_ENABLE_X64", "doubles memory and time"), ("JAX_DISABLE_JIT", "compiles nothing")):
        if environ.get(name, "").lower() in ("1", "true"):
            yield f"{name} is set, which {what}"
    if environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() in ("0", "false"):
        yield "XLA_PYTHON_CLIENT_PREALLOCATE is off: memory is asked for piece by piece, and falls into pieces"
    memory = shared_memory()
    if backend == "gpu" and memory is not None and memory < 2**30:
        yield f"/dev/shm has {memory >> 20} MiB, which NCCL fills: start the container with --shm-size=8g"
    proxies = sorted(name for name in environ if name.lower().endswith("_proxy") and name.lower() != "no_proxy")
    if processes > 1 and proxies:
        yield f"{', '.join(proxies)} set: processes may look for each other through the proxy; unset, or set no_proxy"
    if backend != "tpu" and os.path.exists("/tmp/libtpu_lockfile") and on_tpu_machine():
        yield "/tmp/libtpu_lockfile is there: another process may hold the TPU"
    parts = versions()
    if parts["jax"].split(".")[:2] != parts["jaxlib"].split(".")[:2]:
        yield f"jax {parts['jax']} and jaxlib {parts['jaxlib']} do not belong together"


def shared_memory() -> int | None:
    """Bytes of /dev/shm, over which processes of one machine exchange; None where there is none."""
    return shutil.disk_usage("/dev/shm").total if os.path.exists("/dev/shm") else None


def _alone(environ: Mapping[str, str]) -> Iterator[str]:
    """Signs of a job of several processes, of which this one knows nothing."""
    cluster = cluster_of(environ)
    if cluster:
        yield f"{cluster} has started several processes, but they have not joined"
    elif environ.get("SLURM_JOB_NUM_NODES", "1") not in ("", "1") and "SLURM_PROCID" not in environ:
        yield "a Slurm job of several nodes, but this was not started by srun: it runs on one of them alone"
    elif {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= environ.keys():
        yield (
            "an indexed Kubernetes job, but the processes are not told of each other: set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID, or pip install kubernetes"
        )


def _processes() -> Iterator[str]:
    import jax

    count = jax.process_count()
    if count == 1:
        yield "1 process"
        return
    own = [platform.node(), jax.local_device_count(), time.time()]
    told = [json.loads(text) for text in gather(json.dumps(own, allow_nan=False))]
    hosts = len({host for host, _, _ in told})
    yield f"{count} processes on {hosts} host{'s' if hosts > 1 else ''}, {len(jax.devices())} devices in all"
    for number, (host, devices, _) in enumerate(told[:64]):
        yield f"process {number}: {host}, {devices} device{'s' if devices > 1 else ''}"
    counts = sorted({devices for _, devices, _ in told})
    if len(counts) > 1:
        yield f"look at this: processes have {' or '.join(map(str, counts))} devices; a mesh needs as many in each"
    clocks = [clock for _, _, clock in told]
    if max(clocks) - min(clocks) > 10:
        yield f"look at this: clocks differ by {max(clocks) - min(clocks):.0f} s; times in logs will not agree"


def _shared(folder: Path) -> str:
    """Whether what the first process writes is seen by all."""
    import jax

    from train.distributed import first_then_others
    from train.run_folder import require_mounted
    from zoo.output_folder import require_folder

    mark = gather(uuid.uuid4().hex)[0]
    name = folder / f".doctor-{mark}"

    def look() -> None:
        require_mounted(folder)
        require_folder(folder)
        if jax.process_index() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            name.write_text(mark)
        until = time.monotonic() + 20
        while not name.exists():
            if time.monotonic() > until:
                raise InputError(f"{folder} is not shared: what process 0 writes is not seen; a run needs one that is")
            time.sleep(0.2)

    try:
        first_then_others(look)
    finally:
        if jax.process_index() == 0:
            name.unlink(missing_ok=True)
    return f"{folder}: writable" + (", and shared by all processes" if jax.process_count() > 1 else "")


def _trained() -> str:
    """Twenty steps on one repeated batch: the loss has to fall from log V to well below."""
    import jax
    import numpy as np

    import zoo
    from train.config import TrainConfig
    from train.mesh import make_driver
    from train.objectives import Objective, next_token
    from train.optimizer import make_optimizer
    from train.state import initial_state
    from train.step import make_train_step

    model = zoo.create("llama-tiny", vocab_size=64, embed_dim=32, num_layers=1)
    config = TrainConfig(steps=20, learning_rate=1e-2, schedule="constant")
    optimizer = make_optimizer(config)
    driver = make_driver("mesh")
    rows = 2 * driver.row_shards
    tokens = np.random.default_rng(0).integers(0, 64, (rows, 9), dtype=np.int32)
    batch = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "row_ids": np.arange(rows, dtype=np.int32)}
    began = time.perf_counter()
    state = driver.init(initial_state(model.init, optimizer, 0))
    step = driver.compile(make_train_step(model, Objective(next_token), optimizer, config))
    losses = []
    for _ in range(config.steps):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    if not (np.isfinite(losses).all() and losses[-1] < 0.7 * losses[0]):
        raise InputError(
            f"the test training went wrong: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps"
        )
    devices = f"{len(jax.devices())} device{'s' if len(jax.devices()) > 1 else ''}"
    return (
        f"test training on {devices}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps, "
        f"{time.perf_counter() - began:.1f} s with compilation"
    )
