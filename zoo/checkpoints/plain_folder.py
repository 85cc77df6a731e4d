"""Plain folders: our own settings beside one safetensors file, for models small enough to be passed on whole.

    folder/config.json           {"model": ModelConfig.to_dict(), "tokenizer": its fingerprint}
    folder/model.safetensors     parameters under our own paths, in any of the number types that are read
    folder/tokenizer.model ...   read by zoo.load_tokenizer

Any architecture of the zoo fits, also one that no published format can say. `python -m train ship` makes one of a run.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from zoo.checkpoints.keys import report
from zoo.checkpoints.placing import DTYPES, Placing, flatten
from zoo.checkpoints.run_folder import read_config
from zoo.checkpoints.safetensors_file import open_file, read_json
from zoo.checkpoints.safetensors_out import SINGLE, write_file
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.int8 import require_float
from zoo.model import Model
from zoo.tokenizer import Tokenizer


def is_folder(path: Path) -> bool:
    """Whether `path` holds one safetensors file beside a config.json with a "model" in it."""
    config = path / "config.json"
    return (path / SINGLE).is_file() and config.is_file() and isinstance(read_json(config).get("model"), dict)


def load(folder: Path, placing: Placing) -> tuple[Model, dict[str, Any]]:
    """Model and parameters.

    Args:
        folder: as above.
        placing: number type and devices of the parameters.

    Raises:
        InputError: a config that is none, a file that is damaged, or parameters that are not those of the config, all
            named.
    """
    model = Model(placing.config(load_config(folder)))
    stored = open_file(folder / SINGLE)
    wanted = {path: tuple(leaf.shape) for path, leaf in flatten(model.init_shapes()).items()}
    faults = {
        "missing": sorted(set(wanted) - set(stored)),
        "unexpected": sorted(set(stored) - set(wanted)),
        "wrong shape": [
            f"{path} {list(stored[path].shape)} for {list(shape)}"
            for path, shape in wanted.items()
            if path in stored and stored[path].shape != shape
        ],
        "no floats": [
            f"{path} ({tensor.dtype})" for path, tensor in stored.items() if tensor.dtype not in ("F32", "F16", "BF16")
        ],
    }
    report(faults, str(folder / SINGLE), f"the model of {folder / 'config.json'}")
    return model, placing.place(model, [_Stored(path, stored[path]) for path in wanted])


def load_config(folder: Path) -> ModelConfig:
    """The ModelConfig of a plain folder."""
    return read_config(epath.Path(folder))


def fingerprint(folder: Path) -> str | None:
    """Of the tokenizer that the weights have learnt, where config.json says it."""
    said = read_json(folder / "config.json").get("tokenizer")
    return said if isinstance(said, str) else None


def save(
    model: Model, params: dict[str, Any], folder: Path, tokenizer: Tokenizer | None = None, dtype: str = "float16"
) -> None:
    """Fills a folder (see zoo.checkpoints.whole_folder for one that appears whole).

    Args:
        model, params: as from zoo.load or training.
        folder: made where it is missing.
        tokenizer: its files go along.
        dtype: number type in the file.

    Raises:
        InputError: an unknown number type, a parameter that it cannot hold, or a disk that refuses.
    """
    if dtype not in DTYPES:
        raise InputError(f'dtype "{dtype}" is not supported{nearest(dtype, DTYPES)}')
    require_float(model.config, "a folder")
    settings = {"model": model.config.to_dict()}
    if tokenizer is not None:
        tokenizer.save(folder)
        settings["tokenizer"] = tokenizer.fingerprint
    write_file(folder / SINGLE, flatten(jax.tree.map(np.asarray, rounded(params, dtype))))
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def rounded(params: dict[str, Any], dtype: str) -> dict[str, Any]:
    """`params` in another number type.

    Raises:
        InputError: a finite number is infinite in it.
    """
    with np.errstate(over="ignore"):
        out = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jax.numpy.dtype(dtype)), params)
    for path, leaf in flatten(out).items():
        if not np.isfinite(leaf.astype(np.float32)).all():
            raise InputError(f"{path} has numbers that {dtype} cannot hold; take bfloat16")
    return out


class _Stored:
    """One parameter, read when its turn comes."""

    def __init__(self, path: str, tensor: Any):
        self.path, self.tensor = path, tensor

    def read(self) -> list[tuple[str, np.ndarray]]:
        return [(self.path, self.tensor.read())]
