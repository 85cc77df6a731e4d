"""Batches by step: pure, resumable, disjoint between hosts, fresh in each epoch, and complete in evaluation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import made_up
from train.data.pipeline import ORDER, Batches, open_batches, random_words
from train.data.rows import Framing, PackedRows, build_index
from train.data.shards import Split, write_shards
from zoo.errors import InputError

FRAMING = Framing("gpt", 2, 3)


def packed(count: int) -> PackedRows:
    """`count` rows of [BOS, n, EOS] with n from 10 on."""
    split = Split.of([[10 + n] for n in range(count)], 5000)
    return PackedRows(split, build_index(split, FRAMING, 3), FRAMING)


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_a_batch_is_a_pure_function_of_seed_and_step():
    rows = packed(11)
    first, again = Batches(rows, 4, seed=5), Batches(packed(11), 4, seed=5)
    for step in (9, 0, 3, 9):
        assert same(first.batch(step), again.batch(step))
    batch = first.batch(0)
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "tokens": ((4, 3), "int32"),
        "segment_ids": ((4, 3), "int32"),
        "row_ids": ((4,), "int32"),
    }
    assert batch["row_ids"].tolist() == [0, 1, 2, 3]
    assert not same(batch, Batches(rows, 4, seed=6).batch(0))


def test_orders_do_not_change_between_versions_of_the_libraries():
    assert random_words(0, ORDER, 0, 2).tolist() == [213000021201967259, 4455796210202625458]
    assert Batches(packed(10), 10, seed=1).rows_at(3).tolist() == [3, 2, 5, 4, 6, 1, 0, 9, 7, 8]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_resumed_run_sees_what_an_uninterrupted_one_sees(threads):
    """N + M steps are N steps, a fresh start, and M steps, across two ends of an epoch."""
    whole = [Batches(packed(11), 4, seed=2).batch(step) for step in range(9)]
    before = Batches(packed(11), 4, seed=2).iterate(steps=4, threads=threads)
    after = Batches(packed(11), 4, seed=2).iterate(4, steps=5, threads=threads)
    found = [*before, *after]
    assert len(found) == 9 and all(same(a, b) for a, b in zip(found, whole, strict=True))


def test_the_state_of_the_feeding_is_one_integer():
    endless = Batches(packed(11), 4, seed=2).iterate(3)
    for step in (3, 4):
        assert same(next(endless), Batches(packed(11), 4, seed=2).batch(step))
    assert endless.get_state() == {"next_index": 5}
    endless.close()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_each_epoch_visits_every_row_once_in_an_order_of_its_own(count, batch_size, seed):
    batch_size = min(batch_size, count)
    batches = Batches(packed(count), batch_size, seed=seed)
    steps = -(-3 * count // batch_size)
    visited = np.concatenate([batches.rows_at(step) for step in range(steps)])[: 3 * count].reshape(3, count)
    assert np.array_equal(np.sort(visited, axis=1), np.tile(np.arange(count), (3, 1)))
    if count > 8:
        assert len({tuple(order) for order in visited.tolist()}) == 3


@given(st.integers(1, 9), st.integers(1, 9))
def test_hosts_read_disjoint_rows_that_make_up_the_batch(hosts, batch_size):
    rows = packed(13)
    if hosts > batch_size:
        with pytest.raises(InputError, match=f"leaves some of {hosts} hosts without a row"):
            Batches(rows, batch_size, process_count=hosts)
        return
    parts = [Batches(rows, batch_size, seed=4, process_index=i, process_count=hosts) for i in range(hosts)]
    for step in range(4):
        whole = Batches(rows, batch_size, seed=4).batch(step)
        served = [part.batch(step) for part in parts]
        assert all(len(batch["row_ids"]) >= 1 for batch in served)
        assert all(np.array_equal(whole[name], np.concatenate([b[name] for b in served])) for name in whole)


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("batch_size", [3, 8, 43, 50])
def test_evaluation_sees_every_row_once_and_fills_up_the_last_batch(hosts, batch_size):
    rows = packed(43)
    parts = [Batches(rows, batch_size, process_index=i, process_count=hosts) for i in range(hosts)]
    served = [list(part.all_rows()) for part in parts]
    assert {len(batches) for batches in served} == {-(-43 // batch_size)}
    seen = []
    for step in zip(*served, strict=True):
        batch = {name: np.concatenate([part[name] for part in step]) for name in step[0]}
        assert batch["row_ids"].tolist() == list(range(batch_size))
        real = batch["segment_ids"].any(axis=1)
        assert not batch["tokens"][~real].any()
        seen += batch["tokens"][real, 1].tolist()
    assert seen == list(range(10, 53))


def test_what_cannot_be_served_is_refused():
    rows = packed(5)
    for call in (lambda b: b.batch(0), lambda b: b.iterate()):
        with pytest.raises(
            InputError, match="batch_size 6 is more than the 5 rows of 3 ids .* at most 5, or more text"
        ):
            call(Batches(rows, 6))
    with pytest.raises(InputError, match="batch_size 0 is below 1"):
        Batches(rows, 0)
    with pytest.raises(InputError, match="process_index 2 is outside 0 to 1"):
        Batches(rows, 4, process_index=2, process_count=2)
    with pytest.raises(InputError, match="seed -1 is outside"):
        Batches(rows, 4, seed=-1)
    for call in (lambda b: b.batch(-1), lambda b: b.iterate(-1)):
        with pytest.raises(InputError, match="step -1 is negative"):
            call(Batches(rows, 4))


def test_a_fault_in_the_feeding_threads_reaches_the_loop():
    rows = packed(5)
    rows.split.tokens[:] = 5000
    with pytest.raises(InputError, match="holds id 5000, outside the vocabulary of 5000 pieces"):
        next(Batches(rows, 4).iterate(threads=2))


@pytest.mark.parametrize("style", ["bert", "gpt", "pairs"])
def test_batches_of_a_shard_folder(tmp_path, style):
    tokenizer = made_up.tokenizer()
    shards = write_shards(made_up.documents(60), tokenizer, tmp_path, min_valid=4)
    batches = open_batches(shards, tokenizer, style=style, row_length=32, batch_size=8, seed=1)
    assert [path.name.split("-")[:3] for path in tmp_path.glob("rows-*")] == [["rows", style, "32"]]
    again = open_batches(shards, tokenizer, style=style, row_length=32, batch_size=8, seed=1)
    assert same(batches.batch(7), again.batch(7)) and batches.row_length == 32
    assert len(batches) == len(batches.rows) and batches.steps_per_epoch == len(batches) / 8
    valid = open_batches(shards, tokenizer, style=style, row_length=32, batch_size=500, split="valid")
    (batch,) = valid.all_rows()
    real = batch["tokens"][batch["segment_ids"] > 0]
    ordinary = real[~np.isin(real, tokenizer.special_ids)]
    held_out = {i for number in range(len(shards.valid)) for i in shards.valid.document(number).tolist()}
    assert set(ordinary.tolist()) <= held_out and len(ordinary) > 20
    with pytest.raises(InputError, match="batch_size 5000 is more than"):
        open_batches(shards, tokenizer, style=style, row_length=32, batch_size=5000)
    with pytest.raises(InputError, match="belong to another tokenizer"):
        open_batches(shards, made_up.tokenizer(340), style=style, row_length=32, batch_size=8)
