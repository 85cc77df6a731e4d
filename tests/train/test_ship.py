"""A run as a folder to pass on, and the model card that says what it is."""

import json

import jax
import numpy as np
import pytest

import zoo
from tests import made_up
from train import loop, model_card
from train.__main__ import main
from train.config import RunConfig, TrainConfig
from train.data.shards import write_shards
from train.objectives import fit_model
from train.recipes import RECIPES
from train.ship import recipe_of, run_seconds, ship, transfer_rows
from zoo import shipped
from zoo.errors import InputError

MODEL = zoo.ModelConfig(
    family="gpt", vocab_size=360, embed_dim=16, num_layers=1, num_heads=2, max_positions=24, dropout=0.0, head="lm"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipping")
    write_shards(made_up.documents(), made_up.tokenizer(), folder / "data", valid_fraction=0.1, progress=False)
    train = TrainConfig(
        data=str(folder / "data"), steps=6, batch_size=4, seq_len=16, log_every=3, warmup_steps=1, learning_rate=1e-2
    )
    loop.run(RunConfig(MODEL, train), folder / "run", quiet=True)
    return folder / "run"


def report(task="tweets", network="run", low=0.1):
    """A report.json of one budget."""
    mean = {name: {"metrics": {"accuracy": {"mean": value}}} for name, value in (("p", 0.9), ("r", 0.7), ("t", 0.8))}
    common = {"task": task, "labels": 32}
    return {
        "results": [
            common | {"network": network, "arm": "pretrained"} | mean["p"],
            common | {"network": network, "arm": "random"} | mean["r"],
            common | {"network": "tf-idf", "arm": "baseline"} | mean["t"],
        ],
        "comparisons": [
            common
            | {"network": network, "against": against, "metric": "accuracy"}
            | {"difference": {"interval": {"mean": 0.2, "low": low, "high": 0.3, "n": 5, "level": 0.95}}}
            for against in ("random", "tf-idf")
        ],
        "tasks": [{"name": task, "counts": {"test": {"a": 300, "b": 1200}}}],
        "protocol": {f"{network} on {task}": "all parameters"},
    }


def test_the_folder_holds_the_weights_the_tokenizer_and_the_facts(run, tmp_path, capsys):
    (tmp_path / "report.json").write_text(json.dumps(report()))
    words = ["ship", str(run), str(tmp_path / "tiny"), "--transfer", str(tmp_path / "report.json"), "--note", "Shared."]
    assert main(words) == 0
    facts = json.loads((tmp_path / "tiny" / "metrics.json").read_text("utf-8"))
    assert f"{facts['parameters']:,} parameters" in capsys.readouterr().out
    model, params = zoo.load(run)
    shipped, halves = zoo.load(tmp_path / "tiny")
    assert shipped == model and zoo.load_tokenizer(tmp_path / "tiny") == made_up.tokenizer()
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(halves), strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float16).astype(np.float32), np.asarray(other))
    assert facts["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert facts["valid"]["float32"]["loss"] == pytest.approx(logged[-1]["loss"], abs=1e-5)
    assert logged[-1]["split"] == "valid" and facts["tokens_seen"] == logged[-1]["tokens"]
    assert facts["valid"]["float16"]["loss"] == pytest.approx(facts["valid"]["float32"]["loss"], abs=1e-3)
    assert facts["name"] == "oneblock/tiny" and facts["recipe"] == "" and facts["notes"] == ["Shared."]
    card = (tmp_path / "tiny" / "README.md").read_text("utf-8")
    assert card == model_card.card(facts)
    assert "| tweets | 32 | 5 | 0.900 | 0.700 | +0.200 (+0.100 to +0.300) | 0.800 |" in card
    assert "- tweets (1,500 test texts): all parameters." in card
    assert "Shared." in card and f"{facts['valid']['float16']['loss']:.4f}" in card
    # Made anew in its place, with nothing left of the notes.
    assert main([*words[:3], "--overwrite", "--dtype", "bfloat16"]) == 0
    facts = json.loads((tmp_path / "tiny" / "metrics.json").read_text("utf-8"))
    assert facts["notes"] == [] == facts["transfer"] and set(facts["valid"]) == {"float32", "bfloat16"}


def test_refusals(run, tmp_path):
    with pytest.raises(InputError, match="no config at"):
        ship(tmp_path / "none", tmp_path / "x")
    with pytest.raises(InputError, match="is the source itself"):
        ship(run, run)
    with pytest.raises(InputError, match="no such file; --transfer takes"):
        transfer_rows(tmp_path / "none.json", ("run",))
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(InputError, match="is no report.json"):
        transfer_rows(tmp_path / "report.json", ("run",))
    (tmp_path / "report.json").write_text(json.dumps(report()))
    with pytest.raises(InputError, match="speaks of none of bert against random start"):
        transfer_rows(tmp_path / "report.json", ("bert",))
    assert not (tmp_path / "x").exists()


def test_the_seconds_of_a_run_that_was_stopped_add_up():
    assert run_seconds([1.0, 5.0, 2.0, 4.0, 0.5]) == 9.5 and run_seconds([3.0]) == 3.0


def test_a_run_that_is_not_finished(run, tmp_path):
    config = RunConfig.load(run)
    config = RunConfig(config.model, config.train.replace(checkpoint_every=2))
    loop.run(config, tmp_path / "run", quiet=True, stop_at=2)
    with pytest.raises(InputError, match="is not finished: step 2 of 6"):
        ship(tmp_path / "run", tmp_path / "x")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_known_by_its_run(name):
    recipe = RECIPES[name]
    model = fit_model(zoo.create(recipe.preset, **recipe.model).config, recipe.train, 4096)
    assert recipe_of(RunConfig(model, recipe.train.replace(data="/x", log_every=7))) is recipe
    assert recipe_of(RunConfig(model, recipe.train.replace(steps=7))) is None
    assert recipe_of(RunConfig(model.replace(max_positions=77), recipe.train)) is not recipe


@pytest.mark.parametrize("name", shipped.names())
def test_the_shipped_card_says_what_its_metrics_say(name):
    folder = shipped.folder_of(name)
    facts = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert (folder / "README.md").read_text("utf-8") == model_card.card(facts)
    recipe = RECIPES[f"oneblock-{name.removeprefix('oneblock/')}"]
    assert facts["recipe"] == recipe.name and facts["command"] == recipe.command
    assert facts["steps"] == recipe.train.steps and f"{facts['valid']['float32']['loss']:.2f}" in recipe.expected
    assert facts["valid"]["float16"]["loss"] < facts["valid"]["float32"]["loss"] + 0.005
    better = {row["task"] for row in facts["transfer"] if row["low"] > 0 and row["seeds"] >= 3}
    assert len(better) >= 2
