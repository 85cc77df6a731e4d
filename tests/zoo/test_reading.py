"""One rule for where a text ends and what is held back of it, whoever reads it, however many tokens come at a time."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from zoo.errors import InputError
from zoo.generation import generate as generation
from zoo.generation.prompts import HALF, MOST_HALVES, TextStream, continuation, first_stop
from zoo.generation.reading import Reader
from zoo.serve.speech import Speech


class Letters:
    """Pieces of one to three letters of "ab", so that stop texts overlap, and end amid pieces."""

    pieces = ("a", "b", "ab", "ba", "aba", "bb")
    vocab_size, bos_id, eos_id, adds_bos = len(pieces), None, None, False

    def encode(self, text):
        return [self.pieces.index(letter) for letter in text]

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)


class Bytes:
    """A piece a byte, decoded as byte-level vocabularies are."""

    vocab_size = 256
    decoded = 0

    def decode(self, ids):
        self.decoded += len(ids)
        return bytes(ids).decode("utf-8", errors="replace")


WORDS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)
IDS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def letter_by_letter(text: str, words: list[str]) -> str:
    """The text before the longest of the words that are the first to be complete in it."""
    for end in range(1, len(text) + 1):
        ending = [len(word) for word in words if text[:end].endswith(word)]
        if ending:
            return text[: end - max(ending)]
    return text


@settings(max_examples=200, deadline=None)
@given(IDS, WORDS, st.integers(1, 5))
def test_a_text_ends_at_the_first_complete_stop_text_however_it_comes(ids, words, every):
    tokenizer = Letters()
    whole = tokenizer.decode(ids)
    right = letter_by_letter(whole, words)
    cut = first_stop(whole, words)
    assert (whole if cut is None else whole[:cut]) == right
    reader, speech, given_out = Reader(tokenizer, [0], words), Speech(tokenizer, [0], words), ""
    said, counts = [], []
    for start in range(0, len(ids), every):
        for token in ids[start : start + every]:
            reader.read(token)
        given_out += reader.take()
        assert right.startswith(given_out)  # nothing that a stop text cuts off is shown
        if not (said and said[-1].finish):
            part = ids[start : start + every]
            said.append(speech.read(0, part, [0.0] * len(part), "length" if start + every >= len(ids) else ""))
            counts.append(said[-1].count)
    reader.end()
    assert given_out + reader.take() == right == "".join(piece.text for piece in said)
    assert reader.stopped == (right != whole) == (said[-1].finish == "stop")
    # The tokens read are those up to the one that completes the stop text.
    enough = next((n for n in range(1, len(ids) + 1) if letter_by_letter(tokenizer.decode(ids[:n]), words) == right
                   and first_stop(tokenizer.decode(ids[:n]), words) is not None), len(ids))  # fmt: skip
    assert reader.count == counts[-1] == enough
    assert tokenizer.decode(ids[: reader.tokens_of(right)]).startswith(right)
    assert not right or not tokenizer.decode(ids[: reader.tokens_of(right) - 1]).startswith(right)


@pytest.fixture(scope="module")
def made():
    model = zoo.create("gpt-tiny", vocab_size=6, embed_dim=16, num_heads=2, mlp_dim=24, num_layers=1, max_positions=64)
    return model, jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, model.init(jax.random.key(3)))


@pytest.mark.parametrize("stop", [("bab", "a"), ("abab", "ba", "bb"), ("aab", "abb"), ("bbbbbb",)])
def test_generate_and_streams_give_one_text(made, stop, monkeypatch):
    model, params = made
    tokenizer = Letters()
    asked = dict(tokenizer=tokenizer, max_new_tokens=24, stop=stop)
    keys = jax.random.split(jax.random.key(5), 4)
    drawn = [
        zoo.generate(model, params, ["ab"] * 4, temperature=2.0, key=keys, **asked)
        for look in (1, 3, 16)
        if not monkeypatch.setattr(generation, "LOOK", look)
    ]
    for other in drawn[1:]:
        for name in ("texts", "lengths", "tokens", "log_probs", "stopped"):
            assert np.array_equal(getattr(other, name), getattr(drawn[0], name)), name
    free = zoo.generate(model, params, ["ab"] * 4, temperature=2.0, key=keys, tokenizer=tokenizer, max_new_tokens=24)
    assert drawn[0].texts == [letter_by_letter(text, stop) for text in free.texts]
    sampling = generation.Sampling(temperature=2.0)
    read = []
    for every in (1, 3, 7):
        pieces = list(generation.stream(model, params, "ab", key=keys[:1], sampling=sampling, every=every, **asked))
        read.append(("".join(piece.text for piece in pieces), sum((p.ids for p in pieces), ()), pieces[-1].finished))
    assert read[0] == read[1] == read[2] and read[0][0] == drawn[0].texts[0]
    assert read[0][2] == ("stop" if drawn[0].stopped[0] else "length")


@pytest.mark.parametrize(
    "stop, said", [("", "is empty"), (["a", ""], "is empty"), ([3], "is 3; give texts, or ids as")]
)
def test_stop_texts_that_are_none(made, stop, said):
    with pytest.raises(InputError, match=said):
        zoo.generate(*made, ["ab"], tokenizer=Letters(), max_new_tokens=2, stop=stop)
    with pytest.raises(InputError, match=said):
        next(generation.stream(*made, "ab", tokenizer=Letters(), max_new_tokens=2, stop=stop))


UTF8 = st.lists(st.sampled_from([0x41, 0x80, 0x97, 0xA5, 0xE6, 0xF0, 0x9F, 0x91, 0xC3]), max_size=24)


@settings(max_examples=200, deadline=None)
@given(UTF8, st.integers(1, 4))
def test_any_bytes_add_up_and_no_more_than_an_unfinished_character_is_held_back(ids, every):
    tokenizer = Bytes()
    stream, given_out = TextStream(tokenizer, [0x41]), ""
    for start in range(0, len(ids), every):
        given_out += stream.add(ids[start : start + every])
        so_far = tokenizer.decode(ids[: start + every])
        assert so_far.startswith(given_out) and len(so_far) - len(given_out) <= MOST_HALVES
        assert not so_far[len(given_out) :].strip(HALF)
    assert given_out + stream.end() == tokenizer.decode(ids) == continuation(tokenizer, [0x41], ids)


@pytest.mark.parametrize("stray", [[0x80], [0xE6, 0x97], [0xF0, 0x9F, 0x91, 0xE6]])
def test_stray_bytes_cost_what_they_are_and_come_out(stray):
    tokenizer = Bytes()
    costs = []
    for times in (200, 400):
        ids = stray * times
        tokenizer.decoded = 0
        stream = TextStream(tokenizer, list(b"a prompt of some bytes"))
        text = stream.add(ids)
        costs.append(tokenizer.decoded)
        assert bytes(ids).decode("utf-8", errors="replace") == text + stream.end()
    assert costs[1] < 2.2 * costs[0] < 2.2 * 64 * 200 * len(stray)


def test_a_text_may_hold_the_replacement_character_itself():
    tokenizer = Bytes()
    ids = list(f"a{HALF}b{HALF * 5}c".encode())
    stream = TextStream(tokenizer, [])
    assert stream.add(ids) == f"a{HALF}b{HALF * 5}c"


class Undone(Bytes):
    """A run of bytes is text where all of it is, and else U+FFFD for each: as the tokenizers library falls back."""

    def decode(self, ids):
        self.decoded += len(ids)
        try:
            return bytes(ids).decode()
        except UnicodeDecodeError:
            return HALF * len(ids)


def test_characters_that_later_bytes_undo_for_a_while_come_out_once():
    tokenizer = Undone()
    ids = list("日é👀日".encode())
    stream = TextStream(tokenizer, [])
    pieces = [stream.add([i]) for i in ids]
    assert [piece for piece in pieces if piece] == list("日é👀日") and stream.end() == ""
    long = ids * 40 + [0x80] + ids * 40
    tokenizer.decoded, stream = 0, TextStream(tokenizer, [])
    text = stream.add(long) + stream.end()
    assert text.startswith("日é👀日" * 40) and text.endswith("日é👀日" * 30) and tokenizer.decoded < 64 * len(long)
