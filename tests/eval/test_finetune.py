"""Fine-tuning learns what can be learnt, is decided by its seed, pairs its arms, and compiles once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from eval import finetune as tuning
from eval.encode import encode
from eval.finetune import FinetuneConfig, finetune, random_start, with_task_head
from eval.kinds.classification import loss as classification
from eval.predict import evaluate
from eval.ways.planned_rate import make_plan, planned_rate
from train.config import TrainConfig
from train.schedule import make_schedule
from zoo import InputError
from zoo.layer_config import Int8

CONFIG = FinetuneConfig(learning_rate=3e-3, epochs=6, max_length=32, dropout=0.1)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


@pytest.fixture(scope="module")
def tuned(bert, topics, tokenizer):
    """One run, shared by the tests that only look at it."""
    return finetune(*bert, tokenizer, topics.train, CONFIG, 2, devices=jax.devices()[:1])


def scores(network, topics, tokenizer, one):
    return evaluate(
        network.model, network.params, encode(topics.test, tokenizer, network.model.config, 32), devices=one
    )


def test_a_separable_task_is_learnt(tuned, topics, tokenizer, one):
    assert scores(tuned, topics, tokenizer, one).scores["accuracy"] > 0.9
    assert [entry["step"] for entry in tuned.history] == [10, 20, 30, 40, 50, 60]
    assert tuned.history[0]["loss"] > 0.5 > 0.25 > tuned.history[-1]["loss"]
    assert tuned.model.config.head == "classifier" and tuned.model.config.pooling == "mean"


def test_int8_weights_are_not_trained(bert, topics, tokenizer):
    model, params = bert
    with pytest.raises(InputError, match="^fine-tuning needs float weights, and these are int8: take"):
        finetune(zoo.create(model.config.replace(int8=Int8())), params, tokenizer, topics.train, CONFIG, 2)


def test_shuffled_labels_score_chance(bert, topics, tokenizer, one, rng):
    labels = rng.permutation([example.label for example in topics.train])
    shuffled = [replace(e, label=int(label)) for e, label in zip(topics.train, labels, strict=True)]
    network = finetune(*bert, tokenizer, shuffled, CONFIG, 2, devices=one)
    assert 0.3 < scores(network, topics, tokenizer, one).scores["accuracy"] < 0.7


def test_decoders_learn_from_their_last_token(gpt, topics, tokenizer, one):
    network = finetune(*gpt, tokenizer, topics.train, CONFIG, 2, devices=one)
    assert network.model.config.pooling == "last"
    assert scores(network, topics, tokenizer, one).scores["accuracy"] > 0.9


def test_the_seed_decides_everything(bert, topics, tokenizer, one, tuned):
    again = finetune(*bert, tokenizer, topics.train, CONFIG, 2, devices=one)
    assert same(again.params, tuned.params) and again.history == tuned.history
    other = finetune(*bert, tokenizer, topics.train, CONFIG.replace(seed=1, epochs=1), 2, devices=one)
    assert other.history[0]["loss"] != tuned.history[0]["loss"]


def test_the_backbone_given_is_left_as_it_was(bert, topics, tokenizer, one, tuned):
    model, params = bert
    assert same(params, model.init(jax.random.key(0)))
    assert not same(tuned.params["embed"], params["embed"])


def test_both_arms_share_the_head_and_the_order(bert, topics, tokenizer, one, monkeypatch):
    model, pretrained = bert
    config = CONFIG.replace(seed=7, epochs=1)
    start = random_start(model, 7)
    assert not same(start["embed"], pretrained["embed"])
    heads = [with_task_head(model, params, config, 2)[1]["classifier"] for params in (pretrained, start)]
    assert same(*heads) and np.abs(heads[0]["kernel"]).sum() > 0
    assert not same(heads[0], with_task_head(model, start, config.replace(seed=8), 2)[1]["classifier"])
    seen = []
    real = tuning.pack
    monkeypatch.setattr(
        tuning, "pack", lambda encoded, rows, *shape: seen.append(rows.tolist()) or real(encoded, rows, *shape)
    )
    for params in (pretrained, start):
        finetune(model, params, tokenizer, topics.train, config, 2, devices=one)
    assert len(seen) == 20 and seen[:10] == seen[10:]


def test_one_program_serves_seeds_rates_lengths_of_run_and_budgets(bert, topics, tokenizer, one):
    model, _ = with_task_head(*bert, CONFIG, 2)
    static = tuning.Recipe.of(CONFIG)
    step, _ = tuning._compiled(model, static, tuning.data_parallel(one))
    before = step._cache_size()
    assert before <= 2  # rows of 16 and of 32 tokens
    for change in (
        {"learning_rate": 1e-4},
        {"seed": 3},
        {"steps": 13},
        {"schedule": "constant"},
        {"warmup_fraction": 0.5},
    ):
        finetune(*bert, tokenizer, topics.train[:48], CONFIG.replace(epochs=1, **change), 2, devices=one)
    assert tuning._compiled(model, static, tuning.data_parallel(one))[0] is step
    assert step._cache_size() == before


@pytest.mark.parametrize("schedule", ["linear", "constant"])
@pytest.mark.parametrize("total, fraction", [(40, 0.1), (10, 0.0), (1, 0.1), (7, 0.5)])
def test_the_planned_rate_is_the_schedule_of_training(schedule, total, fraction):
    plan = make_plan(3e-4, total, fraction, schedule)
    config = TrainConfig(
        steps=total,
        learning_rate=3e-4,
        schedule=schedule,
        warmup_steps=min(round(fraction * total), total - 1),
        final_fraction=0.0,
    )
    counts = jnp.arange(total + 2)
    expected = jax.vmap(make_schedule(config))(counts)
    np.testing.assert_allclose(jax.vmap(lambda n: planned_rate(plan, n))(counts), expected, atol=1e-10)


def test_the_rate_that_was_applied_is_the_planned_one(tuned):
    plan = make_plan(3e-3, 60)
    for entry in tuned.history:
        assert entry["learning_rate"] == pytest.approx(
            float(planned_rate(plan, jnp.int32(entry["step"] - 1))), rel=1e-5
        )


def test_eight_devices_give_what_one_gives(bert, topics, tokenizer, one):
    """With a rate this high Adam would hide a factor in the gradient, but not clipping with its norm, nor the loss."""
    config = CONFIG.replace(epochs=0, steps=6, dropout=0.1)
    alone = finetune(*bert, tokenizer, topics.train[:50], config, 2, devices=one)
    spread = finetune(*bert, tokenizer, topics.train[:50], config, 2, devices=jax.devices())
    assert len(jax.tree.leaves(spread.params)[0].sharding.device_set) == 8
    for a, b in zip(alone.history, spread.history, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5) and a["accuracy"] == b["accuracy"]
    for a, b in zip(leaves(alone.params), leaves(spread.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("way", ["lora", "head"])
def test_eight_devices_train_a_part_as_one_does(way, bert, topics, tokenizer, one):
    config = CONFIG.replace(way=way, epochs=0, steps=3, optimizer="sgd", learning_rate=0.1, layer_decay=0.9)
    alone = finetune(*bert, tokenizer, topics.train[:50], config, 2, devices=one)
    spread = finetune(*bert, tokenizer, topics.train[:50], config, 2, devices=jax.devices())
    for a, b in zip(leaves(alone.params), leaves(spread.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_objective_is_a_sum_with_its_weight(bert, tokenizer, topics):
    model, params = with_task_head(*bert, CONFIG, 2)
    encoded = encode(topics.test[:3], tokenizer, model.config, 32)
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    (total, weight), pairs = classification(model, params, tuning.collate(encoded, [0, 1, 2], 4), keys, train=False)
    found = evaluate(model, params, encoded, devices=jax.devices()[:1])
    assert float(weight) == 3.0 and float(total) == pytest.approx(3 * found.loss, rel=1e-5)
    assert float(pairs["accuracy"][0]) / 3 == pytest.approx(found.scores["accuracy"])


def test_a_head_of_equal_shape_is_left_behind(bert, tuned):
    """A checkpoint that was fine-tuned on another task of two classes begins this one with a fresh head."""
    fresh = with_task_head(*bert, CONFIG, 2)[1]["classifier"]
    assert same(with_task_head(tuned.model, tuned.params, CONFIG, 2)[1]["classifier"], fresh)
    assert not same(tuned.params["classifier"], fresh)


def test_cls_pooling_reads_through_the_pooler_where_there_is_one(bert):
    assert "pooler" not in with_task_head(*bert, CONFIG, 2)[1]
    model, params = with_task_head(*bert, CONFIG.replace(pooling="cls"), 2)
    assert model.config.pooler and same(params["pooler"], bert[1]["pooler"])


def test_dropout_none_keeps_the_checkpoints_own(bert):
    assert with_task_head(*bert, CONFIG.replace(dropout=None), 2)[0].config.dropout == bert[0].config.dropout
    changed = with_task_head(*bert, CONFIG.replace(dropout=0.25), 2)[0].config
    assert (changed.dropout, changed.embed_dropout, changed.attention_dropout, changed.head_dropout) == (0.25,) * 4


def test_a_loss_that_is_not_finite_stops_with_one_line(bert, topics, tokenizer, one):
    model, params = bert
    broken = params | {"embed": jax.tree.map(lambda leaf: leaf * jnp.nan, params["embed"])}
    with pytest.raises(
        InputError, match=r"the loss is not finite at step 1 of 60; lower the learning rate \(now 0.003\)"
    ):
        finetune(model, broken, tokenizer, topics.train, CONFIG, 2, devices=one)


def test_one_class_only_is_refused(bert, topics, tokenizer, one):
    sea = [example for example in topics.train if example.label == 0]
    with pytest.raises(InputError, match="80 labelled examples of one class only; two classes are needed"):
        finetune(*bert, tokenizer, sea, CONFIG, 2, devices=one)
    with pytest.raises(InputError, match="^1 labelled example of one class only; .* so two labels or more"):
        finetune(*bert, tokenizer, sea[:1], CONFIG, 2, devices=one)
    with pytest.raises(InputError, match="labels are 0 to 1; 1 classes are 0 to 0"):
        finetune(*bert, tokenizer, topics.train, CONFIG, 1, devices=one)


@pytest.mark.parametrize(
    "change, line",
    [
        ({"pooling": "men"}, 'pooling is "men"; did you mean "mean"?'),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be above 0"),
        ({"epochs": 0}, "epochs and steps are both 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"warmup_fraction": 1.0}, "warmup_fraction is 1.0"),
        ({"learning_rat": 1.0}, 'no field "learning_rat"; did you mean "learning_rate"?'),
    ],
)
def test_bad_settings_are_one_line(change, line):
    with pytest.raises(InputError) as error:
        CONFIG.replace(**change)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_the_config_survives_json():
    assert FinetuneConfig.from_dict(CONFIG.to_dict()) == CONFIG


def test_packed_training_is_the_unpacked_one(bert, tokenizer, topics, one):
    """The same examples in the same updates, in fewer rows: the same losses and parameters.

    Parameters to 1e-4, since Adam's first updates are the sign of the gradient, which rounding decides where it is 0.
    """
    config = CONFIG.replace(dropout=0.0, epochs=1)
    encoded = encode(topics.train[:48], tokenizer, bert[0].config, 32)
    packed = finetune(*bert, tokenizer, encoded, config, 2, devices=one)
    alone = tuning.training_order
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "training_order", lambda *given, by_length: alone(*given, by_length=False))
        apart = finetune(*bert, tokenizer, encoded, config.replace(packing=False), 2, devices=one)
    assert packed.history[0]["loss"] == pytest.approx(apart.history[0]["loss"], abs=1e-5)
    for a, b in zip(leaves(packed.params), leaves(apart.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
