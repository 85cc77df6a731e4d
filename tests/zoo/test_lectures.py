"""The lectures' worked examples W1 to W18 with their values, and three facts of the block, by the project's code."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from train import objectives
from train.config import TrainConfig
from train.cross_entropy import cross_entropy
from zoo import by_hand, forward
from zoo.attention import attend, masked_softmax
from zoo.baselines import bigram
from zoo.block import Attention, Call
from zoo.embedding import look_up
from zoo.layer_config import LayerConfig
from zoo.masks import Mask, causal_mask, materialise

THREE_DIGITS = {"rtol": 0, "atol": 5.1e-4}  # the lectures give three digits


def near(actual, expected, atol=1e-6):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def normal(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def one_head(*rows):
    """[T, H] arrays as one row and one head, [1, T, 1, H]."""
    return tuple(jnp.asarray(x, jnp.float32)[None, :, None, :] for x in rows)


def small(name, **changes):
    sizes = dict(vocab_size=12, embed_dim=8, num_heads=2, num_layers=1, mlp_dim=16, max_positions=8)
    return zoo.create(name, **(sizes | changes))


def test_w01_softmax():
    scores = jnp.array([2.0, 1.0, 0.0])
    np.testing.assert_allclose(masked_softmax(scores, None), [0.665, 0.245, 0.090], **THREE_DIGITS)
    near(masked_softmax(scores, jnp.array([True, True, True])), masked_softmax(scores, None))


def test_w02_causal_mix_leaves_the_future_out():
    weights, values = jnp.array([[0.25, 0.75, 0.0]]), jnp.array([[1.0, 2], [3, 0], [9, 9]])
    for product in by_hand.PRODUCT_VIEWS.values():
        near(product(weights, values), [[2.5, 0.5]])
    # The same weights out of attend: scores of query 1 are log 1, log 3 and a large one that the mask hides.
    query, key, value = one_head([[1, 0]] * 3, [[0, 0], [np.log(3), 0], [50, 0]], values)
    out, given_weights = attend(query, key, value, mask=Mask(causal=True), scale=1.0, return_weights=True)
    near(given_weights[0, 0, 1], weights[0])
    near(out[0, 1, 0], [2.5, 0.5])
    assert given_weights[0, 0, 1, 2] == 0.0
    other, _ = attend(query, key, value.at[:, 2].set(1e9), mask=Mask(causal=True), scale=1.0)
    near(other[0, 1, 0], [2.5, 0.5])


def test_w03_weighted_values():
    weights, values = jnp.array([[0.25, 0.75]]), jnp.array([[0.0, 2], [4, 0]])
    for product in by_hand.PRODUCT_VIEWS.values():
        near(product(weights, values), [[3.0, 0.5]])
    query, key, value = one_head([[1, 0]], [[0, 0], [np.log(3), 0]], values)
    near(attend(query, key, value, scale=1.0)[0][0, :, 0], [[3.0, 0.5]])


def test_w04_loss_of_a_target_probability():
    probabilities = jnp.array([0.8, 0.2])
    np.testing.assert_allclose(by_hand.negative_log_likelihood(probabilities), [0.223, 1.609], **THREE_DIGITS)
    trained = cross_entropy(jnp.log(jnp.stack([probabilities, probabilities])), jnp.array([0, 1]))
    np.testing.assert_allclose(trained, [0.223, 1.609], **THREE_DIGITS)


def test_w05_outer_products():
    terms = by_hand.outer_products(jnp.array([[1.0, 2], [3, 4]]), jnp.array([[5.0, 6], [7, 8]]))
    np.testing.assert_array_equal(terms, [[[5, 6], [15, 18]], [[14, 16], [28, 32]]])
    np.testing.assert_array_equal(terms.sum(axis=0), [[19, 22], [43, 50]])


def test_w06_shapes_of_one_head(rng, key):
    model = small("gpt2-tiny", num_heads=1, head_dim=4)
    params = model.init(key)["blocks"]["layer_0"]["attention"]
    w_query, w_key, w_value = (params[name]["kernel"][:, 0] for name in ("query", "key", "value"))
    w_out = params["out"]["kernel"][0]
    x = normal(rng, 4, 8)
    query, keys, values = (by_hand.product_by_rows(x, w) for w in (w_query, w_key, w_value))
    mixed, weights = attend(*one_head(query, keys, values), mask=Mask(causal=True), return_weights=True)
    shapes = [x.shape, w_query.shape, by_hand.product_by_entries(query, keys.T).shape, weights[0, 0].shape]
    shapes += [mixed[0, :, 0].shape, w_out.shape, (mixed[0, :, 0] @ w_out).shape]
    assert shapes == [(4, 8), (8, 4), (4, 4), (4, 4), (4, 4), (4, 8), (4, 8)]
    attention = Attention(model.config, LayerConfig())
    update, _ = attention.apply({"params": params}, x[None], x[None], Call(mask=Mask(causal=True)), jnp.uint32(0))
    near(update[0], mixed[0, :, 0] @ w_out)


def test_w07_shapes_with_more_keys_than_queries(rng):
    query, keys, values = normal(rng, 3, 4), normal(rng, 5, 4), normal(rng, 5, 4)
    mixed, weights = attend(*one_head(query, keys, values), return_weights=True)
    assert by_hand.product_by_entries(query, keys.T).shape == weights[0, 0].shape == (3, 5)
    assert mixed[0, :, 0].shape == (3, 4)


def test_w08_cross_attention(rng):
    decoder, memory, w = normal(rng, 4, 512), normal(rng, 7, 512), normal(rng, 3, 512, 64) / 512**0.5
    query, keys, values = decoder @ w[0], memory @ w[1], memory @ w[2]
    mixed, weights = attend(*one_head(query, keys, values), return_weights=True)
    assert weights[0, 0].shape == (4, 7) and mixed[0, :, 0].shape == (4, 64)
    scores = query @ keys.T
    near(weights[0, 0], masked_softmax(scores / 8, None))
    assert np.abs(weights[0, 0] - masked_softmax(scores, None)).max() > 0.1


class Recorder:
    """Stands where a model would: keeps what it is given, and reads logits straight out of its parameters."""

    def apply(self, params, inputs, **_):
        self.inputs = inputs
        return forward.Output(hidden=params)

    def unembed(self, params, hidden):
        return hidden


def test_w09_label_shift():
    bos, a, b, c, eos = range(5)
    tokens = jnp.array([[bos, a, b, c, eos]])
    batch = {"tokens": tokens, "segment_ids": jnp.ones_like(tokens)}
    model = Recorder()

    def loss(logits):
        (total, weight), _ = objectives.next_token(model, logits, batch, None, train=False)
        return total, weight

    # With all logits equal, the gradient is 1/5 everywhere, less 1 at the label: so the labels are read off the loss.
    gradient, weight = jax.grad(loss, has_aux=True)(jnp.zeros((1, 4, 5)))
    labels = jnp.argmin(gradient, axis=-1)
    near(gradient, 1 / 5 - jax.nn.one_hot(labels, 5))
    assert model.inputs.tolist() == [[bos, a, b, c]]
    assert labels.tolist() == [[a, b, c, eos]]
    assert weight == 4


def test_w10_causal_rows_see_one_two_three(rng, key):
    query, keys, values = one_head(*(normal(rng, 3, 4) for _ in range(3)))
    _, weights = attend(query, keys, values, mask=Mask(causal=True), return_weights=True)
    assert np.count_nonzero(weights[0, 0], axis=-1).tolist() == [1, 2, 3]
    model = small("gpt2-tiny")
    for layer in model.apply(model.init(key), jnp.array([[3, 1, 2]]), want=("attentions",)).attentions:
        assert np.count_nonzero(layer[0], axis=-1).tolist() == [[1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("name", "kernel", "from_2", "from_0"),
    [
        ("bert-tiny", "auto", {0, 1, 2, 3}, {0, 1, 2, 3}),
        ("gpt2-tiny", "auto", {0, 1, 2}, {0}),
        ("gpt2-tiny", "einsum", {0, 1, 2}, {0}),
        ("gpt2-tiny", "blockwise", {0, 1, 2}, {0}),
        ("llama-tiny", "auto", {0, 1, 2}, {0}),
    ],
)
def test_w11_what_each_position_sees(name, kernel, from_2, from_0, key):
    model = small(name, attention_kernel=kernel)
    params = model.init(key)
    tokens = jnp.array([[3, 1, 4, 2]])
    before = model.apply(params, tokens).logits[0]
    changed = [np.any(before != model.apply(params, tokens.at[0, j].set(7)).logits[0], axis=-1) for j in range(4)]
    assert {j for j in range(4) if changed[j][2]} == from_2
    assert {j for j in range(4) if changed[j][0]} == from_0


def test_w12_bigram_of_abac():
    assert bigram.pairs("ABAC") == [("A", "B"), ("B", "A"), ("A", "C")]
    a, b, c = range(3)
    params, _ = bigram.fit(bigram.init(3), jnp.array([[a, b, a, c]]), steps=2000)
    after_ba = bigram.apply(params, jnp.array([b, a]))[-1]
    after_ca = bigram.apply(params, jnp.array([c, a]))[-1]
    np.testing.assert_array_equal(after_ba, after_ca)
    near(jax.nn.softmax(after_ba), [0, 0.5, 0.5], atol=1e-3)  # a zero is approached as 1 / steps


def test_w13_bigram_of_zoo():
    assert bigram.pairs("zoo") == [("z", "o"), ("o", "o")]
    assert bigram.pairs("zoo", ends=("BOS", "EOS")) == [("BOS", "z"), ("z", "o"), ("o", "o"), ("o", "EOS")]


def test_w14_bigram_table():
    params = {"table": jnp.array([[2.0, 0, -1], [0, 1, 0], [-1, 0, 2]])}
    logits = bigram.apply(params, jnp.array(0))
    np.testing.assert_array_equal(logits, [2, 0, -1])
    np.testing.assert_allclose(masked_softmax(logits, None), [0.844, 0.114, 0.042], **THREE_DIGITS)


def test_w15_shapes_of_a_batch(monkeypatch):
    model = zoo.create("gpt2", vocab_size=32000, embed_dim=1024, num_heads=16, num_layers=1)
    out = jax.eval_shape(model.apply, model.init_shapes(), jax.ShapeDtypeStruct((8, 512), jnp.int32))
    assert out.hidden.shape == (8, 512, 1024) and out.logits.shape == (8, 512, 32000)
    row = jax.ShapeDtypeStruct((8, TrainConfig(seq_len=512).row_length), jnp.int32)
    seen = {}

    def spy(model, params, hidden, labels, weights, options):
        seen.update(hidden=hidden.shape, labels=labels.shape)
        return jnp.sum(weights), jnp.sum(weights)

    monkeypatch.setattr(objectives, "chunked_cross_entropy", spy)
    jax.eval_shape(
        lambda params, batch: objectives.next_token(model, params, batch, None, train=False),
        model.init_shapes(),
        {"tokens": row, "segment_ids": row},
    )
    assert seen == {"hidden": (8, 512, 1024), "labels": (8, 512)}


def test_w16_linear_backward(rng):
    x, weight, bias, d_y = normal(rng, 3, 4), normal(rng, 4, 2), normal(rng, 2), normal(rng, 3, 2)
    _, pull_back = jax.vjp(lambda x, w, b: x @ w + b, x, weight, bias)
    for ours, theirs in zip(by_hand.linear_backward(x, weight, d_y), pull_back(d_y), strict=True):
        near(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kernel", ["einsum", "xla", "blockwise"])
@pytest.mark.parametrize("hidden", ["nothing", "future", "future and padding", "all from one query"])
def test_w17_attention_backward(hidden, kernel, rng):
    query, keys, values, d_out = (normal(rng, 4, 8) for _ in range(4))
    mask = {
        "nothing": Mask(),
        "future": Mask(causal=True),
        "future and padding": Mask(causal=True, key_valid=jnp.array([[True, True, False, True]])),
        "all from one query": Mask(causal=True, key_valid=jnp.array([[False, True, True, True]])),
    }[hidden]
    seen = materialise(mask, 4, 4)
    ours = by_hand.attention_backward(query, keys, values, d_out, None if seen is None else seen[0, 0])

    def attended(*qkv):
        return attend(*one_head(*qkv), mask=mask, kernel=kernel)[0][0, :, 0]

    _, pull_back = jax.vjp(attended, query, keys, values)
    for mine, theirs in zip((ours.query, ours.key, ours.value), pull_back(d_out), strict=True):
        near(mine, theirs, atol=1e-5)
    scores = query @ keys.T / 8**0.5
    weights, back_to_scores = jax.vjp(lambda s: masked_softmax(s, None if seen is None else seen[0, 0]), scores)
    (d_weights,) = jax.vjp(lambda p: p @ values, weights)[1](d_out)
    near(ours.weights, d_weights, atol=1e-5)
    near(ours.scores, back_to_scores(d_weights)[0], atol=1e-5)
    if hidden == "future":
        assert np.all(np.asarray(ours.scores)[~np.asarray(causal_mask(4))] == 0)


def test_w18_no_path_from_a_prediction_to_the_next(key, monkeypatch):
    """Logits are replaced inside the forward pass: whatever read them on the way to i + 1 would show."""
    model, i = small("gpt2-tiny"), 2
    params = model.init(key)
    tokens = jnp.array([[1, 2, 3, 4, 5, 6]])
    read_out, others = forward.LMHead.__call__, []

    def replacing(*args):
        logits = read_out(*args)
        return logits.at[:, i].set(others[0]) if others else logits

    def run():
        network = forward.Transformer(model.config)
        return jax.jit(lambda p, x: network.apply({"params": p}, forward.Inputs(inputs=x)).logits)(params, tokens)

    monkeypatch.setattr(forward.LMHead, "__call__", replacing)
    before = run()
    chosen = (int(jnp.argmax(before[0, i])) + 1) % 12
    others.append(9.0 * jax.nn.one_hot(chosen, 12))
    after = run()
    monkeypatch.undo()
    assert int(jnp.argmax(after[0, i])) == chosen != int(jnp.argmax(before[0, i]))
    np.testing.assert_array_equal(np.flatnonzero(np.any(before[0] != after[0], axis=-1)), [i])

    # Nor does teacher forcing read a prediction: with the labels given, the loss at i alone is another.
    losses = [cross_entropy(logits[:, :-1], tokens[:, 1:])[0] for logits in (before, after)]
    np.testing.assert_array_equal(np.flatnonzero(losses[0] != losses[1]), [i])
    batch = {"tokens": tokens, "segment_ids": jnp.ones_like(tokens)}
    (total, weight), _ = objectives.next_token(model, params, batch, None, train=False)
    assert weight == 5
    near(total / weight, losses[0].mean(), atol=1e-5)

    # Control: a prediction that is fed back as input does reach i + 1.
    fed = [model.apply(params, tokens.at[0, i + 1].set(jnp.argmax(logits[0, i]))).logits for logits in (before, after)]
    np.testing.assert_array_equal(fed[0][:, : i + 1], fed[1][:, : i + 1])
    assert np.abs(fed[0][0, i + 1] - fed[1][0, i + 1]).max() > 1e-3


def test_token_embedding_is_one_hot_times_matrix(rng, key):
    table, ids = normal(rng, 6, 5), jnp.array([[0, 5, 2], [2, 2, 1]])
    np.testing.assert_array_equal(look_up(table, ids), jax.nn.one_hot(ids, 6) @ table)
    model = small("llama-tiny")  # nothing but the token table is added to its stream
    params = model.init(key)
    stream = model.apply(params, ids, want=("hidden_states",)).hidden_states[0]
    near(stream, jax.nn.one_hot(ids, 12) @ params["embed"]["token"]["embedding"])


def test_pair_segments_change_the_logits(key):
    model = small("bert-tiny")
    params = model.init(key)
    pair = jnp.array([[4, 7, 8, 5, 9, 5]])  # [CLS] a a [SEP] b [SEP]
    types = jnp.array([[0, 0, 0, 0, 1, 1]])
    as_pair, as_one = (model.apply(params, pair, token_types=t).logits for t in (types, None))
    assert np.abs(as_pair - as_one).max() > 1e-3
    np.testing.assert_array_equal(model.apply(params, pair, token_types=jnp.zeros_like(types)).logits, as_one)


@partial(jax.jit, static_argnames=("causal", "kernel"))
def attend_under(query, keys, values, valid, causal, kernel):
    mask = Mask(causal=causal, key_valid=valid)
    return attend(query, keys, values, mask=mask, kernel=kernel)[0], materialise(mask, 5, 5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", ["einsum", "xla", "blockwise"])
@given(seed=st.integers(0, 2**32 - 1), valid=st.lists(st.booleans(), min_size=5, max_size=5))
def test_output_is_a_convex_combination_of_visible_values(causal, kernel, seed, valid):
    draw = np.random.default_rng(seed)
    query, keys, values = (draw.normal(0, 3, (1, 5, 2, 3)).astype(np.float32) for _ in range(3))
    out, seen = attend_under(query, keys, values, np.array([valid]), causal, kernel)
    out, seen = np.asarray(out)[0], np.asarray(seen)[0, 0]
    for t in range(5):
        visible = values[0, seen[t]] if seen[t].any() else np.zeros((1, 2, 3))
        assert np.all(out[t] >= visible.min(0) - 1e-5) and np.all(out[t] <= visible.max(0) + 1e-5)
