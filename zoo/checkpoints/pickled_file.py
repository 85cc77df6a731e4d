"""Old pytorch_model.bin files, read by PyTorch's loader that runs nothing, where PyTorch is installed.

Such a file is a pickle, and unpickling can run code of its author's choice. torch.load(weights_only=True) admits
tensors and plain containers alone; before version 2.6 it could be got round (CVE-2025-32434), so older ones are not
used.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from zoo.checkpoints.safetensors_out import NAMES
from zoo.errors import InputError
from zoo.placeholders import placeholder_at
from zoo.safe_path import inside

PICKLED = "pytorch_model.bin"
OLDEST = (2, 6)


@dataclass(frozen=True, eq=False)
class PickledTensor:
    """A tensor of a pickled file: what the key tables need of zoo.checkpoints.safetensors_file.StoredTensor."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: Any

    def read(self) -> np.ndarray:
        """The array, in its stored number type."""
        if self.dtype == "BF16":
            import torch

            return self.tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return self.tensor.contiguous().numpy()


def open_pickled(path: Path) -> dict[str, PickledTensor]:
    """name -> tensor of a pytorch_model.bin.

    Raises:
        InputError: PyTorch is not installed or older than 2.6, the file holds more than tensors, or it is damaged.
    """
    path = inside(path)
    other = placeholder_at(path)
    if other:
        raise InputError(f"{path}: {other}")
    why = f"{path}: is a pickle, which can run code, and is read only through PyTorch's weights_only loader"
    try:
        import torch
    except ImportError:
        raise InputError(f"{why}: pip install torch, or save the weights as safetensors first") from None
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit()) < OLDEST:
        raise InputError(f"{why} of version 2.6 or newer, and {torch.__version__} is here: pip install --upgrade torch")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # the loader raises many kinds: pickle errors, RuntimeError, EOFError, KeyError ...
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: PyTorch's weights_only loader refuses it: {said}") from None
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path}: holds a {type(found).__name__} where a table of tensors is wanted")
    odd = next((name for name, value in found.items() if not isinstance(value, torch.Tensor)), None)
    if odd is not None:
        raise InputError(f'{path}: "{odd}" is a {type(found[odd]).__name__} and no tensor')
    return {str(name): _stored(path, str(name), value.detach()) for name, value in found.items()}


def _stored(path: Path, name: str, tensor: Any) -> PickledTensor:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in NAMES or tensor.layout.__repr__() != "torch.strided":
        raise InputError(f"{path}: {name} is a {kind} tensor ({tensor.layout}), which is not read")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError(f"{path}: {name} has {tensor.numel():,} numbers, which the file does not hold")
    return PickledTensor(path, name, NAMES[kind], tuple(tensor.shape), tensor)
