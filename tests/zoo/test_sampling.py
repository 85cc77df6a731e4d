"""Sampling: the edges of top-k and top-p, ties, ranges, and the drawn distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.errors import InputError
from zoo.sampling import Sampling, draw, filter_logits

LOGITS = jnp.asarray([[1.0, 3.0, 2.0, 3.0, -1.0]])  # the likeliest are 1 and 3, equal
VOCAB = LOGITS.shape[1]


def kept(**settings) -> list[int]:
    return np.flatnonzero(np.isfinite(np.asarray(filter_logits(LOGITS, Sampling(**settings)))[0])).tolist()


@pytest.mark.parametrize(
    "top_k, expected", [(0, [0, 1, 2, 3, 4]), (1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (VOCAB, [0, 1, 2, 3, 4])]
)
def test_top_k_keeps_exactly_k_and_of_equals_the_first(top_k, expected):
    assert kept(temperature=1.0, top_k=top_k) == expected


@pytest.mark.parametrize(
    "top_p, expected", [(0.0, [1]), (1e-9, [1]), (0.5, [1, 3]), (0.9, [1, 2, 3]), (1.0, [0, 1, 2, 3, 4])]
)
def test_top_p_keeps_the_shortest_head_that_reaches_p_and_always_the_likeliest(top_p, expected):
    # Probabilities are 0.0545, 0.4026, 0.1481, 0.4026, 0.0074 (softmax by hand).
    assert kept(temperature=1.0, top_p=top_p) == expected


def test_filters_apply_after_the_temperature():
    # At temperature 10 the distribution is flat: the first two of five reach only 0.46.
    assert kept(temperature=10.0, top_p=0.5) == [1, 2, 3]


def test_temperature_zero_takes_the_first_of_the_likeliest():
    assert draw(LOGITS, jax.random.split(jax.random.key(0), 1), Sampling()).tolist() == [1]


def test_ids_past_the_limit_have_probability_zero_greedy_and_drawn():
    logits = jnp.tile(jnp.asarray([[0.0, 1.0, 9.0, 9.0]]), (200, 1))
    keys = jax.random.split(jax.random.key(0), 200)
    assert set(draw(logits, keys, Sampling(vocab_limit=2)).tolist()) == {1}
    assert set(draw(logits, keys, Sampling(temperature=1.0, vocab_limit=2)).tolist()) == {0, 1}


def test_drawn_frequencies_are_the_softmax():
    rows = 20_000
    logits = jnp.tile(LOGITS, (rows, 1))
    tokens = np.asarray(draw(logits, jax.random.split(jax.random.key(1), rows), Sampling(temperature=2.0)))
    expected = np.asarray(jax.nn.softmax(LOGITS[0] / 2)) * rows
    observed = np.bincount(tokens, minlength=VOCAB)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # 0.1 % point of chi-square with 4 degrees of freedom


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be 0 (greedy) or above"),
        ({"temperature": float("nan")}, "temperature is nan; it must be 0 (greedy) or above"),
        ({"top_k": -1}, "top_k is -1; it must be from 0 (off) to the vocabulary's 5"),
        ({"top_k": VOCAB + 1}, "top_k is 6; it must be from 0 (off) to the vocabulary's 5"),
        ({"top_p": 1.1}, "top_p is 1.1; it must be from 0 to 1 (off)"),
        ({"top_p": -1e-9}, "top_p is -1e-09; it must be from 0 to 1 (off)"),
    ],
)
def test_values_out_of_range_are_refused_with_the_range(settings, message):
    with pytest.raises(InputError) as caught:
        Sampling(**settings).check(VOCAB)
    assert str(caught.value) == message
