"""Files from strangers: valid ones with something changed give a model, or one line; never a hang or another error.

Some hundreds of changes here; `make soak` makes 10,000 (ONEBLOCK_SOAK_FUZZ is the number).
"""

import json
import os
import random
import shutil
import signal
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests import made_up
from zoo.checkpoints import export, load
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import load_tokenizer

ROUNDS = int(os.environ.get("ONEBLOCK_SOAK_FUZZ", 60))  # of each kind of file
SECONDS = 20  # of this process's own time: a busy machine is no hang
SMALL = dict(vocab_size=360, embed_dim=8, num_layers=1, num_heads=2, mlp_dim=8, max_positions=16)
CONFIG = zoo.create("llama-tiny", **SMALL).config
JUNK = [-1, 0, 1, 10**9, 10**30, 1e308, 0.5, True, None, "", "x", "../../etc/passwd", [], [[]], {}, {"a": 1}, "\ud800"]
MESSAGES = [{"role": "user", "content": "The river sings."}]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Folders that load: shards and tokenizer.model; a GGUF file; tokenizer.json with a chat template."""
    root = tmp_path_factory.mktemp("sound")
    draw = np.random.RandomState(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(draw.randn(*leaf.shape), jnp.float32), Model(CONFIG).init_shapes())
    export(Model(CONFIG), params, root / "folder", tokenizer=made_up.tokenizer(), max_shard_size=8000)
    made_up.gguf(root / "gguf" / "model.gguf")
    made_up.json_tokenizer(root / "words")
    assert len(list((root / "folder").glob("model-*"))) > 1
    for place in (root / "folder", root / "gguf"):
        load(place)
    assert load_tokenizer(root / "words").chat(MESSAGES) and load_tokenizer(root / "gguf").chat(MESSAGES)
    return root


def changed_json(draw: random.Random, content: bytes) -> bytes:
    """One value of a JSON text replaced, removed, doubled or renamed."""
    root = json.loads(content)
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list) and len(places) < 5000:
                walk(node[key])

    walk(root)
    node, key = draw.choice(places)
    kind = draw.randrange(4)
    if kind == 0 and isinstance(node, dict):
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[str(key) + draw.choice("sx_")] = node.pop(key)
    elif kind == 2 and isinstance(node[key], str) and node[key]:
        text, at = node[key], draw.randrange(len(node[key]))
        node[key] = text[:at] + draw.choice(["{{", "%}", "/", "\u0000", "\U0001f600", "9" * 30]) + text[at + 1 :]
    else:
        node[key] = draw.choice(JUNK)
    return json.dumps(root).encode("utf-8", "surrogatepass")


def changed_bytes(draw: random.Random, content: bytes, head: int) -> bytes:
    """Bytes flipped, cut, doubled or overwritten with numbers such as counts and offsets; mostly near the head."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(min(len(data), head) if draw.random() < 0.9 else len(data))
        kind = draw.randrange(6)
        if kind == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at] = draw.randrange(256)
        elif kind == 2:
            del data[at : at + draw.choice([1, 4, 8, 100])]
        elif kind == 3:
            data[at:at] = data[at : at + draw.choice([1, 8, 64])]
        elif kind == 4:
            number = draw.choice([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
            data[at : at + 8] = struct.pack("<Q", number)
        else:
            data = data[: max(at, 1)]
        if not data:
            return b""
    return bytes(data)


def changed_header(draw: random.Random, content: bytes) -> bytes:
    """The JSON header of a safetensors file changed, its length made right again."""
    length = int.from_bytes(content[:8], "little")
    header = changed_json(draw, content[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


FILES = {
    "config": ("folder", "config.json", lambda draw, content: changed_json(draw, content)),
    "config-bytes": ("folder", "config.json", lambda draw, content: changed_bytes(draw, content, 4000)),
    "index": ("folder", "model.safetensors.index.json", changed_json),
    "safetensors": ("folder", "model-00001-of-*", lambda draw, content: changed_bytes(draw, content, 600)),
    "safetensors-header": ("folder", "model-00001-of-*", changed_header),
    "gguf": ("gguf", "model.gguf", lambda draw, content: changed_bytes(draw, content, 3000)),
    "gguf-all": ("gguf", "model.gguf", lambda draw, content: changed_bytes(draw, content, 30_000)),
    "tokenizer": ("words", "tokenizer.json", changed_json),
    "tokenizer-bytes": ("words", "tokenizer.json", lambda draw, content: changed_bytes(draw, content, 10_000)),
    "template": ("words", "tokenizer_config.json", changed_json),
    "sentencepiece": ("folder", "tokenizer.model", lambda draw, content: changed_bytes(draw, content, 4000)),
}


def read_all(place: Path) -> None:
    """What people do with a folder."""
    if place.name != "words":
        load(place)
    tokenizer = load_tokenizer(place)
    ids = tokenizer.encode("The river sings \u00e9\u4e2d\U0001f600.")
    tokenizer.decode(ids)
    if tokenizer.chat_template is not None:
        tokenizer.chat(MESSAGES)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_gives_a_model_or_one_line(name, sound, tmp_path):
    def too_long(*_):
        raise TimeoutError

    folder, pattern, change = FILES[name]
    place = tmp_path / folder
    shutil.copytree(sound / folder, place)
    (file,) = place.glob(pattern)
    content = file.read_bytes()
    old = signal.signal(signal.SIGPROF, too_long)
    refused = 0
    try:
        for number in range(ROUNDS):
            file.write_bytes(change(random.Random(f"{name} {number}"), content))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                read_all(place)
            except InputError as error:
                refused += 1
                assert "\n" not in str(error), (name, number)
            except BaseException as error:
                raise AssertionError(f"{name} {number}: {type(error).__name__}: {error}") from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.signal(signal.SIGPROF, old)
    assert refused > 0
