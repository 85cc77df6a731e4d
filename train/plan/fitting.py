"""Whether a job can fit at all, by formula, and the least change that makes it fit."""

import dataclasses
import math
from collections.abc import Iterator

from train.plan.job import Job, check, default_mesh, shown, spread_mesh
from train.plan.report import bytes_text
from train.plan.roofline import estimate
from train.plan.slices import larger
from zoo.errors import InputError

SAFE = 0.9  # of a chip's memory: what a formula may fill


def memory_of(job: Job) -> dict[str, float]:
    """Bytes a chip by part, by formula."""
    return estimate(job.model, job.train, job.mesh_shape, job.slice.chip, job.slice.shape).memory


def refuse_hopeless(job: Job) -> None:
    """Spares a compile of minutes: what must be on a chip before the first activation already does not fit.

    Raises:
        InputError: so it is; what would make it fit is said.
    """
    memory = memory_of(job)
    state = sum(memory.get(part, 0.0) for part in ("parameters", "moments", "gradients"))
    if state > job.slice.chip.hbm_bytes:
        raise InputError(
            f"{job.name} cannot fit: parameters, moments and gradients take {bytes_text(state)} a chip on mesh "
            f"{job.train.mesh}, and one of {job.slice} has {bytes_text(job.slice.chip.hbm_bytes)}; {advice(job)}"
        )


def advice(job: Job) -> str:
    """The first change, from the least to the greatest, with which the formula fits; for the end of an error line."""
    for words, changed in changes(job):
        total = sum(memory_of(changed).values())
        if total <= SAFE * changed.slice.chip.hbm_bytes:
            return f"it would with {words} (about {bytes_text(total)} a chip)"
    return f"no slice of {job.slice.chip.name} fits it at {job.train.seq_len} tokens a row; shorten the rows"


def changes(job: Job) -> Iterator[tuple[str, Job]]:
    """(words, changed job), added up: remat full, all chips on fsdp, micro-batches, tokens split, larger slices."""
    if job.model.remat != "full":
        job = job.replace(remat="full")
        yield "--remat full", job
    done = ["--remat full"] if job.model.remat == "full" else []
    for spread in (_spread(job), _spread(dataclasses.replace(job, train=job.train.replace(accumulate=1)))):
        if spread is not None and spread.train.mesh != job.train.mesh:
            job = spread
            yield " ".join([*done, f"--mesh {job.train.mesh}"]), job
    done += [f"--mesh {job.train.mesh}"]
    ways = math.prod(job.mesh_shape.get(axis, 1) for axis in ("slice", "data", "fsdp"))
    most = job.train.batch_size // ways
    for micro in (n for n in range(job.train.accumulate + 1, most + 1) if most % n == 0):
        job = job.replace(accumulate=micro)
        yield " ".join([*done, f"--accumulate {micro}"]), job
    yield from _split_rows(job)
    for wider in larger(job.slice):
        batch = max(job.train.batch_size, wider.chips)
        train = job.train.replace(batch_size=batch, accumulate=1, mesh="")
        try:
            mesh = spread_mesh(job.model, train, wider)
            grown = dataclasses.replace(job, slice=wider, train=train.replace(mesh=shown(mesh)))
            check(grown)
        except InputError:
            continue
        extra = f" --batch {batch}" if batch != job.train.batch_size else ""
        extra += f" --mesh {shown(mesh)}" if mesh != default_mesh(wider) else ""
        yield f"--slice {wider}{extra} --remat {job.model.remat}", grown


def _split_rows(job: Job) -> Iterator[tuple[str, Job]]:
    """The job in one micro-batch, each row over 2, 4, 8 ... chips, and the rest of the chips on fsdp."""
    train = job.train.replace(accumulate=1, mesh="")
    each = job.slice.chips // job.slice.count
    for ways in (1 << power for power in range(1, each.bit_length())):
        if each % ways or train.seq_len % ways:
            continue
        sizes = default_mesh(job.slice) | {"fsdp": each // ways, "sequence": ways}
        split = dataclasses.replace(job, train=train.replace(mesh=shown(sizes)))
        try:
            check(split)
        except InputError:
            continue
        yield f"--remat {job.model.remat} --mesh {split.train.mesh}", split


def _spread(job: Job) -> Job | None:
    """The job with every chip that its rows reach on fsdp."""
    try:
        mesh = shown(spread_mesh(job.model, job.train, job.slice))
        spread = dataclasses.replace(job, train=job.train.replace(mesh=mesh))
        check(spread)
    except InputError:
        return None
    return spread
