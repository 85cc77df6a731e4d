"""How fast the devices exchange numbers: all-reduce and all-gather, measured, over all devices and between processes.

    bus bandwidth of an all-reduce of b bytes a device in time t      2 (n - 1) / n * b / t
    of an all-gather of b bytes in all                                    (n - 1) / n * b / t

which is what each device has to send and receive, so that the number compares with a link's published one.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from zoo.errors import InputError

KINDS = ("all-reduce", "all-gather")


@dataclass(frozen=True)
class Measured:
    """One exchange.

    Attributes:
        kind: "all-reduce" or "all-gather".
        ways: devices that exchange.
        across: what lies between them, "devices" or "processes".
        payload: bytes a device gives to an all-reduce, or that an all-gather makes in all.
        seconds: the fastest of several.
    """

    kind: str
    ways: int
    across: str
    payload: int
    seconds: float

    @property
    def bandwidth(self) -> float:
        """Bytes/s over a device's links; see the module's text."""
        return (2 if self.kind == "all-reduce" else 1) * (self.ways - 1) / self.ways * self.payload / self.seconds

    def line(self) -> str:
        """In words."""
        return (
            f"{self.kind} over {self.ways} {self.across}, {self.payload / 2**20:.3g} MiB: {self.seconds * 1e3:.3g} ms, "
            f"{self.bandwidth / 1e9:.3g} GB/s a device"
        )


def measure(devices: list[jax.Device], payload: int | None = None, repeats: int = 5) -> Iterator[Measured]:
    """Exchanges over all devices, and over processes where there are several.

    Args:
        devices: all that take part. Where processes have other numbers of them, each gives to the exchange between
            processes as many as the one that has the fewest.
        payload: bytes a device; None: 64 MiB, on CPUs 1 MiB.
        repeats: of which the fastest counts.

    Raises:
        InputError: a sum that came out wrong.
    """
    if len(devices) < 2:
        return
    payload = payload or (2**20 if devices[0].platform == "cpu" else 2**26)
    groups = by_process(devices)
    fewest = min(map(len, groups))
    grids = {"devices": np.array([sum(groups, [])]), "processes": np.array([group[:fewest] for group in groups])}
    for across, grid in grids.items():
        if across == "processes" and (len(groups) == 1 or max(map(len, groups)) == 1):
            continue
        mesh = Mesh(grid, ("process", "device"), axis_types=(AxisType.Auto,) * 2)
        axes = ("process", "device") if across == "devices" else ("process",)
        ways = int(np.prod([mesh.shape[axis] for axis in axes]))
        for kind in KINDS:
            yield Measured(kind, ways, across, *_timed(mesh, kind, axes, ways, payload, repeats))


def by_process(devices: list[jax.Device]) -> list[list[jax.Device]]:
    """The devices of each process, in order."""
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda device: device.process_index)]


def given(place: Any) -> Any:
    """What the device at that place gives: any sum of fewer than 16,777 of them is exact in float32."""
    return place % 1000


def _timed(
    mesh: Mesh, kind: str, axes: tuple[str, ...], ways: int, payload: int, repeats: int
) -> tuple[int, float]:
    size, count = payload // 4, mesh.size
    if kind == "all-gather":
        size //= ways
    split = PartitionSpec(("process", "device"))
    rest = PartitionSpec(tuple(axis for axis in mesh.axis_names if axis not in axes) or None)

    def part(index: Any) -> np.ndarray:
        return np.full(size, given(index[0].start // size), np.float32)

    numbers = jax.make_array_from_callback((count * size,), NamedSharding(mesh, split), part)

    @partial(jax.shard_map, mesh=mesh, in_specs=split, out_specs=rest, check_vma=False)
    def exchange(x: Any) -> Any:
        return jax.lax.psum(x, axes) if kind == "all-reduce" else jax.lax.all_gather(x, axes, tiled=True)

    run = jax.jit(exchange)
    out = jax.block_until_ready(run(numbers))
    _check(kind, mesh, axes, np.asarray(out.addressable_data(0)), size)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run(numbers))
        best = min(best, time.perf_counter() - began)
    return size * 4 * (ways if kind == "all-gather" else 1), best


def _check(kind: str, mesh: Mesh, axes: tuple[str, ...], out: np.ndarray, size: int) -> None:
    """Compares what this process's first device has with what the givers' numbers make."""
    givers = given(np.arange(mesh.size)).reshape(mesh.devices.shape)
    if axes == ("process",):
        givers = givers[:, 0]
    wanted = np.full(size, givers.sum()) if kind == "all-reduce" else np.repeat(givers.ravel(), size)
    if not np.array_equal(out, wanted):
        raise InputError(f"an {kind} over {' and '.join(axes)} came out wrong: the interconnect or driver is faulty")
