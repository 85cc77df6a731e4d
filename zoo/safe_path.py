"""Files of a folder that came from a stranger: a link in it must not lead out of it."""

from pathlib import Path

from zoo.errors import InputError


def inside(path: Path, root: Path | None = None) -> Path:
    """`path`, if it is (or links to) a file in `root`, by default its own folder.

    Download caches keep snapshots/<revision>/name as links to blobs/ beside them; those are followed too.

    Raises:
        InputError: a link that leads elsewhere, or something there that is no file (a pipe would be waited for).
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no file")
    if root is None and not path.is_symlink():
        return path
    folder, target = (root or path.parent).resolve(), path.resolve()
    roots = [folder]
    if folder.parent.name == "snapshots":
        roots.append(folder.parent.parent / "blobs")
    if any(target.is_relative_to(root) for root in roots):
        return path
    raise InputError(f"{path}: is a link to a place outside its folder, which is not followed; copy the file there")
