"""Several processes, one program: how they find each other, and how they agree.

The engine is jax's own multi-controller runtime: every process runs the same program over all devices. Which process
this is comes from options, from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or from what
jax.distributed detects: Slurm, MPI, GKE, Cloud TPU. A single process initialises nothing.

What all must do alike is decided alike: `together` turns an error on one host into the same error on all, `compare`
refuses hosts that differ. See train/lost_process.py for what happens when one is lost.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from train.peer_lost import raise_lost
from zoo.command_errors import describe, exit_code
from zoo.errors import InputError
from zoo.tpu_machine import has_chips, has_library

T = TypeVar("T")
PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")


@dataclass(frozen=True)
class Job:
    """Which process this is.

    Attributes:
        coordinator: host:port of process 0; "" where jax finds it.
        num_processes, process_id: of the job, and this one's; None where jax finds them.
        cluster: who says so: "options", "Slurm", "Open MPI", "MPI" (any other), "GKE", "Kubernetes", "Cloud TPU", or ""
            for one process.
        join_within: seconds in which all have to come.
        lost_after: seconds without a sign of life after which a process counts as lost.
        stalled_after: seconds without a finished step after which the job counts as stalled.
    """

    coordinator: str = ""
    num_processes: int | None = None
    process_id: int | None = None
    cluster: str = ""
    join_within: int = 300
    lost_after: int = 60
    stalled_after: int = 1800


def find_job(
    coordinator: str = "",
    num_processes: int | None = None,
    process_id: int | None = None,
    environ: Mapping[str, str] = os.environ,
    **times: int,
) -> Job:
    """The job from options, else from JAX_* variables, else from what a cluster has set.

    Raises:
        InputError: half a job, ids out of range, variables that are no numbers.
    """
    for name, value in times.items():
        if value < 1:
            raise InputError(f"{name} is {value}; it must be 1 second or more")
    coordinator = coordinator or environ.get("JAX_COORDINATOR_ADDRESS", "")
    num_processes = _number(environ, "JAX_NUM_PROCESSES") if num_processes is None else num_processes
    process_id = _number(environ, "JAX_PROCESS_ID") if process_id is None else process_id
    if num_processes is not None and num_processes < 1:
        raise InputError(f"num_processes is {num_processes}; it must be 1 or more")
    if process_id is not None and not 0 <= process_id < (num_processes or 2**31):
        last = f"0 to {num_processes - 1}" if num_processes else "0 or more"
        raise InputError(f"process_id is {process_id}; it must be {last}, another one in each process")
    if num_processes == 1:
        return Job(**times)
    cluster = cluster_of(environ)
    if cluster == "MPI":
        num_processes, process_id = _told_by_mpi(coordinator, num_processes, process_id, environ)
    if coordinator or num_processes is not None or process_id is not None:
        parts = {"coordinator": coordinator or None, "num_processes": num_processes, "process_id": process_id}
        missing = [name for name, value in parts.items() if value is None]
        if missing and not cluster:
            given = ", ".join(name for name in parts if name not in missing)
            raise InputError(
                f"{given} given without {' and '.join(missing)}, and no cluster tells them; give coordinator "
                "(host:port of process 0), num_processes and process_id"
            )
        _, colon, port = coordinator.rpartition(":")
        if coordinator and not (colon and port.isdecimal() and 0 < int(port) < 65536):
            raise InputError(f'coordinator "{coordinator}" is not of the form host:port, such as 10.0.0.2:8476')
        return Job(coordinator, num_processes, process_id, cluster if missing else "options", **times)
    return Job(cluster=cluster, **times)


def cluster_of(environ: Mapping[str, str] = os.environ) -> str:
    """Which cluster runs several of us, by what it sets; "" where none does. jax then reads the details itself."""

    def several(name: str) -> bool:
        return environ.get(name, "").isdecimal() and int(environ[name]) > 1

    slurm = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID")
    if several("SLURM_NTASKS") and all(name in environ for name in slurm):
        return "Slurm"
    if several("OMPI_COMM_WORLD_SIZE"):
        return "Open MPI"
    if several("PMI_SIZE") and environ.get("PMI_RANK", "").isdecimal():
        return "MPI"  # MPICH, Intel MPI and their kin
    hosts = environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES", "")
    if "," in hosts or several("MEGASCALE_NUM_SLICES"):
        return "GKE"
    if {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= environ.keys() and importlib.util.find_spec("kubernetes"):
        return "Kubernetes"
    tpu = "tpu" in (environ.get("JAX_PLATFORMS") or "tpu").split(",")
    if tpu and "TPU_SKIP_MDS_QUERY" not in environ and on_tpu_machine():
        return "Cloud TPU"
    return ""


def on_tpu_machine() -> bool:
    """Whether this machine has TPU chips and the library for them."""
    return has_chips() and has_library()


def join(job: Job) -> bool:
    """Joins the other processes, before jax is asked for a device; gives whether there are others.

    Raises:
        InputError: nobody answers at the coordinator's address, or the cluster's variables do not say enough.
    """
    if not job.cluster:
        return False
    import jax

    told = job.cluster == "options"
    if told and job.process_id:
        _await_coordinator(job)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # SIGTERM is agreed on among the processes, in train/signals.py.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            job.coordinator or None,
            job.num_processes,
            job.process_id,
            cluster_detection_method="deactivate" if told else {"MPI": "mpi4py"}.get(job.cluster),
            initialization_timeout=job.join_within,
            heartbeat_timeout_seconds=job.lost_after,
            shutdown_timeout_seconds=max(60, job.lost_after),
        )
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        if job.cluster == "Cloud TPU" and isinstance(error, ValueError):  # one machine, and nobody to join
            return False
        raise InputError(f"cannot join the other processes ({job.cluster}): {' '.join(str(error).split())}") from error
    return jax.process_count() > 1


def gather(text: str) -> list[str]:
    """The texts of all processes, in their order; every process has to ask."""
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    longest = int(_gathered(np.array([len(data)], np.int32)).max())
    if not longest:
        return [""] * jax.process_count()
    padded = _gathered(np.pad(data, (0, longest - len(data))))
    return [bytes(row).rstrip(b"\0").decode() for row in padded]


def _gathered(row: Any) -> Any:
    """[process, n] of each process's [n], over one device a process: they may have other numbers of devices."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[number] for number in sorted(first)]), ("process",), axis_types=(AxisType.Auto,))
    each, whole = NamedSharding(mesh, PartitionSpec("process")), NamedSharding(mesh, PartitionSpec())
    rows = jax.make_array_from_callback((mesh.size, *row.shape), each, lambda _: row[None])
    return np.asarray(jax.jit(lambda x: x, out_shardings=whole)(rows).addressable_data(0))


def from_first(text: str) -> str:
    """What process 0 gives, in every process: where hosts may see a shared folder differently, its view decides."""
    return gather(text)[0]


def together(action: Callable[[], T]) -> T:
    """action() in every process. Where it fails in one, all raise the same error, and none waits for it in vain.

    Args:
        action: without a collective, which the others of one that fails would be left in.

    Raises:
        InputError: `action` raised an error, here or elsewhere. Its exit_code is 2 for wrong input, 75 for what may
            pass, 1 for a fault of the program, whose traceback the process that has it prints.
    """
    import jax

    if jax.process_count() == 1:
        return action()
    told, result = "", None
    try:
        result = action()
    except Exception as error:
        raise_lost(error)
        line, code = describe(error), exit_code(error)
        if line is None:
            traceback.print_exception(error)
            line, code = f"{type(error).__name__}: {' '.join(str(error).split())}; its traceback is in its output", 1
        told = json.dumps({"line": line or "bad input", "code": code, "host": socket.gethostname()}, allow_nan=False)
    problems = [json.loads(text) if text else {} for text in gather(told)]
    first = next((number for number, found in enumerate(problems) if found), None)
    if first is not None:
        line, code, host = (problems[first][name] for name in ("line", "code", "host"))
        alike = all(found.get("line") == line for found in problems)
        error = InputError(line if alike else f"process {first} ({host}): {line}")
        error.exit_code = code
        raise same_everywhere(error)
    return result  # type: ignore[return-value]


def first_then_others(action: Callable[[], T]) -> T:
    """`together`, but the others begin once process 0 is done."""
    import jax

    if jax.process_index() == 0:
        result = together(action)
        together(lambda: None)
        return result
    together(lambda: None)
    return together(action)


def compare(facts: Mapping[str, Any]) -> None:
    """Refuses processes that differ.

    Args:
        facts: JSON by name; names and order alike in every process.

    Raises:
        InputError: in every process, naming what differs and where.
    """
    import jax

    if jax.process_count() == 1:
        return
    own = {"host": socket.gethostname(), **facts}
    every = [json.loads(text) for text in gather(json.dumps(own, allow_nan=False))]
    first, found = every[0], []
    for number, other in enumerate(every):
        for name, value in first.items():
            if name != "host" and other[name] != value:
                found.append(
                    f"{name} is {_shown(other[name])} on process {number} ({other['host']}), "
                    f"{_shown(value)} on process 0 ({first['host']})"
                )
    if found:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        raise same_everywhere(InputError(f"the processes differ: {'; '.join(found[:3])}{more}; make them alike"))


def versions() -> dict[str, str]:
    """Versions of Python and of packages, and a digest of our own code: what has to be the same on all hosts."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    code = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for path in sorted(path for package in ("zoo", "train") for path in (root / package).rglob("*.py")):
        code.update(path.read_bytes())
    return found | {"code": code.hexdigest()[:12]}


def same_everywhere(error: InputError) -> InputError:
    """Marks an error that every process raises at the same place, so that they can end in order."""
    error.same_everywhere = True  # type: ignore[attr-defined]
    return error


def _told_by_mpi(
    coordinator: str, num_processes: int | None, process_id: int | None, environ: Mapping[str, str]
) -> tuple[int | None, int | None]:
    """Number of processes and this one's, which mpiexec of MPICH and Intel MPI sets beside a coordinator that is given.

    Without one, jax asks mpi4py for all three.

    Raises:
        InputError: neither a coordinator nor mpi4py.
    """
    if coordinator:
        size, rank = int(environ["PMI_SIZE"]), int(environ["PMI_RANK"])
        return size if num_processes is None else num_processes, rank if process_id is None else process_id
    if num_processes is None and process_id is None and not importlib.util.find_spec("mpi4py"):
        raise InputError(
            f"MPI has started {environ['PMI_SIZE']} processes, and they do not know where the first one is: pip "
            "install mpi4py, or give coordinator (host:port of process 0)"
        )
    return num_processes, process_id


def _await_coordinator(job: Job) -> None:
    """Process 0 listens from its start; jax's own client would end the program where it does not."""
    host, _, port = job.coordinator.rpartition(":")
    until = time.monotonic() + job.join_within
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise InputError(
                    f"process {job.process_id}: nobody answers at coordinator {job.coordinator} after "
                    f"{job.join_within} s ({error.strerror or error}); is process 0 running there, its port open?"
                ) from None
            time.sleep(0.2)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise InputError(f'{name} is "{text}"; it must be a whole number')
    return int(text)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
