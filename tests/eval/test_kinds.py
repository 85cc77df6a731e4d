"""Kinds of tasks: every one is known by its name, and ratings stay the numbers that they are."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval import finetune as tuning
from eval import kinds
from eval.encode import collate
from eval.finetune import FinetuneConfig, with_task_head
from eval.kinds import REGRESSION, regression
from eval.predict import evaluate, predict
from zoo import InputError

CONFIG = FinetuneConfig(learning_rate=3e-3, epochs=6, max_length=32, dropout=0.1)


def rated(examples):
    return [replace(e, label=0.25 + 4.5 * e.label) for e in examples]


def test_a_kind_is_found_by_its_name():
    class Task:
        kind = "regresion"

    with pytest.raises(InputError, match='no kind of task "regresion"; did you mean "regression"?'):
        kinds.of(Task())
    for name, kind in kinds.KINDS.items():
        assert kind.name == name and hash(kind) == hash(replace(kind))


def test_ratings_stay_floating_point_numbers(bert, tokenizer, topics):
    """A label of 2.75 is 2.75 and not 2: what came of a cast to whole numbers."""
    model, params = with_task_head(*bert, CONFIG, 2, kind=REGRESSION)
    assert model.config.num_labels == 1 and model.config.label_names == ()
    examples = rated(topics.test[:3])
    encoded = REGRESSION.encode(examples, tokenizer, model.config, 32)
    assert encoded.labels.dtype == np.float32
    assert encoded.labels.tolist() == [e.label for e in examples]
    batch = collate(encoded, [0, 1, 2], 4)
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    (total, weight), pairs = regression.loss(model, params, batch, keys, train=False)
    ratings = predict(model, params, tokenizer, examples, max_length=32, kind=REGRESSION, devices=jax.devices()[:1])
    assert ratings.shape == (3,)
    assert float(weight) == 3.0
    squares = [(rating - example.label) ** 2 for rating, example in zip(ratings, examples, strict=True)]
    assert float(total) == pytest.approx(sum(squares), rel=1e-5)


def test_a_column_of_labels_is_refused(bert, tokenizer, topics):
    """(B,) against (B,1) would broadcast to B x B and train on nonsense."""
    model, params = with_task_head(*bert, CONFIG, 2, kind=REGRESSION)
    batch = collate(REGRESSION.encode(rated(topics.test[:4]), tokenizer, model.config, 32), [0, 1, 2, 3], 4)
    batch["labels"] = batch["labels"][:, None]
    with pytest.raises(InputError, match=r"outputs have shape \(4,\) and labels \(4, 1\)"):
        regression.loss(model, params, batch, jax.vmap(jax.random.key)(jnp.arange(4)))


def test_a_rating_that_is_no_number_is_named(tokenizer, bert, topics):
    examples = [*rated(topics.test[:2]), replace(topics.test[2], label=float("nan"))]
    with pytest.raises(InputError, match="example 2 has no finite number as its label"):
        REGRESSION.encode(examples, tokenizer, bert[0].config, 32)
    with pytest.raises(InputError, match="example 1 has a rating too large to learn as its label: 1e\\+16"):
        REGRESSION.encode([examples[0], replace(examples[1], label=1e16)], tokenizer, bert[0].config, 32)


def test_regression_learns(bert, tokenizer, topics, one):
    tuned = tuning.finetune(
        *bert, tokenizer, rated(topics.train), CONFIG.replace(epochs=12), 1, kind=REGRESSION, devices=one
    )
    encoded = REGRESSION.encode(rated(topics.test), tokenizer, tuned.model.config, 32)
    found = evaluate(tuned.model, tuned.params, encoded, ("pearson",), kind=REGRESSION, devices=one)
    assert found.scores["pearson"] > 0.8
    assert tuned.history[-1]["loss"] < 0.5 * tuned.history[0]["loss"]
