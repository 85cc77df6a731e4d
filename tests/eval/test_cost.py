"""Costs by formula, against counts by hand; tokens are those of the batches that are run."""

import numpy as np
import pytest

import zoo
from eval.encode import Encoded, buckets, collate, training_order
from eval.experiment.cost import cost, passes, prediction_shapes, training_shapes
from eval.kinds import CLASSIFICATION, TAGGING
from eval.packing import layout, pack
from eval.ways.finetune_config import FinetuneConfig

# D = 8, 2 heads of 4, F = 32, 2 layers: projections 2 x (2 x 8 x 24 + 2 x 8 x 8), feed-forward 2 x 4 x 8 x 32, and
# scores and mix 2 x 4 x 8 T a token of a model that sees both ways.
CONFIG = zoo.create("bert-tiny", embed_dim=8, num_heads=2, num_layers=2, mlp_dim=32, max_positions=64).config
FLAT = 2 * (2 * 8 * 24 + 2 * 8 * 8) + 2 * 4 * 8 * 32


def a_token(length):
    return FLAT + 2 * 4 * 8 * length


def encoded(*lengths, labels=None):
    ids = tuple(np.full(n, 7, np.int32) for n in lengths)
    own = np.arange(len(lengths), dtype=np.int32) % 2 if labels is None else labels
    return Encoded(ids, None, own, np.array(lengths), buckets(64), 0, 0)


def tags(*lengths):
    return encoded(*lengths, labels=tuple(np.zeros(n, np.int32) for n in lengths))


def shapes(texts, kind=TAGGING, row_shards=1, steps=None, **settings):
    return dict(training_shapes(CONFIG, FinetuneConfig(**settings), texts, kind, row_shards, steps))


def test_training_by_hand():
    """5 sentences of 3 to 16 tokens in batches of 2: three batches an epoch, each filled up to 2 rows of 16."""
    config = FinetuneConfig(batch_size=2, epochs=3)
    assert shapes(tags(3, 5, 9, 16, 2), batch_size=2, epochs=3) == {(2, 16): 9}
    found = cost(CONFIG, config, tags(3, 5, 9, 16, 2), tags(16), TAGGING)
    assert found.training_tokens == 18 * 16
    assert found.training_flops == pytest.approx(3 * 18 * 16 * a_token(16))
    assert found.prediction_tokens == 64 * 16, "a batch of prediction has 64 rows, however few are texts"
    assert found.prediction_flops == pytest.approx(64 * 16 * a_token(16))
    assert found.flops == found.training_flops + found.prediction_flops


def test_shapes_are_those_of_the_batches():
    texts = tags(*range(2, 60, 3))
    made = [collate(texts, rows, 3)["tokens"].shape for epoch in (0, 1) for rows in training_order(texts, 3, 4, epoch)]
    found = shapes(texts, batch_size=3, epochs=2, seed=4)
    assert found == {shape: made.count(shape) for shape in made} and len(found) > 1


def test_packed_shapes_are_those_of_the_batches():
    texts = encoded(*range(2, 60, 3))
    shape = layout(texts, training_order(texts, 6, 4, 0, by_length=False))
    made = [
        pack(texts, rows, *shape)[0]["tokens"].shape
        for epoch in (0, 1)
        for rows in training_order(texts, 6, 4, epoch, by_length=False)
    ]
    found = shapes(texts, CLASSIFICATION, batch_size=6, epochs=2, seed=4)
    assert found == {shape: made.count(shape) for shape in made}
    assert set(shapes(texts, CLASSIFICATION, batch_size=6, packing=False)) <= {(6, 16), (6, 32), (6, 64)}


def test_steps_shards_and_early_ends():
    texts = tags(*[10] * 7)
    found = training_shapes(CONFIG, FinetuneConfig(batch_size=2, epochs=0, steps=5), texts, TAGGING)
    assert found == {(2, 16): 5}
    assert shapes(texts, batch_size=2, steps=3) == {(2, 16): 3}
    assert shapes(texts, row_shards=8, batch_size=2, epochs=1) == {(8, 16): 4}
    assert prediction_shapes(CONFIG, tags(*[10] * 70), TAGGING) == {(64, 16): 2}
    assert prediction_shapes(CONFIG, tags(*[10] * 70, 40), TAGGING) == {(64, 16): 2, (64, 64): 1}


def test_packed_prediction_has_fewer_rows():
    """80 texts of 8 tokens: 8 in a row of 64, 10 rows, filled up to the 16 that a CPU reads at once."""
    assert prediction_shapes(CONFIG, encoded(*[8] * 80), CLASSIFICATION) == {(16, 64): 1}
    assert prediction_shapes(CONFIG, encoded(*[8] * 600), CLASSIFICATION) == {(16, 64): 5}
    assert prediction_shapes(CONFIG, encoded(*[8] * 600), CLASSIFICATION, 1, 8) == {(8, 64): 10}


def test_what_a_way_passes():
    assert [passes(FinetuneConfig(way=way), 4) for way in ("full", "lora", "head", "probe")] == [3, 3, 1, 1]
    assert passes(FinetuneConfig(way="top", top_layers=1), 4) == 1.5
    assert passes(FinetuneConfig(way="top", top_layers=4), 4) == 3
    texts = encoded(*[10] * 70)
    probe = cost(CONFIG, FinetuneConfig(way="probe"), texts, texts, CLASSIFICATION)
    assert probe.training_flops == probe.prediction_flops, "a probe reads each text once"


def test_the_read_out_is_not_counted():
    """The task's head takes the place of the vocabulary's."""
    texts = encoded(4, 4)
    big = zoo.create("bert-tiny", embed_dim=8, num_heads=2, num_layers=2, mlp_dim=32, max_positions=64, vocab_size=9999)
    arguments = (FinetuneConfig(), texts, texts, CLASSIFICATION)
    assert cost(CONFIG, *arguments) == cost(big.config, *arguments)
