"""Mid-training: the domain's loss falls, general text is watched and never learnt, and the result is a checkpoint."""

import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from eval.cli import evaluate as command
from eval.sources.own_file import from_file
from eval.ways.midtrain import excerpts, likeness, prepare, trained_form
from train import loop
from train.config import RunConfig, TrainConfig
from train.data.shards import open_shards, write_shards
from train.logs import read
from zoo import InputError

SHORT = ["--steps", "20", "--batch-size", "8", "--seq-len", "16", "--looks", "1", "--learning-rate", "0.003", "--quiet"]


@pytest.fixture(scope="module")
def texts(topics, tokenizer, tmp_path_factory):
    """The task's texts as shards, and general text as a file."""
    folder = tmp_path_factory.mktemp("texts")
    write_shards([e.text_a for e in topics.train], tokenizer, folder / "task", valid_fraction=0.1, progress=False)
    (folder / "general.txt").write_text("\n\n".join(f"Number {i} took the old road again today." for i in range(60)))
    return folder


@pytest.fixture(scope="module")
def made(source, texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "run"
    words = ["midtrain", source, "--data", str(texts / "task"), "--general", str(texts / "general.txt"), *SHORT]
    assert command([*words, "--general-characters", "1500", "--out", str(out)]) == 0
    return out, [*words, "--general-characters", "1500", "--out", str(out)]


def test_both_losses_are_known_before_during_and_after(made):
    out, _ = made
    lines = [line for line in read(out / "metrics.jsonl") if line["split"] in ("valid", "watch")]
    assert [(line["step"], line["split"]) for line in lines] == [
        (step, split) for step in (0, 10, 20) for split in ("valid", "watch")
    ]
    losses = {(line["step"], line["split"]): line["loss"] for line in lines}
    assert losses[20, "valid"] < losses[0, "valid"] - 0.2
    assert abs(losses[0, "watch"] - np.log(340)) < 0.5  # a read-out that is fresh knows nothing


def test_the_result_is_a_checkpoint_with_another_backbone(made, source, bert):
    out, _ = made
    model, params = zoo.load(out)
    assert model.config.head == "masked_lm" and not model.config.pooler
    assert params["blocks"].keys() == bert[1]["blocks"].keys()
    moved = np.abs(
        np.asarray(params["embed"]["token"]["embedding"]) - np.asarray(bert[1]["embed"]["token"]["embedding"])
    )
    assert 0 < moved.max() < 0.1
    config = json.loads((out / "config.json").read_text())
    assert config["train"]["start_from"] == source and config["train"]["objective"] == "masked_lm"
    again = zoo.load_tokenizer(out)
    assert again.fingerprint == zoo.load_tokenizer(source).fingerprint


def test_the_same_command_has_nothing_left_to_do(made, capsys):
    out, words = made
    before = (out / "metrics.jsonl").read_text()
    assert command(words) == 0
    assert (out / "metrics.jsonl").read_text() == before
    said = capsys.readouterr().out
    assert 'no read-out for "masked_lm": a fresh one is made' in said
    assert "the task's text: loss " in said and "general text: loss " in said and " after 20 steps (" in said
    assert "general text looks to it as before with a cosine of 0." in said


def test_a_file_of_ones_own_gives_the_texts_that_finetune_trains_on(source, table, texts, tmp_path):
    splits = from_file(table)
    folders, _ = prepare(source, splits, (str(texts / "general.txt"),), tmp_path / "run", 1500)
    shards = open_shards(folders["data"], zoo.load_tokenizer(source))
    read_back = sum(shards.manifest["splits"][side]["documents"] for side in ("train", "valid"))
    assert read_back == len(splits.train)
    with open(table, encoding="utf-8") as file:
        fewer = file.read().splitlines()[:-20]
    (tmp_path / "mine.tsv").write_text("\n".join(fewer) + "\n")
    with pytest.raises(InputError, match="holds shards of task mine, .* not of task mine, "):
        prepare(source, from_file(tmp_path / "mine.tsv"), (str(texts / "general.txt"),), tmp_path / "run", 1500)


def test_watched_text_is_never_learnt(texts, tokenizer, tmp_path):
    """With it and without it, a run ends at the same parameters, to the bit."""
    general = write_shards(
        ["Some other words. " * 6] * 9 + ["And more. " * 9],
        tokenizer,
        tmp_path / "g",
        valid_fraction=0.5,
        progress=False,
    )
    model = zoo.create(
        "gpt2-tiny", vocab_size=tokenizer.vocab_size, embed_dim=16, num_heads=2, num_layers=1, max_positions=16
    )
    train = TrainConfig(data=str(texts / "task"), steps=4, batch_size=4, seq_len=16, warmup_steps=1)
    for name, watch in (("with", str(general.folder)), ("without", "")):
        loop.run(RunConfig(model.config, train.replace(watch=watch)), tmp_path / name, quiet=True)
    first, second = (zoo.load(tmp_path / name)[1] for name in ("with", "without"))
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, second)), strict=True))
    steps = {line["step"] for line in read(tmp_path / "with" / "metrics.jsonl") if line["split"] == "watch"}
    assert steps == {0, 4}


def test_a_model_is_like_itself(made, source):
    """And a little less so after some steps on other text."""
    texts = ["The old road again.", "Number 4 took it today.", "Salt and pepper."]
    assert likeness(source, source, texts, 16) == pytest.approx(1, abs=1e-6)
    assert 0.5 < likeness(source, made[0], texts, 16) < 1 - 1e-4


def test_the_read_out_of_each_objective(bert, gpt):
    masked, fresh = trained_form(bert[0].config, TrainConfig(objective="masked_lm"))
    assert masked.head == "masked_lm" and fresh
    assert trained_form(masked, TrainConfig(objective="masked_lm")) == (masked, False)
    assert trained_form(gpt[0].config, TrainConfig()) == (gpt[0].config, False)


@given(lengths=st.lists(st.integers(1, 5000), max_size=8), characters=st.integers(1, 9000))
def test_excerpts_are_beginnings_up_to_a_total(lengths, characters):
    documents = ["x" * length for length in lengths]
    found = list(excerpts(documents, characters))
    assert sum(map(len, found)) == min(characters, sum(min(length, 2000) for length in lengths))
    assert all(len(piece) <= 500 for piece in found)
    assert list(excerpts(["abc" * 200, "d"], 9000)) == ["abc" * 166 + "ab", "c" + "abc" * 33, "d"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["X"], "give one of --task NAME and --data FILE or FOLDER"),
        (["X", "--task", "cola"], "task cola is not fetched: say in which folder its files are"),
        (["X", "--data", "no.csv"], "no.csv: no such file"),
        (["X", "--data", "T", "--text", "reviw"], 'no column "reviw"'),
        (["X", "--data", "D", "--text", "review"], "--text is of a --data FILE, and "),
        (["X", "--data", "D", "--task", "tweets"], "not both"),
        (["X", "--data", "nowhere", "--general", "G"], "no finished shards in nowhere"),
        (["X", "--data", "D", "--general", "nowhere"], '"nowhere" is neither a corpus nor a file or folder'),
        (["nowhere", "--data", "D"], 'no folder "nowhere"'),
        (["X", "--data", "D", "--steps", "0"], "steps is 0; it must be 1 or more"),
        (["X", "--data", "D", "--out", "X"], "holds an imported checkpoint, and no run"),
    ],
)
def test_bad_input_is_one_line(words, line, source, table, texts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    meant = {"T": table, "X": source, "D": str(texts / "task"), "G": str(texts / "general.txt")}
    assert command(["midtrain", *(meant.get(word, word) for word in words)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and line in captured.err
    assert list(tmp_path.iterdir()) == []
