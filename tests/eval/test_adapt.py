"""Every way behind one face: the best parameters are kept, classes are weighed, labels are never read as input."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.adapt import adapt, told
from eval.encode import collate, encode
from eval.finetune import FinetuneConfig, with_task_head
from eval.kinds import CLASSIFICATION, REGRESSION, Evaluation
from eval.kinds.classification import loss
from eval.predict import NotFiniteError, evaluate
from eval.ways import selection
from eval.ways.class_weights import weighed
from eval.ways.selection import Selection
from zoo import InputError

CONFIG = FinetuneConfig(learning_rate=3e-3, epochs=3, max_length=32, select="best")


class Scripted:
    """Stands in for eval.predict.evaluate: these scores in turn, and copies of the parameters that it was shown."""

    def __init__(self, scores, name="accuracy"):
        self.scores, self.name, self.shown = list(scores), name, []

    def __call__(self, model, params, encoded, names, **options):
        self.shown.append(jax.tree.map(np.asarray, params))
        value = self.scores[len(self.shown) - 1]
        return Evaluation(None, None, value, {} if self.name == "loss" else {self.name: value})


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize(
    ("scores", "metric", "best", "looks"),
    [
        ([0.5, 0.9, 0.7], "accuracy", 1, 3),
        ([0.9, 0.9, 0.9], "accuracy", 0, 3),  # of equals the earlier
        ([0.9, 0.5, 0.4], "loss", 2, 3),  # less is better
        ([float("nan"), 0.2, 0.1], "accuracy", 1, 3),
        ([0.3, 0.2, 0.9], "accuracy", 0, 2),  # patience of 1 is at its end
    ],
)
@pytest.mark.parametrize("way", ["full", "lora"])
def test_the_best_parameters_are_restored_to_the_bit(
    scores, metric, best, looks, way, bert, topics, tokenizer, one, monkeypatch
):
    scripted = Scripted(scores, metric)
    monkeypatch.setattr(selection, "evaluate", scripted)
    config = CONFIG.replace(way=way, metric=metric, patience=0 if looks == 3 else 1)
    tuned = adapt(*bert, tokenizer, topics.train[:32], config, 2, validation=topics.validation, devices=one)
    assert len(scripted.shown) == looks == len(tuned.evaluations) == len(tuned.history)
    assert same(tuned.params, scripted.shown[best])
    assert not any(same(tuned.params, other) for i, other in enumerate(scripted.shown) if i != best)
    assert (tuned.chosen, tuned.chosen_step) == (best, 2 * (best + 1))
    assert f"kept epoch {best + 1}, step {2 * (best + 1)}: " in told(tuned)[-1]


def test_an_evaluation_that_is_not_finite_is_never_kept(bert, topics, tokenizer, one, monkeypatch):
    answers = iter([NotFiniteError("not finite"), 0.4, NotFiniteError("not finite")])

    def look(*given, **options):
        value = next(answers)
        if isinstance(value, Exception):
            raise value
        return Evaluation(None, None, value, {"accuracy": value})

    monkeypatch.setattr(selection, "evaluate", look)
    tuned = adapt(*bert, tokenizer, topics.train[:32], CONFIG, 2, validation=topics.validation, devices=one)
    assert tuned.chosen == 1 and [entry["accuracy"] for entry in tuned.evaluations] == [None, 0.4, None]
    assert [entry["loss"] for entry in tuned.evaluations] == [None, 0.4, None]
    answers = iter([NotFiniteError("outputs are not finite")] * 3)
    with pytest.raises(NotFiniteError, match="outputs are not finite"):
        adapt(*bert, tokenizer, topics.train[:32], CONFIG, 2, validation=topics.validation, devices=one)


def test_evaluations_between_epochs(bert, topics, tokenizer, one, monkeypatch):
    """Every 5th update of epochs of 2, and once more at the end where that is no 5th one."""
    monkeypatch.setattr(selection, "evaluate", Scripted([0.1, 0.2, 0.3]))
    config = CONFIG.replace(epochs=6, eval_every=5)
    tuned = adapt(*bert, tokenizer, topics.train[:32], config, 2, validation=topics.validation, devices=one)
    assert [(entry["step"], entry["epoch"]) for entry in tuned.evaluations] == [(5, 2), (10, 4), (12, 5)]
    assert (tuned.chosen, tuned.chosen_step) == (5, 12)


def test_validation_scores_are_those_of_the_parameters_kept(bert, topics, tokenizer, one):
    tuned = adapt(*bert, tokenizer, topics.train, CONFIG, 2, validation=topics.validation, devices=one)
    encoded = encode(topics.validation, tokenizer, bert[0].config, 32)
    found = evaluate(tuned.model, tuned.params, encoded, devices=one)
    kept = next(entry for entry in tuned.evaluations if entry["step"] == tuned.chosen_step)
    assert kept["accuracy"] == found.scores["accuracy"] == max(entry["accuracy"] for entry in tuned.evaluations)
    assert kept["loss"] == pytest.approx(found.loss)
    assert told(tuned)[0] == f"trained {tuned.trainable:,} of {tuned.total:,} parameters (100%)"


def test_what_cannot_be_selected_is_one_line(bert, topics, tokenizer, one):
    with pytest.raises(InputError, match='select "best" needs validation examples, and there are none'):
        adapt(*bert, tokenizer, topics.train, CONFIG, 2, validation=(), devices=one)
    with pytest.raises(InputError, match='no metric "acuracy" to select by; did you mean "accuracy"'):
        Selection(
            CONFIG.replace(metric="acuracy"), CLASSIFICATION, encode(topics.validation, tokenizer, bert[0].config, 32)
        )
    for change in ({"patience": 2}, {"eval_every": 3}, {"metric": "loss"}):
        with pytest.raises(
            InputError, match=f'{next(iter(change))} looks at validation examples: it needs select "best"'
        ):
            FinetuneConfig(**change)


def test_classes_weigh_what_they_are_told_to(bert, topics, tokenizer):
    """Balanced: every class counts the same; the loss is the weighted sum over the sum of weights."""
    examples = [e for e in topics.train[:24] if e.label == 0] + [e for e in topics.train[:6] if e.label == 1]
    encoded = encode(examples, tokenizer, bert[0].config, 32)
    balanced = weighed(encoded, CONFIG.replace(class_weights="balanced"), 2, CLASSIFICATION)
    assert balanced.label_weights.tolist() == [15 / 24] * 12 + [2.5] * 3 and balanced.label_weights.mean() == 1
    told_so = weighed(encoded, CONFIG.replace(class_weights="0.5,2"), 2, CLASSIFICATION)
    assert told_so.label_weights.tolist() == [0.5] * 12 + [2.0] * 3
    assert weighed(encoded, CONFIG, 2, CLASSIFICATION) is encoded
    model, params = with_task_head(*bert, CONFIG, 2)
    keys = jax.vmap(jax.random.key)(jnp.arange(16))
    (total, weight), _ = loss(model, params, collate(balanced, range(15), 16), keys, train=False)
    each = [float(loss(model, params, collate(encoded, [i], 16), keys, train=False)[0][0]) for i in (0, 14)]
    assert float(weight) == 15.0
    (first, _), _ = loss(model, params, collate(balanced, [0, 14], 16), keys, train=False)
    assert float(first) == pytest.approx(each[0] * 15 / 24 + each[1] * 2.5, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("balancd", 'class_weights is "balancd"; "balanced" or numbers'),
        ("1,-2", 'class_weights is "1,-2"'),
        ("0,0", 'class_weights is "0,0"'),
    ],
)
def test_odd_class_weights_are_one_line(words, line):
    with pytest.raises(InputError) as error:
        CONFIG.replace(class_weights=words)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_class_weights_that_do_not_fit_are_refused(bert, topics, tokenizer):
    encoded = encode(topics.train[:4], tokenizer, bert[0].config, 32)
    with pytest.raises(InputError, match="class_weights has 3 numbers; this task has 2 classes"):
        weighed(encoded, CONFIG.replace(class_weights="1,2,3"), 2, CLASSIFICATION)
    with pytest.raises(InputError, match="class_weights are for tasks of classes, and this one is of regression"):
        weighed(encoded, CONFIG.replace(class_weights="balanced"), 1, REGRESSION)


def test_labels_are_never_in_the_input(bert, topics, tokenizer):
    """Whatever the labels, every array that a model reads is the same."""
    flipped = [replace(e, label=1 - e.label) for e in topics.train[:40]]
    batches = [
        collate(encode(examples, tokenizer, bert[0].config, 32), range(16), 16) for examples in (topics.train, flipped)
    ]
    assert not np.array_equal(batches[0]["labels"], batches[1]["labels"])
    for name in batches[0].keys() - {"labels"}:
        assert np.array_equal(batches[0][name], batches[1][name]), name


@pytest.mark.parametrize("way", ["head", "lora"])
def test_shuffled_labels_score_chance_in_every_way(way, bert, topics, tokenizer, one, rng):
    labels = rng.permutation([example.label for example in topics.train])
    shuffled = [replace(e, label=int(label)) for e, label in zip(topics.train, labels, strict=True)]
    config = FinetuneConfig(way=way, learning_rate=3e-3, epochs=4, max_length=32, lora_targets=("all",))
    tuned = adapt(*bert, tokenizer, shuffled, config, 2, devices=one)
    found = evaluate(tuned.model, tuned.params, encode(topics.test, tokenizer, bert[0].config, 32), devices=one)
    assert 0.3 < found.scores["accuracy"] < 0.7


@pytest.mark.parametrize("way", ["probe", "head", "lora", "top"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_every_way_reads_every_pooling(way, pooling, bert, gpt, topics, tokenizer, one):
    """The first, the mean, the last token of an encoder; the last of a decoder, whose first sees nothing."""
    config = FinetuneConfig(way=way, learning_rate=3e-3, epochs=0, steps=2, max_length=16, pooling=pooling, lora_rank=2)
    network = gpt if pooling == "last" else bert
    tuned = adapt(*network, tokenizer, topics.train[:16], config, 2, devices=one)
    assert tuned.model.config.pooling == pooling and tuned.model.config.head == "classifier"
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tuned.params))
