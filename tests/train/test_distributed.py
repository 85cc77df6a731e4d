"""Which process this is, what hosts must share, what the runtime's last words mean, and where a wait ends."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.train.processes import environment, free_port
from train import distributed, doctor, last_words, lost_process
from train.data.pipeline import Batches
from train.distributed import Job, cluster_of, find_job
from train.host_rows import place, rows_here
from train.mesh import make_mesh
from train.signals import Signals, Vote
from zoo.command_errors import exit_code
from zoo.errors import InputError

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}


@pytest.fixture(autouse=True)
def no_chips(monkeypatch):
    monkeypatch.setattr(distributed, "on_tpu_machine", lambda: False)


def test_a_process_alone_joins_nobody():
    for environ in ({}, {"SLURM_NTASKS": "1", **SLURM}, {"JAX_NUM_PROCESSES": "1"}, {"TPU_WORKER_HOSTNAMES": "t0"}):
        assert find_job(environ=environ) == Job()
        assert distributed.join(find_job(environ=environ)) is False
    assert find_job("a:1", 1, 0, environ={}) == Job()


@pytest.mark.parametrize(
    ("environ", "cluster"),
    [
        ({"SLURM_NTASKS": "2", **SLURM}, "Slurm"),
        ({"SLURM_NTASKS": "2"}, ""),  # sbatch's own shell, not a step of srun
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI"),
        ({"TPU_WORKER_HOSTNAMES": "t0,t1", "TPU_WORKER_ID": "1"}, "GKE"),
        ({"TPU_WORKER_HOSTNAMES": "t0", "MEGASCALE_NUM_SLICES": "2"}, "GKE"),
    ],
)
def test_clusters_are_known_by_what_they_set(environ, cluster):
    assert cluster_of(environ) == cluster and find_job(environ=environ).cluster == cluster


def test_an_indexed_job_is_known_where_jax_can_ask_kubernetes(monkeypatch):
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}
    for found, cluster in ((None, ""), ("there", "Kubernetes")):
        with monkeypatch.context() as patch:
            patch.setattr(distributed.importlib.util, "find_spec", lambda name, found=found: found)
            assert cluster_of(environ) == cluster


def test_options_come_before_variables():
    environ = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
    assert find_job(environ=environ) == Job("a:1", 3, 2, "options")
    assert find_job("b:2", 4, 0, environ, lost_after=5) == Job("b:2", 4, 0, "options", lost_after=5)
    # What is left out, a cluster tells.
    assert find_job("b:2", environ={"SLURM_NTASKS": "2", **SLURM}) == Job("b:2", None, None, "Slurm")


@pytest.mark.parametrize(
    ("given", "environ", "line"),
    [
        (("a:1", None, None), {}, "coordinator given without num_processes and process_id"),
        (("", 2, 0), {}, "num_processes, process_id given without coordinator"),
        (("a:1", 2, 2), {}, "process_id is 2; it must be 0 to 1"),
        (("a:1", 0, 0), {}, "num_processes is 0; it must be 1 or more"),
        (("a", 2, 0), {}, 'coordinator "a" is not of the form host:port'),
        (("a:70000", 2, 0), {}, "is not of the form host:port"),
        ((), {"JAX_PROCESS_ID": "first"}, 'JAX_PROCESS_ID is "first"; it must be a whole number'),
    ],
)
def test_half_a_job_is_refused(given, environ, line):
    with pytest.raises(InputError, match=line):
        find_job(*given, environ=environ)


def test_a_coordinator_that_does_not_answer_is_told_within_its_time():
    line = r"process 1: nobody answers at coordinator 127.0.0.1:9 after 1 s \(Connection"
    with pytest.raises(InputError, match=line):
        distributed.join(Job("127.0.0.1:9", 2, 1, "options", join_within=1))


def test_processes_that_do_not_come_are_one_line_and_no_page(tmp_path):
    """The runtime ends the program from C++; the filter beside it says what that means."""
    code = (
        "from train.distributed import Job\nfrom train.lost_process import joined\n"
        "with joined(Job('127.0.0.1:0', 2, 0, 'options', join_within=2)):\n    pass\n"
    )
    root = str(Path(distributed.__file__).resolve().parents[1])
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()} | {"PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert done.stderr == (
        "error: not all of 2 processes joined within 2 s; are all running, with the same num_processes and "
        "coordinator, each with a process_id of its own?\n"
    )


def test_processes_that_are_told_other_things_end_with_a_line_each():
    """Two jobs of two real processes: one process_id twice; and two numbers of processes."""
    code = (
        "import sys\nfrom train.distributed import Job\nfrom train.lost_process import joined\n"
        "from zoo.errors import InputError\n"
        "try:\n    with joined(Job(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 'options', join_within=8)):\n"
        "        pass\n"
        "except InputError as error:\n    sys.exit(f'error: {error}')\n"
    )
    env = environment(1) | {"JAX_PLATFORMS": "cpu"}
    running = []
    for told in (((2, 0), (2, 0)), ((2, 0), (3, 1))):
        port = free_port()
        words = ([sys.executable, "-c", code, f"127.0.0.1:{port}", str(n), str(i)] for n, i in told)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running += [subprocess.Popen(w, env=env, text=True, **pipes) for w in words]
    said = [process.communicate(timeout=120)[1] for process in running]
    lines = [[line for line in text.splitlines() if line.startswith("error: ")] for text in said]
    assert all(process.returncode for process in running) and [len(own) for own in lines] == [1, 1, 1, 1], said
    assert "Traceback" not in "".join(said) and "Check failure" not in "".join(said)
    twice = [own[0] for own in lines[:2]]  # which of two lines depends on who comes first
    assert all("process_id of its own" in line for line in twice)
    assert lines[2] == lines[3]
    assert lines[2][0].startswith("error: the processes differ: num_processes is 3 on process 1 (")


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("The following tasks are unhealthy (stopped sending heartbeats):\n1\nThe tasks", "process 1 of 4 lost"),
        ("(stopped sending heartbeats):\n1\n3\nThe tasks have", "processes 1, 3 of 4 lost: no sign of life for 60"),
        ("stopped sending heartbeats): /job:jax_worker/replica:0/task:2\nThe", "process 2 of 4 lost"),
        ("Either the leader task was preempted/died", "process 0 of 4, which coordinates, has ended; see its own"),
        ("Unexpected task registered with task=2\n\nRPC: /RegisterTask", "process 2 is not among those"),
        ("ABORTED: Aborted connect attempt\nRPC: /RegisterTask", "another process has joined as process 2"),
        ("absl::Status: INTERNAL: no idea\nRPC", "the job of 4 processes has ended: INTERNAL: no idea"),
    ],
)
def test_what_the_last_words_mean(page, line):
    assert last_words.told(page, "4", "2", "300", "60").startswith(line)


def test_the_filter_passes_on_all_but_the_page(tmp_path):
    def through(text):
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        with open(tmp_path / "out", "w+b") as out:
            last_words.filtered(reading, out.fileno(), ["2", "0", "9", "9"])
            out.seek(0)
            return out.read().decode()

    page = "F1130 03:56:00.9 9 client.h:86] Terminating process because the JAX distributed service detected fatal "
    page += "errors. Status: Failed to send RPC\n    @ 0x7f  absl::Log\n"
    assert through("a\nb") == "a\nb"
    assert through("a\n" + page).startswith("a\nerror: process 0 of 2, which coordinates, has ended")
    assert through("error: mine\n" + page) == "error: mine\n"
    noise = "E1130 03:56:00.9 9 coordination_service_agent.cc:288] a hiccup\n"
    assert through(noise + "b\n") == noise + "b\n"


def test_an_error_on_one_host_is_an_error_on_all(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    told = {"line": "no such folder", "code": 75, "host": "host-b"}
    monkeypatch.setattr(distributed, "gather", lambda text: ["", json.dumps(told)])
    with pytest.raises(InputError, match=r"^process 1 \(host-b\): no such folder$") as caught:
        distributed.together(lambda: 1)
    assert lost_process.is_shared(caught.value) and exit_code(caught.value) == 75
    monkeypatch.setattr(distributed, "gather", lambda text: [text, text])
    assert distributed.together(lambda: 1) == 1
    facts = [json.dumps({"host": host, "jax": version, "n": 2}) for host, version in (("a", "0.10.2"), ("b", "0.12.0"))]
    monkeypatch.setattr(distributed, "gather", lambda text: facts)
    with pytest.raises(InputError, match=r"^the processes differ: jax is 0.12.0 on process 1 \(b\), 0.10.2 on proc"):
        distributed.compare({"jax": "0.10.2", "n": 2})


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (InputError("no mesh"), "^no mesh$", 2),
        (OSError(errno.EIO, "Input/output error", "/data/x"), "^no answer at /data/x .*run the same command again", 75),
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "^permission denied: /data/x$", 2),
        (KeyError("fault"), "^KeyError: 'fault'; its traceback is in its output$", 1),
    ],
)
def test_whatever_fails_on_one_host_is_told_to_all_with_its_code(monkeypatch, capfd, error, line, code):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "gather", lambda text: [text, text])

    def fail():
        raise error

    with pytest.raises(InputError, match=line) as caught:
        distributed.together(fail)
    assert lost_process.is_shared(caught.value) and exit_code(caught.value) == code
    assert ("Traceback" in capfd.readouterr().err) == (code == 1)


def test_a_broken_collective_is_told_from_a_wrong_program(monkeypatch):
    broken = jax.errors.JaxRuntimeError("Gloo all-reduce failed: Connection closed by peer")
    lost_process.raise_lost(broken)  # alone there is no peer
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(lost_process.PeerLost, match="a process was lost .*closed by peer.*run the same command again"):
        lost_process.raise_lost(broken)
    lost_process.raise_lost(jax.errors.JaxRuntimeError("INVALID_ARGUMENT: shapes"))
    lost_process.raise_lost(ValueError("connection"))
    # The first call of a program gives a ValueError; and others are raised from it.
    first = ValueError("UNKNOWN: Gloo AllGather failed: [127.0.0.1] Connection closed by peer [127.0.0.1]:33")
    later = TimeoutError("Timed out while waiting for a barrier")
    later.__cause__ = broken
    for error in (first, later):
        with pytest.raises(lost_process.PeerLost, match="closed by peer"):
            lost_process.raise_lost(error)
    lost_process.raise_lost(ValueError("UNKNOWN: no such axis"))


def test_a_process_that_lost_its_peer_outside_the_steps_leaves_with_one_line(monkeypatch):
    """As in open_run, a restore or a first evaluation: it was a traceback and code 1."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(lost_process, "join", lambda job: False)
    left = []

    def end(line, code, linger=0.0):
        left.append((line, code))
        raise SystemExit(code)

    monkeypatch.setattr(lost_process, "end", end)
    gone = "UNKNOWN: Gloo AllGather failed: Connection closed by peer"
    for error in (ValueError(gone), jax.errors.JaxRuntimeError(gone), OSError(errno.ESTALE, "Stale file handle")):
        with pytest.raises(SystemExit), lost_process.joined(Job()):
            raise error
    assert [code for _, code in left] == [75, 75, 75]
    assert "a process was lost" in left[0][0] and "run the same command again" in left[1][0]
    assert left[2][0].startswith("process 0 of 2: no answer of a disk or a network (Stale file handle)")


def test_rows_go_to_the_devices_that_hold_them():
    """A pretended process that holds rows 2, 3, 6 and 7 alone gives each of its devices what it would have of all."""
    mesh = make_mesh({"data": 4, "sequence": 2})
    sharding = NamedSharding(mesh, PartitionSpec("data", "sequence"))
    np.testing.assert_array_equal(rows_here(sharding, 8), np.arange(8))
    whole = np.arange(32).reshape(8, 4)
    np.testing.assert_array_equal(place(sharding, np.arange(8), 8, whole), whole)
    held = np.array([2, 3, 6, 7])
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "make_array_from_callback", lambda shape, sharding, part: asked.append((shape, part)))
        place(sharding, held, 8, whole[held])
    shape, part = asked[0]
    assert shape == (8, 4)
    for device in mesh.devices[[1, 3]].flat:
        index = sharding.devices_indices_map((8, 4))[device]
        np.testing.assert_array_equal(part(index), whole[index])
    with pytest.raises(InputError, match="6 rows a batch cannot be split over 4 devices; make batch_size a multiple"):
        rows_here(sharding, 6)


def test_places_of_a_batch_must_ascend():
    class Rows:
        draws, row_length = 0, 4

        def __len__(self):
            return 20

    assert Batches(Rows(), 6, places=np.array([1, 4])).rows_at(0).tolist() == [
        Batches(Rows(), 6).rows_at(0)[at] for at in (1, 4)
    ]
    for places in ([], [1, 1], [2, 1], [6]):
        with pytest.raises(InputError, match="places must be some of 0 to 5, ascending"):
            Batches(Rows(), 6, places=np.array(places, int))


def test_alone_a_signal_counts_at_once():
    signals = Signals()
    vote = Vote(signals)
    assert vote.cast() == 0 and vote.stop == 0
    signals.received = 15
    assert vote.stop == 15


def test_the_usual_mistakes_are_named(monkeypatch):
    monkeypatch.setattr(doctor, "on_tpu_machine", lambda: False)
    monkeypatch.setattr(doctor.os.path, "exists", lambda path: path == "/dev/nvidia0")
    said = " | ".join(doctor.mistakes({}, "cpu", 1))
    assert said == (
        "this machine has an NVIDIA GPU, but jax is the build for CPUs: make ACCEL=cuda, or "
        'pip install "oneblock[cuda]"'
    )
    assert "which JAX_PLATFORMS=cpu hides" in " ".join(doctor.mistakes({"JAX_PLATFORMS": "cpu"}, "cpu", 1))
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "on_tpu_machine", lambda: False)
    monkeypatch.setattr(distributed, "on_tpu_machine", lambda: False)
    monkeypatch.setattr(doctor, "shared_memory", lambda: None)
    environ = {"XLA_FLAGS": "--xla_dump_to=/x", "JAX_ENABLE_X64": "1", "SLURM_NTASKS": "2", **SLURM}
    said = " | ".join(doctor.mistakes(environ, "gpu", 1))
    for part in ("Slurm has started several processes", "XLA_FLAGS holds --xla_dump_to", "JAX_ENABLE_X64 is set"):
        assert part in said
    said = list(doctor.mistakes({"SLURM_JOB_NUM_NODES": "2"}, "gpu", 1))
    assert said == ["a Slurm job of several nodes, but this was not started by srun: it runs on one of them alone"]
    assert list(doctor.mistakes({"https_proxy": "x"}, "gpu", 2))[0].startswith("https_proxy set")
    monkeypatch.setattr(doctor, "shared_memory", lambda: 64 << 20)
    assert list(doctor.mistakes({}, "gpu", 1)) == [
        "/dev/shm has 64 MiB, which NCCL fills: start the container with --shm-size=8g"
    ]
    assert list(doctor.mistakes({}, "tpu", 1)) == []
    assert "falls into pieces" in " ".join(doctor.mistakes({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "tpu", 1))
    monkeypatch.setattr(doctor, "shared_memory", lambda: 64 << 30)
    assert list(doctor.mistakes({}, "gpu", 1)) == []


def test_processes_with_other_numbers_of_devices_are_told(monkeypatch):
    told = [json.dumps(["a", 4, 1.0]), json.dumps(["b", 1, 1.0])]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(doctor, "gather", lambda text: told)
    lines = list(doctor._processes())
    assert lines[1:3] == ["process 0: a, 4 devices", "process 1: b, 1 device"]
    assert lines[3] == "look at this: processes have 1 or 4 devices; a mesh needs as many in each"
