"""A plan: what a compiled step says about a run, as a table for people and as plain data for JSON."""

import dataclasses
import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from train.plan.between_slices import between_slices
from train.plan.collectives import by_kind_and_axes, collectives
from train.plan.command_lines import plan_command, run_command
from train.plan.compile import Compiled
from train.plan.faults import faults
from train.plan.flops import PALLAS_NOTE, count_flops
from train.plan.formulas import Work
from train.plan.job import Job
from train.plan.roofline import estimate, predict
from zoo.summary import count_parameters

SUMS = "float32"  # as zoo.sharded_product sums gradients over chips
ROOM = 0.98  # of a chip's memory, where the compiler does not know the chip: the runtime keeps a little for itself


@dataclass(frozen=True)
class Plan:
    """One step of one run on one slice. Pairs are (best, worst).

    Attributes:
        model: its name.
        parameters: how many it has.
        slice: as in "v5e:16x16".
        chips: of all slices.
        mesh: as in "fsdp=256".
        batch, seq, accumulate: rows a step, tokens a row, micro-batches.
        objective: what is trained.
        dtype, remat, scan, attention: fields of the model; of attention "auto" with the kernel that it takes.
        compiler: "tpu", or "cpu" where XLA's CPU compiler stood in over virtual devices.
        fits: whether `memory` is within the chip's.
        hbm: bytes of a chip's memory.
        memory: bytes a chip: parameters, moments, batch, padding, temporaries, program, total.
        of_temporaries: bytes a chip by formula: gradients, activations and the like, of which temporaries consist.
        whole: bytes of the parameters that fsdp does not divide, which every chip holds.
        widest: (share, path), among the others, of that of which one chip holds the largest share.
        faults: what the step should not do, in words; see train.plan.faults.
        model_flops: of a step over all chips, without recomputation, by formula.
        hardware_flops: of all products in the step's jaxpr, loops counted, without blocks that splash skips.
        collectives: [{kind, axes, count, payload, wire}] a step; bytes of whole arrays, and sent by each chip.
        compute, hbm_time, interconnect: the roofline times, seconds.
        step: predicted seconds.
        mfu: model FLOP utilisation.
        tokens_per_second: over all chips.
        assumptions: behind them, in words.
        seconds: what tracing and compiling took.
        command: that gives this plan.
        versions: of jax, and of libtpu where it compiled.
        sums: dtype in which gradients are summed over chips; earlier steps, kept as JSON, did so in bfloat16.
        run: the command line that trains it, but for its folders; "" for a model made in Python.
    """

    model: str
    parameters: int
    slice: str
    chips: int
    mesh: str
    batch: int
    seq: int
    accumulate: int
    objective: str
    dtype: str
    remat: str
    scan: bool
    attention: str
    compiler: str
    fits: bool
    hbm: float
    memory: dict[str, float]
    of_temporaries: dict[str, float]
    whole: int
    widest: tuple[float, str]
    faults: tuple[str, ...]
    model_flops: float
    hardware_flops: float
    collectives: tuple[dict[str, Any], ...]
    compute: float
    hbm_time: float
    interconnect: float
    step: tuple[float, float]
    mfu: tuple[float, float]
    tokens_per_second: tuple[float, float]
    assumptions: tuple[str, ...]
    seconds: float
    command: str
    versions: dict[str, str]
    sums: str = "bfloat16"
    run: str = ""

    def chip_hours(self, tokens: float) -> tuple[float, float]:
        """Chip-hours of a run on so many tokens, (best, worst)."""
        return tuple(tokens / rate * self.chips / 3600 for rate in self.tokens_per_second)

    def to_dict(self, tokens: float | None = None) -> dict[str, Any]:
        """Plain types alone, ready for JSON; with the cost of a run on `tokens`, where given."""
        plain = dataclasses.asdict(self)
        if tokens:
            low, high = self.chip_hours(tokens)
            days = [hours / self.chips / 24 for hours in (low, high)]
            plain["cost"] = {"tokens": tokens, "chip_hours": [low, high], "days": days}
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Plan":
        """The inverse of `to_dict`; the cost is left out."""
        names = {field.name for field in dataclasses.fields(cls)}
        kept = {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items() if name in names}
        return cls(**kept)


def hours_text(hours: float) -> str:
    """Whole hours, and two digits of fewer than ten."""
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def make_plan(job: Job, compiled: Compiled, model: str = "") -> Plan:
    """Counts and times of a compiled step.

    Args:
        job: what was compiled.
        compiled: of job.
        model: how the command line named it.
    """
    config, train, chip = job.model, job.train, job.slice.chip
    platform = compiled.compiler if chip.torus or compiled.compiler == "cpu" else "gpu"
    work = Work(config, train, job.mesh_shape, platform)
    formula = estimate(config, train, job.mesh_shape, chip, job.slice.shape, platform)
    found = collectives(compiled.text, job.mesh_shape, compiled.compiler)
    found += between_slices(compiled.text, job.slice.count)
    hardware, notes = _hardware_flops(compiled, work)
    prediction = predict(
        model_flops=formula.model_flops,
        hardware_flops=hardware,
        traffic=sum(formula.traffic.values()),
        collectives=found,
        tokens=job.tokens,
        chip=chip,
        chips=job.slice.chips,
        topology=job.slice.shape,
        mesh_shape=job.mesh_shape,
    )
    state = compiled.parameters + compiled.moments + compiled.batch
    memory = {
        "parameters": compiled.parameters,
        "moments": compiled.moments,
        "batch": compiled.batch,
        "padding": max(0, compiled.arguments - state),
        "temporaries": compiled.temporaries,
        "program": compiled.code + max(0, compiled.outputs - compiled.aliased),
        "total": compiled.total,
    }
    return Plan(
        model=job.name,
        parameters=sum(count_parameters(config).values()),
        slice=str(job.slice),
        chips=job.slice.chips,
        mesh=train.mesh,
        batch=train.batch_size,
        seq=train.seq_len,
        accumulate=train.accumulate,
        objective=train.objective,
        dtype=config.dtype,
        remat=config.remat,
        scan=config.scan,
        attention=work.kernel if config.attention_kernel == work.kernel else f"auto ({work.kernel})",
        compiler=compiled.compiler,
        fits=compiled.compiler == "tpu" or compiled.total <= ROOM * chip.hbm_bytes,
        hbm=chip.hbm_bytes,
        memory=memory,
        of_temporaries={k: v for k, v in formula.memory.items() if k not in ("parameters", "moments", "batch")},
        whole=compiled.whole,
        widest=compiled.widest,
        faults=faults(job, compiled),
        model_flops=formula.model_flops,
        hardware_flops=hardware,
        collectives=tuple(
            {"kind": kind, "axes": list(axes), **row} for (kind, axes), row in by_kind_and_axes(found).items()
        ),
        compute=prediction.compute,
        hbm_time=prediction.memory,
        interconnect=prediction.interconnect,
        step=prediction.step,
        mfu=prediction.mfu,
        tokens_per_second=prediction.tokens_per_second,
        assumptions=(*prediction.assumptions, *notes),
        seconds=compiled.lower_seconds + compiled.compile_seconds,
        command=plan_command(job, model or job.name, compiled.compiler),
        versions={name: version(name) for name in ("jax", "libtpu")[: 1 + (compiled.compiler == "tpu")]},
        sums=SUMS,
        run=run_command(job, model or job.name),
    )


def _hardware_flops(compiled: Compiled, work: Work) -> tuple[float, tuple[str, ...]]:
    """FLOPs of all products in the step's jaxpr, and what is to be said of them."""
    counted = count_flops(compiled.jaxpr)
    notes = [note for note in counted.notes if note != PALLAS_NOTE or work.kernel != "splash"]
    total = counted.matmul
    if work.kernel == "splash" and PALLAS_NOTE in counted.notes:
        total -= counted.by_primitive.get("pallas_call", 0.0) * (1 - work.blocks_run)
        notes.append(f"splash attention runs {work.blocks_run:.0%} of its blocks: those that a query sees")
    return total, tuple(notes)


def render(plan: Plan, tokens: float | None = None) -> str:
    """The plan as plain text."""
    lines = [_title(plan), ""]
    for heading, rows in _sections(plan, tokens):
        width = max(len(name) for name, _ in rows)
        lines += [heading, *(f"  {name:<{width}}  {value}".rstrip() for name, value in rows), ""]
    if plan.faults:
        lines += ["faults", *(f"  - {line}" for line in plan.faults), ""]
    if plan.assumptions:
        lines += ["rests on", *(f"  - {line}" for line in plan.assumptions), ""]
    by = " and ".join(f"{name} {number}" for name, number in plan.versions.items())
    cost = f" --tokens {tokens:g}" if tokens else ""
    lines += [f"compiled in {plan.seconds:.0f} s by {by}; again:", f"  {plan.command}{cost}"]
    lines += ["the run, but for its steps and learning rate:", f"  {plan.run}"] if plan.run else []
    return "\n".join(lines)


def _title(plan: Plan) -> str:
    by = "compiled by libtpu" if plan.compiler == "tpu" else "compiled by XLA for virtual CPU devices, not by libtpu"
    size = f"{count_text(plan.parameters)} parameters"
    return (
        f"{plan.model} ({size}) on {plan.slice}: {plan.chips} chips, mesh {plan.mesh}\n"
        f"{plan.batch} rows x {plan.seq} tokens, {plan.accumulate} micro-batch{'es' if plan.accumulate > 1 else ''}, "
        f"{plan.dtype}, remat {plan.remat}, attention {plan.attention}, {plan.objective}; {by}"
    )


def _sections(plan: Plan, tokens: float | None) -> list[tuple[str, list[tuple[str, str]]]]:
    total, hbm = plan.memory["total"], plan.hbm
    verdict = f"{'fits' if plan.fits else 'DOES NOT FIT'}: {bytes_text(total)} of {bytes_text(hbm)} a chip"
    memory = [(name, bytes_text(count)) for name, count in plan.memory.items() if count and name != "total"]
    at = [name for name, _ in memory].index("temporaries") + 1 if plan.memory["temporaries"] else len(memory)
    memory[at:at] = [(f"  about: {name}", bytes_text(count)) for name, count in plan.of_temporaries.items() if count]
    share, path = plan.widest
    whole = f"; whole: {bytes_text(plan.whole)}" if plan.whole else ""
    memory.append(("largest share on a chip", f"1/{1 / share:.0f} of {path}{whole}"))
    flops = [
        ("model FLOPs a step", f"{plan.model_flops:.3e}"),
        ("hardware FLOPs a step", f"{plan.hardware_flops:.3e} ({plan.hardware_flops / plan.model_flops:.2f} x)"),
    ]
    wires = [
        (
            f"{row['kind']} over {'+'.join(row['axes']) or 'other groups'}",
            f"{row['count']:>6.0f} x, {bytes_text(row['payload']):>9} in all, {bytes_text(row['wire']):>9} sent a chip",
        )
        for row in sorted(plan.collectives, key=lambda row: -row["wire"])
    ]
    times = [
        ("compute", seconds_text(plan.compute)),
        ("memory (HBM)", seconds_text(plan.hbm_time)),
        ("interconnect", seconds_text(plan.interconnect)),
        ("step, predicted", span(plan.step, seconds_text)),
        ("MFU", span(plan.mfu[::-1], lambda x: f"{100 * x:.0f} %")),
        ("tokens/s", span(plan.tokens_per_second[::-1], lambda x: f"{x:,.0f}")),
        ("tokens/s a chip", span([rate / plan.chips for rate in plan.tokens_per_second[::-1]], lambda x: f"{x:,.0f}")),
    ]
    if tokens:
        hours = plan.chip_hours(tokens)
        days = [hour / plan.chips / 24 for hour in hours]
        times.append((f"{count_text(tokens)} tokens", f"{span(hours, hours_text)} chip-hours, "
                      f"{span(days, lambda x: f'{x:,.1f}' if x >= 1 else f'{x:.2g}')} days"))  # fmt: skip
    sections = [(verdict, memory), ("work", flops)]
    sections += [("collectives a step", wires)] if wires else []
    return [*sections, ("time", times)]


def span(pair: Any, show: Any) -> str:
    """`low to high`, once where both read alike."""
    low, high = show(pair[0]), show(pair[1])
    return low if low == high else f"{low} to {high}"


def bytes_text(count: float) -> str:
    """Bytes in binary units, three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB"


def count_text(count: float) -> str:
    """A large number as it is said: 300 B, 1.4 T."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"


def seconds_text(seconds: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{seconds:.3g} s" if seconds >= 1 or not math.isfinite(seconds) else f"{1000 * seconds:.3g} ms"
