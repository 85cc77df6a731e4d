"""Where results would go is looked at before the work, and nothing is made by looking."""

import os
import re

import pytest

from zoo.errors import InputError
from zoo.output_folder import held, require_folder


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


def test_what_a_folder_holds_by_its_names_and_settings(tmp_path):
    assert held(tmp_path) == held(tmp_path / "nowhere") == ""
    for name, files, found in (
        ("run", {"config.json": '{"model": {}, "train": {}}', ".lock": ""}, "a training run"),
        ("lost", {"metrics.jsonl": "", "checkpoints/1/params": ""}, "a training run"),
        ("imported", {"config.json": '{"model": {}}', "checkpoints/0/params": ""}, "an imported checkpoint"),
        ("tuned", {"config.json": '{"model": {}, "finetune": {}}', "checkpoints/0/x": ""}, "a fine-tuned checkpoint"),
        ("published", {"config.json": '{"model_type": "gpt2"}'}, "a published checkpoint"),
        ("weights", {"model.safetensors": ""}, "a published checkpoint"),
        ("shards", {"manifest.json": "{}", "tokenizer/vocab.txt": ""}, "token shards"),
        ("both", {"manifest.json": "{}", "metrics.jsonl": ""}, "a training run"),
        ("broken", {"config.json": "{", "tokenizer/vocab.txt": ""}, "a published checkpoint"),
        ("mine", {"thesis.txt": ""}, ""),
    ):
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        assert held(tmp_path / name) == found, name
