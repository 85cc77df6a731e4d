"""Key tables: which published tensor each of our parameters is, and every fault of a folder in one report.

A family has one table (zoo/checkpoints/bert.py, gpt.py, llama.py). Its rows serve both ways: import reads a row from
right to left, export from left to right. Nothing is loaded by luck: a tensor that is missing, left over, of the wrong
shape or type, or that contradicts another name of the same parameter, fails the load and is named.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from zoo.checkpoints.layouts import LAYOUTS, Shape
from zoo.checkpoints.name_ranges import ranges
from zoo.checkpoints.safetensors_file import StoredTensor
from zoo.checkpoints.safetensors_out import OutgoingTensor
from zoo.errors import InputError

# More than any family has; a stranger's file may hold a million names.
FAULTS_SHOWN = 200
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Key:
    """One row: our parameters, the published tensor, and the layout between them.

    Attributes:
        ours: path of our parameter, or the paths that one published tensor holds side by side; `{layer}` counts layers.
        theirs: name of the published tensor without the table's prefix; with `{head}` our first axis lies in as many
            tensors, counted from 0.
        layout: a name in LAYOUTS.
        aliases: other names of the same parameter. Any one will do; several must be equal to the bit.
        instead: a name that counts where it is there, whatever `theirs` holds; written beside it.
        given, unless: path of another parameter: the row counts only in models that have it, or lack it.
    """

    ours: str | tuple[str, ...]
    theirs: str
    layout: str = "same"
    aliases: tuple[str, ...] = ()
    instead: str | None = None
    given: str | None = None
    unless: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def head_names(self, heads: int) -> list[str]:
        """The published names of a row with `{head}`; none of others."""
        return [self.theirs.replace("{head}", str(head)) for head in range(heads)] if "{head}" in self.theirs else []

    def at(self, layer: int) -> "Key":
        """The row of one layer."""
        numbered = [text.replace("{layer}", str(layer)) for text in (*self.paths, self.theirs, *self.aliases)]
        ours, count = tuple(numbered[: len(self.paths)]), len(self.paths)
        given, unless = (name and name.replace("{layer}", str(layer)) for name in (self.given, self.unless))
        return Key(ours, numbered[count], self.layout, tuple(numbered[count + 1 :]), self.instead, given, unless)

    def fits(self, paths: Container[str]) -> bool:
        """Whether a model with the parameters `paths` has this row."""
        if (self.given and self.given not in paths) or (self.unless and self.unless in paths):
            return False
        return all(path in paths for path in self.paths)


def norm(ours: str, theirs: str) -> tuple[Key, Key]:
    """A layer norm."""
    return Key(f"{ours}/scale", f"{theirs}.weight"), Key(f"{ours}/bias", f"{theirs}.bias")


def linear(ours: str, theirs: str, layout: str = "linear") -> tuple[Key, Key]:
    """A projection and its bias, which a model without biases does not have."""
    return Key(f"{ours}/kernel", f"{theirs}.weight", layout), Key(f"{ours}/bias", f"{theirs}.bias")


def linear_to_heads(ours: str, theirs: str) -> tuple[Key, Key]:
    """A query, key or value projection and its bias."""
    weight = Key(f"{ours}/kernel", f"{theirs}.weight", "linear_to_heads")
    return weight, Key(f"{ours}/bias", f"{theirs}.bias", "heads_bias")


@dataclass(frozen=True)
class Table:
    """All rows of a family.

    Attributes:
        name: what error messages call it.
        prefix: what heads put before the backbone's names ("bert."); read with and without it.
        other_prefixes: what may stand in its place, and is tried first.
        keys: the rows.
        buffers: patterns (whole name, without prefix) of stored tensors that hold no parameter and are passed over.
        renamed: old endings of names and what they are called now.
        heads: beginnings of published names that stand outside the backbone and so never take its prefix.
        left_out: beginnings of stored names of another model beside this one, which is not loaded.
    """

    name: str
    prefix: str
    keys: tuple[Key, ...]
    buffers: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    heads: tuple[str, ...] = ("lm_head.", "score.", "qa_outputs.")
    other_prefixes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def plain_name(self, name: str) -> str:
        """`name` without the prefix and with old endings replaced."""
        prefix = next((other for other in self.other_prefixes if name.startswith(other)), self.prefix)
        plain = name.removeprefix(prefix)
        for old, new in self.renamed:
            if plain.endswith(old):
                plain = plain.removesuffix(old) + new
        return plain

    def rows(self, num_layers: int) -> Iterator[Key]:
        """Every row, the layers' ones counted out."""
        for key in self.keys:
            if "{layer}" in key.theirs:
                yield from (key.at(layer) for layer in range(num_layers))
            else:
                yield key


def plain_names(table: Table, stored: Mapping[str, StoredTensor], where: str) -> dict[str, StoredTensor]:
    """`stored` under the table's own names: prefix off, old endings renewed, buffers and other models left out.

    Raises:
        InputError: two stored names mean the same tensor.
    """
    buffers = re.compile("|".join(table.buffers)) if table.buffers else None
    plain: dict[str, StoredTensor] = {}
    spelled: dict[str, str] = {}
    for name, tensor in stored.items():
        if name.startswith(table.left_out):
            continue
        key = table.plain_name(name)
        if buffers and buffers.fullmatch(key):
            continue
        if key in plain:
            raise InputError(f'{where}: "{spelled[key]}" and "{name}" are both "{key}"; keep one of them')
        plain[key], spelled[key] = tensor, name
    return plain


@dataclass(frozen=True)
class HeadTensors:
    """Stored tensors of one shape, one a head, read as one array [heads, ...]."""

    tensors: tuple[StoredTensor, ...]

    def read(self) -> np.ndarray:
        arrays = [tensor.read() for tensor in self.tensors]
        if len({array.dtype for array in arrays}) > 1:  # NumPy joins no float16 with bfloat16
            arrays = [array.astype(np.promote_types(array.dtype, np.float32)) for array in arrays]
        return np.stack(arrays)


@dataclass(frozen=True)
class Source:
    """Where some of our parameters come from: one stored tensor (or one a head) and the layout that takes it apart."""

    paths: tuple[str, ...]
    shapes: tuple[Shape, ...]
    tensor: StoredTensor | HeadTensors
    layout: str

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        """Our (path, array) pairs, in the stored number type; the file is read here."""
        yield from zip(self.paths, LAYOUTS[self.layout].back(self.tensor.read(), self.shapes), strict=True)


def match(
    table: Table,
    shapes: Mapping[str, Shape],
    stored: Mapping[str, StoredTensor],
    num_layers: int,
    where: str,
    told_by: str = "config.json",
) -> list[Source]:
    """Finds a stored tensor for every parameter.

    Args:
        table: the family's rows.
        shapes: path -> shape of every parameter that the model has.
        stored: plain name -> tensor, see `plain_names`.
        num_layers: L.
        where: the folder, for messages.
        told_by: what of it describes the model, for messages.

    Returns:
        One Source a stored tensor; together they give every path once.

    Raises:
        InputError: with all faults in one line.
    """
    rows = [key for key in table.rows(num_layers) if key.fits(shapes)]
    claimed = {key.theirs for key in rows}
    left = dict(stored)
    faults: dict[str, list[str]] = {"missing": [], "unexpected": [], "wrong shape": [], "wrong type": [], "unequal": []}
    sources = []
    for key in rows:
        by_head = key.head_names(shapes[key.paths[0]][0])
        if by_head:
            shape = shapes[key.paths[0]]
            found = {name: left.pop(name) for name in by_head if name in left}
            faults["missing"] += [name for name in by_head if name not in found]
            if all([_sound(name, tensor, shape[1:], faults) for name, tensor in found.items()]):
                sources.append(Source(key.paths, (shape,), HeadTensors(tuple(found.values())), key.layout))
            continue
        names = [key.theirs, *(name for name in key.aliases if name not in claimed)]
        if key.instead in stored:
            left.pop(key.theirs, None)
            names = [key.instead]
        names = [name for name in names if name in stored]
        if not names:
            faults["missing"].append(key.theirs)
            continue
        tensors = [left.pop(name) for name in names]
        ours = tuple(shapes[path] for path in key.paths)
        wanted = LAYOUTS[key.layout].shape(ours)
        if all([_sound(name, tensor, wanted, faults) for name, tensor in zip(names, tensors, strict=True)]):
            faults["unequal"] += [
                f"{name} and {names[0]}"
                for name, tensor in zip(names[1:], tensors[1:], strict=True)
                if not same_bits(tensor, tensors[0])
            ]
            sources.append(Source(key.paths, ours, tensors[0], key.layout))
    faults["unexpected"] = list(left)
    without_row = set(shapes) - {path for key in rows for path in key.paths}
    if without_row:
        raise InputError(f"{where}: {table.name} folders have no tensor for {', '.join(sorted(without_row))}")
    report(faults, where, f"the {table.name} model of its {told_by}")
    return sources


def _sound(name: str, tensor: StoredTensor, wanted: Shape, faults: dict[str, list[str]]) -> bool:
    """Whether a stored tensor has the shape `wanted` and holds real numbers; noted in `faults` where not."""
    if tensor.shape != tuple(wanted):
        faults["wrong shape"].append(f"{name} {list(tensor.shape)} for {list(wanted)}")
    elif tensor.dtype not in FLOATS:
        faults["wrong type"].append(f"{name} {tensor.dtype}")
    else:
        return True
    return False


def to_published(
    table: Table, leaves: Mapping[str, Any], get: Callable[[str], np.ndarray], num_layers: int, prefix: str
) -> dict[str, OutgoingTensor]:
    """The published tensors of our parameters; each is made when it is written.

    Args:
        table: the family's rows.
        leaves: path -> shape and dtype of every parameter that the model has.
        get: path -> array.
        num_layers: L.
        prefix: put before names of the backbone: the table's, or "" for a bare backbone.

    Raises:
        InputError: a parameter has no row.
    """
    out: dict[str, OutgoingTensor] = {}
    done: set[str] = set()
    for key in table.rows(num_layers):
        if key.fits(leaves):
            kinds = {path: str(leaves[path].dtype) for path in key.paths}
            if len(set(kinds.values())) > 1:
                told = ", ".join(f"{path} is {kind}" for path, kind in kinds.items())
                raise InputError(f"{told}: {table.name} folders hold them in one tensor; give one dtype")
            shape = LAYOUTS[key.layout].shape([tuple(leaves[path].shape) for path in key.paths])
            make = partial(_published, key, get)
            by_head = key.head_names(shape[0])
            for head, name in enumerate(by_head):
                number_type = np.dtype(leaves[key.paths[0]].dtype)
                out[prefix + name] = OutgoingTensor(tuple(shape[1:]), number_type, partial(_of_head, make, head))
            for name in () if by_head else (key.theirs, key.instead):
                if name:
                    full = name if name.startswith(table.heads) else prefix + name
                    out[full] = OutgoingTensor(tuple(shape), np.dtype(leaves[key.paths[0]].dtype), make)
            done |= set(key.paths)
    if set(leaves) - done:
        raise InputError(f"{table.name} folders have no tensor for {', '.join(sorted(set(leaves) - done))}")
    return out


def _published(key: Key, get: Callable[[str], np.ndarray]) -> np.ndarray:
    return LAYOUTS[key.layout].there([get(path) for path in key.paths])


def _of_head(make: Callable[[], np.ndarray], head: int) -> np.ndarray:
    return make()[head]


def same_bits(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two stored tensors are the same, number type included."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return bool(np.array_equal(_bytes(one), _bytes(other)))


def _bytes(tensor: StoredTensor) -> np.ndarray:
    return tensor.read().reshape(-1).view(np.uint8)


def report(faults: Mapping[str, list[str]], where: str, what: str) -> None:
    """Raises InputError with every fault in one line, by name and folded into ranges; returns if there is none."""
    count = sum(len(names) for names in faults.values())
    if not count:
        return
    parts = []
    for kind, names in faults.items():
        if names:
            said = ranges(names)
            more = f" and {len(said) - FAULTS_SHOWN} more" if len(said) > FAULTS_SHOWN else ""
            parts.append(f"{len(names)} {kind}: {', '.join(said[:FAULTS_SHOWN])}{more}")
    raise InputError(f"{where} does not hold {what}: {'; '.join(parts)}")
