"""Masks over 10^6 tokens: the rates, what may be chosen and drawn, and on what a draw depends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.corruption import Vocabulary, corrupt, places
from train.state import row_keys

V, MASK, SPECIAL = 300, 6, (1, 2, 4, 5, 6)  # id 0 is ordinary here
ROWS, LENGTH = 8192, 132
STARTS = (np.random.default_rng(5).random(V) < 0.6).astype(np.uint8).tobytes()
PLAIN = Vocabulary(V, MASK, SPECIAL)
WORDS = Vocabulary(V, MASK, SPECIAL, STARTS)


def keys(step, rows=ROWS):
    return row_keys(jax.random.key_data(jax.random.key(3)), jnp.int32(step), jnp.arange(rows))


@pytest.fixture(scope="module")
def corpus():
    """Over 10^6 ordinary tokens, specials among them, ragged padding."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, V, (ROWS, LENGTH), dtype=np.int32)
    lengths = rng.integers(LENGTH - 15, LENGTH + 1, ROWS)
    lengths[:4] = (0, 1, 2, 3)
    segments = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    # The pad id is an ordinary token elsewhere: the segments decide, not the id.
    return np.where(segments, tokens, 0), segments


@pytest.fixture(scope="module")
def drawn(corpus):
    return {
        (name, rate): jax.tree.map(np.asarray, corrupt(*corpus, keys(0), vocabulary=vocabulary, rate=rate))
        for name, vocabulary, rate in [("plain", PLAIN, 0.15), ("plain", PLAIN, 0.3), ("words", WORDS, 0.15)]
    }


def within_three_sigma(count, total, share):
    return abs(count - total * share) <= 3 * np.sqrt(total * share * (1 - share))


@pytest.mark.parametrize("name,rate", [("plain", 0.15), ("plain", 0.3), ("words", 0.15)])
def test_rates(corpus, drawn, name, rate):
    tokens, segments = corpus
    ordinary = (segments > 0) & ~np.isin(tokens, SPECIAL)
    total = int(ordinary.sum())
    assert total > 10**6
    out = drawn[name, rate]
    used = out.weights > 0
    chosen = int(used.sum())
    assert within_three_sigma(chosen, total, rate)
    after = np.take_along_axis(out.tokens, out.positions, 1)[used]
    labels = out.labels[used]
    choices = V - len(SPECIAL)
    random_and_new = 0.1 * (choices - 1) / choices  # a random token may be the original
    assert within_three_sigma((after == MASK).sum(), chosen, 0.8)
    assert within_three_sigma(((after != MASK) & (after != labels)).sum(), chosen, random_and_new)
    assert within_three_sigma((after == labels).sum(), chosen, 0.2 - random_and_new)


@pytest.mark.parametrize("name", ["plain", "words"])
def test_only_ordinary_tokens_are_chosen_and_drawn(corpus, drawn, name):
    tokens, segments = corpus
    out = drawn[name, 0.15]
    used = out.weights > 0
    rows = np.broadcast_to(np.arange(ROWS)[:, None], used.shape)
    np.testing.assert_array_equal(tokens[rows[used], out.positions[used]], out.labels[used])
    assert np.all(segments[rows[used], out.positions[used]] > 0)
    assert not np.isin(out.labels[used], SPECIAL).any()
    assert (out.labels[used] == 0).sum() > 100  # id 0 is scored like any other
    # No position is chosen twice, and positions not chosen are as they were.
    flat = rows[used] * LENGTH + out.positions[used]
    assert len(np.unique(flat)) == len(flat)
    untouched = np.ones(ROWS * LENGTH, bool)
    untouched[flat] = False
    np.testing.assert_array_equal(out.tokens.reshape(-1)[untouched], tokens.reshape(-1)[untouched])
    after = out.tokens.reshape(-1)[flat]
    changed = after[(after != MASK) & (after != out.labels[used])]
    assert not np.isin(changed, SPECIAL).any()
    # Every ordinary id is drawn, about equally often.
    counts = np.bincount(changed, minlength=V)[np.setdiff1d(np.arange(V), SPECIAL)]
    assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_the_count_of_a_row_is_exact_up_to_one_rounding(corpus, drawn):
    tokens, segments = corpus
    ordinary = ((segments > 0) & ~np.isin(tokens, SPECIAL)).sum(1)
    count = drawn["plain", 0.15].weights.sum(1)
    assert np.all(np.abs(count - 0.15 * ordinary) < 1)
    assert drawn["plain", 0.15].weights.shape[1] == places(LENGTH, 0.15) == 21
    assert count[0] == 0 and np.all(drawn["plain", 0.15].tokens[0] == tokens[0])


def test_words_are_chosen_whole(corpus, drawn):
    tokens, segments = corpus
    out = drawn["words", 0.15]
    chosen = np.zeros((ROWS, LENGTH), bool)
    used = out.weights > 0
    chosen[np.broadcast_to(np.arange(ROWS)[:, None], used.shape)[used], out.positions[used]] = True
    starts = np.frombuffer(STARTS, np.uint8)[tokens] > 0
    ordinary = (segments > 0) & ~np.isin(tokens, SPECIAL)
    inside = ordinary[:, 1:] & ordinary[:, :-1] & ~starts[:, 1:]  # a piece that goes on from the one before
    np.testing.assert_array_equal(chosen[:, 1:][inside], chosen[:, :-1][inside])


def test_fresh_masks_each_step_the_same_masks_for_the_same_step(corpus, drawn):
    small = (corpus[0][:512], corpus[1][:512])
    first, again, later = (corrupt(*small, keys(step, 512), vocabulary=PLAIN, rate=0.3) for step in (7, 7, 8))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)

    def chosen(out):
        used = np.asarray(out.weights) > 0
        return set((np.arange(512)[:, None] * LENGTH + np.asarray(out.positions))[used].tolist())

    both = len(chosen(first) & chosen(later)) / len(chosen(first))
    assert abs(both - 0.3) < 0.02  # as often as chance has it


def test_a_row_does_not_depend_on_the_rows_beside_it(corpus):
    whole = corrupt(corpus[0][:512], corpus[1][:512], keys(7, 512), vocabulary=PLAIN, rate=0.3)
    part = corrupt(corpus[0][100:132], corpus[1][100:132], keys(7, 512)[100:132], vocabulary=PLAIN, rate=0.3)
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a[100:132], b)
