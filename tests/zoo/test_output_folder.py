"""Where results would go is looked at before the work, and nothing is made by looking."""

import os
import re

import pytest

from zoo.errors import InputError
from zoo.output_folder import require_folder


def test_what_can_be_a_folder_passes_and_stays_as_it_was(tmp_path):
    for place in (tmp_path, tmp_path / "new", tmp_path / "new" / "deep", "gs://bucket/run"):
        require_folder(place)
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_way_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    for place, line in (
        (file, f"{file} is a file, where a folder is needed"),
        (file / "run", f"{file} is a file, where a folder is needed for {file / 'run'}"),
        (tmp_path / "broken", f"{tmp_path / 'broken'} is no folder, where a folder is needed"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
            require_folder(place)


def test_a_folder_without_permission_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    line = f"{tmp_path / 'run'} cannot be written: no permission in {tmp_path}"
    with pytest.raises(InputError, match=re.escape(line)):
        require_folder(tmp_path / "run")
