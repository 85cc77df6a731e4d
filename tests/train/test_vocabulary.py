"""Vocabulary training: lossless, repeatable, and clear about sizes that cannot be."""

import _thread
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import made_up
from train import vocabulary
from train.vocabulary import interruptible, train_vocabulary
from zoo.errors import InputError

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581\0"), max_size=40)


@given(ANY_TEXT)
def test_identity_vocabularies_give_any_text_back(text):
    tokenizer = made_up.tokenizer(360, "identity")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_id not in ids and not set(ids) & set(tokenizer.special_ids)


def test_nothing_is_unknown():
    tokenizer = made_up.tokenizer()
    ids = tokenizer.encode("漢字 \U0001f980 ☃")
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == "漢字 \U0001f980 ☃"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_same_text_gives_the_same_vocabulary(kind):
    first, second = (train_vocabulary(made_up.documents(40), 340, kind=kind) for _ in range(2))
    assert first.files() == second.files() and first.vocab_size == 340
    assert [first.piece(i) for i in range(8)] == ["<pad>", "<unk>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]", "<0x00>"]


def test_a_size_that_the_text_cannot_fill_names_the_largest():
    line = r"^a text of [\d,]+ characters teaches fewer than 5,000 pieces; pass --vocab-size (\d+) or less$"
    with pytest.raises(InputError, match=line) as caught:
        train_vocabulary(made_up.documents(5), 5000)
    largest = int(re.search(line, str(caught.value))[1])
    assert train_vocabulary(made_up.documents(5), largest).vocab_size == largest


def test_a_size_below_bytes_and_characters_names_the_smallest():
    line = r"^a vocabulary of 264 pieces cannot hold .* of this text; pass --vocab-size (\d+) or more$"
    with pytest.raises(InputError, match=line) as caught:
        train_vocabulary(made_up.documents(5), 264)
    smallest = int(re.search(line, str(caught.value))[1])
    assert train_vocabulary(made_up.documents(5), smallest, kind="bpe").vocab_size == smallest


def test_no_text_and_no_such_kind():
    with pytest.raises(InputError, match="no text to learn a vocabulary from"):
        train_vocabulary(["", " \n"])
    with pytest.raises(InputError, match='no vocabulary kind "word"; one of unigram, bpe'):
        train_vocabulary(made_up.documents(5), kind="word")


def test_long_lines_are_learnt_from_in_parts():
    text = "maple " * 900 + "x" * 2500
    chunks = list(vocabulary._chunks([text, "one\n\ntwo"]))
    assert "".join(chunks) == text + "onetwo"
    assert max(map(len, chunks)) <= vocabulary.MAX_CHUNK and chunks[-2:] == ["one", "two"]


def test_samples_are_even_and_repeatable():
    assert vocabulary._sample(iter("abc"), 5) == ["a", "b", "c"]
    for begin in range(0, 2000, 10):
        numbers = [str(begin + i) for i in range(10)]
        kept = vocabulary._sample(iter(numbers), 4)
        assert len(set(kept)) == 4 and kept == vocabulary._sample(iter(numbers), 4)
    kept = [int(n) for n in vocabulary._sample((str(i) for i in range(20_000)), 2000)]
    counts = [sum(begin <= n < begin + 2000 for n in kept) for begin in range(0, 20_000, 2000)]
    assert min(counts) > 140 and max(counts) < 260  # 200 each, four sigma either way


def test_nothing_is_printed(capfd):
    train_vocabulary(made_up.documents(5), 320)
    assert capfd.readouterr() == ("", "")


def test_a_size_below_one_is_one_line():
    with pytest.raises(InputError, match="vocab_size is -5; it must be 1 or more"):
        train_vocabulary(["one stone"], -5)


def test_an_interrupt_is_heard_while_it_learns():
    """The work does not end before the interrupt is heard: `heard` is what it waits for."""
    begun, heard = threading.Event(), threading.Event()

    def work():
        begun.set()
        heard.wait()

    threading.Thread(target=lambda: begun.wait() and _thread.interrupt_main()).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(work)
    assert begun.is_set()
    heard.set()


def test_faults_of_the_work_are_raised():
    def work(size):
        raise RuntimeError(f"too high, {size}")

    with pytest.raises(RuntimeError, match="too high, 3"):
        interruptible(work, size=3)
