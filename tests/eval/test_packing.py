"""Packed rows: every example once, nothing lost, and the same answers, losses and gradients as unpacked ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.encode import Encoded, buckets, collate, encode, training_order
from eval.finetune import FinetuneConfig, with_task_head
from eval.kinds import CLASSIFICATION, classification
from eval.packing import fill, layout, pack, packs, places, prediction_length
from eval.predict import evaluate, predict_encoded
from zoo import InputError

CONFIG = FinetuneConfig(max_length=32, dropout=0.0)


@given(st.lists(st.integers(1, 64), max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_example_has_one_place(lengths):
    rows = fill(lengths, 64)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    for row in rows:
        assert sum(lengths[i] for i in row) <= 64 and len(row) <= places(64)
    if lengths:  # no two rows could be one
        loads = sorted(sum(lengths[i] for i in row) for row in rows if len(row) < places(64))
        assert len(loads) < 2 or loads[0] + loads[1] > 64 or places(64) < len(lengths)


def test_rows_by_hand():
    """Best fit decreasing: 40 | 30 + 30 | the 20 joins the 40, and the 3 the fuller 30s, where 4 are free."""
    assert fill([30, 40, 3, 30, 19], 64) == [[1, 4], [0, 3, 2]]
    assert fill([], 64) == []
    with pytest.raises(InputError, match="an example of 65 ids does not go into rows of 64"):
        fill([3, 65], 64)


def test_a_packed_batch_holds_what_its_examples_hold(bert, tokenizer, topics):
    encoded = encode(topics.test, tokenizer, bert[0].config, 32)
    numbers = np.arange(5, 21)
    batch, order = pack(encoded, numbers, prediction_length(encoded), least=5, unit=3)
    assert len(batch["tokens"]) >= 5 and batch["tokens"].shape[1] == 64 and len(batch["tokens"]) % 3 == 0
    assert sorted(order[order >= 0].tolist()) == numbers.tolist()
    for row, place in np.argwhere(order >= 0):
        number = order[row, place]
        own = batch["segment_ids"][row] == place + 1
        assert batch["tokens"][row][own].tolist() == encoded.ids[number].tolist()
        assert batch["token_types"][row][own].tolist() == encoded.token_types[number].tolist()
        assert batch["labels"][row, place] == encoded.labels[number] and batch["weights"][row, place] == 1
    assert batch["weights"].sum() == 16


@given(st.lists(st.integers(2, 100), min_size=17, max_size=120), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_batches_for_packed_rows_have_nearly_as_many_ids(lengths, seed):
    """No two batches of an epoch could be brought nearer by changing one example for another."""
    encoded = made_of(lengths)
    batches = training_order(encoded, 8, seed, 0, by_length=False)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert {len(batch) for batch in batches} <= {len(batches[-1]), len(batches[-1]) + 1}
    totals = np.array([encoded.lengths[batch].sum() for batch in batches])
    full, empty = batches[totals.argmax()], batches[totals.argmin()]
    gap = totals.max() - totals.min()
    moved = encoded.lengths[full][:, None] - encoded.lengths[empty]
    assert gap <= 8 or not ((moved > 0) & (moved < gap)).any()


def test_all_batches_of_an_epoch_have_one_shape(rng):
    """Sentences as movie reviews have: 16 a batch in as many rows, little of them padding, whatever the epoch."""
    encoded = made_of(np.clip(rng.normal(27, 11, 3000), 4, 72).astype(int))
    order = training_order(encoded, 16, 0, 0, by_length=False)
    length, rows = layout(encoded, order)
    assert length >= 72 and length % 16 == 0
    assert encoded.lengths.sum() / (rows * length * len(order)) > 0.93
    for epoch in (0, 1, 2):
        for batch in training_order(encoded, 16, 0, epoch, by_length=False):
            assert pack(encoded, batch, length, rows)[0]["tokens"].shape == (rows, length)
    assert len(pack(encoded, order[0], length, rows, 8)[0]["tokens"]) % 8 == 0


def made_of(lengths):
    ids = tuple(np.full(n, 7, np.int32) for n in lengths)
    labels = np.arange(len(ids), dtype=np.int32) % 2
    return Encoded(ids, None, labels, np.array(lengths), buckets(128), 0, 0)


@pytest.mark.parametrize("network", ["bert", "gpt"])
def test_packed_answers_are_the_unpacked_ones(network, request, tokenizer, topics, one):
    model, params = with_task_head(*request.getfixturevalue(network), CONFIG, 2)
    encoded = encode(topics.test, tokenizer, model.config, 32)
    assert packs(CLASSIFICATION, encoded, model.config)
    apart = predict_encoded(model, params, encoded, packed=False, devices=one)
    for devices in (jax.devices(), one):
        together = predict_encoded(model, params, encoded, batch_size=8, devices=devices)
        np.testing.assert_allclose(together, apart, atol=1e-6)
    assert evaluate(model, params, encoded, devices=one).scores["accuracy"] == np.mean(
        apart.argmax(1) == encoded.labels
    )


def test_packed_losses_and_gradients_are_the_unpacked_ones(bert, tokenizer, topics):
    model, params = with_task_head(*bert, CONFIG, 2)
    encoded = encode(topics.test[:8], tokenizer, model.config, 32)
    packed, _ = pack(encoded, np.arange(8), prediction_length(encoded))
    alone = collate(encoded, np.arange(8), 8)

    def loss(params, batch):
        keys = jax.vmap(jax.random.key)(jnp.arange(len(batch["tokens"])))
        (total, weight), pairs = classification.loss(model, params, batch, keys)
        return total, (weight, pairs)

    found = [jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch) for batch in (packed, alone)]
    (a, (weight, pairs)), (b, (other_weight, other_pairs)) = found[0][0], found[1][0]
    assert weight == other_weight == 8 and pairs["accuracy"] == other_pairs["accuracy"]
    assert float(a) == pytest.approx(float(b), abs=1e-5)
    for x, y in zip(jax.tree.leaves(found[0][1]), jax.tree.leaves(found[1][1]), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
