"""A classifier answers for each packed text as for that text alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo

SIZES = {"vocab_size": 64, "embed_dim": 32, "num_heads": 2, "num_layers": 2, "max_positions": 32}
TEXTS = ([5, 9, 2, 7], [11, 3], [8, 8, 1, 30, 31, 6])


def rows(texts, length):
    tokens, segments = np.zeros((1, length), np.int32), np.zeros((1, length), np.int32)
    start = 0
    for number, ids in enumerate(texts, 1):
        tokens[0, start : start + len(ids)] = ids
        segments[0, start : start + len(ids)] = number
        start += len(ids)
    return jnp.asarray(tokens), jnp.asarray(segments)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("bert-tiny", {"pooling": "cls"}),  # through the pooler
        ("bert-tiny", {"pooling": "mean", "pooler": False}),
        ("bert-tiny", {"pooling": "cls", "pooler": False, "classifier_hidden": "every"}),
        ("bert-tiny", {"pooling": "cls_mean", "pooler": False}),
        ("gpt2-tiny", {"pooling": "last"}),
        ("llama-tiny", {"pooling": "last", "num_kv_heads": 1}),
    ],
)
def test_packed_equals_alone(name, changes):
    model = zoo.create(name, **SIZES | {"head": "classifier", "num_labels": 3} | changes)
    params = jax.tree.map(
        lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), model.init(jax.random.key(1))
    )
    tokens, segments = rows(TEXTS, 16)
    packed = model.apply(params, tokens, segment_ids=segments, segments=4).logits
    assert packed.shape == (1, 4, 3) and packed.dtype == jnp.float32
    alone = np.zeros((3, 6), np.int32)
    for row, ids in zip(alone, TEXTS, strict=True):
        row[: len(ids)] = ids
    expected = model.apply(params, jnp.asarray(alone), padding_mask=jnp.asarray(alone > 0)).logits
    np.testing.assert_allclose(packed[0, :3], expected, atol=2e-6)


def test_what_cannot_answer_for_packed_texts_is_refused():
    tokens, segments = rows(TEXTS, 16)
    model = zoo.create("gpt2-tiny", **SIZES)
    params = model.init(jax.random.key(0))
    with pytest.raises(zoo.InputError, match="segments is 4: a classifier answers"):
        model.apply(params, tokens, segment_ids=segments, segments=4)
    model, params = zoo.with_head(model, params, head="classifier", num_labels=2, pooling="last", key=jax.random.key(0))
    with pytest.raises(zoo.InputError, match="segments is 4: a classifier answers"):
        model.apply(params, tokens, segments=4)
