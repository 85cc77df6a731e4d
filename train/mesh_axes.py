"""Meshes of devices by named axes: slice, data, fsdp, tensor, sequence (see zoo/partition.py for what each splits).

A mesh has these axes in this order, outermost first, however they were named: neighbours on the last ones are
neighbours on the wires. With `slice`, the other axes lie inside a slice of a pod, on its own fast network.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from zoo import partition
from zoo.errors import InputError, nearest


def make_mesh(axes: Mapping[str, int] | str = "", devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh with automatic axes (jax.make_mesh now defaults to explicit ones, under which Linen's constraints fail).

    Args:
        axes: sizes by name, {"fsdp": 4, "tensor": 2} or "fsdp=4,tensor=2"; one size may be -1, for what is left. Empty
            or "auto": see default_axes.
        devices: all of the program's by default.

    Raises:
        InputError: an unknown axis, or sizes whose product is not the number of devices, or, on TPUs, another number of
            slices than the devices come in.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = dict(axes) if isinstance(axes, Mapping) else parse_axes(axes)
    sizes = sizes or default_axes(devices)
    for name in sizes:
        if name not in partition.MESH_AXES:
            raise InputError(f'mesh has no axis "{name}"{nearest(name, partition.MESH_AXES)}')
    sizes = _filled({name: sizes[name] for name in partition.MESH_AXES if name in sizes}, len(devices))
    automatic = {"axis_types": (AxisType.Auto,) * len(sizes)}
    slices = _count_slices(devices)
    if devices[0].platform == "tpu":
        check_slices(sizes, slices, len(devices))
    from jax.experimental import mesh_utils

    split = {"allow_split_physical_axes": True}  # as fsdp=128,tensor=2 splits the 16 x 16 of a v5e pod
    if slices > 1:
        inside = [1 if name == "slice" else size for name, size in sizes.items()]
        between = [size if name == "slice" else 1 for name, size in sizes.items()]
        placed = mesh_utils.create_hybrid_device_mesh(inside, between, devices=devices, **split)
        return Mesh(placed, tuple(sizes), **automatic)
    try:
        return jax.make_mesh(tuple(sizes.values()), tuple(sizes), **automatic, devices=devices)
    except NotImplementedError:
        placed = mesh_utils.create_device_mesh(tuple(sizes.values()), devices, **split)
        return Mesh(placed, tuple(sizes), **automatic)


def default_axes(devices: list[jax.Device]) -> dict[str, int]:
    """`fsdp` over all devices, inside each slice where they come in several.

    Parameters and moments then take 1/n of their bytes on each device, whatever the model. A model that fits whole on
    every device saves the gathers of its weights with data=-1; the numbers are the same.
    """
    slices = _count_slices(devices)
    return ({"slice": slices} if slices > 1 else {}) | {"fsdp": len(devices) // slices}


def check_slices(sizes: Mapping[str, int], slices: int, count: int) -> None:
    """Refuses an axis `slice` that is not the slices of a pod: what it sends goes over the network between them.

    Args:
        sizes: {axis: size} of a mesh.
        slices: of the pod.
        count: devices in all.

    Raises:
        InputError: so it is; the nearest mesh is named.
    """
    if sizes.get("slice", 1) == slices:
        return
    if slices == 1:
        rows = {"data": sizes["slice"] * sizes.get("data", 1)}
        near = rows | {name: size for name, size in sizes.items() if name not in ("slice", "data")}
        raise InputError(f'mesh "{_shown(sizes)}": the devices come in one slice; did you mean "{_shown(near)}"?')
    raise InputError(
        f'mesh "{_shown(sizes)}": the devices come in {slices} slices; name them, as in '
        f'"slice={slices},fsdp={count // slices}"'
    )


def parse_axes(text: str) -> dict[str, int]:
    """{"fsdp": 4, "tensor": 2} of "fsdp=4,tensor=2"; nothing of "" and "auto".

    Raises:
        InputError: another form, an axis twice, more than one size open (-1).
    """
    sizes = {}
    text = text.replace(" ", "")
    for part in filter(None, "" if text == "auto" else text.split(",")):
        name, _, size = part.partition("=")
        if not size.removeprefix("-").isdecimal() or int(size) < -1 or int(size) == 0:
            raise InputError(f'mesh part "{part}" is not of the form axis=size, such as "data=8" or "fsdp=4,tensor=2"')
        if name in sizes:
            raise InputError(f'mesh "{text}" names {name} twice')
        sizes[name] = int(size)
    if sum(size == -1 for size in sizes.values()) > 1:
        raise InputError(f'mesh "{text}" leaves more than one size open')
    return sizes


def check_tensor(mesh: Mesh, shapes: Any) -> None:
    """Refuses an axis `tensor` that does not split heads and feed-forward: its devices would do the same work.

    Args:
        mesh: any.
        shapes: the parameters' (or a train state's).

    Raises:
        InputError: so it is; sizes that would split them are named.
    """
    ways = mesh.shape.get("tensor", 1)
    if ways == 1:
        return
    widths: dict[str, set[int]] = {"heads": set(), "key-value heads": set(), "FFN units": set()}
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        for pattern, (what, dim) in _SPLIT.items():
            if re.search(pattern, partition.path_string(path)) and len(leaf.shape) >= -dim:
                widths[what].add(leaf.shape[dim])
    check_widths(ways, widths, mesh.size)
    if not _splits(ways, shapes):
        sizes = [n for n in range(2, mesh.size + 1) if mesh.size % n == 0 and _splits(n, shapes)]
        raise InputError(
            f"mesh axis tensor={ways} divides no heads, FFN width or vocabulary of this model; "
            + (f"sizes that do: {', '.join(map(str, sizes))}" if sizes else 'leave "tensor" out')
        )


# Where a kernel's path ends, and the dimension in which `tensor` splits its work.
_SPLIT = {
    r"(^|/)(attention|cross)/query/kernel$": ("heads", -2),
    r"(^|/)(attention|cross)/key/kernel$": ("key-value heads", -2),
    r"(^|/)mlp/(expert_\d+/)?up/kernel$": ("FFN units", -1),
}


def check_widths(ways: int, widths: Mapping[str, Any], count: int) -> None:
    """Refuses a size of `tensor` that leaves heads or the feed-forward whole on each device.

    Args:
        ways: the size.
        widths: numbers of "heads", of "key-value heads" (which may also be fewer than the devices, if they divide
            them: each then lies on several), of "FFN units".
        count: devices of the mesh.

    Raises:
        InputError: so it is; the nearest sizes that the devices allow are named.
    """

    def trouble(n: int) -> str:
        for what, numbers in widths.items():
            for number in sorted(numbers):
                if number % n and not (what == "key-value heads" and number < n and n % number == 0):
                    return f"{number} {what}"
        return ""

    if not (said := trouble(ways)):
        return
    going = [n for n in range(2, count + 1) if count % n == 0 and not trouble(n)]
    near = [*[n for n in going if n < ways][-1:], *[n for n in going if n > ways][:1]]
    raise InputError(
        f"mesh axis tensor={ways} does not divide {said} of this model; "
        + (f"the nearest sizes that do: {', '.join(map(str, near))}" if near else 'leave "tensor" out')
    )


def check_sequence(sizes: Mapping[str, int], seq_len: int) -> None:
    """Refuses an axis `sequence` that does not divide the tokens of a row: its devices would all do the same work.

    Args:
        sizes: {axis: size} of a mesh.
        seq_len: tokens of a row, as the model sees them.

    Raises:
        InputError: so it is; the nearest sizes and lengths that would do are named.
    """
    ways = sizes.get("sequence", 1)
    if seq_len % ways == 0:
        return
    devices = math.prod(sizes.values())
    near = [n for n in range(1, min(seq_len, devices) + 1) if seq_len % n == 0 and devices % n == 0]
    near = sorted(sorted(near, key=lambda n: (abs(n - ways), n))[:2])
    lengths = [n for n in (seq_len // ways * ways, -(-seq_len // ways) * ways) if n]
    raise InputError(
        f"mesh axis sequence={ways} does not divide seq_len {seq_len}; the nearest sizes that do: "
        f"{', '.join(map(str, near))}; the nearest lengths for {ways}: {', '.join(map(str, lengths))}"
    )


def _splits(ways, shapes):
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        name = partition.path_string(path)
        spec = partition.leaf_spec(name, leaf.shape, {"tensor": ways})
        if any(entry == "tensor" for entry in spec):
            return True
    return False


def _filled(sizes, count):
    """Sizes with the open one filled in; their product is `count`."""
    known = int(np.prod([size for size in sizes.values() if size != -1]))
    filled = {name: count // known if size == -1 else size for name, size in sizes.items()}
    if min(filled.values()) > 0 and int(np.prod(list(filled.values()))) == count:
        return filled
    raise InputError(
        f'mesh "{_shown(sizes)}" does not use each of the {count} devices once: sizes must multiply to {count}; '
        f'did you mean "{_shown(_nearest_sizes(sizes, count))}"?'
    )


def _nearest_sizes(sizes, count):
    """Each size the divisor of what is left nearest to the one asked for; the largest takes the rest."""
    rest = max(sizes, key=lambda name: float("inf") if sizes[name] == -1 else sizes[name])
    left, chosen = count, {}
    for name, size in sizes.items():
        if name != rest:
            chosen[name] = min((d for d in range(1, left + 1) if left % d == 0), key=lambda d: abs(d - size))
            left //= chosen[name]
    return {name: left if name == rest else chosen[name] for name in sizes}


def _shown(sizes):
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def _count_slices(devices):
    """How many slices of a TPU pod the devices come in: 1 for any others."""
    if any(device.platform != "tpu" for device in devices):
        return 1
    return len({getattr(device, "slice_index", 0) for device in devices})
