"""Whether a folder can be written to, asked before the work whose results it is for."""

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
