"""Checkpoints in and out: Hugging Face folders, run folders, embedded packages.

    model, params = zoo.load("folder")          zoo.export(model, params, "folder")

    layouts, keys            how our parameters are named and laid out elsewhere: one table a family
    bert, gpt, llama         the tables, and config.json <-> ModelConfig
    settings                 reading config.json so that nothing is passed over
    safetensors_file         tensors, lazily and checked
    hugging_face, run_folder the two kinds of folder
    commands                 python -m zoo import | export
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from etils import epath
from jax.sharding import Mesh

from zoo.checkpoints import hugging_face, run_folder
from zoo.checkpoints.placing import DTYPES, Placing
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.model import Model
from zoo.packages import CHECKPOINTS, fetch
from zoo.registry import PRESETS

__all__ = ["export", "load", "load_config"]

# Embedded packages that are Hugging Face folders with safetensors.
LOADABLE = tuple(name for name, package in CHECKPOINTS.items() if hugging_face.SINGLE in package.members)


def load(
    path: str | os.PathLike[str], mesh: Mesh | None = None, dtype: str | None = None
) -> tuple[Model, dict[str, Any]]:
    """A model and its parameters.

    Args:
        path: a Hugging Face folder (config.json and safetensors; BERT, GPT-1, GPT-2, LLaMA), a run folder or one of its
            checkpoints (run/checkpoints/<step>), or the name of an embedded checkpoint package (see zoo.packages).
        mesh: split the parameters over it, by the table of zoo.partition; None puts them on the default device.
        dtype: "float32", "bfloat16" or "float16" for parameters and activations; None gives float32 parameters and the
            activations of the config. float16 and bfloat16 weights are exact in float32.

    Returns:
        the model, and its parameters as a nested dict.

    Raises:
        InputError: nothing there (with the nearest name), a setting that is unknown or not supported, or tensors that
            are missing, left over or mis-shaped, all named in one line.
    """
    placing = Placing(mesh, dtype)
    kind, place = _find(path)
    return kind.load(place, placing)


def load_config(path: str | os.PathLike[str]) -> ModelConfig:
    """The ModelConfig of whatever `load` would load; no weights are read.

    Raises:
        InputError: as `load`, for the path and the settings.
    """
    kind, place = _find(path)
    return kind.load_config(place)


def export(
    model: Model,
    params: dict[str, Any],
    folder: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    dtype: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a folder that the reference library (transformers) opens: config.json, model.safetensors, tokenizer files.

    The folder appears complete or not at all. Loading it again gives the same parameters to the bit. All weights are
    gathered on this host while they are written.

    Args:
        model, params: as from zoo.load or training; looped or scanned.
        folder: to be made; its parents too.
        tokenizer: a zoo.Tokenizer whose files go along and whose special ids go into config.json.
        dtype: number type in the file; None keeps that of the parameters.
        overwrite: replace a folder that is not empty.

    Raises:
        InputError: a config that the family's folders cannot express (every such field is named), a folder that is not
            empty, no disk space.
    """
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f'dtype "{dtype}" is not supported{nearest(dtype, DTYPES)}')
    target = Path(os.path.abspath(os.path.expanduser(os.fspath(folder))))
    hugging_face.export(model, params, target, tokenizer=tokenizer, dtype=dtype, overwrite=overwrite)


def _find(path: str | os.PathLike[str]) -> tuple[ModuleType, Any]:
    """The module that reads `path`, and the place it reads."""
    name = os.fspath(path)
    place = epath.Path(name)
    if "://" not in name:
        place = epath.Path(os.path.abspath(os.path.expanduser(name)))
    if not place.exists() and name in CHECKPOINTS:
        if name not in LOADABLE:
            raise InputError(f'the package "{name}" is in a format that is not read; these are: {", ".join(LOADABLE)}')
        place = epath.Path(fetch(name))
    if not place.exists():
        raise InputError(_not_found(name))
    if not place.is_dir():
        raise InputError(f"{place}: is a file; name the folder that holds it")
    if run_folder.is_folder(place):
        return run_folder, place
    local = Path(os.fspath(place))
    if hugging_face.is_folder(local):
        return hugging_face, local
    raise InputError(f"{place}: is neither a Hugging Face folder (config.json with a model_type) nor a run folder")


def _not_found(name: str) -> str:
    if name in PRESETS:
        return f'no folder "{name}"; "{name}" is a preset without weights: zoo.create("{name}")'
    parent = Path(os.path.abspath(os.path.expanduser(name))).parent
    beside = [entry.name for entry in parent.iterdir() if entry.is_dir()] if parent.is_dir() else []
    hint = nearest(Path(name).name, beside)
    return f'no folder "{name}"{hint if "did you mean" in hint else nearest(name, LOADABLE)}'
