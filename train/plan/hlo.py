"""HLO text as computations of instructions, and how often each computation runs in one call of the program."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_ASSIGNMENT = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """One line: `name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    arguments: str
    root: bool = False


@dataclass
class Computation:
    """A named list of instructions; `users` are those that read a value."""

    name: str
    entry: bool
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """{name: instructions that have it as an operand}."""
        table = defaultdict(list)
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                table[operand].append(instruction)
        return table

    @cached_property
    def root(self) -> Instruction:
        """What the computation returns."""
        return next((i for i in self.instructions.values() if i.root), list(self.instructions.values())[-1])

    def parameter(self, number: int) -> str | None:
        """Name of its parameter of that number."""
        for one in self.instructions.values():
            if one.opcode == "parameter" and one.arguments.strip() == str(number):
                return one.name
        return None


def parse_hlo(text: str) -> dict[str, Computation]:
    """{name: computation} of a module's text (compiled.as_text())."""
    computations: dict[str, Computation] = {}
    current = None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = computations[header[2]] = Computation(header[2], bool(header[1]))
        elif current is not None and (found := _ASSIGNMENT.match(line)):
            instruction = _instruction(found[2], found[3], bool(found[1]))
            if instruction is not None:
                current.instructions[instruction.name] = instruction
    return computations


def array_shapes(type_text: str) -> list[tuple[str, tuple[int, ...]]]:
    """[(dtype, shape)] of the arrays in a type, tuples laid flat; layouts and comments are passed over."""
    bare = re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", type_text)
    return [
        (kind, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size))
        for kind, sizes in _ARRAY.findall(bare)
    ]


def array_bytes(kind: str, shape: tuple[int, ...]) -> float:
    """Bytes of an array without a layout's padding."""
    digits = re.search(r"\d+", kind)
    bits = _BITS.get(kind, int(digits[0]) if digits else 0)
    return prod(shape) * bits / 8


def execution_counts(computations: dict[str, Computation]) -> tuple[dict[str, float], set[str]]:
    """How often each computation runs in one call, and the loops whose length is not in the text (counted once).

    A while loop's length is the compiler's known_trip_count, else what its counter's start, step and bound give. Of a
    conditional, each branch counts as if it ran.
    """
    counts: dict[str, float] = defaultdict(float)
    unknown: set[str] = set()

    def visit(name: str, times: float) -> None:
        counts[name] += times
        for one in computations[name].instructions.values():
            if one.opcode in ("async-done", "async-update"):
                continue
            inner = times
            if one.opcode == "while":
                trips = trip_count(one, computations[name], computations)
                if trips is None:
                    unknown.add(one.name)
                inner = times * (1 if trips is None else trips)
            for called in called_computations(one):
                if called in computations:
                    visit(called, inner)

    for name, computation in computations.items():
        if computation.entry:
            visit(name, 1.0)
    return counts, unknown


def called_computations(instruction: Instruction) -> list[str]:
    """Names of the computations that an instruction runs."""
    names = _CALLED.findall(instruction.attributes)
    for branches in _BRANCHES.findall(instruction.attributes):
        names += [name.strip().lstrip("%") for name in branches.split(",")]
    return names


def trip_count(loop: Instruction, parent: Computation, computations: dict[str, Computation]) -> int | None:
    """Trips of a while instruction that stands in `parent`, or None where its counter cannot be read."""
    stated = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if stated:
        return int(stated[1])
    called = dict(re.findall(r"\b(condition|body)=%?([\w.\-]+)", loop.attributes))
    condition, body = computations.get(called.get("condition", "")), computations.get(called.get("body", ""))
    if condition is None or body is None:
        return None
    test = condition.root
    operands = [_scalar(condition, name) for name in test.operands]
    if test.opcode == "fusion":
        inner = computations[called_computations(test)[0]]
        test = inner.root
        numbers = [_scalar(inner, name) for name in test.operands]
        operands = [operands[n[1]] if n and n[0] == "parameter" else n for n in numbers]
    if test.opcode != "compare" or "direction=LT" not in test.attributes or len(operands) != 2:
        return None

    def at_start(value):
        if value is None or value[0] == "constant":
            return value and value[1]
        initial = parent.instructions.get(loop.operands[0])
        if value[0] != "element" or initial is None or initial.opcode != "tuple":
            return None
        found = _scalar(parent, initial.operands[value[1]])
        return found[1] if found and found[0] == "constant" else None

    counter, bound = operands
    start, end = at_start(counter), at_start(bound)
    if counter is None or counter[0] != "element" or body.root.opcode != "tuple":
        return None
    after = _scalar(body, body.root.operands[counter[1]])
    step = after[2] if after and after[:2] == counter[:2] else 0
    return None if start is None or end is None or step < 1 else max(0, -(-(end - start) // step))


def _scalar(computation, name):
    """("constant", value), ("parameter", number), ("element", index of the loop's tuple, what was added), or None."""
    one = computation.instructions.get(name)
    if one is None:
        return None
    if one.opcode in ("copy", "bitcast", "convert"):
        return _scalar(computation, one.operands[0])
    if one.opcode in ("constant", "parameter"):
        return (one.opcode, int(one.arguments)) if re.fullmatch(r"\s*-?\d+\s*", one.arguments) else None
    if one.opcode == "get-tuple-element":
        return ("element", int(re.search(r"index=(\d+)", one.attributes)[1]), 0)
    if one.opcode == "add":
        parts = [_scalar(computation, operand) for operand in one.operands]
        elements = [part for part in parts if part and part[0] == "element"]
        constants = [part for part in parts if part and part[0] == "constant"]
        if len(elements) == len(constants) == 1:
            return (*elements[0][:2], elements[0][2] + constants[0][1])
    return None


def _instruction(name, rest, root):
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    if end <= 0:
        return None
    type_text, rest = rest[:end], rest[end:].lstrip()
    opening = rest.find("(")
    if opening < 0:
        return None
    closing = _closing(rest, opening)
    arguments = rest[opening + 1 : closing]
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
    return Instruction(name, type_text, rest[:opening], operands, rest[closing + 1 :], arguments, root)


def _closing(text, start):
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return len(text) - 1
