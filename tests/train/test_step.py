"""The pure step: accumulation, empty batches, a loss that is not finite, and the two faults of next-token loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from train.config import TrainConfig
from train.corruption import Vocabulary
from train.cross_entropy import LossOptions, chunked_cross_entropy
from train.objectives import Objective, masked_lm, masked_lm_weights, next_token
from train.optimizer import make_optimizer
from train.state import initial_state
from train.step import make_train_step

V = 23
GPT = zoo.ModelConfig(vocab_size=V, embed_dim=16, num_layers=1, num_heads=2, max_positions=16)
BERT = GPT.replace(visibility="full", head="masked_lm", pooler=True, next_sentence=True, token_types=2, dropout=0.1)
VOCABULARY = Vocabulary(V, 6, (0, 1, 2, 3, 4, 5, 6))
PAIRS = Objective(
    partial(masked_lm, vocabulary=VOCABULARY, rate=0.3, next_sentence=True),
    partial(masked_lm_weights, vocabulary=VOCABULARY, rate=0.3),
)
SGD = TrainConfig(steps=10, optimizer="sgd", learning_rate=0.5, schedule="constant", clip_norm=None)


def uneven_batch(rows=8, length=12, seed=0):
    """Rows of 1 to `length` real tokens in one or two documents, labels of pairs present in some rows alone."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, rows)
    index = np.arange(length)
    segments = np.where(index < lengths[:, None], 1 + (index > lengths[:, None] // 2), 0).astype(np.int32)
    tokens = np.where(segments > 0, rng.integers(7, V, (rows, length)), 0).astype(np.int32)
    return {
        "tokens": tokens,
        "segment_ids": segments,
        "row_ids": np.arange(rows, dtype=np.int32),
        "token_types": (segments == 2).astype(np.int32),
        "next_sentence": rng.integers(-1, 2, rows).astype(np.int32),
    }


def prepared(model_config, objective, config=SGD):
    model = zoo.create(model_config)
    optimizer = make_optimizer(config)
    state = jax.jit(initial_state(model.init, optimizer, 0))()
    return state, jax.jit(make_train_step(model, objective, optimizer, config))


def close(a, b, tolerance=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


@pytest.mark.parametrize("name,objective", [("gpt", next_token), ("bert", PAIRS)])
def test_accumulation_changes_nothing(name, objective):
    config = {"gpt": GPT.replace(dropout=0.1), "bert": BERT}[name]
    batch = uneven_batch()
    results = []
    for count in (1, 4):
        state, step = prepared(config, objective, SGD.replace(batch_size=8, accumulate=count))
        results.append(step(state, batch))
    (one, one_metrics), (four, four_metrics) = results
    close(one.params, four.params)
    close(one_metrics, four_metrics, 1e-5)
    if name == "bert":  # each term is divided by its own weight
        masked, pairs = one_metrics["masked_lm_loss"], one_metrics["next_sentence_loss"]
        assert float(pairs[1]) == (batch["next_sentence"] >= 0).sum()
        np.testing.assert_allclose(one_metrics["loss"][0], masked[0] / masked[1] + pairs[0] / pairs[1], rtol=1e-6)
        assert float(one_metrics["loss"][1]) == 1.0


@pytest.mark.parametrize("name,objective", [("gpt", next_token), ("bert", PAIRS)])
def test_a_batch_without_a_target_gives_loss_and_gradient_zero(name, objective):
    state, step = prepared({"gpt": GPT, "bert": BERT}[name], objective)
    batch = uneven_batch()
    batch = batch | {"segment_ids": 0 * batch["segment_ids"], "next_sentence": np.full(8, -1, np.int32)}
    after, metrics = step(state, batch)
    assert float(metrics["loss"][0]) == 0.0 and float(metrics["grad_norm"]) == 0.0 and bool(metrics["finite"])
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    assert int(after.step) == 1


def test_which_positions_count():
    """W9: ids [BOS, A, B, C, EOS] give four losses; a document's first token and padding give none."""
    model = zoo.create(GPT)
    params = model.init(jax.random.key(0))
    tokens = jnp.array([[2, 10, 11, 12, 3], [2, 10, 3, 2, 3], [2, 10, 3, 0, 0]])
    segments = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 2, 2], [1, 1, 1, 0, 0]])
    keys = jax.random.split(jax.random.key(0), 3)

    loss = partial(next_token, model, params)
    weights = [
        float(loss({"tokens": tokens[i : i + 1], "segment_ids": segments[i : i + 1]}, keys[:1], train=False)[0][1])
        for i in range(3)
    ]
    assert weights == [4.0, 3.0, 2.0]
    (total, _), _ = loss({"tokens": tokens[:1], "segment_ids": segments[:1]}, keys[:1], train=False)
    log_p = jax.nn.log_softmax(model.apply(params, tokens[:1, :-1]).logits[0])
    np.testing.assert_allclose(total, -sum(log_p[i, label] for i, label in enumerate((10, 11, 12, 3))), rtol=1e-5)


def test_a_non_finite_step_leaves_the_state_as_it_was():
    def objective(model, params, batch, keys):
        total, metrics = next_token(model, params, batch, keys)
        return (total[0] * batch["factor"][0], total[1]), metrics

    state, step = prepared(GPT, objective)
    good = uneven_batch() | {"factor": np.ones(8, np.float32)}
    bad = good | {"factor": np.full(8, np.inf, np.float32)}
    state, metrics = step(state, good)
    assert bool(metrics["finite"])
    after, metrics = step(state, bad)
    assert not bool(metrics["finite"])
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_bf16_compute_keeps_float32_parameters_loss_and_gradients():
    results = []
    for dtype in ("float32", "bfloat16"):
        state, step = prepared(GPT.replace(dtype=dtype), next_token)
        after, metrics = step(state, uneven_batch())
        assert {str(x.dtype) for x in jax.tree.leaves(after.params)} == {"float32"}
        assert metrics["loss"][0].dtype == jnp.float32
        results.append(float(metrics["loss"][0] / metrics["loss"][1]))
    # bf16 keeps 8 bits: activations are off by up to 2^-8 of their size, and so is the loss.
    assert abs(results[0] - results[1]) < 1e-2 * results[0]
    assert results[0] != results[1]


def no_shift(model, params, batch, keys):
    """The fault: the inputs are their own labels."""
    tokens, segments = batch["tokens"][:, :-1], batch["segment_ids"][:, :-1]
    hidden = model.apply(params, tokens, segment_ids=segments).hidden
    weights = jnp.ones(tokens.shape)
    return (chunked_cross_entropy(model, params, hidden, tokens, weights, LossOptions())[0], jnp.sum(weights)), {}


@pytest.mark.parametrize(
    "fault,model_config,objective",
    [
        (None, GPT, next_token),
        ("no causal mask", GPT.replace(visibility="full"), next_token),
        ("no label shift", GPT, no_shift),
    ],
    ids=["right", "no_mask", "no_shift"],
)
def test_a_missing_mask_and_a_missing_shift_each_make_the_loss_collapse(fault, model_config, objective):
    """On independent uniform ids no honest next-token model can beat log 16 = 2.77; a model that sees its label can."""
    config = TrainConfig(steps=300, learning_rate=1e-2, schedule="constant", weight_decay=0.0)
    model = zoo.create(model_config)
    optimizer = make_optimizer(config)
    state = jax.jit(initial_state(model.init, optimizer, 0))()
    step = make_train_step(model, objective, optimizer, config)

    @jax.jit
    def run(state):
        def body(state, number):
            tokens = jax.random.randint(jax.random.fold_in(jax.random.key(9), number), (32, 7), 7, V)
            batch = {"tokens": tokens, "segment_ids": jnp.ones_like(tokens), "row_ids": jnp.arange(32)}
            state, metrics = step(state, batch)
            return state, metrics["loss"][0] / metrics["loss"][1]

        return jax.lax.scan(body, state, jnp.arange(300))[1]

    last = float(jnp.mean(run(state)[-10:]))
    bound = 0.97 * float(np.log(16))
    assert (last < 0.5 * bound) if fault else (bound < last < 1.05 * float(np.log(16))), last
