"""Initial parameters: the normal distribution, to the last bits, and the same bits in every program."""

import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.initializers import erf_inv, normal

LOWEST = np.nextafter(np.float32(-1), np.float32(0))


def test_erf_inv_is_the_inverse_of_the_normal_distribution():
    """Against the standard library's in float64, at the ends, near 0 and between."""
    between = np.linspace(-0.9999, 0.9998, 3001, dtype=np.float32)
    u = np.concatenate([np.float32([LOWEST, -LOWEST, 1e-6, -3e-4]), between])
    wanted = [statistics.NormalDist().inv_cdf((1 + float(x)) / 2) / 2**0.5 for x in u]
    np.testing.assert_allclose(jax.jit(erf_inv)(u), wanted, rtol=4e-7, atol=1e-13)
    assert erf_inv(jnp.float32(0)) == 0


@pytest.mark.parametrize(
    "shape,split", [((40, 16), (5, 16)), ((40, 16), (40, 4)), ((7, 3), (1, 3)), ((24, 4, 8), (24, 4, 2))]
)
def test_bits_do_not_depend_on_the_shape_of_a_piece(shape, split):
    """What a device computes alone, whatever its compiler joins, is what the whole array's program computes."""
    u = jax.random.uniform(jax.random.key(0), shape, jnp.float32, LOWEST, 1.0)
    whole = np.asarray(jax.jit(lambda u: erf_inv(u) * 0.02)(u))
    piece = jax.jit(lambda u: erf_inv(u) * 0.02)
    for at in np.ndindex(*(n // m for n, m in zip(shape, split, strict=True))):
        index = tuple(slice(i * m, (i + 1) * m) for i, m in zip(at, split, strict=True))
        np.testing.assert_array_equal(piece(u[index]), whole[index])


def test_draws_are_those_of_the_seed():
    """Literal bits: the same on every machine and under every release of the compiler."""
    drawn = np.asarray(normal(0.02)(jax.random.key(3), (7,)))
    assert drawn.view(np.uint32)[:2].tolist() == [3169645673, 1023161938]
    many = np.asarray(normal(0.5)(jax.random.key(1), (64, 512)))
    assert abs(many.mean()) < 0.01 and many.std() == pytest.approx(0.5, rel=0.01)
    assert normal(1.0)(jax.random.key(0), (2,), jnp.bfloat16).dtype == jnp.bfloat16


SMALL = {"vocab_size": 40, "embed_dim": 8, "num_heads": 2, "num_layers": 2, "mlp_dim": 12, "max_positions": 16}


@pytest.mark.parametrize(
    "name, changes",
    [
        ("bert-tiny", {"head": "masked_lm"}),
        ("llama-tiny", {"remat": "full", "num_kv_heads": 1}),
        ("gpt2-tiny", {"scan": True}),
        ("albert-tiny", {}),
    ],
)
def test_parameters_drawn_one_by_one_are_those_of_one_program(name, changes):
    model = zoo.create(name, **SMALL, **changes)
    key = jax.random.fold_in(jax.random.key(5), 1)
    drawn, compiled = model.init(key), jax.jit(model.init)(key)
    assert jax.tree.structure(drawn) == jax.tree.structure(compiled)
    for one, other in zip(jax.tree.leaves(drawn), jax.tree.leaves(compiled), strict=True):
        assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)
        np.testing.assert_array_equal(one, other)
    if name == "bert-tiny":
        jax.tree.map(np.testing.assert_array_equal, model.init(jax.random.key_data(key)), drawn)  # an old-style key


def test_a_deeper_model_needs_no_further_program():
    """Each layer's drawing was compiled anew: 19 s of a CPU for BERT-base."""
    seen = []

    def listen(event, seconds, **_):
        del seconds
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        zoo.create("bert-tiny", **SMALL).init(jax.random.key(0))
        first = len(seen)
        zoo.create("bert-tiny", **SMALL | {"num_layers": 5}).init(jax.random.key(0))
        assert len(seen) == first
        jax.jit(zoo.create("bert-tiny", **SMALL).init)(jax.random.key(0))
        assert len(seen) == first + 1
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
