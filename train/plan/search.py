"""The fastest mesh, remat and micro-batches that fit: all tried by formula, the best few compiled."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from train.plan.compile import OutOfMemory, compile_step
from train.plan.fitting import SAFE, advice
from train.plan.job import Job
from train.plan.report import Plan, bytes_text, make_plan, seconds_text
from train.plan.roofline import Estimate, estimate
from zoo.errors import InputError

COMPILED = 3
TENSOR = (1, 2, 4, 8, 16)  # wider, and every product waits for its sum
MICRO = (1, 2, 4, 8, 16)
POLICIES = ("none", "minimal", "dots", "full")  # and not "offload", whose road to the host's memory no formula knows


@dataclass(frozen=True)
class Candidate:
    """A job and what the formula says of it."""

    job: Job
    formula: Estimate

    @property
    def seconds(self) -> float:
        """Middle of the predicted step."""
        return sum(self.formula.prediction.step) / 2

    def __str__(self) -> str:
        train = self.job.train
        return f"{train.mesh} remat {self.job.model.remat} micro-batches {train.accumulate}"


def candidates(
    job: Job, *, mesh: bool = False, remat: bool = False, accumulate: int | None = None, platform: str = ""
) -> list[Candidate]:
    """Every job of the search that the formula lets fit, the fastest first.

    Args:
        job: whose model, batch, rows and slice hold.
        mesh, remat: whether its own is to stay.
        accumulate: micro-batches, where they are to stay.
        platform: as in train.plan.roofline.estimate.
    """
    meshes = [job.train.mesh] if mesh else list(_meshes(job))
    policies = [job.model.remat] if remat else POLICIES
    micro = [accumulate] if accumulate else MICRO
    found = []
    for mesh_text in meshes:
        for policy in policies:
            for count in micro:
                try:
                    tried = job.replace(mesh=mesh_text, accumulate=count, remat=policy)
                except InputError:
                    continue
                chip = job.slice.chip
                formula = estimate(tried.model, tried.train, tried.mesh_shape, chip, job.slice.shape, platform)
                if formula.total_memory <= SAFE * chip.hbm_bytes:
                    found.append(Candidate(tried, formula))
    return sorted(found, key=lambda c: (c.seconds, c.job.train.accumulate, len(c.job.mesh_shape)))


def shortlist(ranked: list[Candidate], most: int = COMPILED) -> list[Candidate]:
    """The fastest of each remat and number of micro-batches, so that those compiled differ in what memory they need."""
    kinds: dict[tuple[str, int], Candidate] = {}
    for candidate in ranked:
        kinds.setdefault((candidate.job.model.remat, candidate.job.train.accumulate), candidate)
    first = list(kinds.values())
    return (first + [candidate for candidate in ranked if candidate not in first])[:most]


def search_plan(
    job: Job,
    model: str,
    compiler: Literal["auto", "tpu", "cpu"],
    say: Callable[[str], None],
    *,
    mesh: bool = False,
    remat: bool = False,
    accumulate: int | None = None,
) -> Plan:
    """The fastest plan that fits, among the best few by formula, compiled.

    Args:
        job: as in `candidates`, whose arguments the others are.
        model: how the command line named it.
        compiler: see compile_step.
        say: told what is at work.

    Raises:
        InputError: the formula lets none fit, or none of those compiled does.
    """
    say("by formula")
    platform = "cpu" if compiler == "cpu" else ""
    ranked = candidates(job, mesh=mesh, remat=remat, accumulate=accumulate, platform=platform)
    if not ranked:
        raise InputError(f"no mesh, remat and micro-batches let {job.name} fit {job.slice}; {advice(job)}")
    chosen = shortlist(ranked)
    print(f"{len(ranked)} ways fit by formula; compiling the best {len(chosen)}:", flush=True)
    plans: list[Plan] = []
    for number, candidate in enumerate(chosen, 1):
        by_formula = f"{seconds_text(candidate.seconds)} a step, {bytes_text(candidate.formula.total_memory)} a chip"

        def told(line: str, number: int = number, candidate: Candidate = candidate) -> None:
            say(f"{line} {number} of {len(chosen)}: {candidate}")

        try:
            plan = make_plan(candidate.job, compile_step(candidate.job, compiler, told), model)
        except OutOfMemory as error:
            print(f"  {candidate}: by formula {by_formula}; compiled: needs {bytes_text(error.used)}", flush=True)
            continue
        middle = sum(plan.step) / 2
        print(
            f"  {candidate}: by formula {by_formula}; compiled: {seconds_text(middle)}, "
            f"{bytes_text(plan.memory['total'])}{'' if plan.fits else ', does not fit'}",
            flush=True,
        )
        plans += [plan] if plan.fits else []
    if not plans:
        raise InputError(f"none of the {len(chosen)} ways compiled lets {job.name} fit {job.slice}; {advice(job)}")
    print(flush=True)
    return min(plans, key=lambda plan: sum(plan.step))


def _meshes(job: Job) -> Iterator[str]:
    """Meshes that rows, heads and chips allow; sequence only where rows do not reach every chip."""
    slices, each = job.slice.count, job.slice.chips // job.slice.count
    outer = {"slice": slices} if slices > 1 else {}
    for tensor in (t for t in TENSOR if each % t == 0):
        rest = each // tensor
        for sequence in (s for s in (1, 2, 4, 8, 16, 32) if rest % s == 0):
            rows = rest // sequence
            if sequence > 1 and rows * sequence * slices <= job.train.batch_size:
                continue
            for data in (d for d in _powers(rows) if rows % d == 0):
                sizes = outer | {"data": data, "fsdp": rows // data, "tensor": tensor, "sequence": sequence}
                yield ",".join(f"{a}={n}" for a, n in sizes.items() if n > 1 or a == "fsdp")


def _powers(most: int) -> Iterator[int]:
    return (1 << power for power in range(int(math.log2(most)) + 1))
