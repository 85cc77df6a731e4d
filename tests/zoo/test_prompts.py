"""Texts that arrive in pieces: never half a character, and together what is decoded at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from zoo.generation.prompts import HALF, TextStream, continuation, left_padded

TEXTS = ["naïve café", "emoji 👩‍🚀 and 日本語", "tabs\tand\nlines", "  two  spaces ", "plain words"]


@pytest.fixture(scope="module")
def tokenizer():
    return zoo.load_tokenizer("oneblock/gpt-tiny")


def streamed(tokenizer, prompt, ids, every=1):
    words = TextStream(tokenizer, prompt)
    pieces = [words.add(ids[i : i + every]) for i in range(0, len(ids), every)]
    return pieces, words.end()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("every", [1, 3])
def test_pieces_are_whole_characters_and_add_up(tokenizer, text, every):
    prompt, ids = tokenizer.encode("so it goes"), tokenizer.encode(text)
    pieces, rest = streamed(tokenizer, prompt, ids, every)
    assert "".join(pieces) + rest == continuation(tokenizer, prompt, ids)
    assert HALF not in "".join(pieces)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_ids_add_up_to_what_is_decoded_at_once(tokenizer, data):
    ids = data.draw(st.lists(st.integers(7, 400), min_size=1, max_size=12))  # bytes are among the first pieces
    prompt = data.draw(st.lists(st.integers(300, 500), min_size=1, max_size=4))
    pieces, rest = streamed(tokenizer, prompt, ids)
    assert "".join(pieces) + rest == continuation(tokenizer, prompt, ids)


def test_half_a_character_is_held_back_and_given_at_the_end(tokenizer):
    ids = tokenizer.encode("é日")
    broken = [i for i in ids if "<0x" in tokenizer.piece(i)][:1]
    assert broken, "the vocabulary spells this character in bytes"
    words = TextStream(tokenizer, tokenizer.encode("a"))
    assert words.add(broken) == ""
    assert words.end().strip() == HALF


def test_rows_stand_at_the_right_end():
    tokens, mask = left_padded([[1, 2], [3]], 3)
    assert tokens.tolist() == [[0, 1, 2], [0, 0, 3]] and mask.tolist() == [[0, 1, 1], [0, 0, 1]]
