"""SentencePiece vocabularies written as tokenizer.json: the same ids, read back as the original."""

import json

import jax
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from tests import made_up
from zoo.tokenizer_export import MARK, published_files


@pytest.fixture(scope="module")
def own():
    return made_up.tokenizer()


@pytest.fixture(scope="module")
def written(own):
    return tokenizers.Tokenizer.from_str(published_files(own)["tokenizer.json"].decode())


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_every_text_gives_the_same_ids(own, written, text):
    # A special piece spelled in a text is that piece elsewhere, and text here: on purpose, so they are left out.
    if not any(own.piece(i) in text for i in own.special_ids):
        assert written.encode(text, add_special_tokens=False).ids == own.encode(text)


def test_ids_come_back_as_text(own, written):
    for text in ("The river sings", "x y", "na\u00efve"):
        assert written.decode(own.encode(text)) == own.decode(own.encode(text)) == text


def test_an_exported_folder_is_read_as_the_original_and_exported_again_the_same(own, tmp_path):

    model = zoo.create("gpt2-tiny", vocab_size=own.vocab_size)
    params = model.init(jax.random.key(0))
    zoo.export(model, params, tmp_path / "one", tokenizer=own)
    back = zoo.load_tokenizer(tmp_path / "one")
    assert back == own
    assert published_files(back) == published_files(own)
    said = json.loads((tmp_path / "one" / "tokenizer_config.json").read_text())
    assert said[MARK] == "tokenizer.model" and said["mask_token"] == "[MASK]" and said["eos_token"] == "</s>"


def test_files_that_say_more_are_left_as_they_are(own):
    class Other:
        def files(self):
            return {**own.files(), "tokenizer_config.json": b'{"add_bos_token": true}'}

    assert published_files(Other()) == Other().files()
