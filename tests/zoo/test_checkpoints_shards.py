"""Shards and streams: written one tensor at a time, read as views of the file, links followed within a folder alone."""

import json
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType
from safetensors.numpy import load_file

import zoo
from tests import made_up
from zoo.checkpoints import export, load
from zoo.checkpoints.layer_view import LayerView
from zoo.checkpoints.placing import Placing, flatten
from zoo.checkpoints.safetensors_file import open_folder
from zoo.checkpoints.safetensors_out import INDEX, SINGLE, OutgoingTensor, shard_bytes, write_shards, write_tensors
from zoo.errors import InputError
from zoo.layer_config import LayerConfig
from zoo.model import Model
from zoo.tokenizer import load_tokenizer

SMALL = dict(vocab_size=11, embed_dim=12, num_layers=5, num_heads=3, head_dim=4, mlp_dim=20, max_positions=16)
GPT = zoo.create("gpt2-tiny", **SMALL).config


def seeded(config):
    draw = np.random.RandomState(0)
    shapes = Model(config).init_shapes()
    return jax.tree.map(lambda leaf: jnp.asarray(draw.randn(*leaf.shape), jnp.float32), shapes)


def same(one, other) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: a.shape == b.shape and bool((a == b).all()), one, other))


def test_shards_are_named_filled_and_indexed(tmp_path):
    params = seeded(GPT)
    export(Model(GPT), params, tmp_path / "out", max_shard_size=4000)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    shards = names[1:-1]
    assert names[0] == "config.json" and names[-1] == INDEX and len(shards) > 3
    assert shards == [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    sizes = [sum(array.nbytes for array in load_file(tmp_path / "out" / name).values()) for name in shards]
    assert max(sizes) <= 4000 and sizes[0] + sizes[1] > 4000
    assert index["metadata"]["total_size"] == sum(sizes) == 4 * sum(leaf.size for leaf in jax.tree.leaves(params))
    assert {key: name for name in shards for key in load_file(tmp_path / "out" / name)} == index["weight_map"]
    model, back = load(tmp_path / "out")
    assert same(params, back)
    export(model, back, tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["config.json", SINGLE]


def test_a_tensor_larger_than_a_shard_has_one_of_its_own(tmp_path):
    arrays = {name: np.full(size, size, np.float32) for name, size in (("a", 2), ("b", 9), ("c", 3), ("d", 2))}
    tensors = {n: OutgoingTensor(a.shape, a.dtype, lambda a=a: a) for n, a in arrays.items()}
    assert len(write_shards(tmp_path, tensors, 20)) == 3
    assert {n: t.read().tolist() for n, t in open_folder(tmp_path).items()} == {
        n: a.tolist() for n, a in arrays.items()
    }
    assert write_shards(tmp_path / "one", tensors, 64) == [SINGLE]


def test_one_tensor_is_made_at_a_time(tmp_path):
    """Made in order, each only once the one before is written and forgotten."""
    alive: set[int] = set()
    most = 0

    class Counted(np.ndarray):
        def __del__(self):
            alive.discard(id(self))

    def make(value):
        nonlocal most
        array = np.full(64, value, np.float32).view(Counted)
        alive.add(id(array))
        most = max(most, len(alive))
        return array

    tensors = {str(i): OutgoingTensor((64,), np.dtype(np.float32), lambda i=i: make(i)) for i in range(6)}
    write_tensors(tmp_path / "x.safetensors", tensors)
    assert most <= 2 and [int(load_file(tmp_path / "x.safetensors")[str(i)][0]) for i in range(6)] == list(range(6))


def test_what_is_read_is_a_view_of_the_file(tmp_path):
    export(Model(GPT), seeded(GPT), tmp_path / "out", dtype="bfloat16")
    tensor = open_folder(tmp_path / "out")["transformer.wte.weight"]
    array = tensor.read()
    base = array
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) and array.dtype == ml_dtypes.bfloat16 and not array.flags.writeable
    assert tensor.size == math.prod(tensor.shape) * 2


@pytest.mark.parametrize("size, count", [(7, 7), ("5GB", 5 * 10**9), ("300 mb", 3 * 10**8), ("1.5KiB", 1536), ("9", 9)])
def test_sizes_in_words(size, count):
    assert shard_bytes(size) == count


@pytest.mark.parametrize("size", ["", "GB", "5 gallons", "-1", "0", 0, "1e400", "9" * 40, "0.1B"])
def test_sizes_that_are_none(size):
    with pytest.raises(InputError, match="max_shard_size is"):
        shard_bytes(size)


@pytest.mark.parametrize("pattern", [(LayerConfig(),), (LayerConfig(window=4), LayerConfig())])
def test_layers_of_a_scan_are_read_one_by_one(pattern):
    """Five layers: a pattern of two leaves one over."""
    looped = GPT.replace(layer_pattern=pattern)
    scanned = looped.replace(scan=True)
    params = seeded(looped)
    view = LayerView(zoo.stack_layers(params, looped), scanned, jnp.dtype("bfloat16"))
    flat = flatten(params)
    assert {path: leaf.shape for path, leaf in view.shapes.items()} == {path: leaf.shape for path, leaf in flat.items()}
    for path, leaf in flat.items():
        assert (view.read(path) == np.asarray(leaf.astype("bfloat16"))).all()


def test_export_from_a_mesh_keeps_no_copy_on_the_host(tmp_path):
    mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    params = seeded(GPT)
    export(Model(GPT), params, tmp_path / "out")
    model, split = load(tmp_path / "out", mesh=mesh)
    export(model, split, tmp_path / "again", max_shard_size="2KB")
    assert same(jax.device_get(load(tmp_path / "again")[1]), jax.device_get(params))
    kernel = split["blocks"]["layer_0"]["mlp"]["up"]["kernel"]
    assert len(kernel.sharding.device_set) == 4 and getattr(kernel, "_npy_value", None) is None


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_pieces_of_a_mapped_file_are_owned(dtype):
    """A parameter must not change with the file that it came from."""
    array = np.arange(32, dtype=np.float32).reshape(4, 8)
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    for placing, where in ((Placing(None, dtype), None), (Placing(mesh, dtype), sharding)):
        placed = placing.put(array, where)
        array += 1
        assert (np.asarray(placed, np.float32) == array - 1).all() and placed.dtype == (dtype or "float32")


def test_links_stay_within_the_folder_or_its_cache(tmp_path):
    export(Model(GPT), seeded(GPT), tmp_path / "models--x" / "snapshots" / "main")
    folder = tmp_path / "models--x" / "snapshots" / "main"
    blobs = tmp_path / "models--x" / "blobs"
    blobs.mkdir()
    (folder / SINGLE).rename(blobs / "5eed")
    (folder / SINGLE).symlink_to("../../blobs/5eed")
    assert same(load(folder)[1], seeded(GPT))
    (tmp_path / "link").symlink_to(folder)
    assert same(load(tmp_path / "link")[1], seeded(GPT))
    (folder / SINGLE).unlink()
    (blobs / "5eed").rename(tmp_path / "elsewhere")
    (folder / SINGLE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link to a place outside its folder"):
        load(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="config.json: is a link to a place outside"):
        load(folder)


def test_a_link_that_the_caller_names_is_followed(tmp_path):
    made_up.json_tokenizer(tmp_path / "words")
    (tmp_path / "link.json").symlink_to(tmp_path / "words" / "tokenizer.json")
    assert load_tokenizer(tmp_path / "link.json").chat_template == made_up.TEMPLATE
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").symlink_to(tmp_path / "words" / "tokenizer.json")
    with pytest.raises(InputError, match="outside its folder"):
        load_tokenizer(tmp_path / "other")


def test_a_config_that_its_tensors_could_never_fill(tmp_path):
    export(Model(GPT), seeded(GPT), tmp_path / "out")
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    for change in ({"n_layer": 9999}, {"n_embd": 99_999, "n_head": 1}, {"vocab_size": 10**8}):
        (tmp_path / "out" / "config.json").write_text(json.dumps(values | change))
        with pytest.raises(InputError, match="parameters but its tensors hold 6,268 numbers"):
            load(tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(values | {"n_layer": 10**9}))
    with pytest.raises(InputError, match="num_layers is 1000000000"):
        load(tmp_path / "out")
