"""What is planned: a model, how it is trained, on which slice, over which mesh."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zoo
from train.config import RunConfig, TrainConfig
from train.mesh_axes import check_sequence, parse_axes
from train.objectives import fit_model
from train.plan.slices import Slice
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.partition import MESH_AXES

# A planned preset trains as one trains on pods: products in bfloat16, layers scanned, each layer's inside recomputed.
POD_FIELDS = {"scan": True, "dtype": "bfloat16", "remat": "full"}


@dataclass(frozen=True)
class Job:
    """A run that may be compiled for a slice.

    Attributes:
        model: the network, its remat, scan, dtype and attention_kernel included.
        train: batch_size, seq_len, accumulate, objective and optimizer are read; `mesh` is whole (no -1).
        slice: the chips.
        name: of the model, for people.
    """

    model: ModelConfig
    train: TrainConfig
    slice: Slice
    name: str

    @property
    def mesh_shape(self) -> dict[str, int]:
        """{axis: size}."""
        return {name: int(size) for name, _, size in (part.partition("=") for part in self.train.mesh.split(","))}

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.train.batch_size * self.train.seq_len

    def replace(self, *, mesh: str | None = None, accumulate: int | None = None, **model: Any) -> "Job":
        """A copy with another mesh, other micro-batches or other fields of the model, checked anew."""
        train = self.train.replace(
            mesh=self.train.mesh if mesh is None else mesh,
            accumulate=self.train.accumulate if accumulate is None else accumulate,
        )
        job = dataclasses.replace(self, model=self.model.replace(**model) if model else self.model, train=train)
        check(job)
        return job


def make_job(
    model: str,
    slice: Slice,
    *,
    batch: int | None = None,
    seq: int | None = None,
    mesh: str = "",
    accumulate: int | None = None,
    changes: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
) -> Job:
    """The job that a command line asks for.

    Args:
        model: a preset, a config.json, or a run folder, whose batch_size, seq_len and objective then hold.
        slice: the chips.
        batch: rows a step; None for the run's own, or one row a chip.
        seq: tokens a row; None for the run's own, or the model's max_positions.
        mesh: axes; one size may be -1; empty for the default of `default_mesh`.
        accumulate: micro-batches a step.
        changes: fields of ModelConfig.
        options: further fields of TrainConfig.

    Raises:
        InputError: no such model; what the mesh, the batch or the slice cannot do.
    """
    changes, given = dict(changes or {}), dict(options or {})
    if Path(model).is_file() or (Path(model) / "config.json").is_file() and _is_run(Path(model)):
        run = RunConfig.load(model)
        config, train = run.model, run.train
    else:
        config, train = _preset(model), None
    if train is None:
        changes = POD_FIELDS | changes
        given.setdefault("objective", "masked_lm" if config.visibility == "full" else "next_token")
        train = TrainConfig(batch_size=batch or slice.chips, seq_len=seq or config.max_positions)
        config = fit_model(config, train.replace(**given), config.vocab_size)
    given |= {"batch_size": batch} if batch is not None else {}
    given |= {"seq_len": seq} if seq is not None else {}
    given |= {"accumulate": accumulate} if accumulate is not None else {}
    seq_len = given.get("seq_len", train.seq_len)
    if config.positions == "rotary" and config.max_positions < seq_len:
        changes.setdefault("max_positions", seq_len)
    config = zoo.create(config, **changes).config if changes else config
    train = train.replace(**given | {"driver": "mesh", "mesh": ""})
    sizes = _parsed(mesh, slice) if mesh else default_mesh(config, train, slice)
    job = Job(config, train.replace(mesh=",".join(f"{k}={v}" for k, v in sizes.items())), slice, Path(model).name)
    check(job)
    return job


def default_mesh(config: ModelConfig, train: TrainConfig, slice: Slice) -> dict[str, int]:
    """fsdp over every chip where a micro-batch has a row for each; else as many as divide it, the rest on tensor.

    Several slices lie on the axis `slice`: parameters are copied to each, and gradients alone cross between them.
    """
    rows = train.batch_size // train.accumulate
    outer = {"slice": slice.count} if slice.count > 1 else {}
    each = slice.chips // slice.count
    if rows % slice.count:
        raise InputError(f"a micro-batch of {rows} rows cannot be split over {slice.count} slices")
    fsdp = math.gcd(each, rows // slice.count)
    tensor = each // fsdp
    if tensor > 1 and config.num_heads % tensor:
        raise InputError(
            f"batch {train.batch_size} is too small for {slice}: {rows} rows a micro-batch leave tensor={tensor}, "
            f"which does not divide {config.num_heads} heads; give --batch {slice.chips * train.accumulate} or --mesh"
        )
    return outer | {"fsdp": fsdp} | ({"tensor": tensor} if tensor > 1 else {})


def check(job: Job) -> None:
    """Refuses what would not run, in one line.

    Raises:
        InputError: rows or heads that the mesh does not divide, a mesh of another number of chips.
    """
    shape, train, config = job.mesh_shape, job.train, job.model
    size = math.prod(shape.values())
    if size != job.slice.chips:
        raise InputError(
            f'mesh "{train.mesh}" has {size} places and {job.slice} has {job.slice.chips} chips; '
            "give one axis the size -1 to take what is left"
        )
    if job.slice.count > 1 and shape.get("slice", 1) not in (1, job.slice.count):
        raise InputError(f'mesh "{train.mesh}": axis slice must be {job.slice.count}, the number of slices')
    ways = math.prod(shape.get(axis, 1) for axis in ("slice", "data", "fsdp"))
    rows = train.batch_size // train.accumulate
    if rows % ways:
        hint = ways * train.accumulate
        nearest_batch = max(hint, round(train.batch_size / hint) * hint)
        raise InputError(
            f"batch {train.batch_size}{f' in {train.accumulate} micro-batches' if train.accumulate > 1 else ''} is too "
            f"small or uneven for mesh {train.mesh}, which splits rows {ways} ways; give --batch {nearest_batch}, or "
            "move chips from fsdp to tensor or sequence"
        )
    for axis, what, number in (
        ("tensor", "heads", config.num_heads),
        ("tensor", "units of the feed-forward", config.mlp_dim),
    ):
        if number % shape.get(axis, 1):
            raise InputError(f"mesh {train.mesh}: {axis}={shape[axis]} does not divide {number} {what}")
    check_sequence(shape, train.seq_len)
    if config.positions == "learned" and train.seq_len > config.max_positions:
        raise InputError(f"seq is {train.seq_len}, but {job.name} has learned {config.max_positions} positions")


def _parsed(text: str, slice: Slice) -> dict[str, int]:
    sizes = parse_axes(text)
    open_axes = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    if slice.count > 1 and "slice" not in sizes and (open_axes or known * slice.count == slice.chips):
        sizes, known = {"slice": slice.count} | sizes, known * slice.count
    if open_axes:
        if slice.chips % known:
            raise InputError(f'mesh "{text}": {known} does not divide the {slice.chips} chips of {slice}')
        sizes[open_axes[0]] = slice.chips // known
    for axis in sizes:
        if axis not in MESH_AXES:
            raise InputError(f'mesh has no axis "{axis}"{nearest(axis, MESH_AXES)}')
    return {axis: sizes[axis] for axis in MESH_AXES if axis in sizes}  # in the mesh's own order


def _is_run(folder: Path) -> bool:
    import json

    try:
        plain = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(plain, dict) and {"model", "train"} <= set(plain)


def _preset(name: str) -> ModelConfig:
    from train.cli import _preset as find

    return find(name)
