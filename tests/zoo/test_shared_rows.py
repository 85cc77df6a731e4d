"""Rows that texts share: every text once, whole, in few rows; and what a model gives for each is its own."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from zoo.generation.text_batch import longest_text
from zoo.shared_rows import can_share, fill, places, row_length, rows_a_batch, shared_batches


@given(st.lists(st.integers(1, 112), max_size=40), st.sampled_from([112, 128, 200]))
@settings(max_examples=60, deadline=None)
def test_each_text_has_one_place(lengths, length):
    rows = fill(lengths, length)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= length and len(row) <= places(length) for row in rows)


def test_rows_are_filled_closer_than_best_fit_does():
    """Best fit puts 60 + 50, 40 + 40 + 30 and 20 into 120: three rows, where 60 + 40 + 20 and 50 + 40 + 30 are two."""
    assert fill([60, 50, 40, 40, 30, 20], 120) == [[0, 5, 2], [1, 4, 3]]
    assert fill([60, 60, 50, 70], 120) == [[3, 2], [0, 1]]


@given(st.lists(st.integers(1, 600), min_size=1, max_size=60), st.sampled_from([128, 1024]))
@settings(max_examples=40, deadline=None)
def test_batches_hold_all_texts_whole(lengths, tokens):
    ids = [np.arange(7, 7 + n) for n in lengths]
    seen = []
    for batch in shared_batches(ids, lambda length: max(1, tokens // length), 0, 600):
        rows, length = batch.tokens.shape
        assert length <= 608 and (rows == 1 or rows * length <= tokens)
        for row, place in np.argwhere(batch.order >= 0):
            own = batch.segment_ids[row] == place + 1
            seen.append(batch.order[row, place])
            assert batch.tokens[row][own].tolist() == ids[seen[-1]].tolist()
            assert (np.diff(np.flatnonzero(own)) == 1).all()
        assert (batch.tokens[batch.segment_ids == 0] == 0).all()
    assert sorted(seen) == list(range(len(lengths)))


def shapes(*given):
    return [batch.tokens.shape for batch in shared_batches(*given)]


def test_long_texts_do_not_lengthen_the_rows_of_others():
    ids = [[7] * n for n in [20] * 40 + [300, 130]]
    assert shapes(ids, lambda length: 512 // length) == [(8, 64), (8, 64), (1, 256), (1, 512)]
    fewer = [(4, 64), (4, 64), (4, 64), (4, 64), (1, 256), (1, 320)]
    assert shapes(ids, lambda length: min(4, 512 // length), 0, 320) == fewer
    assert [rows_a_batch(length, most) for length, most in ((64, 64), (80, 64), (64, 8), (4096, 8))] == [16, 12, 8, 1]
    assert [row_length(n) for n in (1, 64, 65, 80, 81)] == [64, 64, 80, 80, 96]


@pytest.mark.parametrize(
    ("name", "changes"),
    [("bert-tiny", {}), ("llama-tiny", {}), ("gpt2-tiny", {"layer_pattern": (zoo.LayerConfig(window=4),)})],
)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_shared_vectors_are_those_of_each_text_alone(name, changes, pooling, shared_network):
    """Learned and rotary positions, both ways and causal, windows."""
    model, params, tokenizer = shared_network(name, changes)
    texts = [[7 + (i * k) % 90 for k in range(1, 2 + (i * 5) % 30)] for i in range(40)]
    assert can_share(model.config) and longest_text(model.config) >= 32
    options = dict(tokenizer=tokenizer, pooling=pooling, normalize=False)
    told = []
    found = zoo.embed(model, params, texts, **options, watch=lambda *done: told.append(done))
    alone = zoo.embed(model, params, texts, **options, batch_size=1)
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-5)
    assert told[-1] == (40, 40)


@pytest.fixture(scope="module")
def shared_network():
    from tests import made_up

    tokenizer, made = made_up.tokenizer(340), {}

    def make(name, changes):
        if name not in made:
            sizes = dict(embed_dim=32, num_heads=2, num_layers=2, mlp_dim=48, max_positions=64, initializer_range=0.2)
            kv = {"num_kv_heads": 1} if name == "llama-tiny" else {}
            model = zoo.create(name, vocab_size=tokenizer.vocab_size, **sizes, **kv, **changes)
            made[name] = model, model.init(jax.random.key(0))
        return *made[name], tokenizer

    return make
