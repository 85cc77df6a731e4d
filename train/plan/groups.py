"""Who takes part in a collective: replica groups in each notation of HLO text, and the mesh axes that they follow."""

import re
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from zoo.errors import InputError

Groups = list[list[int]]


def replica_groups(attributes: str, devices: int) -> Groups:
    """Groups of a collective's attributes, as lists of positions in the mesh (row-major).

        {{0,1},{2,3}}                     explicit
        {}                                all in one group
        [2,4]<=[8]                        iota: 0..7 as 2 groups of 4
        [2,4]<=[4,2]T(1,0)                iota shaped [4,2], its axes permuted, then 2 groups of 4
        mesh['a'=2,'b'=4] {'b'}           a mesh, and the axes that a group follows ('b':(2)2 is the part of b of
                                          size 2 that has 2 outside it)
        mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}     the same with devices in another order

    Args:
        attributes: text that holds replica_groups=...
        devices: how many there are.

    Raises:
        InputError: no replica_groups, or a notation that is none of these.
    """
    found = re.search(r"\breplica_groups=", attributes)
    if found is None:
        raise InputError(f'collective without replica_groups: "{attributes[:80]}"')
    text = attributes[found.end() :]
    if explicit := re.match(r"\{((?:\{[\d,]*\},?)*)\}", text):
        groups = [[int(one) for one in group.split(",") if one] for group in re.findall(r"\{([\d,]*)\}", explicit[1])]
        return groups or [list(range(devices))]
    if iota := re.match(r"\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text):
        return _iota(iota[3]).reshape(int(iota[1]), int(iota[2])).tolist()
    if mesh := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^)]*(?:\([\d,]*\))?)\))? ?\{([^}]*)\}", text):
        return _mesh_groups(mesh[1], mesh[2], mesh[3])
    raise InputError(f'replica_groups in an unknown notation: "{text[:80]}"')


def source_target_pairs(attributes: str) -> list[tuple[int, int]]:
    """Pairs (from, to) of a collective-permute's attributes."""
    found = re.search(r"\bsource_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
    if found is None:
        raise InputError(f'collective-permute without source_target_pairs: "{attributes[:80]}"')
    return [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", found[1])]


def axes_of(groups: Sequence[Sequence[int]], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    """Mesh axes along which members of a group differ, in mesh order; a group may cover a part of an axis only.

    Args:
        groups: positions in the mesh.
        mesh_shape: {axis: size}, row-major.
    """
    sizes = tuple(mesh_shape.values())
    differ = set()
    for group in groups:
        if len(group) > 1:
            where = np.array(np.unravel_index(np.array(group), sizes))
            differ |= set(np.flatnonzero((where != where[:, :1]).any(axis=1)).tolist())
    return tuple(axis for number, axis in enumerate(mesh_shape) if number in differ)


def _iota(text):
    sizes = [int(size) for size in re.match(r"\[([\d,]+)\]", text)[1].split(",")]
    order = re.search(r"T\(([\d,]+)\)", text)
    ids = np.arange(prod(sizes)).reshape(sizes)
    return (ids.transpose([int(axis) for axis in order[1].split(",")]) if order else ids).reshape(-1)


def _mesh_groups(mesh, order, chosen):
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    count = prod(sizes.values())
    if not order:
        ids = np.arange(count)
    elif order.startswith("["):
        ids = _iota(order)
    else:
        ids = np.array([int(one) for one in order.split(",")])
    # Axes are cut where a chosen one is only a part: [outside it, it, inside it].
    split, picked = [], {}
    for name, size in sizes.items():
        parts = [(int(outer), int(part)) for outer, part in re.findall(rf"'{re.escape(name)}':\((\d+)\)(\d+)", chosen)]
        if re.search(rf"'{re.escape(name)}'(?!:)", chosen):
            parts = [(1, size)]
        done = 1
        for outer, part in sorted(parts):
            split += [outer // done, part]
            picked[name, outer] = len(split) - 1
            done = outer * part
        split.append(size // done)
    order_of_axes = [
        picked[name, int(outer or 1)] for name, outer in re.findall(r"'([^']+)'(?::\((\d+)\)\d+)?", chosen)
    ]
    rest = [axis for axis in range(len(split)) if axis not in order_of_axes]
    width = prod(split[axis] for axis in order_of_axes)
    return ids.reshape(split).transpose(rest + order_of_axes).reshape(-1, width).tolist()
