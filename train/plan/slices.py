"""Slices of TPU pods by name, and their devices without the pod: libtpu describes any slice on a plain machine.

v5e:16x16    v5p:4x4x8    2xv5e:16x16 (two slices joined by the data-centre network)    v5p-256 (a cloud's name)
"""

import functools
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax

from train.plan.chips import CHIPS, Chip, find_chip
from zoo.errors import InputError, nearest
from zoo.tpu_machine import ANSWERS, has_library

# Shapes that are sold. Below a cube of 4 x 4 x 4, the three-dimensional ones are these; above it, cubes are stacked.
FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
SMALL_CUBES = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
LARGEST = {"v4": 4096, "v5p": 6144}  # chips in one slice
PLANNED = tuple(chip.name for chip in CHIPS.values() if chip.torus and chip.devices_a_chip == 1)
# Names by accelerator type, as clouds give them: chips a counted unit (v4 and v5p count the two cores of a chip).
COUNTED = {"v5litepod": ("v5e", 1), "v5e": ("v5e", 1), "v6e": ("v6e", 1), "v4": ("v4", 2), "v5p": ("v5p", 2)}
_NAME = re.compile(r"(?:(\d+)x)?([a-z]\w*):(\d+(?:x\d+)*)")
_TYPE = re.compile(r"(?:(\d+)x)?([a-z]\w*)-(\d+)")


@dataclass(frozen=True)
class Slice:
    """Chips that a job gets together.

    Attributes:
        chip: their kind.
        shape: of one slice's torus, (16, 16); (n,) for chips on a switch.
        count: slices, joined by the data-centre network.
    """

    chip: Chip
    shape: tuple[int, ...]
    count: int = 1

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.count * math.prod(self.shape)

    @property
    def topology(self) -> str:
        """One slice, as libtpu names it."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    def __str__(self) -> str:
        return f"{self.count}x{self.topology}" if self.count > 1 else self.topology


def parse_slice(name: str) -> Slice:
    """Reads `v5e:16x16`, `2xv5p:4x4x8`, `v5p-256`, `v5litepod-16`.

    Raises:
        InputError: no such chip or no such slice of it (the nearest is named), or a chip that is two devices.
    """
    kind = re.split("[:-]", name.strip().lower())[0]
    chip = CHIPS.get(kind) or CHIPS.get(f"tpu{kind}") or _read(name).chip
    if chip.devices_a_chip > 1:
        raise InputError(
            f'slice "{name}": jax sees each {chip.name} chip as {chip.devices_a_chip} devices, and a plan counts one '
            f"a chip; plan for one of {', '.join(PLANNED)}"
        )
    return _read(name)


def _read(name: str) -> Slice:
    text = name.strip().lower()
    if typed := _TYPE.fullmatch(text):
        count, kind, units = typed.groups()
        if (count and int(count) < 1) or int(units) < 1:
            raise InputError(f'slice "{name}" is of nothing; did you mean "{kind}-{int(units) or 8}"?')
        if kind not in COUNTED:
            raise InputError(f'slice "{name}" is unknown{nearest(kind, COUNTED)}')
        kind, per_chip = COUNTED[kind]
        fitting = [shape for shape in shapes(find_chip(kind)) if math.prod(shape) * per_chip == int(units)]
        if not fitting:
            raise _no_such(name, find_chip(kind), (int(units) // per_chip,))
        return Slice(find_chip(kind), fitting[0], int(count or 1))
    found = _NAME.fullmatch(text)
    if not found:
        raise InputError(f'slice "{name}" is not of the form chip:shape, such as v5e:16x16, v5p:4x4x8 or 2xv5e:16x16')
    count, kind, sizes = found.groups()
    if kind not in CHIPS:
        raise InputError(f'slice "{name}": chip "{kind}" is unknown{nearest(kind, CHIPS)}')
    chip, shape = find_chip(kind), tuple(int(size) for size in sizes.split("x"))
    if chip.torus and (shape not in shapes(chip)):
        raise _no_such(name, chip, shape)
    if not chip.torus and len(shape) != 1 or math.prod(shape) < 1 or (count and int(count) < 1):
        raise InputError(f'slice "{name}" is not of the form {chip.name}:number')
    return Slice(chip, shape, int(count or 1))


def _no_such(name: str, chip: Chip, shape: tuple[int, ...]) -> InputError:
    """The error naming the slices of the chip that are nearest in number of chips, one of as many dimensions first."""
    number = max(1, math.prod(shape))

    def distance(other: tuple[int, ...]) -> tuple[float, int, int]:
        apart = abs(math.log(math.prod(other) / number))
        return apart, sorted(other) != sorted(shape), sum(other)

    best = min(shapes(chip), key=distance)
    near = f'"{chip.name}:{"x".join(map(str, best))}" ({math.prod(best)} chips)'
    return InputError(f'slice "{name}" does not exist; did you mean {near}?')


@functools.cache
def shapes(chip: Chip) -> tuple[tuple[int, ...], ...]:
    """Every slice of a kind of chip, from the smallest to the largest; of equal size, the most compact first."""
    if chip.torus == 2:
        return FLAT
    most = LARGEST.get(chip.name, 4096)
    steps = range(4, most // 16 + 1, 4)
    cubes = [
        (a, b, c)
        for a in steps
        for b in range(a, most // (4 * a) + 1, 4)
        for c in range(b, most // (a * b) + 1, 4)
        if c <= 24 and a * b * c <= most
    ]
    return (*SMALL_CUBES, *sorted(cubes, key=lambda shape: (math.prod(shape), sum(shape))))


def larger(slice: Slice) -> Iterator[Slice]:
    """Larger slices of the same chip, by size, doubling at least; none where chips hang on a switch."""
    if not slice.chip.torus:
        return
    last = math.prod(slice.shape)
    for shape in shapes(slice.chip):
        if math.prod(shape) >= 2 * last:
            last = math.prod(shape)
            yield Slice(slice.chip, shape, slice.count)


def tpu_devices(slice: Slice) -> list[Any]:
    """Devices of the slice, to compile for and not to run on.

    Raises:
        InputError: libtpu is not installed, or its version does not know the slice.
    """
    if not has_library():
        raise InputError('compiling for a TPU needs libtpu: pip install "oneblock[plan]", or --compiler cpu')
    from jax.experimental import topologies

    options: dict[str, Any] = {"num_slices": slice.count} if slice.count > 1 else {}
    if slice.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # one device a chip, as jobs run; v5p's is so by itself
    for variable, value in ANSWERS.items():  # also where this machine has chips: the slice is another
        os.environ.setdefault(variable, value)
    with _silent():
        try:
            described = topologies.get_topology_desc(topology_name=slice.topology, platform="tpu", **options)
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f'libtpu does not know slice "{slice}": {first[:200]}') from None
    return list(described.devices)


def virtual_devices(slice: Slice) -> list[Any]:
    """As many virtual CPU devices as the slice has chips, for a machine without libtpu.

    Raises:
        InputError: jax has already started with fewer.
    """
    ask_for_devices(slice)
    devices = jax.devices("cpu")
    if len(devices) < slice.chips:
        flag = f"--xla_force_host_platform_device_count={slice.chips}"
        raise InputError(f"{slice} has {slice.chips} chips, and jax has {len(devices)} devices: XLA_FLAGS={flag}")
    return devices[: slice.chips]


def ask_for_devices(slice: Slice) -> None:
    """Lets jax begin with as many virtual CPU devices as the slice has chips; too late where it has begun."""
    if "--xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", slice.chips)


@contextmanager
def _silent():
    """Sends what native code writes to stderr nowhere: lines about a TPU that is not there."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
