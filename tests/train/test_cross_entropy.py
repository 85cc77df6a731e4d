"""The chunked loss equals the plain one, value and gradient, and never holds the logits of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from train.cross_entropy import LossOptions, chunked_cross_entropy, cross_entropy

B, T, D, V = 3, 7, 8, 13
BASE = zoo.ModelConfig(vocab_size=V, embed_dim=D, num_layers=1, num_heads=2)
MODELS = {
    "tied": BASE,
    "untied": BASE.replace(tie_embeddings=False, lm_bias=True),
    "masked_lm": BASE.replace(visibility="full", head="masked_lm"),
    "narrow": BASE.replace(embed_rank=5, embed_projection="tokens"),
    "capped": BASE.replace(logit_soft_cap=3.0),
}


def setting(name):
    model = zoo.create(MODELS[name])
    params = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), model.init(jax.random.key(0))
    )
    keys = jax.random.split(jax.random.key(1), 3)
    hidden = jax.random.normal(keys[0], (B, T, model.config.hidden_width))
    labels = jax.random.randint(keys[1], (B, T), 0, V)
    weights = (jax.random.uniform(keys[2], (B, T)) < 0.6).astype(jnp.float32)
    return model, params, hidden, labels, weights


def plain(model, params, hidden, labels, weights, options):
    logits = model.unembed(params, hidden)[..., : options.vocab_size]
    log_p = jax.nn.log_softmax(logits, axis=-1)
    own = jnp.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    losses = -(1 - options.label_smoothing) * own - options.label_smoothing * jnp.mean(log_p, -1)
    losses += options.z_loss * jax.scipy.special.logsumexp(logits, axis=-1) ** 2
    return jnp.sum(losses * weights)


@pytest.mark.parametrize("name,chunk", [("tied", 1), ("tied", 7), *((name, 3) for name in MODELS)])
def test_chunked_is_plain(name, chunk):
    model, params, hidden, labels, weights = setting(name)
    options = LossOptions(chunk_bytes=4 * B * V * chunk)

    @jax.jit
    def both(p, h):
        chunked = lambda p, h: 2.5 * chunked_cross_entropy(model, p, h, labels, weights, options)[0]  # noqa: E731
        whole = lambda p, h: 2.5 * plain(model, p, h, labels, weights, options)  # noqa: E731
        return jax.value_and_grad(chunked, (0, 1))(p, h), jax.value_and_grad(whole, (0, 1))(p, h)

    (got, grads), (want, expected) = both(params, hidden)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), grads, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1},
        {"z_loss": 0.01},
        {"vocab_size": 9},
        {"label_smoothing": 0.2, "z_loss": 0.1, "vocab_size": 9},
    ],
)
def test_smoothing_z_loss_and_a_padded_vocabulary(options):
    model, params, hidden, labels, weights = setting("untied")
    labels = labels % 9
    options = LossOptions(chunk_bytes=4 * B * V * 2, **options)

    @jax.jit
    def both(p):
        chunked = lambda p: chunked_cross_entropy(model, p, hidden, labels, weights, options)[0]  # noqa: E731
        whole = lambda p: plain(model, p, hidden, labels, weights, options)  # noqa: E731
        return jax.value_and_grad(chunked)(p), jax.value_and_grad(whole)(p)

    (got, grads), (want, expected) = both(params)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), grads, expected)
    if options.vocab_size:
        assert not np.any(grads["lm_head"]["kernel"][:, 9:])


def test_right_guesses_are_those_of_argmax():
    model, params, hidden, labels, weights = setting("tied")
    _, correct = chunked_cross_entropy(model, params, hidden, labels, weights)
    guesses = jnp.argmax(model.unembed(params, hidden), -1)
    assert 0 < float(correct) == float(jnp.sum((guesses == labels) * weights))


def test_no_counted_position_gives_loss_and_gradient_zero():
    model, params, hidden, labels, weights = setting("tied")
    loss_of = jax.jit(lambda p, h: chunked_cross_entropy(model, p, h, labels, 0 * weights))
    assert float(loss_of(params, jnp.inf * hidden)[0]) == 0.0
    (loss, _), grads = jax.value_and_grad(loss_of, has_aux=True)(params, hidden)
    assert float(loss) == 0.0 and all(not np.any(g) for g in jax.tree.leaves(grads))


def test_bf16_logits_give_the_loss_of_the_same_logits_in_float32():
    logits = (8 * jax.random.normal(jax.random.key(0), (50, 1000))).astype(jnp.bfloat16)
    labels = jnp.arange(50)
    np.testing.assert_array_equal(cross_entropy(logits, labels), cross_entropy(logits.astype(jnp.float32), labels))
    assert cross_entropy(logits, labels).dtype == jnp.float32


def test_losses_of_known_probabilities():
    """W4: target probability 0.8 costs 0.223, 0.2 costs 1.609."""
    logits = jnp.log(jnp.array([[0.8, 0.2], [0.8, 0.2]]))
    np.testing.assert_allclose(cross_entropy(logits, jnp.array([0, 1])), [0.2231436, 1.6094379], atol=1e-6)


def sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


def test_the_logits_of_a_batch_never_exist():
    config = zoo.ModelConfig(vocab_size=503, embed_dim=8, num_layers=1, num_heads=2)
    model = zoo.create(config)
    hidden, labels, weights = jnp.zeros((4, 64, 8)), jnp.zeros((4, 64), jnp.int32), jnp.ones((4, 64))

    def largest(options):
        grad = jax.grad(lambda p, h: chunked_cross_entropy(model, p, h, labels, weights, options)[0], argnums=(0, 1))
        return max(sizes(jax.make_jaxpr(grad)(model.init_shapes(), hidden).jaxpr))

    assert largest(LossOptions(chunk_bytes=1 << 30)) >= 4 * 64 * 503
    assert largest(LossOptions(chunk_bytes=4 * 4 * 503 * 8)) <= 4 * 503 * 8
