"""Sampling: the edges of top-k and top-p, ties, ranges, and the drawn distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.errors import InputError
from zoo.generation.sampling import (
    Memory,
    Sampling,
    adjusted,
    choose,
    draw,
    empty_memory,
    filter_logits,
    for_rows,
    probabilities,
)

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


@pytest.mark.parametrize("more", [{}, {"top_p": 0.9}, {"top_k": 2, "min_p": 0.1}])
@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 2e-38, 1e-45, 3e38, 1e300])
def test_temperatures_at_the_ends_of_float32(temperature, more):
    """Near 0 the likeliest comes, as at 0, and at the other end all are equal; no number is lost to infinity."""
    logits, sampling = jnp.asarray([[10.0, 30.0, 20.0, -jnp.inf]]), Sampling(temperature=temperature, **more)
    shares = np.asarray(probabilities(logits, *for_rows([sampling], 4)))[0]
    if temperature < 1:
        assert shares.tolist() == [0.0, 1.0, 0.0, 0.0]
        assert draw(logits, jax.random.split(jax.random.key(0), 1), sampling).tolist() == [1]
    else:
        np.testing.assert_allclose(shares[shares > 0], 1 / (shares > 0).sum(), rtol=1e-6)
        assert shares[3] == 0 and (shares > 0).sum() >= 2


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
        ({"temperature": float("inf")}, "temperature is inf; it must be 0 (greedy) or above"),
        ({"min_p": 1.5}, "min_p is 1.5; it must be from 0 (off) to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be above 0, 1 is off"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan; it must be a finite number, 0 is off"),
        ({"frequency_penalty": -1e39}, "frequency_penalty is -1e+39; it must be a finite number, 0 is off"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty is 1e-45; it must be above 0, 1 is off"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias names id 5; ids go from 0 to 4"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias of id 1 is inf; it must be a number below infinity"),
        ({"logit_bias": {1: 1e39}}, "logit_bias of id 1 is 1e+39; it must be a number below infinity"),
        ({"banned": (3,), "vocab_limit": 3}, "banned names id 3; ids go from 0 to 2"),
        ({"banned": (0, 1, 2, 3, 4)}, "every id is banned; leave at least one"),
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


@pytest.mark.parametrize("min_p, expected", [(0.0, [0, 1, 2, 3, 4]), (0.3, [1, 2, 3]), (0.5, [1, 3]), (1.0, [1, 3])])
def test_min_p_keeps_those_within_a_share_of_the_likeliest(min_p, expected):
    # p / max p are 0.1353, 1, 0.3679, 1, 0.0183: e to the difference of logits.
    assert kept(temperature=1.0, min_p=min_p) == expected


def test_top_p_is_a_share_of_what_top_k_leaves():
    # Of the three likeliest 0.4223, 0.4223, 0.1554: the first two reach 0.84, not 0.85.
    assert kept(temperature=1.0, top_k=3, top_p=0.84) == [1, 3]
    assert kept(temperature=1.0, top_k=3, top_p=0.85) == [1, 2, 3]


def test_bias_and_bans_act_on_greedy_and_drawn_alike():
    key = jax.random.split(jax.random.key(0), 1)
    assert draw(LOGITS, key, Sampling(banned=(1,))).tolist() == [3]
    assert draw(LOGITS, key, Sampling(logit_bias={0: 2.5})).tolist() == [0]
    assert kept(temperature=1.0, banned=(1, 4)) == [0, 2, 3]
    assert kept(temperature=1.0, logit_bias={2: -float("inf")}) == [0, 1, 3, 4]


def test_penalties_by_hand():
    """Seen 1 (twice) and 4, which is below zero: l / r above zero and l r below; then presence and frequency."""
    settings = Sampling(repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5)
    parts, rows = for_rows([settings], VOCAB)
    memory = empty_memory(parts, jnp.asarray([[4, 2]]), jnp.asarray([[1, 0]]), VOCAB)  # 2 is padding
    memory = memory.add(jnp.asarray([1])).add(jnp.asarray([1]))
    found = adjusted(LOGITS, parts, rows, memory)
    np.testing.assert_allclose(found, [[1.0, 3 / 2 - 0.25 - 2 * 0.5, 2.0, 3.0, -2.0]], atol=1e-6)
    assert choose(LOGITS, jax.random.split(jax.random.key(0), 1), parts, rows, memory).tolist() == [3]


def test_rows_that_have_ended_are_not_remembered():
    memory = Memory(jnp.zeros((2, 3), bool), jnp.zeros((2, 3), jnp.int32))
    memory = memory.add(jnp.asarray([1, 1]), jnp.asarray([True, False]))
    assert memory.seen.tolist() == [[False, True, False], [False] * 3]
    assert memory.counts.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_each_row_has_its_own_settings_and_draws_as_it_would_alone():
    """Greedy, hot, filtered and biased rows in one batch: each gives the token that it gives by itself."""
    rows = [
        Sampling(),
        Sampling(temperature=1.5),
        Sampling(temperature=1.0, top_k=2),
        Sampling(temperature=0.7, top_p=0.6, min_p=0.1),
        Sampling(temperature=1.0, logit_bias={4: 5.0}, banned=(0,)),
    ]
    logits = jnp.tile(LOGITS, (len(rows), 1))
    for seed in range(20):
        keys = jax.random.split(jax.random.key(seed), len(rows))
        together = choose(logits, keys, *for_rows(rows, VOCAB))
        alone = [int(draw(LOGITS, keys[i : i + 1], row)[0]) for i, row in enumerate(rows)]
        assert together.tolist() == alone
