"""Texts to batches: framing, truncation, buckets, order; every example once."""

import numpy as np
import pytest

from eval.encode import buckets, collate, encode, prediction_order, training_order
from eval.tasks import Example
from zoo import InputError


def test_bert_frames_with_cls_and_sep_and_gpt_with_one_bos(bert, gpt, tokenizer):
    example = Example("harbor tide", None, 1)
    ids = tokenizer.encode("harbor tide")
    encoded = encode([example], tokenizer, bert[0].config, 32)
    assert encoded.ids[0].tolist() == [tokenizer.cls_id, *ids, tokenizer.sep_id]
    assert encoded.token_types[0].tolist() == [0] * (len(ids) + 2)
    encoded = encode([example], tokenizer, gpt[0].config, 32)
    assert encoded.ids[0].tolist() == [tokenizer.bos_id, *ids, tokenizer.eos_id]
    assert encoded.token_types is None


def test_pairs_carry_token_types(bert, tokenizer):
    a, b = tokenizer.encode("harbor"), tokenizer.encode("oven bread")
    encoded = encode([Example("harbor", "oven bread", 0)], tokenizer, bert[0].config, 32)
    assert encoded.ids[0].tolist() == [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    assert encoded.token_types[0].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_long_texts_are_cut_and_counted_and_empty_ones_keep_their_frame(bert, tokenizer):
    texts = ["harbor " * 40, "oven", ""]
    encoded = encode([Example(text, None, 0) for text in texts], tokenizer, bert[0].config, 16)
    assert encoded.truncated == 1
    assert encoded.lengths[0] == 16 and encoded.ids[0][-1] == tokenizer.sep_id
    assert encoded.ids[2].tolist() == [tokenizer.cls_id, tokenizer.sep_id]


def test_buckets_are_few_and_end_at_the_limit():
    assert buckets(128) == (16, 32, 64, 128)
    assert buckets(512) == (64, 128, 256, 512)
    assert buckets(50) == (25, 50)
    assert buckets(9) == (9,)


def test_a_batch_is_padded_to_a_bucket_and_filled_with_rows_of_weight_zero(bert, tokenizer):
    examples = [Example("harbor tide", None, 1), Example("oven", None, 0)]
    encoded = encode(examples, tokenizer, bert[0].config, 32)
    batch = collate(encoded, [1, 0], size=4)
    assert {name: array.shape for name, array in batch.items()} == {
        **dict.fromkeys(("tokens", "segment_ids", "token_types"), (4, 16)),
        **dict.fromkeys(("labels", "weights", "row_ids"), (4,)),
    }
    assert batch["labels"].tolist() == [0, 1, 0, 0] and batch["weights"].tolist() == [1, 1, 0, 0]
    assert batch["segment_ids"].sum(axis=1).tolist() == [*encoded.lengths[[1, 0]], 0, 0]
    assert batch["tokens"][0, : encoded.lengths[1]].tolist() == encoded.ids[1].tolist()
    assert (batch["tokens"][2:] == tokenizer.pad_id).all()


def test_an_epoch_visits_every_example_once_in_batches_of_near_equal_size(topics, bert, tokenizer):
    encoded = encode(topics.train[:101], tokenizer, bert[0].config, 32)
    batches = training_order(encoded, 16, seed=3, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(101))
    assert sorted(map(len, batches)) == [14, 14, 14, 14, 15, 15, 15]
    again, later, other = (training_order(encoded, 16, seed=s, epoch=e) for s, e in ((3, 0), (3, 1), (4, 0)))
    assert [b.tolist() for b in again] == [b.tolist() for b in batches]
    for different in (later, other):
        assert [b.tolist() for b in different] != [b.tolist() for b in batches]


def test_grouping_by_length_saves_padding_but_keeps_batches_shuffled(topics, bert, tokenizer):
    encoded = encode(topics.train, tokenizer, bert[0].config, 32)
    batches = training_order(encoded, 16, seed=0, epoch=0)
    spread = np.mean([encoded.lengths[rows].std() for rows in batches])
    assert spread < 0.5 * encoded.lengths.std()
    means = [encoded.lengths[rows].mean() for rows in batches]
    assert means != sorted(means)


@pytest.mark.parametrize("batch_size", [1, 7, 83, 200])
def test_prediction_visits_every_example_once(topics, bert, tokenizer, batch_size):
    encoded = encode(topics.test, tokenizer, bert[0].config, 32)
    batches = list(prediction_order(encoded, batch_size))
    assert sorted(np.concatenate(batches).tolist()) == list(range(83))
    assert max(map(len, batches)) <= batch_size


def test_what_cannot_be_encoded_is_one_line(bert, tokenizer):
    config, example = bert[0].config, [Example("harbor", None, 0)]
    with pytest.raises(InputError, match="max_length is 33; this model reads 1 to 32 tokens"):
        encode(example, tokenizer, config, 33)
    with pytest.raises(InputError, match="the tokenizer has 340 pieces but the model's vocabulary 300"):
        encode(example, tokenizer, config.replace(vocab_size=300), 16)
    with pytest.raises(InputError, match="max_length is 1: beside 2 special pieces"):
        encode(example, tokenizer, config, 1)
    with pytest.raises(InputError, match="max_length is 2: beside 2 special pieces no piece .* take 3 or more"):
        encode(example, tokenizer, config, 2)
    with pytest.raises(InputError, match="take 5 or more"):
        encode([Example("harbor", "tide", 0)], tokenizer, config, 4)
    with pytest.raises(InputError, match="there is no example"):
        encode([], tokenizer, config, 16)
