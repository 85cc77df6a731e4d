"""What comes with a checkpoint beside its weights: tokenizer, special ids by its settings, fingerprint."""

import os
from pathlib import Path
from typing import Any

from zoo.checkpoints import plain_folder, run_folder
from zoo.checkpoints.safetensors_file import read_json
from zoo.errors import InputError
from zoo.packages import checkpoint_folder, is_name
from zoo.tokenizer import ROLES, Tokenizer, read_tokenizer
from zoo.tokenizer_files import is_tokenizer_folder


def tokenizer_of(path: str | os.PathLike[str]) -> Tokenizer | None:
    """The tokenizer that comes with a checkpoint, or None where it has none.

    Raises:
        InputError: there is one, and it cannot be read; ForeignTokenizer where it is whole, and of another program.
    """
    place = _local(path)
    if place.is_file():
        return read_tokenizer(place)
    found = next((folder for folder in _folders(place) if is_tokenizer_folder(folder)), None)
    return None if found is None else read_tokenizer(found)


def special_ids(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Role -> ids that a Hugging Face folder's config.json gives it (several end-of-text ids are common)."""
    place = _local(path) / "config.json"
    values: dict[str, Any] = read_json(place) if place.is_file() else {}
    found = {}
    for role in ROLES:
        named = values.get(f"{role}_token_id")
        ids = tuple(i for i in (named if isinstance(named, list) else [named]) if isinstance(i, int) and i >= 0)
        if ids:
            found[role] = ids
    return found


def trained_with(path: str | os.PathLike[str]) -> str | None:
    """The fingerprint of the tokenizer that weights were trained with: as a run's newest (or the named) step says it,
    or a plain folder's config."""
    place = _local(path)
    try:
        if plain_folder.is_folder(place):
            return plain_folder.fingerprint(place)
        if not run_folder.is_folder(place):
            return None
        step = (
            place
            if not (place / run_folder.CHECKPOINTS).is_dir()
            else (place / run_folder.CHECKPOINTS / str(run_folder.last_step(place)))
        )
        meta = step / "meta" / "metadata"
        return read_json(meta).get("tokenizer") if meta.is_file() else None
    except InputError:
        return None


def require_trained_with(path: str | os.PathLike[str], tokenizer: Tokenizer) -> None:
    """Raises InputError where weights lie at `path` that were trained with another tokenizer."""
    known = trained_with(path)
    if known is not None and known != tokenizer.fingerprint:
        raise InputError(
            f"the tokenizer in {os.fspath(path)} is not the one that its weights were trained with: fingerprint "
            f"{tokenizer.fingerprint[:12]} and not {known[:12]}; ids would mean other pieces"
        )


def _folders(place: Path) -> list[Path]:
    """Where a tokenizer may lie: the folder itself, and for one step of a run, the run."""
    return [place, place.parent.parent] if place.parent.name == run_folder.CHECKPOINTS else [place]


def _local(path: str | os.PathLike[str]) -> Path:
    place = Path(os.path.expanduser(os.fspath(path)))
    return checkpoint_folder(os.fspath(path)) if not place.exists() and is_name(os.fspath(path)) else place
