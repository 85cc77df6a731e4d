"""Packed rows: literal frames, every id and every target exactly once, little waste, an index that is kept."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import made_up
from train.data.packing import pack
from train.data.rows import Framing, PackedRows, RowIndex, build_index, load_or_build
from train.data.shards import Split
from zoo.errors import InputError

BOS, EOS, CLS, SEP = 2, 3, 4, 5
GPT = Framing("gpt", BOS, EOS)
BERT = Framing("bert", CLS, SEP)
VOCAB = 1000


def rows_of(documents, framing, row_length) -> PackedRows:
    split = Split.of(documents, VOCAB)
    return PackedRows(split, build_index(split, framing, row_length), framing)


def segments(batch) -> list[list[int]]:
    """The ids of every segment of every row, in order."""
    found = []
    for tokens, numbers in zip(batch["tokens"], batch["segment_ids"], strict=True):
        found += [tokens[numbers == n].tolist() for n in range(1, numbers.max() + 1)]
    return found


def numbered(lengths) -> list[list[int]]:
    """Documents in which every id of the whole corpus differs."""
    ends = np.cumsum([0, *lengths]) + 10
    return [list(range(a, b)) for a, b in zip(ends, ends[1:], strict=False)]


def test_a_short_document_is_framed_by_both_ends():
    batch = rows_of([[10, 11, 12]], GPT, 5).assemble([0])
    assert batch["tokens"].tolist() == [[BOS, 10, 11, 12, EOS]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1, 1]]
    assert batch["tokens"].dtype == batch["segment_ids"].dtype == np.int32


def test_rows_are_padded_at_their_end():
    rows = rows_of([[10, 11, 12]], Framing("bert", CLS, SEP, pad=9), 7)
    batch = rows.assemble([0])
    assert batch["tokens"].tolist() == [[CLS, 10, 11, 12, SEP, 9, 9]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1, 1, 0, 0]]
    assert rows.fill == 5 / 7


def test_documents_share_a_row_as_segments():
    batch = rows_of([[10], [11, 12]], GPT, 8).assemble([0])
    assert batch["tokens"].tolist() == [[BOS, 10, EOS, BOS, 11, 12, EOS, 0]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 2, 2, 0]]


def test_a_long_document_goes_on_where_it_was_cut():
    """The cut's last id is the next slice's first input, so that no target is lost and none is given twice."""
    rows = rows_of([[10, 11, 12, 13, 14, 15]], GPT, 4)
    assert sorted(segments(rows.assemble([0, 1, 2]))) == [[BOS, 10, 11, 12], [12, 13, 14, 15], [15, EOS]]
    assert sorted(s for r in range(3) for s in rows.index.slices(r)) == [(0, 0, 3), (0, 2, 6), (0, 5, 6)]
    rows = rows_of([[10, 11, 12, 13, 14]], BERT, 5)
    assert sorted(segments(rows.assemble([0, 1]))) == [[CLS, 10, 11, 12, SEP], [CLS, 13, 14, SEP]]


LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


@given(LENGTHS, st.integers(2, 20), st.booleans(), st.booleans())
def test_every_target_is_given_exactly_once(lengths, row_length, opened, closed):
    framing = Framing("gpt", BOS if opened else None, EOS if closed else None)
    documents = numbered(lengths)
    rows = rows_of(documents, framing, row_length)
    found = segments(rows.assemble(np.arange(len(rows))))
    given_once = Counter(label for segment in found for label in segment[1:])
    expected = Counter()
    for document in filter(None, documents):
        expected.update(document if opened else document[1:])
        expected.update([EOS] * closed)
    assert given_once == expected and BOS not in given_once
    contexts = {label: before for segment in found for before, label in zip(segment, segment[1:], strict=False)}
    for document in documents:
        assert all(contexts[label] == before for before, label in zip(document, document[1:], strict=False))
    assert sum(segment.count(BOS) for segment in found) == opened * sum(map(bool, documents))


@given(LENGTHS, st.integers(3, 20))
def test_every_id_stands_in_one_framed_slice(lengths, row_length):
    documents = numbered(lengths)
    rows = rows_of(documents, BERT, row_length)
    found = segments(rows.assemble(np.arange(len(rows))))
    assert all(segment[0] == CLS and segment[-1] == SEP and len(segment) > 2 for segment in found)
    assert sorted(i for segment in found for i in segment[1:-1]) == [i for document in documents for i in document]
    slices = sorted(s for row in range(len(rows)) for s in rows.index.slices(row))
    for number, document in enumerate(documents):
        own = [(start, stop) for d, start, stop in slices if d == number]
        assert [i for start, stop in own for i in range(start, stop)] == list(range(len(document)))


@given(st.lists(st.integers(1, 30), max_size=200), st.sampled_from([1, 7, 64, 1000]))
def test_packing_keeps_to_the_capacity(sizes, window):
    sizes = np.array(sizes, np.int64)
    rows = pack(sizes, 30, window)
    filled = np.bincount(rows, weights=sizes) if len(sizes) else np.zeros(0)
    assert set(rows.tolist()) == set(range(len(filled)))
    assert all(0 < load <= 30 for load in filled)
    assert np.array_equal(rows, pack(sizes, 30, window))
    if window >= len(sizes):  # two rows of one window that would fit together would have been one
        least = np.sort(filled)[:2]
        assert len(least) < 2 or least.sum() > 30


def test_packing_takes_the_best_fit():
    assert pack(np.array([3, 7, 5, 5, 2, 8, 10]), 10).tolist() == [2, 2, 3, 3, 1, 1, 0]
    with pytest.raises(InputError, match="pieces of 1 to 11 ids cannot be packed into rows of 10"):
        pack(np.array([1, 11]), 10)


@pytest.mark.parametrize("row_length", [32, 64, 128])
@pytest.mark.parametrize("framing", [GPT, BERT], ids=["gpt", "bert"])
def test_little_of_a_row_is_padding(framing, row_length):
    ids = made_up.tokenizer().encode_batch(made_up.documents(400))
    rows = rows_of(ids, framing, row_length)
    batch = rows.assemble(np.arange(len(rows)))
    assert rows.fill > 0.95
    assert rows.fill == pytest.approx((batch["segment_ids"] > 0).mean(), abs=1e-12)


def test_assembly_takes_rows_in_any_order_and_number():
    rows = rows_of(numbered([5, 9, 2, 14, 3, 8]), GPT, 8)
    every = rows.assemble(np.arange(len(rows)))
    for chosen in ([2, 0], [1, 1, 3], []):
        batch = rows.assemble(np.array(chosen, np.int64))
        assert all(np.array_equal(batch[name], every[name][chosen]) for name in every)
    with pytest.raises(InputError, match=f"numbers from 0 to {len(rows) - 1}"):
        rows.assemble([len(rows)])


def test_an_id_outside_the_vocabulary_stops_the_row():
    split = Split(np.array([5, 6, 1000, 7], np.uint16), np.array([4], np.uint64), VOCAB, "train")
    rows = PackedRows(split, build_index(split, GPT, 6), GPT)
    with pytest.raises(InputError, match="train holds id 1000, outside the vocabulary of 1000 pieces"):
        rows.assemble([0])


@pytest.mark.parametrize(("framing", "least"), [(GPT, 2), (BERT, 3), (Framing("pairs", CLS, SEP), 5)])
def test_rows_too_short_for_anything_are_refused(framing, least):
    split = Split.of([[10, 11]], VOCAB)
    with pytest.raises(InputError, match=f"row_length {least - 1} is too short .*; at least {least}"):
        build_index(split, framing, least - 1)
    assert len(build_index(split, framing, least)) >= 1


def test_no_documents_no_rows():
    with pytest.raises(InputError, match="has no document that fills a row"):
        build_index(Split.of([[], []], VOCAB), GPT, 8)
    with pytest.raises(InputError, match="has no document that fills a row"):
        build_index(Split.of([[5]], VOCAB), Framing("pairs", CLS, SEP), 8)


def test_the_index_is_kept_and_made_anew_when_damaged(tmp_path, monkeypatch):
    split = Split.of(numbered([5, 9, 2, 14]), VOCAB)
    first = load_or_build(split, GPT, 8, tmp_path)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr("train.data.rows.build_index", lambda *_: pytest.fail("the kept index was not used"))
    kept = load_or_build(split, GPT, 8, tmp_path)
    monkeypatch.undo()
    assert [kept.slices(row) for row in range(len(kept))] == [first.slices(row) for row in range(len(first))]
    path.write_bytes(path.read_bytes()[:100])
    assert RowIndex.load(path) is None
    again = load_or_build(split, GPT, 8, tmp_path)
    assert again.slices(0) == first.slices(0) and RowIndex.load(path) is not None
    for framing, row_length, documents in ((GPT, 9, split), (BERT, 8, split), (GPT, 8, Split.of([[5] * 9], VOCAB))):
        load_or_build(documents, framing, row_length, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    assert len(load_or_build(split, GPT, 8, tmp_path / "nowhere")) == len(first)


def test_framings_of_a_vocabulary():
    tokenizer = made_up.tokenizer()
    assert Framing.of(tokenizer, "gpt") == Framing("gpt", BOS, EOS, 0)
    assert Framing.of(tokenizer, "pairs") == Framing("pairs", CLS, SEP, 0)
    with pytest.raises(InputError, match='no row style "t5"; one of bert, gpt, pairs'):
        Framing.of(tokenizer, "t5")
    bare = type("Bare", (), dict.fromkeys(("bos_id", "eos_id", "cls_id", "sep_id", "pad_id")))
    with pytest.raises(InputError, match=r'no \[CLS\] or no \[SEP\], which rows of style "bert" need'):
        Framing.of(bare, "bert")
    with pytest.raises(InputError, match='neither BOS nor EOS, which rows of style "gpt" need'):
        Framing.of(bare, "gpt")
