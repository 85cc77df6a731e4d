"""Prediction gives each example its logits, whatever the batch size, the padding and the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval import made_up, metrics
from eval.encode import encode
from eval.finetune import FinetuneConfig, with_task_head
from eval.predict import data_parallel, evaluate, predict, predict_encoded
from eval.tasks import Example
from zoo import InputError

CONFIG = FinetuneConfig(max_length=32, seed=5)


@pytest.fixture(scope="module")
def network(bert):
    """A classifier of 2 classes whose logits differ from text to text."""
    model, params = with_task_head(*bert, CONFIG, 2)
    return model, jax.tree.map(lambda leaf: 3 * leaf, params)


def test_logits_are_those_of_each_text_by_itself(topics, network, tokenizer, one):
    model, params = network
    logits = predict(model, params, tokenizer, topics.test, batch_size=8, max_length=32, devices=one)
    assert logits.shape == (83, 2) and logits.dtype == np.float32
    for number in (0, 41, 82):
        ids, types = tokenizer.frame(tokenizer.encode(topics.test[number].text_a), max_length=32)
        alone = model.apply(params, jnp.asarray([ids]), token_types=jnp.asarray([types])).logits[0]
        np.testing.assert_allclose(logits[number], alone, atol=1e-5)


@pytest.fixture(scope="module")
def many(network, tokenizer, one):
    """1,043 examples, encoded, and their logits in batches of 32."""
    encoded = encode(made_up.splits(test=1043, topics=2, signal=0.6).test, tokenizer, network[0].config, 16)
    return encoded, predict_encoded(*network, encoded, batch_size=32, devices=one)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("batch_size", [1, 8, 32, 1043])
def test_no_batch_size_and_no_number_of_devices_changes_the_metric(many, network, batch_size, devices):
    """1,043 rows leave a last batch that is short at 8 and at 32, and that 8 devices cannot share evenly."""
    encoded, logits = many
    found = evaluate(*network, encoded, batch_size=batch_size, devices=jax.devices()[:devices])
    np.testing.assert_allclose(found.logits, logits, atol=1e-5)
    assert found.scores["accuracy"] == np.sum(logits.argmax(axis=1) == encoded.labels) / 1043


def test_parameters_lie_whole_on_each_device(network):
    """A mesh that splits them, as pre-training's does unasked, would send each layer's weights for every batch."""
    driver = data_parallel(jax.devices()[:8])
    assert dict(driver.mesh.shape) == {"data": 8} and driver.row_shards == 8
    placed = driver.init(lambda: network[0].init(jax.random.key(0)))
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(placed))


def test_the_segments_of_a_pair_reach_the_model(network, tokenizer, one):
    model, params = network
    logits = predict(model, params, tokenizer, [Example("harbor tide", "oven", 0)], max_length=32, devices=one)[0]
    ids, types = tokenizer.frame(tokenizer.encode("harbor tide"), tokenizer.encode("oven"))
    tokens, types = jnp.asarray([ids]), jnp.asarray([types])
    np.testing.assert_allclose(logits, model.apply(params, tokens, token_types=types).logits[0], atol=1e-5)
    assert np.abs(logits - model.apply(params, tokens).logits[0]).max() > 1e-3


def test_the_scores_are_sums_divided_once(topics, network, tokenizer, one):
    encoded = encode(topics.test, tokenizer, network[0].config, 32)
    found = evaluate(*network, encoded, batch_size=16, devices=one)
    log_p = jax.nn.log_softmax(found.logits.astype(np.float64))
    assert found.loss == pytest.approx(-np.mean([log_p[i, e.label] for i, e in enumerate(topics.test)]), abs=1e-6)
    counts = metrics.confusion(found.logits.argmax(axis=1), encoded.labels, 2)
    assert found.scores == {"accuracy": metrics.accuracy(counts), "macro_f1": metrics.macro_f1(counts)}


def test_other_heads_are_refused(bert, topics, tokenizer, one):
    with pytest.raises(InputError, match='prediction needs head "classifier", and this model has "lm": fine-tune it'):
        predict(*bert, tokenizer, topics.test, max_length=32, devices=one)
