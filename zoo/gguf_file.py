"""GGUF files: metadata and tensors, read lazily, every count checked against what the file can hold.

    "GGUF" version n_tensors n_keys | key type value ... | name dims type offset ... | padding | tensor data

The gguf package knows the number types and undoes their quantisation. The header is read here, because its reader
believes every count in the file and so loops as long as a stranger's file says.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import InputError
from zoo.placeholders import placeholder_at

MAX_HEADER_BYTES = 512 * 1024**2
MAX_ITEMS = 4 * 1024**2  # keys, tensors, strings of one array
SCALARS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {10: "<u8", 11: "<i8", 12: "<f8"}
STRING, ARRAY = 8, 9
# What is read in its own type; every other one is a quantised type, undone to float32.
PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in a GGUF file, not yet read; stands where a zoo.checkpoints.safetensors_file.StoredTensor may.

    Attributes:
        path, name: of the file, and in it.
        kind: the number type in the file ("Q4_1").
        dtype: what `read` gives, as safetensors spells it; F32 of quantised types.
        shape: outermost axis first.
        start, size: bytes in the file.
    """

    path: Path
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self) -> np.ndarray:
        """The array; quantised numbers as float32."""
        try:
            data = np.memmap(self.path, np.uint8, mode="r", offset=self.start, shape=(self.size,))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path}: cannot read {self.name}: {error}") from None
        return self._numbers(data)

    def _numbers(self, data: np.ndarray) -> np.ndarray:
        if self.kind in PLAIN:
            return data.view(PLAIN[self.kind]).reshape(self.shape)
        if self.kind == "BF16":
            import ml_dtypes

            return data.view(ml_dtypes.bfloat16).reshape(self.shape)
        gguf = library()
        rows = data.reshape(-1, self.size // max(1, int(np.prod(self.shape[:-1]))))
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[self.kind]).reshape(self.shape)


@dataclass(frozen=True)
class ChangedTensor:
    """A tensor that is changed when it is read: its rows in another order, say.

    Attributes:
        stored: as it lies in the file.
        shape: of what `read` gives.
        change: from what is stored to that.
    """

    stored: GgufTensor
    shape: tuple[int, ...]
    change: Callable[[np.ndarray], np.ndarray]

    @property
    def path(self) -> Path:
        return self.stored.path

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    def read(self) -> np.ndarray:
        """The array, changed."""
        return self.change(self.stored.read())


@dataclass(frozen=True)
class GgufFile:
    """What the header of a GGUF file says: metadata key -> plain value (lists for arrays), tensor name -> tensor."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def library() -> Any:
    """The gguf package.

    Raises:
        InputError: it is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise InputError('reading GGUF files needs the gguf package; run: pip install "oneblock[gguf]"') from error
    return gguf


def is_gguf(path: Path) -> bool:
    """Whether `path` is a file that begins as a GGUF file, or is named as one."""
    if not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF" or path.suffix == ".gguf"
    except OSError:
        return path.suffix == ".gguf"


def read_header(path: Path) -> GgufFile:
    """Metadata and tensors of a file; no tensor is read.

    Raises:
        InputError: no GGUF file, truncated, of an unknown version or number type, or with extents beyond the file.
    """
    other = placeholder_at(path)
    if other:
        raise InputError(f"{path}: {other}")
    library()
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise InputError(f"{path}: is no GGUF file: {size} bytes")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                reader = _Reader(path, data, size)
                return reader.file()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


class _Reader:
    """A place in the header, which never runs past its end."""

    def __init__(self, path: Path, data: Any, size: int):
        self.path, self.data, self.size = path, data, size
        self.end = min(size, MAX_HEADER_BYTES)
        self.at = 0

    def fault(self, message: str) -> InputError:
        return InputError(f"{self.path}: {message}")

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > self.end:
            raise self.fault(f"is damaged or truncated: its header runs past byte {self.end}")
        found = self.data[self.at : self.at + count]
        self.at += count
        return found

    def whole(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, least_bytes: int, what: str) -> int:
        """A count of things of `least_bytes` or more each, which must fit into what is left."""
        number = self.whole("<Q")
        if number > MAX_ITEMS or number * least_bytes > self.end - self.at:
            raise self.fault(f"is damaged: it claims {number} {what}")
        return number

    def text(self) -> str:
        try:
            return self.take(self.whole("<Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fault(f"is damaged: no UTF-8 before byte {self.at}") from None

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            dtype = np.dtype(SCALARS[kind])
            return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise self.fault(f"is damaged: unknown value type {kind} before byte {self.at}")
        inner = self.whole("<I")
        if inner in SCALARS:
            dtype = np.dtype(SCALARS[inner])
            number = self.count(dtype.itemsize, "numbers in an array")
            return np.frombuffer(self.take(dtype.itemsize * number), dtype).tolist()
        if inner != STRING:
            raise self.fault(f"holds an array of type {inner}, which is not supported")
        return [self.text() for _ in range(self.count(8, "strings in an array"))]

    def file(self) -> GgufFile:
        if self.take(4) != b"GGUF":
            raise self.fault("is no GGUF file")
        version = self.whole("<I")
        if version not in (2, 3):
            swapped = " (written for a big-endian machine)" if version and version & 0xFFFF == 0 else ""
            raise self.fault(f"has GGUF version {version}{swapped}; 2 and 3 are read")
        tensors, keys = self.count(24, "tensors"), self.count(12, "settings")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.text()
            if key in metadata:
                raise self.fault(f'has the setting "{key[:80]}" twice')
            metadata[key] = self.value(self.whole("<I"))
        entries = [self.entry() for _ in range(tensors)]
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= 1 << 20 or align & (align - 1):
            raise self.fault(f"general.alignment is {align!r}; it must be a power of two")
        start = -(-self.at // align) * align
        return GgufFile(self.path, metadata, self.placed(entries, start, align))

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self.text(), self.whole("<I")
        if axes > 4:
            raise self.fault(f'tensor "{name[:80]}" has {axes} axes; 4 at most')
        shape = tuple(self.whole("<Q") for _ in range(axes))[::-1]
        return name, shape, self.whole("<I"), self.whole("<Q")

    def placed(self, entries: list, start: int, align: int) -> dict[str, GgufTensor]:
        gguf = library()
        sizes = {int(kind): (kind.name, *shape) for kind, shape in gguf.GGML_QUANT_SIZES.items()}
        found: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in entries:
            shown = f'tensor "{name[:80]}"'
            if kind not in sizes:
                raise self.fault(f"{shown} has number type {kind}, which is not known")
            kind_name, block, block_bytes = sizes[kind]
            number = 1
            for axis in shape:
                number *= axis
            if not shape or number < 1 or shape[-1] % block or number > 8 * self.size:
                raise self.fault(f"{shown} has shape {list(shape)}, which {kind_name} blocks of {block} cannot fill")
            size = number // block * block_bytes
            if offset % align or start + offset + size > self.size:
                raise self.fault(f"{shown} lies at byte {start + offset}, {size} long, in a file of {self.size}")
            if name in found:
                raise self.fault(f"has {shown} twice")
            dtype = kind_name if kind_name in (*PLAIN, "BF16") else "F32"
            found[name] = GgufTensor(self.path, name, kind_name, dtype, shape, start + offset, size)
        by_place = sorted(found.values(), key=lambda tensor: tensor.start)
        for one, other in zip(by_place, by_place[1:], strict=False):
            if one.start + one.size > other.start:
                raise self.fault(f'tensors "{one.name[:80]}" and "{other.name[:80]}" overlap')
        return found
