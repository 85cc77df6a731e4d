"""zoo.dropout: the hash's statistics, and masks that differ wherever they must and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.dropout import SITES, Dropout, at_site, drop, keep, row_seeds
from zoo.errors import InputError

COUNT = 1 << 16
DIFFERENT = 4.5  # standard deviations; about one in 150,000 by chance, for fixed seeds


@jax.jit
def masks(seeds, layer):
    """bool [sites, B, COUNT]."""
    return jnp.stack([keep(at_site(seeds, 0.5, layer, site), jnp.arange(COUNT, dtype=jnp.uint32)) for site in SITES])


@pytest.fixture(scope="module")
def drawn():
    """Masks at rate 0.5 as -1 and 1, [4, sites, rows, COUNT]: 3 layers under one key, then a layer under another."""
    seeds = row_seeds(jax.random.key(0), 4)
    later = row_seeds(jax.random.key(1), 4)
    layers = [masks(seeds, layer) for layer in range(3)] + [masks(later, 0)]
    return np.asarray(jnp.stack(layers), np.float32) * 2 - 1


def test_rate_is_right_at_every_place(drawn):
    """The mean of n fair signs has standard deviation 1 / sqrt(n)."""
    means = drawn.mean(axis=-1) * np.sqrt(COUNT)
    assert means.shape == (4, len(SITES), 4) and np.abs(means).max() < DIFFERENT
    assert np.square(means).mean() == pytest.approx(1, abs=0.5)  # chi-square over 112 masks, sd 0.13


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rate_is_right(rate):
    dropout = at_site(row_seeds(jax.random.key(2), 8), rate, 1, "mlp")
    kept = float(keep(dropout, jnp.arange(COUNT, dtype=jnp.uint32)).mean())
    assert abs(kept - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / (8 * COUNT))


@pytest.mark.parametrize("rate", [1e-12, 1 - 1e-12])
def test_rates_at_the_ends(rate):
    kept = keep(Dropout(row_seeds(jax.random.key(2), 1), rate), jnp.arange(1000, dtype=jnp.uint32))
    assert float(kept.mean()) == round(1 - rate)


def test_no_two_masks_are_alike(drawn):
    """Rows, layers, sites and steps: 112 masks, each pair uncorrelated (an equal or inverted pair would give 256)."""
    flat = drawn.reshape(-1, COUNT)
    pairs = flat @ flat.T / np.sqrt(COUNT)
    off = pairs[~np.eye(len(flat), dtype=bool)]
    assert np.abs(off).max() < DIFFERENT + 0.5  # 6,216 pairs
    assert np.square(off).mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("shift", [1, 2, 3, 4, 7, 8, 16, 64, 128, 256, 1024, 4096, 32768])
def test_neighbours_at_any_distance_are_uncorrelated(drawn, shift):
    products = (drawn[..., shift:] * drawn[..., :-shift]).mean(axis=-1) * np.sqrt(COUNT - shift)
    assert np.abs(products).max() < DIFFERENT


def test_no_mask_is_a_shifted_copy(drawn):
    """Circular cross-correlations of one mask with the others at all 65,536 shifts; a copy would reach 256."""
    flat = drawn[:2, :, :2].reshape(-1, COUNT)
    spectra = np.fft.rfft(flat)
    for other in spectra[1:]:
        assert np.abs(np.fft.irfft(spectra[0] * other.conj(), COUNT)).max() / np.sqrt(COUNT) < 6.5


def test_bytes_of_the_masks_are_uniform(drawn):
    """Eight neighbouring elements, and eight at a stride of 256, as bytes: chi-square of 256 cells, 255 +- 22.6."""
    bits = (drawn > 0).astype(np.uint8)
    for eight in (bits.reshape(-1, 8), bits.reshape(-1, 8, 256).transpose(0, 2, 1).reshape(-1, 8)):
        counts = np.bincount(np.packbits(eight, axis=1)[:, 0], minlength=256)
        expected = counts.sum() / 256
        assert abs(np.square(counts - expected).sum() / expected - 255) < DIFFERENT * 22.6


def test_kept_per_block_is_binomial(drawn):
    """Blocks of 64: the number kept has mean 32 and variance 16, over 114,688 blocks."""
    kept = (drawn > 0).reshape(-1, 64).sum(axis=1)
    assert abs(kept.mean() - 32) < 4 * 4 / np.sqrt(len(kept))
    assert kept.var() == pytest.approx(16, rel=0.03)


def test_a_row_knows_its_key_alone():
    """One key is folded by row number; row keys give the same masks in whatever batch they stand."""
    key = jax.random.key(3)
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(5))
    whole = row_seeds(key, 5)
    assert np.array_equal(whole, row_seeds(keys, 5))
    assert np.array_equal(whole[2:4], row_seeds(keys[2:4], 2))
    assert np.array_equal(row_seeds(jax.random.key_data(keys), 5), whole)  # raw uint32 keys
    index = jnp.arange(64, dtype=jnp.uint32).reshape(4, 16)
    all_rows = keep(at_site(whole, 0.3, 2, "attention"), index)
    some_rows = keep(at_site(row_seeds(keys[jnp.asarray([4, 1])], 2), 0.3, 2, "attention"), index)
    assert all_rows.shape == (5, 4, 16) and np.array_equal(all_rows[jnp.asarray([4, 1])], some_rows)


def test_row_keys_are_one_a_row():
    with pytest.raises(InputError, match=r"^dropout_key has shape \(3,\); give one key, or one a row: \(2,\)$"):
        row_seeds(jax.random.split(jax.random.key(0), 3), 2)


def test_evaluation_and_rate_zero_have_no_dropout():
    assert at_site(None, 0.5, 0, "mlp") is None
    assert at_site(row_seeds(jax.random.key(0), 2), 0.0, 0, "mlp") is None
    x = jnp.ones((2, 3))
    assert drop(x, None) is x


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drop_zeroes_and_divides(dtype):
    """What is kept is x / (1 - rate), rounded once: a bfloat16 0.9 would give 3.34 where 3.33 is nearest."""
    x = jnp.full((4, 50, 7), 3.0, dtype)
    y = drop(x, at_site(row_seeds(jax.random.key(4), 4), 0.1, 0, "embed"))
    kept = keep(at_site(row_seeds(jax.random.key(4), 4), 0.1, 0, "embed"), jnp.arange(350).reshape(50, 7))
    assert y.dtype == x.dtype
    expected = np.where(kept, np.asarray(3.0 / 0.9, dtype), 0).astype(np.float32)
    np.testing.assert_allclose(np.asarray(y, np.float32), expected, rtol=2e-7)  # bfloat16 exactly
    assert 0 < (1 - np.asarray(kept)).sum() < 300
