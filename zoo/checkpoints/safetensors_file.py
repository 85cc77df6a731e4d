"""Reading safetensors: lazily, checked, in float32, float16 and bfloat16, without PyTorch.

The safetensors library checks header size (100 MB at most), offsets and overlaps; what it finds becomes a one-line
error here. A tensor is a view of the file, mapped when it is asked for and never read whole for its own sake, so a
folder larger than memory can be placed piece by piece. Writing is in safetensors_out.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from zoo.checkpoints.pickled_file import PICKLED, open_pickled
from zoo.checkpoints.safetensors_out import INDEX, NAMES, SINGLE
from zoo.errors import InputError
from zoo.placeholders import placeholder, placeholder_at
from zoo.safe_path import inside

MAX_JSON_BYTES = 64 * 1024**2
MAX_HEADER_BYTES = 100_000_000
NUMBER_TYPES = {spelled: name for name, spelled in NAMES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not yet read.

    Attributes:
        path: the file.
        name: as stored.
        dtype: as the format spells it ("F32", "F16", "BF16", "I64", ...).
        shape: as stored.
        start, size: bytes in the file.
    """

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self) -> np.ndarray:
        """The array, in its stored number type (bfloat16 as ml_dtypes.bfloat16): a read-only view of the file."""
        if self.dtype not in NUMBER_TYPES:
            raise InputError(f"{self.path}: {self.name} is {self.dtype}, which is not read")
        number_type = np.dtype(ml_dtypes.bfloat16 if self.dtype == "BF16" else NUMBER_TYPES[self.dtype])
        if self.size == 0:
            return np.zeros(self.shape, number_type)
        try:
            data = np.memmap(self.path, np.uint8, mode="r", offset=self.start, shape=(self.size,))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path}: cannot read {self.name}: {_one_line(error)}") from None
        return np.asarray(data).view(number_type).reshape(self.shape)


def open_file(path: Path) -> dict[str, StoredTensor]:
    """name -> tensor of one file; only the header is read.

    Raises:
        InputError: absent, truncated, or no safetensors file.
    """
    path = inside(path)
    try:
        with safe_open(path, framework="np") as file:
            names = set(file.keys())
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, MAX_HEADER_BYTES)))
        return {name: _stored(path, name, header[name], 8 + length) for name in header if name in names}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        other = placeholder_at(path)
        if other:
            raise InputError(f"{path}: {other}") from None
        raise InputError(f"{path}: {_diagnosis(path)}: {_one_line(error)}; fetch the file again") from None


def _stored(path: Path, name: str, entry: dict[str, Any], data: int) -> StoredTensor:
    start, end = entry["data_offsets"]
    return StoredTensor(path, name, entry["dtype"], tuple(entry["shape"]), data + start, end - start)


def open_folder(folder: Path) -> dict[str, StoredTensor]:
    """name -> tensor of a folder with model.safetensors, or with shards and their index.

    An index may name files of this folder alone: a name with a directory in it, or a link that leads out, is refused.

    Raises:
        InputError: no weights, a bad index, a shard that is missing, or index and shards that disagree.
    """
    if (folder / SINGLE).exists():
        return open_file(folder / SINGLE)
    if not (folder / INDEX).exists():
        if (folder / PICKLED).exists():
            return open_pickled(folder / PICKLED)  # type: ignore[return-value]
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        if pickled:
            raise InputError(
                f"{folder}: holds {pickled[0]} (a pickle, which can run code) and no {SINGLE}; "
                "save it as safetensors first"
            )
        raise InputError(f"{folder}: holds neither {SINGLE} nor {INDEX}")
    where = folder / INDEX
    weight_map = read_json(where).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f'{where}: has no "weight_map" from tensor names to files')
    files = sorted({str(name) for name in weight_map.values()})
    outside = [name for name in files if name in (".", "..") or Path(name).name != name or "\\" in name]
    if outside:
        raise InputError(f'{where}: names "{outside[0]}", which is not a file of this folder')
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise InputError(f"{where}: {len(absent)} of {len(files)} files are not there: {', '.join(absent[:10])}")
    stored: dict[str, StoredTensor] = {}
    faults = []
    for name in files:
        for key, tensor in open_file(folder / name).items():
            if weight_map.get(key) != name:
                faults.append(f"{key} is in {name} but the index has it in {weight_map.get(key, 'no file')}")
            stored[key] = tensor
    faults += [f"{key} is not in {name}" for key, name in weight_map.items() if key not in stored]
    if faults:
        more = f" and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise InputError(f"{where}: {len(faults)} disagreements with its files: {'; '.join(faults[:10])}{more}")
    return stored


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of at most 64 MB, in UTF-8 with or without a byte order mark.

    Raises:
        InputError: absent, too large, not UTF-8, not JSON, or not an object.
    """
    path = inside(path)
    try:
        size = path.stat().st_size
        text = path.read_bytes() if size <= MAX_JSON_BYTES else None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {_one_line(error)}") from None
    if text is None:
        raise InputError(f"{path}: {size} bytes is too large for a settings file (at most {MAX_JSON_BYTES})")
    try:
        value = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if other := placeholder(text):
            raise InputError(f"{path}: {other}") from None
        raise InputError(f"{path}: is not JSON in UTF-8: {_one_line(error)}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds a {type(value).__name__} where an object is wanted")
    return value


def _diagnosis(path: Path) -> str:
    """What is wrong with a file that the library refused, as far as its size tells."""
    try:
        with open(path, "rb") as file:
            head = file.read(8)
            length = int.from_bytes(head, "little")
            size = os.fstat(file.fileno()).st_size
            if len(head) < 8:
                return f"is truncated: {size} bytes"
            if length > MAX_HEADER_BYTES:
                return "is no safetensors file"
            if 8 + length > size:
                return f"is truncated inside its header: {size} of {8 + length} bytes or more"
            entries = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
        if needed > size:
            return f"is truncated: {size} of {needed} bytes"
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return "is no sound safetensors file"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
