"""The cost of a token with and without a cache: formulas, files, one line for what is wrong. No clock is read."""

import json

import jax
import numpy as np
import pytest

import zoo
from zoo import cli, token_cost
from zoo.command_line import run
from zoo.cost_command import exponents
from zoo.errors import InputError
from zoo.token_cost import TokenCost, exponent, measure, token_flops


def command(*words) -> int:
    return run("zoo", cli.SUBCOMMANDS, [str(word) for word in words])


def test_flops_of_one_more_token():
    config = zoo.create("gpt2").config
    D, F, V, L = 768, 3072, 50257, 12
    projections = L * (2 * D * 3 * D + 2 * D * D + 4 * D * F)
    for n in (2, 100):
        cached, whole = token_flops(config, n)
        assert cached == pytest.approx(projections + L * 4 * D * n + 2 * D * V)
        assert whole == pytest.approx(n * projections + L * 4 * D * n * (n + 1) / 2 + 2 * D * V)
    # All tokens of a text with a cache cost what one pass over it does, but for the read-outs.
    total = sum(token_flops(config, n)[0] for n in range(1, 51))
    assert total == pytest.approx(token_flops(config, 50)[1] + 49 * 2 * D * V)


def test_a_window_bounds_the_scores():
    config = zoo.create("mistral-tiny").config
    window = config.layer(0).window
    assert window is not None
    cached = [token_flops(config, n)[0] for n in (window, window + 1, 3 * window)]
    assert cached == pytest.approx([cached[0]] * 3)


def test_exponents_of_power_laws():
    lengths = [32, 64, 128, 256]
    assert exponent(lengths, [3 * n**2 for n in lengths]) == pytest.approx(2)
    assert exponent(lengths, [7.0] * 4) == pytest.approx(0)
    assert exponent([32], [1.0]) is None
    rows = [TokenCost(n, 1e-3, 1e-5 * n, 10.0, 2.0 * n**1.5, 0.0) for n in lengths]
    expected = {"seconds_with": 0, "seconds_without": 1, "flops_with": 0, "flops_without": 1.5}
    assert exponents(rows) == pytest.approx(expected)


def test_both_ways_give_the_same_logits():
    model = zoo.create("llama-tiny")
    told = []
    rows = measure(model, model.init(jax.random.key(0)), (2, 16), watch=lambda *done: told.append(done))
    assert told == [(1, 2), (2, 2)] and [row.length for row in rows] == [2, 16]
    for row in rows:
        assert row.difference < 1e-5 and row.seconds_with > 0 and row.seconds_without > 0
        assert (row.flops_with, row.flops_without) == token_flops(model.config, row.length)


def test_the_command_writes_numbers_and_picture(tmp_path, capsys, monkeypatch):
    times = {"with": 2e-3, "without": 5e-3}
    ways = iter(["with", "without"] * 2)
    monkeypatch.setattr(token_cost, "_timed", lambda way: (times[next(ways)], way()))
    out = tmp_path / "runs" / "cost"
    assert command("cost", "llama-tiny", "--lengths", "2", "16", "--out", out) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "cost of one more token, with a key-value cache and without"
    assert printed[2].split()[:4] == ["2", "2.00", "5.00", "2.5"] and printed[4].split()[0] == "exponent"
    assert printed[5] == f"{out}: cost.json, cost.png"
    found = json.loads((out / "cost.json").read_text())
    config = zoo.create("llama-tiny").config
    assert [row["length"] for row in found["rows"]] == [2, 16]
    for row in found["rows"]:
        assert (row["flops_with"], row["flops_without"]) == token_flops(config, row["length"])
        assert (row["seconds_with"], row["seconds_without"]) == (2e-3, 5e-3)
    assert found["model"] == "llama-tiny" and abs(found["exponents"]["seconds_with"]) < 1e-9
    ratio = np.log(found["rows"][1]["flops_without"] / found["rows"][0]["flops_without"]) / np.log(8)
    assert found["exponents"]["flops_without"] == pytest.approx(ratio)
    assert (out / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in out.iterdir()) == ["cost.json", "cost.png"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llama-tiny", "--lengths", "1"), "lengths holds 1; this model's texts have 2 to"),
        (("llama-tiny", "--lengths", "64", "32"), "holds 32 behind 64; they must ascend"),
        (("llama-tiny", "--lengths", "9999999"), "holds 9999999; this model's texts"),
        (("bert-tiny",), "generation needs a causal language model"),
        (("vit-tiny",), "this model reads images"),
        (("lama-tiny",), "llama-tiny"),
        (("llama-tiny", "--out", "file/cost"), "is a file, where a folder is needed"),
    ],
)
def test_bad_input_gets_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert command("cost", *words) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("error: ") and err.count("\n") == 1


def test_no_lengths_are_refused():
    model = zoo.create("llama-tiny")
    with pytest.raises(InputError, match="lengths are none"):
        measure(model, {}, ())


def test_the_cached_way_writes_the_cache_where_it_is_as_generation_does():
    model = zoo.create("llama-tiny")
    params = model.init(jax.random.key(0))
    cache = model.apply(params, np.ones((1, 3), np.int32), cache=model.init_cache(1, 4)).cache
    old, last = cache.keys[0], np.full((1, 1), 5)
    first, cache = token_cost._with(params, last, cache, model=model)
    again, cache = token_cost._with(params, last, cache, model=model)
    assert old.is_deleted()
    np.testing.assert_array_equal(first, again)
