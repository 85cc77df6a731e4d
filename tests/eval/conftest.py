"""A made-up task, a vocabulary for it, and tiny networks: made once a process."""

import jax
import pytest

import zoo
from eval import made_up
from train.vocabulary import train_vocabulary
from zoo.checkpoints import run_folder

SIZES = {"embed_dim": 32, "num_heads": 2, "num_layers": 1, "max_positions": 32, "initializer_range": 0.05}


@pytest.fixture(scope="session")
def topics():
    """A task of two classes that a few examples teach."""
    return made_up.splits(train=160, validation=40, test=83, topics=2, signal=0.6)


@pytest.fixture(scope="session")
def tokenizer(topics):
    return train_vocabulary([example.text_a for example in topics.train], 340)


@pytest.fixture(scope="session")
def bert(tokenizer):
    """A tiny encoder with segments and a pooler."""
    model = zoo.create("bert-tiny", vocab_size=tokenizer.vocab_size, **SIZES)
    return model, model.init(jax.random.key(0))


@pytest.fixture(scope="session")
def gpt(tokenizer):
    """A tiny decoder."""
    model = zoo.create("gpt2-tiny", vocab_size=tokenizer.vocab_size, **SIZES)
    return model, model.init(jax.random.key(0))


@pytest.fixture(scope="session")
def source(bert, tokenizer, tmp_path_factory):
    """A run folder with the tiny encoder in it, to read from."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    folder.mkdir()
    run_folder.save(*bert, folder, tokenizer)
    return str(folder)


@pytest.fixture(scope="session")
def table(topics, tmp_path_factory):
    """The made-up task as a file of one's own, with label names."""
    path = tmp_path_factory.mktemp("data") / "mine.tsv"
    rows = [f"{example.text_a}\t{topics.task.labels[example.label]}" for example in topics.train]
    path.write_text("review\ttopic\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def one():
    """The first device alone."""
    return jax.devices()[:1]
