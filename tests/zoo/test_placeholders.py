"""What people have in their folders: files that were never fetched, byte order marks, ids that are words, files where
folders should be."""

import json
import os
import re

import jax
import pytest

import zoo
from tests import made_up
from zoo import cli
from zoo.checkpoints import export, load, load_config
from zoo.command_line import run
from zoo.errors import InputError
from zoo.output_folder import file_above
from zoo.placeholders import placeholder
from zoo.tokenizer import load_tokenizer

MODEL = zoo.create(
    "llama-tiny", vocab_size=360, embed_dim=8, num_layers=1, num_heads=2, num_kv_heads=1, mlp_dim=8, max_positions=16
)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 3550\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>Log in</title></head></html>\n"
TOLD = {POINTER: "is a Git LFS pointer and not the file itself (3,550 bytes); run in its folder: git lfs pull"}
TOLD[PAGE] = "is a web page (HTML) and not the file itself; download the file again, by its own address"


@pytest.fixture
def folder(tmp_path):
    export(MODEL, MODEL.init(jax.random.key(0)), tmp_path / "model", tokenizer=made_up.tokenizer())
    return tmp_path / "model"


def refused(call, path, *, line=None) -> str:
    with pytest.raises(InputError) as error:
        call(path)
    text = str(error.value)
    assert "\n" not in text and (line is None or text == line)
    return text


@pytest.mark.parametrize("content", TOLD)
def test_pointers_and_pages_are_named(content, folder, tmp_path):
    for name in ("model.safetensors", "config.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        refused(load, folder, line=f"{folder / name}: {TOLD[content]}")
        (folder / name).write_bytes(whole)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / "pytorch_model.bin").write_bytes(content)
    refused(load, folder, line=f"{folder / 'pytorch_model.bin'}: {TOLD[content]}")
    (tmp_path / "x.gguf").write_bytes(content)
    refused(load, tmp_path / "x.gguf", line=f"{tmp_path / 'x.gguf'}: {TOLD[content]}")
    refused(load_tokenizer, tmp_path / "x.gguf", line=f"{tmp_path / 'x.gguf'}: {TOLD[content]}")
    for name in ("tokenizer.json", "tokenizer.model", "vocab.txt"):
        place = tmp_path / name[-5:] / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        refused(load_tokenizer, place, line=f"{place}: {TOLD[content]}")


def test_what_is_no_placeholder():
    for head in (b"", b"\x00" * 600, b"GGUF", b"{}", b"version 1\n", b"[PAD]\n<html\n", b"htmlish", b"\xff<html>"):
        assert placeholder(head) is None
    assert "bytes" not in placeholder(b"\xef\xbb\xbfversion https://git-lfs.github.com/spec/v1\n")
    assert "web page" in placeholder(b'\n <?xml version="1.0"?> <!doctype HTML>')


def test_a_byte_order_mark_is_passed_over(folder):
    tokenizer = load_tokenizer(folder)
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    assert load_config(folder) == MODEL.config
    text = "The river sings"
    assert load_tokenizer(folder).encode(text) == load_tokenizer(folder / "tokenizer.json").encode(text)
    assert load_tokenizer(folder).encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("value", ["x", 1.5, True, [1, "x"], {"id": 1}, -2])
@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id"])
def test_ids_that_are_none(name, value, folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {name: value}))
    line = f"{folder / 'config.json'}: {name} is {value!r}; it must be a whole number, or a list of them"
    refused(load, folder, line=line)
    (folder / "config.json").write_text(json.dumps(values | {"eos_token_id": [1, 2], "pad_token_id": -1}))
    assert load_config(folder) == MODEL.config


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_pipes_and_folders_are_no_files(name, make, folder):
    """To open a pipe is to wait for its writer."""
    (folder / "model.safetensors").unlink()
    make(folder / name)
    refused(load, folder, line=f"{folder / name}: is no file")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.onnx"])
def test_links_that_lead_out_in_other_formats(name, folder, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"x")
    (folder / "model.safetensors").unlink()
    if name == "model.onnx":
        (folder / "config.json").unlink()
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert "is a link to a place outside its folder" in refused(load, folder)


def test_special_pieces_and_ends_that_are_none(folder):
    made_up.json_tokenizer(folder / "words")
    settings = folder / "words" / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    for value in (5, {"text": "<s>"}, ["<s>"]):
        settings.write_text(json.dumps(values | {"pad_token": value}))
        said = refused(load_tokenizer, folder / "words")
        assert said == f"pad_token is {value!r} in the tokenizer's settings; it must be a piece, or null"
    settings.write_text(json.dumps(values | {"pad_token": {"content": "<s>"}}))
    assert load_tokenizer(folder / "words").pad_id == 0
    (folder / "words" / "generation_config.json").write_text('{"eos_token_id": "x"}')
    said = refused(load_tokenizer, folder / "words")
    assert said.endswith("generation_config.json: eos_token_id is 'x'; it must be a whole number, or a list of them")


def test_a_file_where_a_folder_should_be(folder, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    assert file_above(file / "a" / "b") == file and file_above(file) is None and file_above(tmp_path / "new") is None
    for words in (
        ("import", folder, file / "out"),
        ("export", folder, file / "out" / "deep"),
        ("import", file / "model", tmp_path / "out"),
        ("show", file / "model"),
        ("check", file / "model"),
        ("generate", file / "model", "text"),
    ):
        assert run("zoo", cli.SUBCOMMANDS, [str(word) for word in words]) == 2
        said = capsys.readouterr().err
        assert re.fullmatch(f"error: {re.escape(str(file))} is a file, where a folder is needed.*\n", said), said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"] and file.read_text() == ""
