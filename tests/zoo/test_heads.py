"""Heads: what `logits`, `pooled` and `next_sentence` are, from the final stream, by formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.heads import pool, read_out

V, D, B, T = 11, 8, 3, 4
TOKENS = jnp.asarray([[1, 2, 3, 4], [5, 6, 7, 0], [0, 8, 9, 10]])
MASK = jnp.asarray([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]])
BERT = ModelConfig(
    vocab_size=V, embed_dim=D, num_layers=1, num_heads=2, visibility="full", final_norm=False, norm_placement="post"
)


def run(config, seed=0, **call):
    """(parameters of unit size, output)."""
    model = zoo.Model(config)
    rng = np.random.default_rng(seed)
    shapes = model.init_shapes()
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), shapes)
    return params, model.apply(params, TOKENS, padding_mask=MASK, **call)


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


CASES = {
    "tied": ({}, lambda p, h: h @ p["embed"]["token"]["embedding"].T),
    "untied": ({"tie_embeddings": False}, lambda p, h: h @ p["lm_head"]["kernel"]),
    "tied-bias": (
        {"lm_bias": True},
        lambda p, h: h @ p["embed"]["token"]["embedding"].T + p["lm_head"]["bias"],
    ),
    "untied-bias-capped": (
        {"tie_embeddings": False, "lm_bias": True, "logit_soft_cap": 5.0},
        lambda p, h: 5 * jnp.tanh(h @ p["lm_head"]["kernel"] / 5) + p["lm_head"]["bias"],
    ),
    "masked": (
        {"head": "masked_lm", "norm_eps": 0.01},
        lambda p, h: _transform(p["masked_lm"], h) @ p["embed"]["token"]["embedding"].T + p["masked_lm"]["bias"],
    ),
    "masked-untied-capped": (
        {"head": "masked_lm", "norm_eps": 0.01, "tie_embeddings": False, "logit_soft_cap": 5.0},
        lambda p, h: (
            5 * jnp.tanh(_transform(p["masked_lm"], h) @ p["masked_lm"]["kernel"] / 5) + p["masked_lm"]["bias"]
        ),
    ),
}


def _transform(p, h):
    y = gelu(h @ p["dense"]["kernel"] + p["dense"]["bias"])
    y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 0.01)
    return y * p["norm"]["scale"] + p["norm"]["bias"]


@pytest.mark.parametrize("name", CASES)
def test_vocabulary_logits(name):
    """By formula; unembed gives the same; a tied head has no matrix of its own."""
    changes, formula = CASES[name]
    config = BERT.replace(**changes)
    params, out = run(config)
    assert out.logits.shape == (B, T, V) and out.logits.dtype == jnp.float32 and out.pooled is None
    np.testing.assert_allclose(out.logits, formula(params, out.hidden), atol=2e-5)
    np.testing.assert_allclose(zoo.Model(config).unembed(params, out.hidden), out.logits, atol=2e-5)
    owners = [name for name in ("lm_head", "masked_lm") if "kernel" in params.get(name, {})]
    assert bool(owners) == (not config.tie_embeddings)


@pytest.mark.parametrize("head", ["lm", "masked_lm"])
def test_logits_at_chosen_positions(head):
    config = BERT.replace(head=head)
    at = jnp.asarray([[0, 3], [2, 2], [1, 0]])
    whole, chosen = run(config)[1], run(config, logits_at=at)[1]
    assert chosen.logits.shape == (B, 2, V)
    np.testing.assert_allclose(chosen.logits, np.take_along_axis(whole.logits, at[..., None], axis=1), atol=1e-6)
    assert run(config, logits_at=False)[1].logits is None
    assert np.array_equal(run(config, logits_at=True)[1].logits, whole.logits)


def test_pool():
    """First real token, mean of real ones, last real one; by hand, left padding in row 2, no real token in row 3."""
    hidden = jnp.arange(16.0).reshape(4, 4, 1)
    mask = jnp.asarray([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
    assert pool(hidden, mask, "cls")[:3, 0].tolist() == [0, 4, 10]
    assert pool(hidden, mask, "mean")[:, 0].tolist() == [1.5, 4.5, 10.5, 0]
    assert pool(hidden, mask, "last")[:3, 0].tolist() == [3, 5, 11]
    assert [pool(hidden, None, how)[1, 0] for how in ("cls", "mean", "last")] == [4, 5.5, 7]
    poisoned = hidden.at[1, 3].set(jnp.nan)
    assert pool(poisoned, mask, "mean")[1, 0] == 4.5  # padding's values never enter


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_classifier(pooling, pooler):
    """Logits [B, C]; "cls" goes through BERT's pooler where there is one."""
    config = BERT.replace(head="classifier", num_labels=3, pooling=pooling, pooler=pooler)
    p, out = run(config)
    h = out.hidden
    rows = {
        "cls": jnp.stack([h[0, 0], h[1, 0], h[2, 1]]),
        "mean": jnp.stack([h[0].mean(0), h[1, :3].mean(0), h[2, 1:].mean(0)]),
        "last": jnp.stack([h[0, 3], h[1, 2], h[2, 3]]),
    }
    pooled = rows[pooling]
    if pooler:
        tanh = jnp.tanh(rows["cls"] @ p["pooler"]["kernel"] + p["pooler"]["bias"])
        np.testing.assert_allclose(out.pooled, tanh, atol=1e-5)
        pooled = tanh if pooling == "cls" else pooled
    assert out.logits.shape == (B, 3) and (out.pooled is None) == (not pooler)
    expected = pooled @ p["classifier"]["kernel"] + p["classifier"]["bias"]
    np.testing.assert_allclose(out.logits, expected, atol=1e-5)


def test_next_sentence_and_head_none():
    config = BERT.replace(pooler=True, next_sentence=True, head="none")
    p, out = run(config)
    assert out.logits is None and out.next_sentence.shape == (B, 2)
    np.testing.assert_allclose(
        out.next_sentence, out.pooled @ p["next_sentence"]["kernel"] + p["next_sentence"]["bias"], atol=1e-5
    )
    with pytest.raises(InputError) as caught:
        zoo.Model(config).unembed(p, out.hidden)
    assert str(caught.value) == 'unembed: a model with head "none" has no vocabulary logits; use zoo.with_head'


@pytest.mark.parametrize(
    "head, change, said",
    [
        ("lm", lambda p, h: (None, h), "params are None"),
        ("lm", lambda p, h: ({}, h), "unembed: params lack embed/token/embedding"),
        ("masked_lm", lambda p, h: ({"embed": p["embed"]}, h), "unembed: params lack masked_lm/bias"),
        ("lm", lambda p, h: (p | {"embed": {"token": {"embedding": p["embed"]["token"]["embedding"][:, 1:]}}}, h),
         "unembed: params: embed/token/embedding has shape"),
        ("masked_lm", lambda p, h: (p | {"masked_lm": p["masked_lm"] | {"kernel": h}}, h), "have masked_lm/kernel"),
        ("lm", lambda p, h: (p, h[..., 1:]), f"unembed: hidden has shape (3, 4, {D - 1}); its last axis must be {D}"),
        ("lm", lambda p, h: (p, [[1.0]]), "unembed: hidden"),
    ],
)  # fmt: skip
def test_unembed_refuses_what_is_not_the_models(head, change, said):
    config = BERT.replace(head=head)
    given, out = run(config)
    with pytest.raises(InputError) as caught:
        zoo.Model(config).unembed(*change(given, out.hidden))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    read = {name: given[name] for name in ("embed", "masked_lm") if name in given}  # what it needs, and no more
    np.testing.assert_allclose(zoo.Model(config).unembed(read, out.hidden), out.logits, atol=2e-5)


def test_head_dropout_is_the_classifiers_alone():
    config = BERT.replace(head="classifier", num_labels=3, head_dropout=0.5)
    still, moved = run(config)[1], run(config, dropout_key=jax.random.key(0))[1]
    assert np.array_equal(still.hidden, moved.hidden) and not np.allclose(still.logits, moved.logits)


def test_logits_are_summed_in_float32():
    """4096 products of 1 in bfloat16 would stop at 256."""
    hidden, matrix = jnp.ones((1, 4096), jnp.bfloat16), jnp.ones((4096, 1), jnp.float32)
    found = read_out(hidden, matrix)
    assert found.dtype == jnp.float32 and found[0, 0] == 4096
