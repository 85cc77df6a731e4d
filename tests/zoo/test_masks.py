"""zoo.masks against matrices written out by hand: rows are queries, columns are keys, 1 is visible."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.masks import Mask, causal_mask, materialise, visible


def matrix(mask: Mask, queries: int, keys: int, row: int = 0) -> list[str]:
    seen = np.asarray(materialise(mask, queries, keys))
    assert seen.dtype == bool and seen.shape[1:] == (1, queries, keys)
    return ["".join("1" if cell else "0" for cell in line) for line in seen[row if len(seen) > 1 else 0, 0]]


def test_causal():
    assert matrix(Mask(causal=True), 4, 4) == ["1000", "1100", "1110", "1111"]
    assert np.array_equal(causal_mask(3), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert np.array_equal(causal_mask(2, 5), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


def test_causal_window():
    """A query at t sees (t - window, t]."""
    assert matrix(Mask(causal=True, window=2), 4, 4) == ["1000", "1100", "0110", "0011"]
    assert matrix(Mask(causal=True, window=1), 3, 3) == ["100", "010", "001"]


@pytest.mark.parametrize("window", [2, 3])
def test_window_both_ways(window):
    """|t - s| <= window // 2: widths 2 and 3 are the same band."""
    assert matrix(Mask(window=window), 4, 4) == ["1100", "1110", "0111", "0011"]


def test_segments():
    ids = jnp.asarray([[1, 1, 2, 2, 0]])
    full = Mask(query_segments=ids, key_segments=ids)
    assert matrix(full, 5, 5) == ["11000", "11000", "00110", "00110", "00001"]
    assert matrix(full.replace(causal=True), 5, 5) == ["10000", "11000", "00100", "00110", "00001"]


def test_padding_hides_keys_alone():
    valid = jnp.asarray([[True, True, False], [False, True, True]])
    assert matrix(Mask(key_valid=valid), 3, 3, row=0) == ["110", "110", "110"]
    assert matrix(Mask(causal=True, key_valid=valid), 3, 3, row=1) == ["000", "010", "011"]


def test_prefix_is_seen_by_earlier_queries():
    prefix = jnp.asarray([[True, True, False, False]])
    assert matrix(Mask(causal=True, prefix_keys=prefix), 4, 4) == ["1100", "1100", "1110", "1111"]
    ids = jnp.asarray([[1, 1, 2, 2]])
    packed = Mask(
        causal=True, prefix_keys=jnp.asarray([[True, True, True, True]]), query_segments=ids, key_segments=ids
    )
    assert matrix(packed, 4, 4) == ["1100", "1100", "0011", "0011"]


def test_queries_continue_a_cache():
    """Two queries at slots 2 and 3 of a cache of 6, of which slot 1 is padding and 4, 5 are empty."""
    valid = jnp.asarray([[True, False, True, True, False, False]])
    assert matrix(Mask(causal=True, query_start=2, key_valid=valid), 2, 6) == ["101000", "101100"]
    assert matrix(Mask(causal=True, query_start=jnp.int32(2), window=2), 2, 6) == ["011000", "001100"]


def test_padding_never_widens_a_window():
    """Slots 1 and 2 are padding: by order the last token is 1 after the first, and a window of 2 reaches it."""
    valid = jnp.asarray([[True, False, False, True]])
    order = jnp.asarray([[0, 0, 0, 1]])
    mask = Mask(causal=True, window=2, key_valid=valid, query_order=order, key_order=order)
    assert matrix(mask, 4, 4)[3] == "1001"
    assert matrix(mask.replace(query_order=None, key_order=None), 4, 4)[3] == "0001"


def test_nothing_hidden_needs_no_array():
    assert materialise(Mask(), 3, 4) is None
    assert materialise(Mask(causal=True), 3, 3) is not None
    assert materialise(Mask(window=2), 3, 3) is not None


def test_a_pure_causal_mask_stays_known_under_transformations():
    """Kernels know pure causality by themselves; an argument of a transformed function must not blur it."""
    for transform in (jax.checkpoint, jax.jit, jax.vmap):
        found = []

        def look(mask, x, found=found):
            found.append(mask.only_causal)
            return x

        jax.eval_shape(transform(look), Mask(causal=True), jnp.zeros(2))
        assert found == [True], transform
    others = (Mask(), Mask(causal=True, window=2), Mask(causal=True, query_start=0), Mask(causal=True, key_valid=1))
    assert [mask.only_causal for mask in others] == [False] * 4


@given(st.data())
def test_blocks_are_parts_of_the_whole(data):
    """visible() of some queries and keys is that part of the whole matrix, and each entry follows the definition."""
    length, keys = 5, 6
    numbers = st.lists(st.integers(0, 2), min_size=keys, max_size=keys)
    valid, segments, prefix = (np.asarray([data.draw(numbers)]) for _ in range(3))
    causal, window, start = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1, 2, 3])), 1
    mask = Mask(
        causal=causal,
        window=window,
        query_start=start,
        key_valid=jnp.asarray(valid > 0),
        query_segments=jnp.asarray(segments[:, start : start + length]),
        key_segments=jnp.asarray(segments),
        prefix_keys=jnp.asarray(prefix > 1),
    )
    whole = np.asarray(materialise(mask, length, keys))[0, 0]
    for t in range(length):
        for s in range(keys):
            slot = t + start
            seen = valid[0, s] > 0 and segments[0, slot] == segments[0, s]
            if causal:
                seen = seen and (s <= slot or prefix[0, s] > 1)
            if window is not None:
                seen = seen and (slot - s < window if causal else abs(slot - s) <= window // 2)
            assert whole[t, s] == seen, (t, s)
    part = np.asarray(visible(mask, jnp.asarray([1, 4]), jnp.asarray([0, 2, 5])))[0, 0]
    assert np.array_equal(part, whole[np.ix_([1, 4], [0, 2, 5])])
