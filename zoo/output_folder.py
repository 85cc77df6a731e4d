"""Whether a folder can be written to, and what it holds: asked before the work whose results it is for."""

import json
import os
from pathlib import Path

from zoo.errors import InputError


def require_folder(folder: str | os.PathLike[str]) -> None:
    """Looks, and makes nothing: `folder` is there or can be made, and files can be made in it. URLs are not looked at.

    Raises:
        InputError: it, or what it would lie in, is a file or must not be written to.
    """
    if "://" in os.fspath(folder):
        return
    path = Path(folder).expanduser().absolute()
    place = next(part for part in (path, *path.parents) if os.path.lexists(part))
    if not place.is_dir():
        what = "is a file" if place.is_file() else "is no folder"
        raise InputError(f"{place} {what}, where a folder is needed" + ("" if place == path else f" for {path}"))
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: no permission in {place}")


def file_above(path: str | os.PathLike[str]) -> Path | None:
    """The file that stands where a folder around `path` would have to be; None where there is none."""
    above = Path(path).expanduser().absolute().parents
    return next((part for part in above if part.is_file()), None)


def held(folder: str | os.PathLike[str]) -> str:
    """What of ours or of a publisher's lies in a folder, so that nothing else is written over it.

    Returns:
        "a training run", "an imported checkpoint" (a run that no training has touched), "a fine-tuned checkpoint",
        "token shards", "a published checkpoint", or "" for none of these.
    """
    path = Path(folder)
    if not path.is_dir():
        return ""
    settings = {}
    try:
        settings = json.loads((path / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        pass
    keys = settings if isinstance(settings, dict) else {}
    if "finetune" in keys and "adapter" in keys:
        return "a fine-tuned checkpoint"
    if (path / "metrics.jsonl").exists() or "train" in keys and "model" in keys:
        return "a training run"
    if (path / "checkpoints").is_dir():
        if "finetune" in keys:
            return "a fine-tuned checkpoint"
        return "an imported checkpoint" if "model" in keys else "a training run"
    if (path / "manifest.json").exists():
        return "token shards"
    weights = (entry for ending in ("safetensors", "gguf", "onnx", "bin") for entry in path.glob(f"*.{ending}"))
    return "a published checkpoint" if (path / "config.json").exists() or any(weights) else ""
