"""What benches share: a contestant is one process, in the environment that suits it, whose last line is its result.

A bench runs contestants turn and turn about and keeps each result with `record`, a line of runs/bench/<bench>.jsonl.
tests/bench/results.py makes the tables of RESULTS.md of those files. Values that it knows, all optional:

    rate       a second, of `unit` ("tokens"); more is better       rate_cpu   the same a second of CPU
    seconds    fewer are better; so are those of `prediction`       cpu        seconds of CPU
    flops      of one unit of `rate`: it is set against the best product of matrices
    peak       most bytes of memory that the process held
    losses     [first, last], accuracy: shown beside it, so that one sees contestants learn alike

One record may hold several of rate, seconds and prediction: each gets a table.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "runs/bench"
RUN = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())  # of a bench: when it began
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LIBRARIES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "torch", "transformers", "accelerate", "tokenizers",
    "sentencepiece", "datasets", "sentence-transformers", "keras", "keras-hub", "litgpt", "x-transformers", "xllamacpp",
    "numpy",
)  # fmt: skip


def usual_options(parser: argparse.ArgumentParser, contestants: Iterable[str]) -> None:
    """The options that benches have in common: who runs, by which interpreters, how often."""
    names = list(contestants)
    parser.add_argument("--contestants", nargs="+", choices=names, default=names)
    parser.add_argument("--ours", default=sys.executable, help="interpreter of this project")
    parser.add_argument("--reference", default=".venv-bench/bin/python", help="interpreter of the reference library")
    parser.add_argument("--rounds", type=int, default=3)


class Failed(Exception):
    """A contestant ended with an error; the text is the end of what it said."""


def result_of(words: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs a command line from the repository's root, and reads its last line.

    The load of the machine just before, and the versions in the interpreter `words[0]`, are added where the result
    does not say them.
    """
    load = os.getloadavg()[0]
    done = subprocess.run(words, cwd=ROOT, env=environment or ENVIRONMENT, capture_output=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.decode()[-2000:])
    return {"load": load, "versions": versions_of(words[0]), **json.loads(done.stdout.decode().splitlines()[-1])}


def versions() -> dict[str, str]:
    """Of Python and of the libraries in this environment that benches know, by their metadata alone."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def versions_of(python: str) -> dict[str, str]:
    """The same of another interpreter."""
    if python == sys.executable:
        return versions()
    done = subprocess.run([python, __file__], capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


@functools.cache
def machine() -> dict[str, Any]:
    """The processor, the cores that this process may use, and the bytes of memory."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text().splitlines() if names.exists() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu,
        "cores": cores,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.system(),
    }


@functools.cache
def commit() -> str | None:
    """The commit that is checked out, if any, with a + where files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def record(
    bench: str,
    row: str,
    contestant: str,
    round: int,
    values: dict[str, Any],
    *,
    ours: bool | None = None,
    precision: str | None = None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Appends one measurement to runs/bench/<bench>.jsonl, and returns it.

    Args:
        bench, row, contestant, round: what was measured; rounds count from 1.
        values: what was measured (see above); its "load", "versions" and "machine", where there, become the record's.
        ours: whether it is this project; by default where the contestant's name begins with "ours".
        precision: contestants are set against peers of the same; by default "bf16", "int8" or "4-bit" where the name
            ends so, else "float32".
        kept: the file, for tests.
    """
    values = dict(values)
    kinds = ("bf16", "int8", "4-bit")
    line = {
        "bench": bench,
        "row": row,
        "contestant": contestant,
        "round": round,
        "ours": contestant.startswith("ours") if ours is None else ours,
        "precision": precision or next((kind for kind in kinds if contestant.endswith(kind)), "float32"),
        "machine": values.pop("machine", machine()),
        "versions": values.pop("versions", versions()),
        "load": values.pop("load", os.getloadavg()[0]),
        "commit": commit(),
        "run": RUN,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "values": values,
    }
    kept = kept or KEPT / f"{bench}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return line


if __name__ == "__main__":
    print(json.dumps(versions()))
