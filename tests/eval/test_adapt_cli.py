"""`python -m eval finetune` in every way, and what its folders hold."""

import json

import jax
import numpy as np
import pytest

import zoo
from eval.cli import evaluate as command
from eval.predict import predict
from eval.tasks import Example
from eval.ways import adapter_folder
from zoo import InputError
from zoo.output_folder import held

SHORT = ["--max-length", "16", "--learning-rate", "0.003", "--labels", "48", "--epochs", "2"]


@pytest.mark.parametrize("way", ["lora", "probe"])
def test_a_folder_of_each_way_predicts_what_was_measured(way, source, table, tmp_path, capsys):
    out = tmp_path / "run"
    extra = ["--way", way, *(["--select", "best", "--lora-targets", "query", "up"] if way == "lora" else [])]
    assert command(["finetune", source, "--data", table, *SHORT, *extra, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    measured = json.loads((out / "metrics.json").read_text())
    assert f"trained {measured['trainable']:,} of {measured['total']:,} parameters (" in said
    if way == "lora":
        assert "kept epoch " in said and "on validation, the best of 2 evaluations" in said
        assert not (out / "checkpoints").exists() and adapter_folder.is_folder(out)
        assert held(out) == "a fine-tuned checkpoint"
        with pytest.raises(
            InputError, match=f"{out}: holds adapters and no whole model; make one: python -m eval merge"
        ):
            zoo.load(out)
        assert 1 <= measured["chosen_epoch"] <= 2 and len(measured["evaluations"]) == 2
        assert command(["merge", str(out), str(tmp_path / "merged")]) == 0
        merged = tmp_path / "merged"
        told = {name: json.loads((merged / name).read_text()) for name in ("config.json", "metrics.json")}
        assert told["config.json"]["finetune"]["config"]["lora_targets"] == ["query", "up"]
        note = told["metrics.json"].pop("merged")
        assert told["metrics.json"] == measured and told["config.json"]["merged"] == note
        assert (note["run"], note["base"]) == (str(out), source) and len(note["fingerprint"]) >= 8
        assert (merged / "predictions.tsv").read_bytes() == (out / "predictions.tsv").read_bytes()
        assert command(["compare", str(out), str(merged)]) == 0
        assert "0 / 0" in capsys.readouterr().out
        out = merged
    else:
        assert "ridge lambda " in said and measured["ridge_lambda"] > 0
    model, params = zoo.load(out)
    lines = [line.split("\t") for line in (tmp_path / "run" / "predictions.tsv").read_text().splitlines()][1:]
    logits = predict(
        model, params, zoo.load_tokenizer(out), [Example(text, None, 0) for *_, text in lines], max_length=16
    )
    assert [model.config.label_names[i] for i in logits.argmax(axis=1)] == [line[1] for line in lines]


def test_adapters_of_a_random_start_find_it_again(source, table, tmp_path):
    """The base is what the seed draws: nothing of the checkpoint but its shape."""
    out = tmp_path / "run"
    words = ["finetune", source, "--data", table, *SHORT, "--way", "lora", "--random-start", "--seed", "3"]
    assert command([*words, "--out", str(out)]) == 0
    _, params = adapter_folder.load(out)
    _, pretrained = zoo.load(source)
    table_of = [np.asarray(tree["embed"]["token"]["embedding"]) for tree in (params, pretrained)]
    assert not np.array_equal(*table_of)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--way", "lra"], '--way of "eval finetune" cannot be "lra"; did you mean "lora"?'),
        (["--patience", "2"], 'patience looks at validation examples: it needs select "best"'),
        (["--way", "lora", "--lora-targets", "qury"], 'no kernel of the blocks is named "qury"; did you mean "query"?'),
        (
            ["--way", "lora", "--lora-rank", "99"],
            "lora_rank is 99; blocks/layer_0/attention/query/kernel is a matrix of",
        ),
        (["--way", "top", "--top-layers", "5"], "top_layers is 5; this model has 1"),
        (["--layer-decay", "1.5"], "layer_decay is 1.5; it must be above 0 and at most 1"),
        (["--class-weights", "1,2,3"], "class_weights has 3 numbers; this task has 2 classes"),
    ],
)
def test_bad_settings_are_one_line(words, line, source, table, capsys):
    assert command(["finetune", source, "--data", table, *SHORT, *words]) == 2
    captured = capsys.readouterr()
    last = captured.err.strip().splitlines()[-1]
    assert last.startswith("error: ") and line.replace("_", "-") in last.replace("_", "-")
