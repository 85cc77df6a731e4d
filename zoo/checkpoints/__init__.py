"""Checkpoints in and out: Hugging Face folders, GGUF files, run folders, embedded packages.

    model, params = zoo.load("folder")          zoo.export(model, params, "folder")

    layouts, keys            how our parameters are named and laid out elsewhere: one table a family
    bert, gpt, llama         the tables, and config.json <-> ModelConfig
    settings                 reading config.json so that nothing is passed over
    safetensors_file, _out   tensors, lazily and checked; written one at a time, in shards
    hugging_face, run_folder the two kinds of folder
    plain_folder             our own settings beside one safetensors file: the models that come with the package
    gguf_models              GGUF files, respelled as Hugging Face folders: gguf_settings, gguf_spellings
    onnx_models              DINOv2 out of an ONNX file
    pickled_file             old pytorch_model.bin files, through PyTorch's loader that runs nothing
    layer_view, placing      parameters leaving and arriving, one array at a time
    belongings               what comes with a checkpoint beside its weights
    commands                 python -m zoo import | export
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from etils import epath
from jax.sharding import Mesh

from zoo import shipped
from zoo.checkpoints import gguf_models, hugging_face, onnx_models, plain_folder, run_folder
from zoo.checkpoints.pickled_file import PICKLED
from zoo.checkpoints.placing import DTYPES, Placing
from zoo.checkpoints.safetensors_out import SHARD_BYTES, SINGLE, shard_bytes
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.model import Model
from zoo.output_folder import file_above
from zoo.packages import CHECKPOINTS, checkpoint_folder, is_name
from zoo.registry import PRESETS

__all__ = ["export", "load", "load_config"]

# Embedded packages with a file that is read here.
ENDINGS = (SINGLE, PICKLED, ".gguf", ".onnx")
LOADABLE = tuple(name for name, package in CHECKPOINTS.items() if any(m.endswith(ENDINGS) for m in package.members))

MAX_NAME = 255  # bytes of one name, on every file system that we know


def load(
    path: str | os.PathLike[str], mesh: Mesh | None = None, dtype: str | None = None
) -> tuple[Model, dict[str, Any]]:
    """A model and its parameters.

    Args:
        path: a Hugging Face folder (config.json and safetensors), a GGUF file or a folder with one, a run folder or one
            of its checkpoints (run/checkpoints/<step>), a plain folder (zoo.checkpoints.plain_folder), or a name: of a
            model that comes with this package ("oneblock/bert-tiny") or of an embedded one (zoo.packages).
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
    max_shard_size: int | str = SHARD_BYTES,
) -> None:
    """Writes a folder that the reference library (transformers) opens: config.json, model.safetensors, tokenizer files.

    The folder appears complete or not at all. Loading it again gives the same parameters to the bit. Tensors are
    gathered on this host and written one at a time.

    Args:
        model, params: as from zoo.load or training; looped or scanned.
        folder: to be made; its parents too.
        tokenizer: a zoo.Tokenizer whose files go along and whose special ids go into config.json.
        dtype: number type in the file; None keeps that of the parameters.
        overwrite: replace a folder that is not empty.
        max_shard_size: bytes ("5GB", "300MB") of one file; more go into model-00001-of-0000N.safetensors and an index.

    Raises:
        InputError: a config that the family's folders cannot express (every such field is named), a folder that is not
            empty, no disk space.
    """
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f'dtype "{dtype}" is not supported{nearest(dtype, DTYPES)}')
    target = Path(os.path.abspath(os.path.expanduser(os.fspath(folder))))
    hugging_face.export(
        model,
        params,
        target,
        tokenizer=tokenizer,
        dtype=dtype,
        overwrite=overwrite,
        max_shard_bytes=shard_bytes(max_shard_size),
    )


def _find(path: str | os.PathLike[str]) -> tuple[ModuleType, Any]:
    """The module that reads `path`, and the place it reads."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise InputError(f"the path is a {type(path).__name__}; name a folder, a GGUF file or a package")
    name = os.fspath(path)
    if name.lower().startswith(("http://", "https://")):
        raise InputError(f'"{name:.80}" is an address, from which nothing is downloaded: name a folder of its files')
    if not name.strip():
        raise InputError(f'the path is empty; name a folder, a GGUF file or a package: {", ".join(LOADABLE)}')
    if "\0" in name or any(len(os.fsencode(part)) > MAX_NAME for part in name.split("/")):
        raise InputError(f'no folder "{name:.80}": no file system has such a name'.replace("\0", "\\0"))
    place = epath.Path(name)
    if "://" not in name:
        place = epath.Path(os.path.abspath(os.path.expanduser(name)))
    if not place.exists() and is_name(name):
        if name in CHECKPOINTS and name not in LOADABLE:
            raise InputError(f'the package "{name}" is in a format that is not read; these are: {", ".join(LOADABLE)}')
        place = epath.Path(checkpoint_folder(name))
    if not place.exists():
        raise InputError(run_folder.no_step(name) or _not_found(name))
    local = Path(os.fspath(place))
    if gguf_models.is_gguf(local):
        return gguf_models, local
    if not place.is_dir():
        if onnx_models.file_of(local) is not None:
            return onnx_models, local
        raise InputError(f"{place}: is a file, and no GGUF file; name the folder that holds it")
    if run_folder.is_folder(place):
        return run_folder, place
    if plain_folder.is_folder(local):
        return plain_folder, local
    if not any(local.glob("*.safetensors")) and any(local.glob("*.gguf")):  # with a config.json beside it or without
        return gguf_models, gguf_models.file_of(local)
    if hugging_face.is_folder(local):
        return hugging_face, local
    found = onnx_models.file_of(local)
    if found is not None:
        return onnx_models, found
    if (local / "adapter.safetensors").is_file():
        raise InputError(f"{place}: holds adapters and no whole model; make one: python -m eval merge {place} OUT")
    raise InputError(
        f"{place}: is neither a Hugging Face folder (config.json with a model_type) nor a run folder, and holds no "
        "GGUF file"
    )


def _not_found(name: str) -> str:
    if name in PRESETS:
        return f'no folder "{name}"; "{name}" is a preset without weights: zoo.create("{name}")'
    above = file_above(name)
    if above is not None:
        return f'{above} is a file, where a folder is needed for "{name}"'
    parent = Path(os.path.abspath(os.path.expanduser(name))).parent
    beside = [entry.name for entry in parent.iterdir() if entry.is_dir()] if parent.is_dir() else []
    hint = nearest(Path(name).name, beside)
    return f'no folder "{name}"{hint if "did you mean" in hint else nearest(name, (*LOADABLE, *shipped.names()))}'
