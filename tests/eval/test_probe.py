"""The closed form is ridge regression with its own left-out errors, and a probe is an ordinary classifier."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge

from eval import probe
from eval.adapt import adapt
from eval.encode import encode
from eval.finetune import FinetuneConfig, finetune, with_task_head
from eval.kinds import REGRESSION
from eval.predict import evaluate, predict_encoded
from zoo import InputError

CONFIG = FinetuneConfig(way="probe", max_length=32)


def problem(seed, examples, width, outputs):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(examples, width)) * draw.uniform(0.1, 5, width) + draw.normal(size=width)
    y = draw.normal(size=(examples, outputs)) + x[:, :1]
    return x, y, draw.uniform(0.2, 3, examples)


@given(
    examples=st.integers(3, 14), width=st.integers(1, 12), outputs=st.integers(1, 3), seed=st.integers(0, 99),
    strength=st.sampled_from([1e-3, 0.1, 1.0, 30.0]), weighted=st.booleans(),
)  # fmt: skip
def test_the_closed_form_is_scikit_learns(examples, width, outputs, seed, strength, weighted):
    """Kernel and bias of its Ridge on standardised features, and what it says of an example when fitted without it."""
    x, y, w = problem(seed, examples, width, outputs)
    w = w if weighted else np.ones(examples)
    found = probe.ridge(x, y, w if weighted else None, grid=(strength,))
    spread = np.sqrt(np.average((x - np.average(x, axis=0, weights=w)) ** 2, axis=0, weights=w))
    alpha = strength * w.sum()
    theirs = Ridge(alpha=alpha, solver="svd").fit(x / spread, y, sample_weight=w)
    np.testing.assert_allclose(x @ found.kernel + found.bias, theirs.predict(x / spread).reshape(y.shape), atol=1e-8)
    np.testing.assert_allclose(found.kernel, (theirs.coef_.reshape(outputs, width) / spread).T, atol=1e-8)
    for i in range(examples):
        rest = np.arange(examples) != i
        without = Ridge(alpha=alpha, solver="svd").fit(x[rest] / spread, y[rest], sample_weight=w[rest])
        left_out = without.predict(x[i : i + 1] / spread).ravel()
        np.testing.assert_allclose(found.left_out[i], left_out, atol=1e-7)
    errors = ((y - found.left_out) ** 2).sum(axis=1)
    assert found.error == pytest.approx(np.average(errors, weights=w))


def test_the_strength_is_the_one_with_the_least_left_out_error():
    x, y, _ = problem(3, 40, 30, 2)
    chosen = probe.ridge(x, y)
    errors = {strength: probe.ridge(x, y, grid=(strength,)).error for strength in probe.GRID}
    assert chosen.strength == min(errors, key=errors.get) and probe.GRID[0] < chosen.strength < probe.GRID[-1]
    assert chosen.error == errors[chosen.strength]


def test_features_that_tell_nothing_change_nothing():
    x, y, _ = problem(4, 20, 5, 1)
    constant = np.concatenate([x, np.full((20, 1), 7.0)], axis=1)
    found, plain = probe.ridge(constant, y), probe.ridge(x, y)
    assert found.kernel[5] == 0
    np.testing.assert_allclose(found.kernel[:5], plain.kernel, atol=1e-12)
    with pytest.raises(InputError, match="the features of the frozen model are not finite"):
        probe.ridge(x * np.nan, y)
    with pytest.raises(InputError, match="a probe needs two examples or more, and there are 1"):
        probe.ridge(x[:1], y[:1])


@given(seed=st.integers(0, 99), classes=st.integers(2, 4))
def test_sharpness_is_where_the_labels_are_likeliest(seed, classes):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, 60)
    scores = np.eye(classes)[labels] * draw.uniform(0, 1) + draw.normal(size=(60, classes)) * 0.4
    found = probe.sharpness(scores, labels)

    def loss(t):
        return np.mean(np.log(np.exp(t * scores).sum(axis=1)) - t * scores[np.arange(60), labels])

    assert loss(found) <= min(loss(t) for t in np.linspace(probe.BLUNTEST, probe.SHARPEST, 400)) + 1e-6


@pytest.fixture(scope="module", params=["bert", "gpt", "bert-cls"])
def probed(request, topics, tokenizer):
    """A probe of an encoder's mean, a decoder's last token, an encoder's pooler."""
    network = request.getfixturevalue(request.param.split("-")[0])
    config = CONFIG.replace(pooling="cls" if "cls" in request.param else "auto")
    return network, adapt(
        *network, tokenizer, topics.train, config, 2, label_names=("a", "b"), devices=jax.devices()[:1]
    )


def test_a_probe_is_an_ordinary_classifier(probed, topics, tokenizer, one):
    (model, params), tuned = probed
    encoded = encode(topics.test, tokenizer, model.config, 32)
    features = probe.features(tuned.model, tuned.params, encoded, devices=one)
    logits = predict_encoded(tuned.model, tuned.params, encoded, devices=one)
    head = tuned.params["classifier"]
    kernel, bias = (np.asarray(head[name], np.float64) for name in ("kernel", "bias"))
    rounding = 2.0**-22 * (np.abs(features) @ np.abs(kernel) + np.abs(bias))  # of float32 terms that nearly cancel
    assert (np.abs(logits - (features @ kernel + bias)) <= rounding).all()
    found = evaluate(tuned.model, tuned.params, encoded, devices=one)
    # A decoder's last token of random weights tells less of its text than an encoder's mean does.
    assert found.scores["accuracy"] > (0.9 if model.config.visibility == "full" else 0.65) and found.loss < 0.65
    assert tuned.model.config.label_names == ("a", "b") and tuned.history == () and tuned.chosen == -1
    assert tuned.trainable == 2 * 32 + 2 and tuned.total > 100 * tuned.trainable
    for name in params.keys() & tuned.params.keys():
        assert all(a is b for a, b in zip(*map(jax.tree.leaves, (params[name], tuned.params[name])), strict=True))


def test_a_probe_of_shuffled_labels_scores_chance(bert, topics, tokenizer, one, rng):
    labels = rng.permutation([example.label for example in topics.train])
    shuffled = [replace(e, label=int(label)) for e, label in zip(topics.train, labels, strict=True)]
    tuned = adapt(*bert, tokenizer, shuffled, CONFIG, 2, devices=one)
    found = evaluate(tuned.model, tuned.params, encode(topics.test, tokenizer, bert[0].config, 32), devices=one)
    assert 0.3 < found.scores["accuracy"] < 0.7 and found.loss > 0.6


def test_ratings_are_probed_in_their_own_scale(bert, topics, tokenizer, one):
    rated = [replace(e, label=0.25 + 4.5 * e.label) for e in topics.train]
    tuned = adapt(*bert, tokenizer, rated, CONFIG, 1, kind=REGRESSION, devices=one)
    encoded = REGRESSION.encode(rated, tokenizer, bert[0].config, 32)
    found = evaluate(
        tuned.model, tuned.params, encoded, ("pearson", "mean_absolute_error"), kind=REGRESSION, devices=one
    )
    assert found.scores["pearson"] > 0.9 and found.scores["mean_absolute_error"] < 1
    assert np.mean(found.outputs) == pytest.approx(np.mean(encoded.labels), abs=1e-3)


def test_the_head_by_steps_comes_to_the_logistic_optimum(bert, topics, tokenizer, one, rng):
    """Labels at random, so that the optimum is finite: the loss of scikit-learn's solution without a penalty."""
    labels = rng.integers(0, 2, len(topics.train))
    examples = [replace(e, label=int(label)) for e, label in zip(topics.train, labels, strict=True)]
    config = FinetuneConfig(
        way="head", learning_rate=2.0, epochs=0, steps=300, batch_size=160, dropout=0.0, weight_decay=0.0,
        clip_norm=0.0, max_length=32, warmup_fraction=0.0,
    )  # fmt: skip
    tuned = finetune(*bert, tokenizer, examples, config, 2, devices=one)
    encoded = encode(examples, tokenizer, bert[0].config, 32)
    x = probe.features(tuned.model, tuned.params, encoded, devices=one).astype(np.float64)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    theirs = LogisticRegression(C=np.inf, max_iter=10_000, tol=1e-8).fit(x, labels)
    optimum = -np.mean(theirs.predict_log_proba(x)[np.arange(len(labels)), labels])
    ours = evaluate(tuned.model, tuned.params, encoded, devices=one).loss
    assert optimum < 0.65 and optimum - 1e-4 < ours < optimum + 0.005
    assert tuned.history[0]["loss"] > 0.68


def test_kinds_without_one_vector_a_text_are_refused(bert, topics, tokenizer):
    model, params = with_task_head(*bert, CONFIG, 2)
    kind = replace(REGRESSION, name="tagging")
    with pytest.raises(InputError, match='way "probe" is for tasks of classes and ratings, and this is one of tagging'):
        probe.fit(model, params, encode(topics.train[:4], tokenizer, model.config, 32), kind)
    with pytest.raises(InputError, match='way "probe" has none'):
        adapt(*bert, tokenizer, topics.train, CONFIG.replace(select="best"), 2, validation=topics.validation)
    with pytest.raises(InputError, match="use eval.adapt.adapt"):
        finetune(*bert, tokenizer, topics.train, CONFIG, 2)


def test_class_weights_count_in_the_closed_form(bert, topics, tokenizer, one):
    """Weight 0 for a class is the probe of the others; twice the weight is the example twice."""
    model, params = with_task_head(*bert, CONFIG, 2)
    few = encode(topics.train[:24], tokenizer, model.config, 32)
    twice = encode([*topics.train[:24], *topics.train[:12]], tokenizer, model.config, 32)
    heavy = replace(few, label_weights=np.r_[np.full(12, 2.0), np.ones(12)].astype(np.float32))
    x, y = (probe.features(model, params, part, devices=one) for part in (few, twice))
    first = probe.ridge(x, np.eye(2)[few.labels], heavy.label_weights, grid=(0.1,))
    second = probe.ridge(y, np.eye(2)[twice.labels], grid=(0.1,))
    np.testing.assert_allclose(first.kernel, second.kernel, atol=1e-5)
    assert jnp.isfinite(first.error)
