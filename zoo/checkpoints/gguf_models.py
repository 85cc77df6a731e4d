"""GGUF files as models: their metadata and tensor names are another spelling of a Hugging Face folder's.

So a file is respelled (gguf_spellings, gguf_settings), and the family's own reader and key table do the rest; a setting
that nobody here knows is refused by name, as there. Faults are told in the words of the file.
"""

from pathlib import Path
from typing import Any

from zoo.checkpoints import hugging_face
from zoo.checkpoints.format import Format
from zoo.checkpoints.gguf_settings import ROTARY_TENSORS, read_settings
from zoo.checkpoints.gguf_spellings import SPELLINGS, Spelling, in_its_words, respelled
from zoo.checkpoints.placing import Placing
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.gguf_file import ChangedTensor, GgufTensor, is_gguf, read_header
from zoo.model import Model
from zoo.safe_path import inside

__all__ = ["file_of", "is_gguf", "load", "load_config"]


def file_of(folder: Path) -> Path:
    """The GGUF file of a folder that holds GGUF files.

    Raises:
        InputError: there are several.
    """
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise InputError(f"{folder}: holds {len(files)} GGUF files; name one, such as {files[0]}")
    return inside(files[0])


def load(path: Path, placing: Placing) -> tuple[Model, dict[str, Any]]:
    """Model and parameters of a GGUF file; quantised tensors are undone to float32, one at a time.

    Raises:
        InputError: a damaged file, an architecture, a setting or a tensor that we do not understand.
    """
    kind, spelling, *found = _open(path)
    try:
        return hugging_face.build(*found, str(path), placing, told_by="metadata")
    except InputError as error:
        raise InputError(in_its_words(str(error), kind, spelling)) from None


def load_config(path: Path) -> ModelConfig:
    """The ModelConfig of a GGUF file; of the tensors only the header is read."""
    return _open(path)[2]


def _open(path: Path) -> tuple[str, Spelling, ModelConfig, Format, dict[str, GgufTensor | ChangedTensor]]:
    file = read_header(path)
    kind = str(file.metadata.get("general.architecture"))
    if kind not in SPELLINGS:
        raise InputError(f'{path}: architecture "{kind}" is not supported{nearest(kind, SPELLINGS)}')
    spelling, values, heads, kv_heads = read_settings(file, kind)
    form = hugging_face.FORMATS[spelling.model_type]
    stored = {
        plain: part
        for name, tensor in file.tensors.items()
        if name not in ROTARY_TENSORS
        for plain, part in respelled(name, tensor, spelling, heads, kv_heads)
    }
    try:
        config = hugging_face.read_config(values, form, stored, path)
    except InputError as error:
        line = str(error).replace(str(path / "config.json"), str(path))
        raise InputError(in_its_words(line, kind, spelling)) from None
    return kind, spelling, config, form, stored
