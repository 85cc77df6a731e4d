"""Pairs for next-sentence prediction: what B is, how often it follows, and that nothing but the draws decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data.pairs import ELSEWHERE, FOLLOWS, PairRows
from train.data.pipeline import Batches, random_words
from train.data.rows import Framing, build_index
from train.data.shards import Split
from zoo.errors import InputError

CLS, SEP, PAD = 4, 5, 0
FRAMING = Framing("pairs", CLS, SEP, PAD)


def pair_rows(lengths, row_length) -> tuple[PairRows, list[list[int]]]:
    """Rows over documents in which every id of the whole corpus differs."""
    ends = np.cumsum([0, *lengths]) + 10
    documents = [list(range(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
    split = Split.of(documents, 5000)
    return PairRows(split, build_index(split, FRAMING, row_length), FRAMING), documents


def parted(tokens, segments, types) -> tuple[list[int], list[int]]:
    """A and B of one row, with the frame around them checked."""
    ids = tokens[segments > 0].tolist()
    middle = ids.index(SEP)
    assert ids[0] == CLS and ids[-1] == SEP and middle < len(ids) - 1
    assert set(tokens[segments == 0].tolist()) <= {PAD} and segments[: len(ids)].all()
    assert types.tolist() == [0] * (middle + 1) + [1] * (len(ids) - middle - 1) + [0] * (len(tokens) - len(ids))
    return ids[1:middle], ids[middle + 1 : -1]


@given(st.lists(st.integers(0, 30), min_size=2, max_size=8), st.integers(5, 24), st.integers(0, 2**32))
def test_b_follows_a_or_comes_from_elsewhere(lengths, row_length, seed):
    if sum(length > 0 for length in lengths) < 2 or max(lengths) < 2:
        return
    rows, documents = pair_rows(lengths, row_length)
    draws = random_words(seed, 0, 0, 4 * len(rows)).reshape(-1, 4)
    batch = rows.assemble(np.arange(len(rows)), draws)
    for row in range(len(rows)):
        a, b = parted(batch["tokens"][row], batch["segment_ids"][row], batch["token_types"][row])
        (document, start, stop) = rows.index.slices(row)[0]
        assert a == documents[document][start : start + len(a)] and len(a) >= 1 and len(b) >= 1
        if batch["next_sentence"][row] == FOLLOWS:
            assert a + b == documents[document][start:stop]
        else:
            (home,) = [number for number, ids in enumerate(documents) if b[0] in ids]
            place = documents[home].index(b[0])
            assert home != document and b == documents[home][place : place + len(b)]
            assert len(b) == min(stop - start - len(a), len(documents[home]))


def test_half_of_the_second_sentences_follow_and_length_tells_nothing():
    rows, _ = pair_rows([60] * 40, 23)
    labels, lengths = [], []
    for step in range(40):
        batch = rows.assemble(np.arange(len(rows)), random_words(3, 1, step, 4 * len(rows)).reshape(-1, 4))
        labels.append(batch["next_sentence"])
        lengths.append((batch["token_types"] > 0).sum(axis=1))
    labels, lengths = np.concatenate(labels), np.concatenate(lengths)
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(labels))
    difference = lengths[labels == FOLLOWS].mean() - lengths[labels == ELSEWHERE].mean()
    assert abs(difference) < 4 * lengths.std() * 2 / np.sqrt(len(labels))


def test_pairs_are_a_pure_function_of_seed_step_and_row():
    rows, _ = pair_rows([9, 14, 6, 30, 11], 16)
    whole = Batches(rows, 4, seed=7)
    parts = [Batches(rows, 4, seed=7, process_index=i, process_count=3) for i in range(3)]
    for step in (0, 5):
        batch = whole.batch(step)
        again = [part.batch(step) for part in parts]
        for name, values in batch.items():
            assert np.array_equal(values, np.concatenate([part[name] for part in again]))
    drawn = [whole.batch(step)["next_sentence"].tolist() for step in range(8)]
    other = [Batches(rows, 4, seed=8).batch(step)["next_sentence"].tolist() for step in range(8)]
    assert drawn != other and len(set(map(tuple, drawn))) > 1


def test_an_empty_row_of_the_last_batch_has_no_label():
    rows, _ = pair_rows([9, 14, 6], 20)
    last = list(Batches(rows, 2, seed=0).all_rows())[-1]
    assert last["next_sentence"][1] == -1 and not last["segment_ids"][1].any() and not last["token_types"][1].any()
    assert last["next_sentence"][0] in (FOLLOWS, ELSEWHERE)


def test_pairs_need_a_second_document():
    with pytest.raises(InputError, match="has one document alone; pairs need a second to draw from"):
        pair_rows([9], 16)
