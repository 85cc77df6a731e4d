"""A file is written whole or not at all, and there is one writer that does so."""

import os
import re
from pathlib import Path

import pytest

from zoo.atomic_file import replacing, write_atomically, write_together
from zoo.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
# The one writer of files, and those that rename whole folders or sets of files.
OWN_RENAMES = {
    "zoo/atomic_file.py", "zoo/packages.py", "zoo/checkpoints/whole_folder.py",
    "train/data/shards.py", "eval/demo.py",
}  # fmt: skip


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomically(path, "öld")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=re.escape(f"{path}: cannot be written: No space left on device")):
        write_atomically(path, b"new")
    assert path.read_text("utf-8") == "öld" and os.listdir(tmp_path) == ["a.txt"]
    with pytest.raises(InputError, match="a.txt is a file, where a folder is needed for"):
        write_atomically(path / "b.txt", b"")


def test_a_writer_that_fails_half_way_leaves_nothing(tmp_path):
    path = tmp_path / "new" / "picture.png"
    with pytest.raises(KeyError), replacing(path) as hidden:
        hidden.write_bytes(b"half")
        assert hidden.suffix == ".png" and hidden.parent == path.parent and not path.exists()
        raise KeyError
    assert os.listdir(path.parent) == []
    with replacing(path) as hidden:
        hidden.write_bytes(b"whole")
    assert path.read_bytes() == b"whole" and os.listdir(path.parent) == ["picture.png"]


def test_a_set_of_files_is_written_before_any_is_moved(tmp_path, monkeypatch):
    files = {tmp_path / "plots" / "a.png": b"png", tmp_path / "b.json": "{}", tmp_path / "page.html": "page"}
    moved, real = [], os.replace

    def move(source, target):
        moved.append(Path(target).name)
        assert all(any(path.parent.glob(f".{path.stem}-*")) for path in files if path.name not in moved[:-1])
        real(source, target)

    monkeypatch.setattr(os, "replace", move)
    write_together(files)
    assert moved == ["a.png", "b.json", "page.html"]
    assert [path.read_bytes() for path in files] == [b"png", b"{}", b"page"]

    def full(path, data, real=Path.write_bytes):
        if path.name.startswith(".b-"):
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="b.json: cannot be written: No space left on device"):
        write_together(dict.fromkeys(files, b"new"))
    assert [path.read_bytes() for path in files] == [b"png", b"{}", b"page"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json", "page.html", "plots"]


def test_no_module_renames_files_by_hand():
    sources = [path for package in ("zoo", "train", "eval") for path in (ROOT / package).rglob("*.py")]
    found = {str(p.relative_to(ROOT)) for p in sources if "os.replace(" in p.read_text(encoding="utf-8")}
    assert found <= OWN_RENAMES
