"""Collectives of a compiled program, read from its HLO text: what kind, over which mesh axes, how many bytes.

Two sizes are kept of each. P, the payload, is the whole array of a group: the gathered result, the array that is
summed, the array before it is scattered. The wire bytes are what each chip sends (and receives) when n chips pass
P round a ring, which no algorithm beats:

    all-gather          (n - 1) / n P          reduce-scatter       (n - 1) / n P
    all-reduce      2 * (n - 1) / n P          all-to-all           (n - 1) / n P, P being one chip's array
    collective-permute            P           of the chips that send to another

Where scattered sums hide. Few compilers print "reduce-scatter"; all of these count as one:
  - TPU: the sum and the cut are one kernel, printed as a fusion whose computation is named all-reduce-scatter and holds
    an all-reduce and dynamic-slices.
  - An all-reduce whose every reader cuts out 1 / n of it. A TPU prints this, even for an explicit psum_scatter, where a
    group lies along several dimensions of the torus, and runs it as printed: twice the bytes, over twice the links. So
    `wire` counts an all-reduce there, and `least` the scatter. The CPU's compiler has no pass that makes scatters; in
    its text `wire` counts what another backend would run.
Gathers hide, too: an all-reduce of arrays in which each chip has filled in its own part and left the rest zero (what
XLA makes of a gather that a backend does not take). It counts as an all-gather, `wire` as it is printed.
Asynchronous pairs count once: -start with its operands, a TPU's async collective fusion where it begins.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from train.plan.groups import axes_of, replica_groups, source_target_pairs
from train.plan.hlo import (
    Computation,
    Instruction,
    array_bytes,
    array_shapes,
    called_computations,
    execution_counts,
    parse_hlo,
)
from zoo.errors import InputError

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_WIRE = {"all-gather": 1.0, "all-reduce": 2.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
_PASSED_THROUGH = ("bitcast", "convert", "copy", "reshape", "transpose")


@dataclass(frozen=True)
class Collective:
    """One collective of the program, with its loops counted.

    Attributes:
        kind: one of KINDS.
        axes: mesh axes it runs over, in mesh order; () where nothing leaves a chip.
        group: chips a group.
        count: how often one step runs it.
        payload: P in bytes, of one run.
        wire: bytes each chip sends in one run.
        name: of the instruction.
        shapes: arrays that go in on each chip, such as "bf16[256,1024]".
        source: where in the model it comes from, as jax names it.
        sliced: printed as an all-reduce: a reduce-scatter of which every reader cuts out its own part, or an
            all-gather of arrays of which each chip has filled in its own.
        exact: False where it stands in a loop whose length the text does not give (counted once).
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    count: float
    payload: float
    wire: float
    name: str = ""
    shapes: tuple[str, ...] = ()
    source: str = ""
    sliced: bool = False
    exact: bool = True

    @property
    def least(self) -> float:
        """Wire bytes of one run if it ran as its kind says."""
        return self.wire if self.kind == "collective-permute" else wire_bytes(self.kind, self.group, self.payload)


def collectives(hlo_text: str, mesh_shape: Mapping[str, int], platform: str = "tpu") -> list[Collective]:
    """All collectives of a compiled program, in the order of the text.

    Args:
        hlo_text: compiled.as_text().
        mesh_shape: {axis: size} in the mesh's order; partition i of the program is the mesh's i-th device, row-major.
        platform: whose compiler wrote the text, "tpu", "gpu" or "cpu"; see the rule above.

    Raises:
        InputError: replica groups in a notation that is not known, or that do not fit the mesh.
    """
    computations = parse_hlo(hlo_text)
    counts, unknown = execution_counts(computations)
    inexact = _inside(computations, unknown)
    found: list[Collective] = []
    for computation in computations.values():
        if not counts.get(computation.name):
            continue
        for one in computation.instructions.values():
            kind = one.opcode.removesuffix("-start")
            if kind not in KINDS or _is_a_later_part(one, computation):
                continue
            times, exact = counts[computation.name], computation.name not in inexact
            found += _read(one, kind, computation, computations, mesh_shape, platform, times, exact)
    return found


def by_kind_and_axes(found: Sequence[Collective]) -> dict[tuple[str, tuple[str, ...]], dict[str, float]]:
    """{(kind, axes): {"count", "payload", "wire", "least"}} of a step, loops multiplied in, most wire bytes first."""
    table: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}
    for one in found:
        row = table.setdefault((one.kind, one.axes), {"count": 0.0, "payload": 0.0, "wire": 0.0, "least": 0.0})
        row["count"] += one.count
        row["payload"] += one.count * one.payload
        row["wire"] += one.count * one.wire
        row["least"] += one.count * one.least
    return dict(sorted(table.items(), key=lambda item: -item[1]["wire"]))


def make(kind: str, axes: Sequence[str], mesh_shape: Mapping[str, int], payload: float, count: float, source: str = ""):
    """A Collective by formula: `payload` bytes over whole mesh axes, `count` times a step."""
    axes = tuple(axis for axis in mesh_shape if axis in axes and mesh_shape[axis] > 1)
    group = prod(mesh_shape[axis] for axis in axes)
    return Collective(kind, axes, group, count, payload, wire_bytes(kind, group, payload), source=source)


def wire_bytes(kind: str, group: int, payload: float) -> float:
    """Bytes each chip sends on a ring of `group` chips; the table above."""
    if kind == "collective-permute":
        return payload if group > 1 else 0.0
    return _WIRE[kind] * (group - 1) / group * payload


def _read(one, kind, computation, computations, mesh_shape, platform, times, exact):
    devices = prod(mesh_shape.values())
    arrays = [_array(operand, computation) for operand in one.operands]
    if kind == "collective-permute":
        pairs = source_target_pairs(one.attributes)
        moving = [pair for pair in pairs if pair[0] != pair[1]]
        groups, arrays = [list(pair) for pair in moving], arrays[:1]
        size = len({device for pair in moving for device in pair}) or 1
    else:
        groups = replica_groups(one.attributes, devices)
        size = len(groups[0])
    if max((device for group in groups for device in group), default=0) >= devices:
        raise InputError(f"collective {one.name} names devices beyond the {devices} of the mesh {dict(mesh_shape)}")
    axes = axes_of(groups, mesh_shape)
    source = _source(one.attributes)
    parts: dict[tuple[str, bool], list] = {}
    for number, array in enumerate(arrays):
        becomes, sliced = kind, False
        if kind == "all-reduce":
            if computation.name.startswith("all-reduce-scatter"):
                becomes = "reduce-scatter"
            elif _every_reader_slices(one, number, len(arrays), size, computation, computations):
                becomes, sliced = "reduce-scatter", True
            elif (part := _own_part(one.operands[number], size, computation, computations)) is not None:
                becomes, sliced, array = "all-gather", True, part
        parts.setdefault((becomes, sliced), []).append(array)
    result = []
    for (becomes, sliced), group in parts.items():
        payload = sum(array_bytes(*array) for array in group) * (size if becomes == "all-gather" else 1)
        wire = wire_bytes("all-reduce" if sliced and platform != "cpu" else becomes, size, payload)
        if becomes == "collective-permute":
            wire = payload * len(moving) / devices
        shapes = tuple(f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in group)
        result.append(Collective(becomes, axes, size, times, payload, wire, one.name, shapes, source, sliced, exact))
    return result


def _array(name, computation):
    shapes = array_shapes(computation.instructions[name].type)
    if len(shapes) != 1:
        raise InputError(f"operand {name} of a collective is not one array")
    return shapes[0]


def _is_a_later_part(one: Instruction, computation: Computation) -> bool:
    """Whether a TPU's async collective fusion repeats here what it began elsewhere."""
    if "chain_id=" not in one.attributes:
        return False
    return not any("AsyncCollectiveStart" in user.attributes for user in computation.users[one.name])


def _every_reader_slices(one, number, of, ways, computation, computations) -> bool:
    if ways == 1:
        return False
    names = [one.name]
    if of > 1 or one.type.startswith("("):
        read = re.compile(rf"\bindex={number}\b")
        names = [user.name for user in computation.users[one.name] if read.search(user.attributes)]
    return bool(names) and all(_fates(name, ways, computation, computations) == {"sliced"} for name in names)


def _fates(name, ways, computation, computations) -> set[str]:
    """What becomes of a value: "sliced" to one part in `ways`, "returned" whole by a fusion, or "read" otherwise."""
    value = computation.instructions[name]
    fates = {"returned"} if value.root else set()
    for user in computation.users[name]:
        if user.opcode == "dynamic-slice" and user.operands[0] == name and _elements(user) * ways <= _elements(value):
            fates.add("sliced")
        elif user.opcode in _PASSED_THROUGH:
            fates |= _fates(user.name, ways, computation, computations)
        elif user.opcode == "fusion":
            inner = computations[called_computations(user)[0]]
            for number in (number for number, operand in enumerate(user.operands) if operand == name):
                within = _fates(inner.parameter(number), ways, inner, computations)
                if "returned" in within and not user.type.startswith("("):
                    within = within - {"returned"} | _fates(user.name, ways, computation, computations)
                fates |= within
        else:
            fates.add("read")
    return fates


def _own_part(name, ways, computation, computations, outer=None):
    """(dtype, shape) of the part, one in `ways`, that a chip has filled into an array of zeros; None for other values.

    `outer` is (fusion, its computation, outer) where `computation` is a fusion's.
    """
    value = computation.instructions[name]
    if ways == 1:
        return None
    if value.opcode in _PASSED_THROUGH:
        return _own_part(value.operands[0], ways, computation, computations, outer)
    if value.opcode == "get-tuple-element":
        fusion = computation.instructions[value.operands[0]]
        if fusion.opcode != "fusion":
            return None
        inner = computations[called_computations(fusion)[0]]
        made = inner.root.operands[int(re.search(r"\bindex=(\d+)", value.attributes)[1])]
        return _own_part(made, ways, inner, computations, (fusion, computation, outer))
    if value.opcode == "fusion":
        inner = computations[called_computations(value)[0]]
        return _own_part(inner.root.name, ways, inner, computations, (value, computation, outer))
    part = {"dynamic-update-slice": 1, "pad": 0}.get(value.opcode)
    if part is None:
        return None
    array, zeros = _array(value.operands[part], computation), value.operands[1 - part]
    return array if prod(array[1]) * ways == _elements(value) and _is_zero(zeros, computation, outer) else None


def _is_zero(name, computation, outer):
    value = computation.instructions[name]
    if value.opcode == "parameter" and outer is not None:
        fusion, around, beyond = outer
        return _is_zero(fusion.operands[int(value.arguments)], around, beyond)
    if value.opcode == "broadcast" or value.opcode in _PASSED_THROUGH:
        return _is_zero(value.operands[0], computation, outer)
    return value.opcode == "constant" and value.arguments.strip() in ("0", "-0", "0.0")


def _elements(instruction):
    return sum(prod(shape) for _, shape in array_shapes(instruction.type))


def _inside(computations, loops):
    """Names of computations that run within the loops named."""
    names: set[str] = set()

    def visit(name):
        if name in names or name not in computations:
            return
        names.add(name)
        for one in computations[name].instructions.values():
            for called in called_computations(one):
                visit(called)

    for computation in list(computations.values()):
        for one in computation.instructions.values():
            if one.name in loops:
                for called in called_computations(one):
                    visit(called)
    return names


def _source(attributes):
    start = attributes.find('op_name="')
    return attributes[start + 9 : attributes.find('"', start + 9)] if start >= 0 else ""
