"""Reading and writing safetensors: lazily, checked, in float32, float16 and bfloat16, without PyTorch.

The safetensors library checks header size (100 MB at most), offsets and overlaps; what it finds becomes a one-line
error here. A tensor is read when it is asked for, so a folder larger than memory can be placed piece by piece.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from zoo.errors import InputError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not yet read.

    Attributes:
        path: the file.
        name: as stored.
        dtype: as the format spells it ("F32", "F16", "BF16", "I64", ...).
        shape: as stored.
    """

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        """The array, in its stored number type (bfloat16 as ml_dtypes.bfloat16)."""
        try:
            with safe_open(self.path, framework="np") as file:
                return file.get_tensor(self.name)
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}: cannot read {self.name}: {_one_line(error)}") from None


def open_file(path: Path) -> dict[str, StoredTensor]:
    """name -> tensor of one file; only the header is read.

    Raises:
        InputError: absent, truncated, or no safetensors file.
    """
    try:
        with safe_open(path, framework="np") as file:
            return {name: _stored(path, name, file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: {_diagnosis(path)}: {_one_line(error)}; fetch the file again") from None


def _stored(path: Path, name: str, piece: Any) -> StoredTensor:
    return StoredTensor(path, name, str(piece.get_dtype()), tuple(piece.get_shape()))


def open_folder(folder: Path) -> dict[str, StoredTensor]:
    """name -> tensor of a folder with model.safetensors, or with shards and their index.

    An index may name files of this folder alone: a name with a directory in it is refused. (Links are followed, since
    download caches are made of them.)

    Raises:
        InputError: no weights, a bad index, a shard that is missing, or index and shards that disagree.
    """
    if (folder / SINGLE).exists():
        return open_file(folder / SINGLE)
    if not (folder / INDEX).exists():
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


def write_file(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `tensors` (contiguous arrays) as one file, marked as PyTorch's layout as other readers expect."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(dict(tensors), temporary, metadata={"format": "pt"})
        os.replace(temporary, path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: cannot be written: {_one_line(error)}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of at most 64 MB.

    Raises:
        InputError: absent, too large, not UTF-8, not JSON, or not an object.
    """
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
        value = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
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
            if length > 100_000_000:
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
