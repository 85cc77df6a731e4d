"""A token table cut to what is read trains as the whole one does, and the rows that are left out keep their bits."""

import jax
import numpy as np
import pytest

from eval.encode import encode
from eval.finetune import FinetuneConfig, finetune
from eval.ways import read_rows

CONFIG = FinetuneConfig(learning_rate=3e-3, epochs=1, max_length=32, dropout=0.1, weight_decay=0.1)


def encoded_of(bert, tokenizer, topics, count=48):
    return encode(topics.train[:count], tokenizer, bert[0].config, 32)


def test_rows_that_are_read_and_a_round_number(bert, tokenizer, topics):
    encoded = encoded_of(bert, tokenizer, topics, 6)
    read = read_rows.rows_read(encoded, bert[0].config, bert[1], 10**9)
    part = -(-tokenizer.vocab_size // read_rows.PARTS)
    assert len(read) % part == 0 and len(read) < tokenizer.vocab_size and (np.diff(read) > 0).all()
    assert set(np.concatenate(encoded.ids)) | {encoded.pad_id} <= set(read.tolist())
    found = read_rows.renumbered(encoded, read)
    for old, new in zip(encoded.ids, found.ids, strict=True):
        assert new.dtype == np.int32 and read[new].tolist() == old.tolist()
    assert read[found.pad_id] == encoded.pad_id
    small = read_rows.cut(bert[1], read)
    table = bert[1]["embed"]["token"]["embedding"]
    assert np.array_equal(small["embed"]["token"]["embedding"], np.asarray(table)[read])
    assert small["blocks"] is bert[1]["blocks"]
    again = read_rows.whole(small, table, read)
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(bert[1]), strict=True))


def test_it_is_left_whole_where_that_saves_little(bert, tokenizer, topics):
    encoded = encoded_of(bert, tokenizer, topics)
    assert read_rows.rows_read(encoded, bert[0].config, bert[1], 10) is None
    frozen = {"classifier": {}}
    assert read_rows.rows_read(encoded, bert[0].config, frozen, 10**9) is None


@pytest.mark.parametrize("change", [{}, {"optimizer": "sgd", "learning_rate": 0.1, "layer_decay": 0.9}])
def test_training_is_that_of_the_whole_table(bert, tokenizer, topics, one, monkeypatch, change):
    """The norm of the gradient is summed in another order: equal to rounding, and bit-equal where no text reads."""
    model, params = bert
    encoded, config = encoded_of(bert, tokenizer, topics), CONFIG.replace(**change)
    whole = finetune(model, params, tokenizer, encoded, config, 2, devices=one)
    monkeypatch.setattr(read_rows, "WORTH", 1)
    cut = finetune(model, params, tokenizer, encoded, config.replace(select="best"), 2, devices=one, validation=encoded)
    assert cut.model.config == whole.model.config and cut.total == whole.total and cut.trainable == whole.trainable
    assert cut.history[0]["loss"] == pytest.approx(whole.history[0]["loss"], abs=1e-6)
    for x, y in zip(jax.tree.leaves(cut.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)  # Adam's first updates are signs; see test_finetune
    unread = np.setdiff1d(np.arange(tokenizer.vocab_size), np.concatenate([*encoded.ids, [encoded.pad_id]]))
    assert len(unread)
    for found in (cut, whole):
        after, before = (np.asarray(tree["embed"]["token"]["embedding"])[unread] for tree in (found.params, params))
        assert np.array_equal(after, before)
