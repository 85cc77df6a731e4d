"""Starts real processes of one job on this machine, and is the program that each of them runs.

A plan is a list of runs that the processes go through, one after another, so that one start serves many tests:

    {"config": [path a process], "folder": path, "signal": [process, step, "SIGTERM"], "after": its save, "profile": ..}

With "programs", the path of another config, a run shares that one's compiled programs.
A signal comes when the numbers of its step are looked at; with "moment", where else: "opening" the run, in the
"evaluation" of that step, or while its "save" is being written.
Each process writes what it fed and how each run ended to <plan>.<process>.json after every run.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOST_AFTER = 6


@dataclass(frozen=True)
class Ended:
    """How the processes ended: exit codes, standard error, and what each wrote down of each run."""

    codes: list[int]
    errors: list[str]
    notes: list[list[dict]]
    seconds: float


def start(plan: list[dict], folder: Path, count: int, devices: int, cluster: str, limit: float = 480) -> Ended:
    """Runs `count` processes with so many CPU devices each through the plan, and waits for their end.

    They find each other by what `cluster`, "Slurm" or "Open MPI", would set.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    port, env = free_port(), environment(devices)
    running, began = [], time.monotonic()
    try:
        for number in range(count):
            words = [sys.executable, __file__, str(path)]
            own = env | told_by(cluster, count, number) | {"JAX_COORDINATOR_PORT": str(port)}
            with open(folder / f"error.{number}", "w") as error:
                running.append(subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=error))
        codes = [process.wait(max(1.0, limit - (time.monotonic() - began))) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    seconds = time.monotonic() - began
    time.sleep(0.3)  # the filter of standard error ends just after its process
    errors = [(folder / f"error.{number}").read_text() for number in range(count)]
    notes = [folder / f"plan.{number}.json" for number in range(count)]
    return Ended(codes, errors, [json.loads(n.read_text()) if n.exists() else [] for n in notes], seconds)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(devices: int) -> dict[str, str]:
    """For a process with so many CPU devices."""
    flags = re.sub(r"(device_count)=\d+", rf"\1={devices}", os.environ["XLA_FLAGS"])
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return env | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}


def told_by(cluster: str, count: int, number: int) -> dict[str, str]:
    """The variables that a launcher sets for process `number` on this one machine."""
    if cluster == "Slurm":
        found = {"JOB_ID": 7, "STEP_NODELIST": "127.0.0.1", "NTASKS": count, "PROCID": number, "LOCALID": number}
        return {f"SLURM_{name}": str(value) for name, value in found.items()}
    found = {"SIZE": count, "RANK": number, "LOCAL_RANK": number}
    uri = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911", "OMPI_VERSION": "4.1.6"}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in found.items()} | uri


def main(plan: str) -> None:
    from train.distributed import find_job
    from train.lost_process import joined

    with joined(find_job(join_within=120, lost_after=LOST_AFTER, stalled_after=120)):
        import jax

        number = jax.process_index()

        notes, now = [], keep_programs()
        for item in json.loads(Path(plan).read_text()):
            now["config"] = item.get("programs", item["config"][number])
            notes.append(one_run(item))
            notes[-1] |= {"processes": jax.process_count(), "devices": jax.device_count()}
            Path(plan).with_suffix(f".{number}.json").write_text(json.dumps(notes))


def keep_programs() -> dict:
    """Runs of one config share their programs within a process: jax keeps those of process 0 alone on disk.

    Returns:
        where the config at work is told, as "config".
    """
    from train.mesh import MeshDriver

    now, kept = {}, {}

    def remembered(make):
        def of(self, function):
            key = (make.__name__, now["config"])
            if key not in kept:
                kept[key] = make(self, function)
            return kept[key]

        return of

    MeshDriver.compile, MeshDriver.compile_eval = remembered(MeshDriver.compile), remembered(MeshDriver.compile_eval)
    return now


def one_run(item: dict) -> dict:
    """Runs an item of the plan; notes the rows fed by step, those evaluated, and how it ended."""
    import jax

    from train import ledger, loop, opening
    from train.checkpoint import Checkpoints
    from train.config import RunConfig
    from train.data.pipeline import Batches
    from zoo.checkpoints.run_folder import steps_of

    process, at, name = item.get("signal", [None, None, None])
    moment = item.get("moment", "step")
    saved = "after" in item and Path(item["folder"], "checkpoints", str(item["after"]), "commit_success.txt")
    fed, evaluated = {}, []
    take, batch, all_rows = ledger.Ledger.take, Batches.batch, Batches.all_rows
    save, open_shards = Checkpoints.save, opening.open_shards
    last, sent = [0], []

    def reached(step, now):
        if (step, now, jax.process_index()) == (at, moment, process) and not sent:
            sent.append(step)
            while saved and not saved.exists():  # saves are written behind the steps' back
                time.sleep(0.02)
            os.kill(os.getpid(), getattr(signal, name))

    def take_and_signal(self, step, metrics):
        out = take(self, step, metrics)
        last[0] = step
        reached(step, "step")
        return out

    def save_and_signal(self, state, *rest):
        save(self, state, *rest)
        reached(last[0], "save")

    def open_and_signal(*given):
        reached(0, "opening")
        return open_shards(*given)

    def noted_batch(self, step):
        made = batch(self, step)
        fed[step] = [made["row_ids"].tolist(), self.rows_at(step).tolist()]
        return made

    def noted_rows(self):
        for made in all_rows(self):
            evaluated.append([made["row_ids"].tolist(), made["segment_ids"].max(1).tolist()])
            reached(last[0], "evaluation")
            yield made

    ledger.Ledger.take, Batches.batch, Batches.all_rows = take_and_signal, noted_batch, noted_rows
    Checkpoints.save, opening.open_shards = save_and_signal, open_and_signal
    note = {"fed": fed, "evaluated": evaluated}
    try:
        profile = item.get("profile", "")
        config = RunConfig.load(item["config"][jax.process_index()])
        result = loop.run(config, item["folder"], quiet=True, profile=profile)
        note |= {"step": result.step, "code": 0}
    except SystemExit as error:
        note |= {"code": error.code}
    except ValueError as error:
        if not getattr(error, "same_everywhere", False):
            raise
        note |= {"code": 2, "line": str(error)}
    finally:
        ledger.Ledger.take, Batches.batch, Batches.all_rows = take, batch, all_rows
        Checkpoints.save, opening.open_shards = save, open_shards
    return note | {"saved": steps_of(item["folder"])}


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    main(*sys.argv[1:])
