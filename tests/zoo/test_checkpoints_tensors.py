"""Tensors in files: bit-exact without PyTorch; truncated, false or far-reaching files are refused in one line."""

import json
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import zoo
from zoo.checkpoints import load
from zoo.checkpoints.layouts import LAYOUTS
from zoo.checkpoints.safetensors_file import open_file, open_folder, read_json
from zoo.checkpoints.safetensors_out import write_file
from zoo.errors import InputError

NUMBER_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", NUMBER_TYPES)
@given(bits=st.binary(min_size=8, max_size=64))
def test_any_bits_come_back(tmp_path_factory, name, bits):
    """NaNs, infinities, subnormals and negative zeros included."""
    array = np.frombuffer(bits[: len(bits) // 8 * 8], NUMBER_TYPES[name]).reshape(2, -1)
    path = tmp_path_factory.mktemp("bits") / "x.safetensors"
    write_file(path, {"a.weight": array})
    stored = open_file(path)["a.weight"]
    assert (stored.dtype, stored.shape) == (name, array.shape)
    found = stored.read()
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()
    assert load_file(path)["a.weight"].tobytes() == array.tobytes()
    assert [entry.name for entry in path.parent.iterdir()] == ["x.safetensors"]


@pytest.fixture
def file(tmp_path):
    write_file(tmp_path / "model.safetensors", {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 3), np.float16)})
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("kept", [0, 5, 8, 40, -1])
def test_a_truncated_file(file, kept):
    content = file.read_bytes()
    file.write_bytes(content[:kept])
    with pytest.raises(InputError) as error:
        open_file(file)
    assert "truncated" in one_line(error) and str(file) in str(error.value)


@given(at=st.integers(0, 199), to=st.integers(0, 255))
def test_a_changed_byte_gives_tensors_or_one_line(tmp_path_factory, at, to):
    path = tmp_path_factory.mktemp("changed") / "x.safetensors"
    write_file(path, {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 3), np.float16)})
    content = bytearray(path.read_bytes())
    content[at % len(content)] = to
    path.write_bytes(content)
    try:
        for tensor in open_file(path).values():
            tensor.read()
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)


def test_a_header_that_claims_too_much(file):
    file.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError) as error:
        open_file(file)
    assert "no safetensors file" in one_line(error)


def test_extents_that_reach_past_the_file(file):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)
    with pytest.raises(InputError, match="is truncated: .* of 40[0-9]+ bytes"):
        open_file(file)


def shards(folder):
    save_file({"a": np.arange(3, dtype=np.float32)}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": np.arange(4, dtype=np.float32)}, folder / "model-00002-of-00002.safetensors")
    return {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_read_through_their_index(tmp_path):
    write_index(tmp_path, shards(tmp_path))
    stored = open_folder(tmp_path)
    assert {name: tensor.read().tolist() for name, tensor in stored.items()} == {"a": [0, 1, 2], "b": [0, 1, 2, 3]}


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "a\\b"])
def test_an_index_names_files_of_its_folder_alone(tmp_path, name):
    write_index(tmp_path, shards(tmp_path) | {"c": name})
    with pytest.raises(InputError) as error:
        open_folder(tmp_path)
    assert "not a file of this folder" in one_line(error)


def test_a_missing_shard_is_named(tmp_path):
    write_index(tmp_path, shards(tmp_path))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="1 of 2 files are not there: model-00002-of-00002.safetensors"):
        open_folder(tmp_path)


def test_index_and_shards_that_disagree(tmp_path):
    weight_map = shards(tmp_path)
    write_index(tmp_path, {"a": weight_map["b"], "b": weight_map["b"], "c": weight_map["a"]})
    with pytest.raises(InputError) as error:
        open_folder(tmp_path)
    assert "a is in model-00001" in one_line(error) and "c is not in model-00001" in str(error.value)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_an_index_that_is_none(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError) as error:
        open_folder(tmp_path)
    one_line(error)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_settings_files_have_at_most_64_mb(tmp_path, name):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with open(tmp_path / name, "wb") as file:
        file.truncate(64 * 1024**2 + 1)  # a hole, which no disk holds
    with pytest.raises(InputError, match=f"{name}: 67108865 bytes is too large for a settings file"):
        load(tmp_path)


def test_pickles_are_refused_with_the_reason(tmp_path, monkeypatch):
    """Without PyTorch, with one whose loader could be got round, and in shards, which nobody needs any more."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="pickle, which can run code.*pip install torch, or save the weights as"):
        open_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.5.1+cpu"))
    with pytest.raises(InputError, match="of version 2.6 or newer, and 2.5.1"):
        open_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "pytorch_model-00001-of-00002.bin")
    with pytest.raises(InputError, match="pickle, which can run code"):
        open_folder(tmp_path)


def test_an_onnx_file_without_the_package_that_reads_it(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnx", None)
    for path in (tmp_path / "model.onnx", tmp_path):
        with pytest.raises(InputError, match=r'model.onnx: .* run: pip install "oneblock\[onnx\]"'):
            zoo.load(path)


def test_a_settings_file_of_other_bytes(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError) as error:
        read_json(tmp_path / "config.json")
    assert "UTF-8" in one_line(error)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zoo.checkpoints.safetensors_out._write", fail)
    with pytest.raises(InputError, match="No space left"):
        write_file(tmp_path / "model.safetensors", {"a": np.zeros(3, np.float32)})
    assert list(tmp_path.iterdir()) == []


SHAPES = {
    "same": [(3, 4)],
    "linear": [(3, 4)],
    "linear_to_heads": [(5, 2, 3)],
    "linear_from_heads": [(2, 3, 5)],
    "heads_bias": [(2, 3)],
    "conv_from_heads": [(2, 3, 5)],
    "conv_fused_heads": [(5, 2, 3)] * 3,
    "fused_heads_bias": [(2, 3)] * 3,
    "first_axis": [(4, 5)],
    "patches": [(2, 2, 3, 5)],
    "linear_stacked": [(5, 4, 3), (5, 2, 3), (5, 2, 3)],
    "linear_interleaved_heads": [(5, 2, 3)] * 3,
    "interleaved_heads_bias": [(2, 3)] * 3,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_go_there_and_back(name):
    shapes = SHAPES[name]
    arrays = [np.arange(np.prod(shape)).reshape(shape) + 100 * i for i, shape in enumerate(shapes)]
    theirs = LAYOUTS[name].there(arrays)
    assert theirs.shape == LAYOUTS[name].shape(shapes)
    for array, back in zip(arrays, LAYOUTS[name].back(theirs, shapes), strict=True):
        np.testing.assert_array_equal(array, back)


def test_layouts_against_their_definitions():
    """y = x W in our axes equals the published product: Linear x W^T, Conv1D x W."""
    draw = np.random.RandomState(0)
    x, heads, kernel = draw.randn(5), draw.randn(2, 3), draw.randn(5, 2, 3)
    ours = np.einsum("d,dnh->nh", x, kernel)
    np.testing.assert_allclose(LAYOUTS["linear_to_heads"].there([kernel]) @ x, ours.reshape(6), atol=1e-12)
    fused = LAYOUTS["conv_fused_heads"].there([kernel, 2 * kernel, 3 * kernel])
    np.testing.assert_allclose(x @ fused, np.concatenate([k * ours.reshape(6) for k in (1, 2, 3)]), atol=1e-12)
    out = draw.randn(2, 3, 5)
    mixed = np.einsum("nh,nhd->d", heads, out)
    np.testing.assert_allclose(LAYOUTS["linear_from_heads"].there([out]) @ heads.reshape(6), mixed, atol=1e-12)
    np.testing.assert_allclose(heads.reshape(6) @ LAYOUTS["conv_from_heads"].there([out]), mixed, atol=1e-12)
