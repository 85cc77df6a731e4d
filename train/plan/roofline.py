"""Three times that bound a step (compute, HBM, interconnect), and what follows: duration, MFU, tokens/s, chip-hours.

    compute       hardware FLOPs / (chips * peak)
    HBM           bytes that a chip reads and writes / bandwidth
    interconnect  for each collective: wire bytes / (links it may use * bandwidth of one), and a microsecond a hop

Links: a group that lies along a dimension of the torus uses its two links where the dimension is closed to a ring, one
where it is a line; along several dimensions, all of theirs. Mesh axes take dimensions from the innermost one outwards,
as jax lays a mesh on a slice.

The step is a range. Best: products at BEST of the peak, everything else hidden behind them. Worst: products at WORST,
nothing hidden. Published runs of MaxText on v5e and v5p lie within (tests/train/test_plan_counts_published.py).
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from train.config import TrainConfig
from train.plan import formulas
from train.plan.chips import Chip
from train.plan.collectives import Collective, wire_bytes
from train.plan.memory import memory
from zoo.config import ModelConfig

BEST, WORST = 0.90, 0.75  # of the peak, that large products of bfloat16 reach
HOP = 1e-6  # seconds


@dataclass(frozen=True)
class Prediction:
    """Times of one step in seconds, and what they mean. Pairs are (best, worst).

    Attributes:
        compute: hardware FLOPs / (chips * peak).
        memory: traffic of a chip / its HBM bandwidth.
        interconnect: sum over collectives.
        step: seconds a step.
        mfu: model FLOPs / (step * chips * peak).
        tokens_per_second: over all chips.
        chips: how many.
        assumptions: in words.
    """

    compute: float
    memory: float
    interconnect: float
    step: tuple[float, float]
    mfu: tuple[float, float]
    tokens_per_second: tuple[float, float]
    chips: int
    assumptions: tuple[str, ...]

    def chip_hours(self, tokens: float) -> tuple[float, float]:
        """Chip-hours to train on `tokens` tokens."""
        best, worst = (tokens / rate * self.chips / 3600 for rate in self.tokens_per_second)
        return best, worst


@dataclass(frozen=True)
class Estimate:
    """A configuration by formula alone (train.plan.formulas says which): nothing is compiled.

    Attributes:
        memory: bytes a chip by part.
        model_flops: of one step over all chips, without recomputation.
        hardware_flops: with it, and with scores that a mask throws away.
        traffic: HBM bytes a chip and step, by part.
        collectives: expected ones.
        prediction: times.
    """

    memory: dict[str, float]
    model_flops: float
    hardware_flops: float
    traffic: dict[str, float]
    collectives: tuple[Collective, ...]
    prediction: Prediction

    @property
    def total_memory(self) -> float:
        """Bytes a chip."""
        return sum(self.memory.values())


def predict(
    *,
    model_flops: float,
    hardware_flops: float,
    traffic: float,
    collectives: Sequence[Collective],
    tokens: float,
    chip: Chip,
    chips: int,
    topology: tuple[int, ...] = (),
    mesh_shape: Mapping[str, int] | None = None,
) -> Prediction:
    """Times of a step from counts.

    Args:
        model_flops: of a step, over all chips, without recomputation.
        hardware_flops: with it.
        traffic: HBM bytes a chip.
        collectives: of a step.
        tokens: of a step, over all chips.
        chip: the accelerator.
        chips: how many, in all slices.
        topology: one slice's dimensions, (16, 16); () for one ring of all chips.
        mesh_shape: {axis: size}; None where each group is to be given as many dimensions as it needs.
    """
    peak = chips * chip.bf16_flops
    compute, memory = hardware_flops / peak, traffic / chip.hbm_bandwidth
    wires = sum(collective_seconds(one, chip, topology, mesh_shape) for one in collectives)
    step = max(compute / BEST, memory, wires), compute / WORST + memory + wires
    bound = max((compute, "compute"), (memory, "HBM"), (wires, "the interconnect"))[1]
    return Prediction(
        compute,
        memory,
        wires,
        step,
        (model_flops / (step[0] * peak), model_flops / (step[1] * peak)),
        (tokens / step[0], tokens / step[1]),
        chips,
        (
            f"best: products at {BEST:.0%} of the peak, memory and interconnect hidden behind them; worst: products at "
            f"{WORST:.0%}, nothing hidden; {bound} takes longest",
            "HBM traffic by formula (train/plan/formulas.py), each array written once and read once by each reader",
            "links at their published bandwidth, used by one collective at a time, and 1 microsecond a hop",
            "no time for input, checkpoints, stragglers, restarts",
        ),
    )


def estimate(
    config: ModelConfig,
    train: TrainConfig,
    mesh_shape: Mapping[str, int],
    chip: Chip,
    topology: tuple[int, ...] = (),
    platform: str = "",
    gradient_bytes: int = 4,
) -> Estimate:
    """Memory, traffic, collectives and times of one training step by formula.

    Args:
        config: the model; its dtype, remat, scan and attention_kernel are read.
        train: batch_size, seq_len, accumulate, objective, optimizer.
        mesh_shape: {axis: size}.
        chip: the accelerator.
        topology: one slice's dimensions.
        platform: whose compiler makes the step, "tpu", "gpu" or "cpu"; by default the chip's own.
        gradient_bytes: as in formulas.Work.
    """
    work = formulas.Work(config, train, dict(mesh_shape), platform or ("tpu" if chip.torus else "gpu"), gradient_bytes)
    found = [as_run(one, chip, topology, mesh_shape) for one in formulas.expected_collectives(work)]
    model, hardware, traffic = formulas.model_flops(work), formulas.hardware_flops(work), formulas.traffic(work)
    prediction = predict(
        model_flops=model,
        hardware_flops=hardware,
        traffic=sum(traffic.values()),
        collectives=found,
        tokens=train.batch_size * train.seq_len,
        chip=chip,
        chips=math.prod(mesh_shape.values()),
        topology=topology,
        mesh_shape=mesh_shape,
    )
    return Estimate(memory(work), model, hardware, traffic, tuple(found), prediction)


def as_run(one: Collective, chip: Chip, topology: tuple[int, ...], mesh_shape: Mapping[str, int]) -> Collective:
    """As a TPU runs it: a scatter over all chips of a slice that has several dimensions is an all-reduce along all of
    them, of which each chip keeps a part. (So compiled by libtpu for v5e, v5p and v6e; 2x4 and 4x8 are exceptions.)
    """
    inner = math.prod(mesh_shape[axis] for axis in one.axes if axis != "slice")
    dimensions = sum(size > 1 for size in topology)
    if one.kind != "reduce-scatter" or not chip.torus or dimensions < 2 or inner < math.prod(topology):
        return one
    return dataclasses.replace(one, sliced=True, wire=wire_bytes("all-reduce", one.group, one.payload))


def lay_out(mesh_shape: Mapping[str, int], topology: tuple[int, ...]) -> dict[str, list[tuple[int, int]]]:
    """{axis: [(dimension of the torus, chips of it that the axis takes)]}, from the last axis outwards.

    An axis takes whole dimensions where some have its size, fewest first; else a part of one after the other. The axis
    `slice` takes none.
    """
    left = list(topology)
    result: dict[str, list[tuple[int, int]]] = {}
    for axis, size in reversed(mesh_shape.items()):
        if axis == "slice" or size == 1:
            continue
        whole = _whole_dimensions(left, size)
        if whole:
            result[axis] = [(dim, left[dim]) for dim in whole]
        else:
            result[axis] = []
            for dim, free in enumerate(left):
                part = math.gcd(free, size)
                if part > 1:
                    result[axis].append((dim, part))
                    size //= part
        for dim, part in result[axis]:
            left[dim] //= part
    return result


def collective_seconds(
    one: Collective, chip: Chip, topology: tuple[int, ...] = (), mesh_shape: Mapping[str, int] | None = None
) -> float:
    """Seconds of all runs of a collective in a step, when it has the links to itself.

    Args:
        one: the collective.
        chip: the accelerator.
        topology: one slice's dimensions; () for one ring.
        mesh_shape: {axis: size}; None as in `predict`.
    """
    if one.group < 2 or not one.count:
        return 0.0
    runs = "all-reduce" if one.wire > 1.01 * one.least else one.kind
    mesh_shape = {"": one.group} if mesh_shape is None else mesh_shape
    axes = one.axes if set(one.axes) <= set(mesh_shape) else tuple(mesh_shape)
    outer = mesh_shape.get("slice", 1) if "slice" in axes else 1
    if not chip.torus:
        outer = max(outer, -(-one.group // chip.chips_a_host))
    inner = max(1, one.group // outer)
    seconds = 0.0
    if outer > 1:  # within a slice first, then a part of the array a chip between slices
        seconds += wire_bytes(runs, outer, one.payload / inner) / chip.dcn_bandwidth
    if inner > 1 and not chip.torus:
        seconds += wire_bytes(runs, inner, one.payload) / chip.link_bandwidth + HOP
    elif inner > 1:
        taken: dict[int, int] = {}
        layout = lay_out(mesh_shape, topology or (inner,))
        for dim, part in (pair for axis in axes for pair in layout.get(axis, ())):
            taken[dim] = taken.get(dim, 1) * part
        taken = taken or {0: inner}
        links = sum(_links(part, (topology or (inner,))[dim], chip) for dim, part in taken.items())
        wire = wire_bytes(runs, inner, one.payload) if outer > 1 else one.wire
        if one.kind == "all-to-all":  # what crosses the middle of the longest dimension
            wire *= max(1.0, max(taken.values()) / 4)
        seconds += wire / (links * chip.link_bandwidth) + HOP * sum(taken.values()) / 2
    return one.count * seconds


def _links(part, size, chip):
    return 2 if part == size and chip.ring and size % chip.ring == 0 else 1


def _whole_dimensions(left, size):
    """The fewest dimensions whose free sizes multiply to `size`, the last ones first; () where none do."""
    free = [dim for dim in range(len(left) - 1, -1, -1) if left[dim] > 1]
    for many in range(1, len(free) + 1):
        for chosen in itertools.combinations(free, many):
            if math.prod(left[dim] for dim in chosen) == size:
                return chosen
    return ()
