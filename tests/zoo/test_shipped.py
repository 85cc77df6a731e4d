"""The models that come with the package: there, small, sound, and better than an even guess."""

import fnmatch
import json
import math
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo import shipped
from zoo.__main__ import main
from zoo.checkpoints import load_config
from zoo.checkpoints.safetensors_file import open_file
from zoo.errors import InputError

NAMES = ("oneblock/bert-tiny", "oneblock/gpt-tiny", "oneblock/llama-tiny")


def test_the_three_are_there():
    assert shipped.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_half_precision(name):
    folder = shipped.folder_of(name)
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert set(files) == {"README.md", "config.json", "metrics.json", "model.safetensors", "tokenizer.model"}
    assert sum(files.values()) <= 10e6
    assert {tensor.dtype for tensor in open_file(folder / "model.safetensors").values()} == {"F16"}


def test_a_built_distribution_holds_every_file():
    settings = tomllib.loads((shipped.HERE.parents[1] / "pyproject.toml").read_text("utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["zoo.shipped"]
    files = [path.relative_to(shipped.HERE).as_posix() for path in shipped.HERE.glob("*/*") if path.suffix != ".pyc"]
    assert len(files) >= 15
    assert [file for file in files if not any(fnmatch.fnmatch(file, pattern) for pattern in patterns)] == []


@pytest.mark.parametrize("name", NAMES)
def test_loading_gives_the_parameters_that_the_metrics_count(name):
    facts = json.loads((shipped.folder_of(name) / "metrics.json").read_text("utf-8"))
    model, params = zoo.load(name)
    leaves = jax.tree.leaves(params)
    assert sum(leaf.size for leaf in leaves) == facts["parameters"] and facts["name"] == name
    assert all(leaf.dtype == jnp.float32 and bool(jnp.isfinite(leaf).all()) for leaf in leaves)
    assert model.config == load_config(name) and model.config.vocab_size == facts["pieces"]
    assert model.config.family == name.removeprefix("oneblock/").removesuffix("-tiny")


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_gives_a_text_back_in_lower_case(name):
    tokenizer = zoo.load_tokenizer(name)
    text = "The Bank of England cut its rate to 4.25 % \u2014 na\u00efve \U0001f600."
    assert tokenizer.decode(tokenizer.encode(text)) == text.lower()
    assert tokenizer == zoo.load_tokenizer(NAMES[0]) and tokenizer.vocab_size == load_config(name).vocab_size


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_decoder_expects_english(name):
    """Its loss on a sentence is well below an even guess, and a sentence costs less than its words in reverse."""
    model, params = zoo.load(name)
    tokenizer = zoo.load_tokenizer(name)

    def loss(text):
        ids, _ = tokenizer.frame(tokenizer.encode(text), style="gpt")
        tokens = jnp.asarray([ids + [tokenizer.pad_id] * (48 - len(ids))])
        scores = jax.nn.log_softmax(model.apply(params, tokens).logits[0, : len(ids) - 1])
        return -float(np.mean([scores[place, label] for place, label in enumerate(ids[1:])]))

    words = "the bank said it will raise its interest rate because the dollar fell against the yen"
    backwards = " ".join(reversed(words.split()))
    assert loss(words) < 0.75 * math.log(model.config.vocab_size)
    assert loss(words) < loss(backwards) - 0.5


def test_the_encoder_fills_a_gap():
    model, params = zoo.load(NAMES[0])
    tokenizer = zoo.load_tokenizer(NAMES[0])
    ids, _ = tokenizer.frame(tokenizer.encode("the bank said it will raise its interest"), style="bert")
    ids = [*ids[:-1], tokenizer.mask_id, ids[-1]]
    tokens = jnp.asarray([ids + [tokenizer.pad_id] * (48 - len(ids))])
    mask = jnp.arange(48)[None] < len(ids)
    logits = model.apply(params, tokens, padding_mask=mask).logits[0, len(ids) - 2]
    best = [tokenizer.decode([int(i)]) for i in jnp.argsort(-logits)[:20]]
    assert {"rate", "rates"} & set(best)


@pytest.mark.parametrize("name", NAMES)
def test_the_certificate_holds(name, capsys):
    assert main(["check", name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] and told["path"] == name
    verdicts = {claim["name"]: claim["passed"] for claim in told["claims"]}
    assert verdicts["a text comes back"] and verdicts["padding changes nothing"]
    assert any("tokenizer" in claim and passed for claim, passed in verdicts.items())  # the one it was trained with
    published = verdicts["exported and read again"]
    assert published is (None if name == "oneblock/bert-tiny" else True)


def test_commands_take_the_names(capsys, tmp_path):
    assert main(["list"]) == 0 and NAMES[1] in capsys.readouterr().out
    assert main(["explain", NAMES[0], "--against", NAMES[2]]) == 0 and "rotary" in capsys.readouterr().out
    assert main(["generate", NAMES[1], "the bank said", "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("the bank said")
    assert main(["import", NAMES[2], str(tmp_path / "run")]) == 0
    assert main(["export", NAMES[2], str(tmp_path / "published")]) == 0
    assert main(["export", NAMES[0], str(tmp_path / "bert")]) == 2 and "rotary" in capsys.readouterr().err
    _, there = zoo.load(tmp_path / "run")
    _, back = zoo.load(tmp_path / "published")
    for one, other in zip(jax.tree.leaves(there), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_wrong_name_gets_the_nearest_right_one(capsys):
    line = 'no model "oneblock/bert-tinny" comes with the package; did you mean "oneblock/bert-tiny"'
    for call in (zoo.load, zoo.load_tokenizer, load_config):
        with pytest.raises(InputError, match=line):
            call("oneblock/bert-tinny")
    assert main(["show", "oneblock/gtp-tiny"]) == 2 and 'did you mean "oneblock/gpt-tiny"' in capsys.readouterr().err
    with pytest.raises(InputError, match="oneblock/bert-tiny"):
        zoo.load("one-block/bert-tiny")


def test_nothing_is_fetched_and_no_cache_is_made(tmp_path):
    code = 'import zoo; zoo.load("oneblock/gpt-tiny"); zoo.load_tokenizer("oneblock/gpt-tiny"); print("ok")'
    env = {"ONEBLOCK_CACHE": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "ok\n", done.stderr
    assert not (tmp_path / "cache").exists()
