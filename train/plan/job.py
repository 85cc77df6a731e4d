"""What is planned: a model, how it is trained, on which slice, over which mesh."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zoo
from train.config import RunConfig, TrainConfig
from train.mesh_axes import check_sequence, check_slices, check_widths, parse_axes
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
    reaching: bool = False,
) -> Job:
    """The job that a command line asks for.

    Args:
        model: a preset, a config.json, or a run folder, whose batch_size, seq_len and objective then hold.
        slice: the chips.
        batch: rows a step; None for the run's own, or one row a chip.
        seq: tokens a row; None for the run's own, or the model's max_positions.
        mesh: axes; one size may be -1; empty for the run's own, or else the default that a run has: see default_mesh.
        accumulate: micro-batches a step.
        changes: fields of ModelConfig.
        options: further fields of TrainConfig.
        reaching: where no mesh is given take spread_mesh, which fits more batches, in place of the default.

    Raises:
        InputError: no such model; what the mesh, the batch or the slice cannot do.
    """
    changes, given = dict(changes or {}), dict(options or {})
    if is_run(Path(model)):
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
    own = train.mesh if train.driver == "mesh" and train.mesh != "auto" else ""
    train = train.replace(**given | {"driver": "mesh", "mesh": ""})
    if reaching and not mesh:
        sizes = spread_mesh(config, train, slice)
    else:
        mesh = mesh or own
        sizes = _parsed(mesh, slice) if mesh and mesh != "auto" else default_mesh(slice)
    job = Job(config, train.replace(mesh=shown(sizes)), slice, Path(model).name)
    check(job)
    return job


def default_mesh(slice: Slice) -> dict[str, int]:
    """What a run without --mesh takes on a pod (train.mesh_axes.default_axes): fsdp over each slice's chips.

    A run on GPUs does not see which of them hang on one switch: there `slice` has to be named.
    """
    return ({"slice": slice.count} if slice.count > 1 else {}) | {"fsdp": slice.chips // slice.count}


def spread_mesh(config: ModelConfig, train: TrainConfig, slice: Slice) -> dict[str, int]:
    """fsdp over every chip where a micro-batch has a row for each; else as many as divide it, the rest on tensor.

    Several slices lie on the axis `slice`: parameters are copied to each, and gradients alone cross between them.

    Raises:
        InputError: tensor would not divide the heads, or the rows not the slices.
    """
    rows = train.batch_size // train.accumulate
    each = slice.chips // slice.count
    if rows % slice.count:
        raise InputError(f"a micro-batch of {rows} rows cannot be split over {slice.count} slices")
    fsdp = math.gcd(each, rows // slice.count)
    check_widths(each // fsdp, _widths(config), slice.chips)
    sizes = default_mesh(slice) | {"fsdp": fsdp}
    return sizes | ({"tensor": each // fsdp} if each > fsdp else {})


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
    check_slices(shape, job.slice.count, job.slice.chips)
    ways = math.prod(shape.get(axis, 1) for axis in ("slice", "data", "fsdp"))
    rows = train.batch_size // train.accumulate
    if rows % ways:
        raise InputError(
            f"batch {train.batch_size}{f' in {train.accumulate} micro-batches' if train.accumulate > 1 else ''} is too "
            f"small or uneven for mesh {train.mesh}, which splits rows {ways} ways; give {_other_rows(job, ways)}"
        )
    check_widths(shape.get("tensor", 1), _widths(config), job.slice.chips)
    check_sequence(shape, train.seq_len)
    if config.positions == "learned" and train.seq_len > config.max_positions:
        raise InputError(f"seq is {train.seq_len}, but {job.name} has learned {config.max_positions} positions")


def _other_rows(job: Job, ways: int) -> str:
    """The nearest batch for the mesh, and, if it is another, the mesh for the batch."""
    train, step = job.train, ways * job.train.accumulate
    batch = f"--batch {max(step, round(train.batch_size / step) * step)}"
    try:
        mesh = shown(spread_mesh(job.model, train, job.slice))
    except InputError:
        return batch
    return batch if mesh == train.mesh else f"{batch} or --mesh {mesh}"


def shown(sizes: dict[str, int]) -> str:
    """A mesh as it is written."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _widths(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    heads = {"heads": (config.num_heads,), "key-value heads": (config.num_kv_heads,)}
    return heads | {"FFN units": (config.mlp_dim,)}


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


def is_run(path: Path) -> bool:
    """Whether it is a config.json (any file) or a folder with that of a run."""
    import json

    try:
        plain = json.loads((path / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return path.is_file()
    return isinstance(plain, dict) and {"model", "train"} <= set(plain)


def _preset(name: str) -> ModelConfig:
    from train.cli import _preset as find

    return find(name)
