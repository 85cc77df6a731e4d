"""zoo.positions against independent computations: counting, sinusoids, rotary tables, relative buckets."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig, RotaryScaling
from zoo.positions import (
    count_real_tokens,
    model_rotary,
    relative_buckets,
    restarted,
    rotary_frequencies,
    rotary_tables,
    rotate,
    sinusoidal,
)

# count ---------------------------------------------------------------------------------------------------------------


def test_count_without_masks_is_a_range():
    assert np.array_equal(count_real_tokens(2, 3), [[0, 1, 2], [0, 1, 2]])


def test_count_is_the_same_for_left_and_right_padding():
    mask = jnp.asarray([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]])
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 0, 1, 2, 2], [0, 0, 0, 0, 0]]
    assert np.array_equal(count_real_tokens(4, 5, mask), expected)


def test_count_restarts_in_each_segment():
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0], [3, 4, 4, 4, 4, 5]])
    assert np.array_equal(count_real_tokens(2, 6, None, segments), [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 0]])
    mask = jnp.asarray([[0, 1, 1, 0, 1, 1], [1, 0, 0, 1, 1, 1]])
    assert np.array_equal(count_real_tokens(2, 6, mask, segments), [[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]])


def test_a_segment_that_comes_back_goes_on():
    """Its tokens see those of its first run, so they are counted with them."""
    segments = jnp.asarray([[1, 1, 2, 2, 1, 1], [0, -5, 7, -5, 0, 7]])
    assert np.array_equal(count_real_tokens(2, 6, None, segments), [[0, 1, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1]])


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 2)), min_size=8, max_size=8))
def test_count_is_a_walk_along_the_row(cells):
    """Each cell: (real, segment). A padding token takes the place of the last real one before it in its segment."""
    mask, segments = (np.asarray([column], np.int32) for column in zip(*cells, strict=True))
    expected, count = [], {}
    for real, segment in cells:
        count[segment] = count.get(segment, 0) + real
        expected.append(max(count[segment] - 1, 0))
    found = np.asarray(count_real_tokens(1, 8, jnp.asarray(mask), jnp.asarray(segments)))[0]
    assert found.tolist() == expected


def test_restarted_positions_are_seen():
    positions = jnp.asarray([[0, 1, 2, 3], [0, 1, 0, 1], [0, 1, 0, 2], [3, 3, 4, 9]])
    assert np.array_equal(restarted(positions), [False, True, True, False])
    real = jnp.asarray([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]], bool)
    assert np.array_equal(restarted(positions, real), [False, True, False, False])
    across = jnp.asarray([[5, 6, 0, 0]])
    assert np.array_equal(restarted(across, jnp.asarray([[True, True, False, True]])), [True])


# sinusoids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoidal_is_the_formula(dim):
    found = np.asarray(sinusoidal(jnp.asarray([[0, 1, 50]]), dim))[0]
    for row, position in enumerate((0, 1, 50)):
        for feature in range(dim):
            angle = position / 10000 ** (2 * (feature // 2) / dim)
            expected = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
            assert abs(found[row, feature] - expected) < 2e-6 * max(1, position / 10)


# rotary --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotated", [8, 4])
def test_rotate_is_a_complex_rotation(rng, rotated):
    """Feature i and i + R/2 are one complex number, turned by position times base^(-2i/R); the rest passes through."""
    heads = rng.standard_normal((2, 70, 3, 8)).astype(np.float32)
    positions = np.stack([np.arange(70), np.arange(70) + 1000])
    tables = rotary_tables(jnp.asarray(positions), rotary_frequencies(rotated, 10000.0))
    found = np.asarray(rotate(jnp.asarray(heads), tables))
    wide, half = heads.astype(np.float64), rotated // 2
    turns = np.exp(1j * positions[:, :, None, None] * 10000.0 ** (-2 * np.arange(half) / rotated))
    pairs = (wide[..., :half] + 1j * wide[..., half:rotated]) * turns
    expected = np.concatenate([pairs.real, pairs.imag, wide[..., rotated:]], axis=-1)
    # An angle of 1069 radians is known to 1069 * 2^-24 in float32.
    np.testing.assert_allclose(found[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=5e-4)
    assert np.array_equal(found[..., rotated:], heads[..., rotated:])


def test_rotation_sees_relative_positions_alone(rng):
    query, key = (jnp.asarray(rng.standard_normal((1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def score(t, s):
        at = [rotary_tables(jnp.asarray([[p]]), rotary_frequencies(8, 100.0)) for p in (t, s)]
        return float(jnp.sum(rotate(query, at[0]) * rotate(key, at[1])))

    assert abs(score(7, 3) - score(24, 20)) < 1e-5 and abs(score(7, 3) - score(7, 4)) > 1e-3


def llama3_frequencies(dim, base, factor, low=1.0, high=4.0, original=8192):
    """The rule of the Llama 3 report, wave by wave: long waves are stretched, short ones kept, between them a blend."""
    out = []
    for i in range(dim // 2):
        frequency = base ** (-2 * i / dim)
        turns = original * frequency / (2 * math.pi)  # within the trained length
        if turns < low:
            out.append(frequency / factor)
        elif turns > high:
            out.append(frequency)
        else:
            share = (turns - low) / (high - low)
            out.append((1 - share) * frequency / factor + share * frequency)
    return np.asarray(out)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_the_whole_table(factor):
    found = rotary_frequencies(128, 500000.0, RotaryScaling("llama3", factor))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, llama3_frequencies(128, 500000.0, factor), rtol=1e-6)
    plain = rotary_frequencies(128, 500000.0)
    # By hand: above 4 * 2 pi / 8192 lie i = 0..28, below 2 pi / 8192 lie i = 35..63.
    kept, stretched = (np.isclose(found, table, rtol=1e-6, atol=0) for table in (plain, plain / factor))
    assert (kept.sum(), stretched.sum(), (~kept & ~stretched).sum()) == (29, 29, 6)


def test_llama3_scaling_literal_numbers():
    found = rotary_frequencies(8, 500000.0, RotaryScaling("llama3", 8.0))
    # Waves of 2 pi / f = 6.28, 167, 4443, 118143 tokens: kept, kept, blended at (8192 / 4443 - 1) / 3, divided by 8.
    np.testing.assert_allclose(found, [1.0, 3.760603e-2, 5.248461e-4, 6.647870e-6], rtol=2e-6)


def test_linear_scaling_divides():
    plain, found = rotary_frequencies(8, 10000.0), rotary_frequencies(8, 10000.0, RotaryScaling("linear", 4.0))
    np.testing.assert_allclose(found, plain / 4, rtol=1e-7)


def test_tables_are_float32_under_a_bfloat16_policy():
    config = ModelConfig(positions="rotary", head_dim=8, num_heads=2, embed_dim=16, dtype="bfloat16")
    tables = model_rotary(config, jnp.arange(300)[None])
    assert [table.dtype for table in tables[0]] == [jnp.float32, jnp.float32]
    # In bfloat16 positions 256 and 257 would be one.
    assert float(jnp.abs(tables[0][0][0, 256, 0] - tables[0][0][0, 257, 0])) > 1e-2
    assert rotate(jnp.ones((1, 300, 2, 8), jnp.bfloat16), tables[0]).dtype == jnp.bfloat16
    assert sinusoidal(jnp.arange(300)[None], 8).dtype == jnp.float32


def test_each_entry_of_the_pattern_has_its_base():
    pattern = (LayerConfig(), LayerConfig(rotary_base=100.0), LayerConfig())
    config = ModelConfig(positions="rotary", head_dim=4, num_heads=2, embed_dim=8, num_layers=3, layer_pattern=pattern)
    tables = model_rotary(config, jnp.asarray([[1]]))
    angles = [float(np.arccos(table[0][0, 0, 1])) for table in tables]
    np.testing.assert_allclose(angles, [0.01, 0.1, 0.01], atol=1e-4)
    assert model_rotary(config.replace(positions="none", layer_pattern=(LayerConfig(),)), jnp.asarray([[1]])) == ()


# relative buckets ----------------------------------------------------------------------------------------------------


def bucket_by_the_paper(offset: int, both_ways: bool, buckets: int, longest: int) -> int:
    """Raffel et al. 2020, 2.1, in whole numbers: exact buckets for near offsets, then widths that grow by a constant
    ratio up to `longest`, beyond which all offsets share the last."""
    first = 0
    if both_ways:
        buckets //= 2
        first = buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = buckets - exact
    # The largest k with distance / exact >= (longest / exact)^(k / steps).
    k = max(k for k in range(steps + 1) if distance**steps * exact**k >= longest**k * exact**steps)
    return first + min(exact + k, buckets - 1)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20)])
def test_relative_buckets_are_the_papers(both_ways, buckets, longest):
    offsets = np.arange(-200, 201)
    expected = [bucket_by_the_paper(int(o), both_ways, buckets, longest) for o in offsets]
    found = relative_buckets(jnp.asarray(offsets), both_ways=both_ways, buckets=buckets, max_distance=longest)
    compiled = jax.jit(lambda o: relative_buckets(o, both_ways=both_ways, buckets=buckets, max_distance=longest))
    assert found.tolist() == expected
    assert compiled(jnp.asarray(offsets)).tolist() == expected


def test_relative_buckets_literal():
    offsets = jnp.asarray([-200, -128, -64, -16, -8, -7, -1, 0, 1, 7, 8, 16, 64, 200])
    both = relative_buckets(offsets, both_ways=True, buckets=32, max_distance=128)
    past = relative_buckets(offsets, both_ways=False, buckets=32, max_distance=128)
    assert both.tolist() == [15, 15, 14, 10, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31]
    assert past.tolist() == [31, 31, 26, 16, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0]
