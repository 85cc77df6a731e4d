"""`python -m zoo generate` and `chat`: what they refuse, in one line, before anything is compiled."""

import io

import numpy as np
import pytest

import zoo
from zoo.__main__ import main
from zoo.errors import InputError
from zoo.summary import summarise

NAME = "oneblock/gpt-tiny"


@pytest.mark.parametrize(
    "words, said",
    [
        (["the bank", "--temperature", "-0.5"], "--temperature is -0.5; it must be 0 (greedy) or above"),
        (["the bank", "--top-k", "9999"], "--top-k is 9999; it must be from 0 (off) to the vocabulary's 4096"),
        (["the bank", "--samples", "2"], "samples above 1 would all be the same at temperature 0; add --temperature"),
        (["the bank", "--max-new-tokens", "99999"], "exceed the model's 128 positions; ask for at most"),
        (["the bank " * 400], "leaves no room in the model's 128 positions; shorten it by"),
        (["the \udcff bank"], "the prompt is not UTF-8 at character 4"),
        (["the bank", "--cache-dtype", "int4"], "int4"),
        (["the bank", "--temprature", "1"], "--temperature"),
    ],
)
def test_generate_refuses_in_one_line(words, said, capsys):
    assert main(["generate", NAME, *words]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error


def test_chat_refuses_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert main(["chat", NAME]) == 2
    error = capsys.readouterr().err.strip()
    assert "has no chat template" in error and "\n" not in error
    assert main(["chat", "oneblock/bert-tiny"]) == 2
    assert "generation needs a causal language model" in capsys.readouterr().err


def test_both_commands_have_the_same_options_of_drawing(capsys):
    for command in ("generate", "chat"):
        assert main([command, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "--top-k INT draw among the k likeliest; 0 is off. (default: 0)" in text
        assert "--cache-dtype {float32,bfloat16,int8}" in text and "--presence-penalty" in text


def test_a_tokenizer_of_more_pieces_than_the_model_is_refused():
    model, tokenizer = zoo.create("gpt-tiny", vocab_size=100), zoo.load_tokenizer(NAME)
    for call in (
        lambda: zoo.generate(model, {}, ["a"], max_new_tokens=1, tokenizer=tokenizer),
        lambda: next(zoo.stream(model, {}, "a", max_new_tokens=1, tokenizer=tokenizer)),
        lambda: zoo.beam_search(model, {}, ["a"], max_new_tokens=1, tokenizer=tokenizer),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == (
            "the tokenizer has 4096 pieces but the model's vocabulary 100: they do not belong together"
        )


def test_the_formula_of_a_caches_bytes_is_what_is_allocated():
    for name in ("gemma3-tiny", "llama-tiny"):
        model = zoo.create(name)
        summary = summarise(model, 96)
        for dtype in ("float32", "int8"):
            for ring in (False, True):
                cache = model.init_cache(1, 96, dtype, ring=ring)
                kept = sum(leaf.nbytes for leaf in _leaves((cache.keys, cache.values)))
                assert summary.cache_bytes(96, dtype, ring) == kept
        assert ("windows in rings" in str(summary)) == (name == "gemma3-tiny")
        assert summary.cache_bytes_per_token == summary.cache_bytes(1)


def _leaves(tree):
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
