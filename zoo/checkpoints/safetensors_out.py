"""Writing safetensors, one tensor at a time, as one file or as shards with an index; as other readers expect them.

    model.safetensors                          or    model-00001-of-00003.safetensors ...  model.safetensors.index.json

A file is eight bytes of header length, a JSON header (name -> number type, shape, extent), and the numbers.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from zoo.atomic_file import replacing, write_atomically
from zoo.errors import InputError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
PIECE = 64 * 1024**2
NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True)
class OutgoingTensor:
    """A tensor to be written, made when its turn comes and forgotten after.

    Attributes:
        shape: of the array.
        dtype: of the array.
        make: gives it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def write_file(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as one file."""
    write_tensors(path, {n: OutgoingTensor(a.shape, a.dtype, lambda a=a: a) for n, a in tensors.items()})


def write_tensors(path: Path, tensors: Mapping[str, OutgoingTensor]) -> None:
    """Writes `tensors` as one file, marked as PyTorch's layout, whole or not at all; one is in memory at a time.

    Raises:
        InputError: the disk refuses, or a number type has no name in the format.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype.name not in NAMES:
            raise InputError(f"{path}: {name} is {tensor.dtype.name}, which is not written")
        extent = [end, end + tensor.size]
        header[name] = {"dtype": NAMES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": extent}
        end += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as hidden, open(hidden, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            _write(file, tensor)


def write_shards(folder: Path, tensors: Mapping[str, OutgoingTensor], max_bytes: int = SHARD_BYTES) -> list[str]:
    """Writes `tensors` into a folder: one file if they fit into `max_bytes`, else shards of at most that, and an index.

    A tensor larger than `max_bytes` has a shard of its own. Returns the names of the files with tensors.
    """
    shards: list[dict[str, OutgoingTensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.size > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.size
    if len(shards) == 1:
        write_tensors(folder / SINGLE, tensors)
        return [SINGLE]
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_tensors(folder / name, shard)
    sizes = {"total_size": sum(tensor.size for tensor in tensors.values())}
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_atomically(folder / INDEX, json.dumps({"metadata": sizes, "weight_map": weight_map}, indent=2) + "\n")
    return names


def shard_bytes(size: int | str) -> int:
    """Bytes of "5GB", "300 MB", "2GiB" or a plain number.

    Raises:
        InputError: another unit, or a size below 1.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?) *([KMG]?i?B?)", str(size).strip(), re.IGNORECASE)
    if not found or found[2].upper() not in units or float(found[1]) * units[found[2].upper()] < 1:
        raise InputError(f'max_shard_size is "{size}"; give bytes, or a size such as 5GB or 300MB')
    return int(float(found[1]) * units[found[2].upper()])


def _write(file: BinaryIO, tensor: OutgoingTensor) -> None:
    """The numbers of one tensor, in pieces, so that no copy of all of it is made for the file's sake."""
    array = tensor.make()
    if array.shape != tensor.shape or array.dtype != tensor.dtype:
        raise ValueError(f"a tensor came as {array.dtype} {array.shape}, announced as {tensor.dtype} {tensor.shape}")
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    data = array.reshape(-1).view(np.uint8)
    for start in range(0, len(data), PIECE):
        file.write(data[start : start + PIECE])
