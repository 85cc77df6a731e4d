"""The unlabelled texts of tasks: nothing that any of the tasks validates or tests on."""

import dataclasses
import json

import pytest

from eval import export_texts, made_up, tasks
from eval.export_texts import training_texts
from eval.sources.splits import normalise
from eval.tasks import Example, Splits
from train.data.sources import corpus
from zoo.errors import InputError


def splits(name, train, validation=(), test=()):
    """A task whose texts are these; a pair is a tuple."""

    def examples(texts):
        return tuple(Example(*(text if isinstance(text, tuple) else (text, None)), 0) for text in texts)

    task = dataclasses.replace(made_up.load("made-up-topics").task, name=name)
    return Splits(task, examples(train), examples(validation), examples(test))


def test_no_text_that_any_of_the_tasks_holds_out_is_given():
    one = splits("one", ["A cat.", "A dog!", "a bird"], validation=["a fish"], test=["a horse"])
    other = splits("other", ["a, FISH", ("new", "A horse..."), "a hen"], validation=["a  dog"], test=["a cow"])
    assert training_texts([one]) == [("A cat.", "A dog!", "a bird")]
    assert training_texts([one, other]) == [("A cat.", "a bird"), ("new", "a hen")]
    held = {normalise(t) for t in ("a fish", "a horse", "a dog", "a cow")}
    assert not held & {normalise(text) for texts in training_texts([one, other]) for text in texts}


def test_files_hold_the_texts_and_the_pretraining_reads_them(tmp_path, monkeypatch, capsys):
    one = splits("movie-sentences", ["A cat,\nblack.", "A dog!"], test=["a horse"])
    other = splits("tweets", ["a horse", "¡hola!"], test=["a cow"])
    monkeypatch.setattr(tasks, "load", {"movie-sentences": one, "tweets": other}.__getitem__)
    export_texts.export_texts(("movie-sentences", "tweets", "tweets"), out=tmp_path / "texts")
    assert list(corpus(tmp_path / "texts")) == ["A cat,\nblack.", "A dog!", "¡hola!"]
    lines = (tmp_path / "texts" / "tweets.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"text": "¡hola!"}]
    assert "1 that another task tests on are left out" in capsys.readouterr().out


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="missing --out"):
        export_texts.export_texts(("tweets",))
    with pytest.raises(InputError, match='no task "tweet"; did you mean "tweets"'):
        export_texts.export_texts(("tweet",), out=tmp_path / "x")
    with pytest.raises(InputError, match="which tasks"):
        export_texts.export_texts((), out=tmp_path / "x")
    assert not (tmp_path / "x").exists()
