"""How order enters: counting real tokens, sinusoids, rotary tables with their scalings, relative buckets.

All tables are float32 whatever the compute dtype: in bfloat16 neighbouring positions beyond 256 coincide.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig, RotaryScaling


def count_real_tokens(
    batch: int, length: int, padding_mask: jax.Array | None = None, segment_ids: jax.Array | None = None
) -> jax.Array:
    """Positions [B, T]: real tokens counted from 0 within each row and segment.

    Left and right padding give a real token the same position. A padding token takes the position of the last real one
    before it (0 at the start): nobody reads it. The tokens of a segment need not stand together: an id that comes back
    goes on where it stopped, as `Mask` lets it see its first tokens.

    Args:
        batch, length: B, T.
        padding_mask: [B, T], non-zero on real tokens.
        segment_ids: int [B, T]; each id has a count of its own.
    """
    if padding_mask is None and segment_ids is None:
        return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
    real = jnp.ones((batch, length), jnp.int32) if padding_mask is None else (padding_mask != 0).astype(jnp.int32)
    if segment_ids is None:
        return jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
    slots = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
    ids, slots, real = jax.lax.sort((segment_ids, slots, real), num_keys=1, is_stable=True)  # each segment together
    starts = jnp.concatenate([jnp.ones((batch, 1), bool), ids[:, 1:] != ids[:, :-1]], axis=1)
    seen = jnp.cumsum(real, axis=1)
    count = jnp.maximum(seen - 1 - jax.lax.cummax(jnp.where(starts, seen - real, 0), axis=1), 0)
    return jax.lax.sort((slots, count), num_keys=1)[1]


def restarted(positions: jax.Array, real: jax.Array | None = None) -> jax.Array:
    """bool [B]: rows in which the position of a real token is below that of an earlier real one.

    Args:
        positions: int [B, T].
        real: bool [B, T]; None for all real.
    """
    real = jnp.ones(positions.shape, bool) if real is None else real
    highest = jax.lax.cummax(jnp.where(real, positions.astype(jnp.int32), jnp.iinfo(jnp.int32).min), axis=1)
    return jnp.any(real & (positions < highest), axis=1)


def sinusoidal(positions: jax.Array, dim: int) -> jax.Array:
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(same): [..., D] float32 (Vaswani et al. 2017, 3.5)."""
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(rotary_frequencies(dim, 10000.0))
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return waves.reshape(*positions.shape, -1)[..., :dim]


def rotary_frequencies(dim: int, base: float, scaling: RotaryScaling | None = None) -> np.ndarray:
    """Radians a token for each pair of features: base^(-2i/dim), then scaled: float32 [ceil(dim / 2)].

    Of scalings that depend on the length, those of the trained length; see `frequencies_by_length`.
    References: Su et al. 2021 (arXiv:2104.09864) eq. 15; scalings as in RotaryScaling.
    """
    frequencies = 1.0 / base ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    if scaling is None or scaling.kind == "dynamic":
        return frequencies.astype(np.float32)
    if scaling.kind == "linear":
        return (frequencies / scaling.factor).astype(np.float32)
    if scaling.kind == "longrope":
        return (frequencies / np.asarray(scaling.short_factors)).astype(np.float32)
    if scaling.kind == "yarn":
        low, high = (
            dim * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (scaling.beta_fast, scaling.beta_slow)
        )
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        divided = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
        return (frequencies * (1 - divided + divided / scaling.factor)).astype(np.float32)
    wavelengths = 2 * math.pi / frequencies
    smooth = (scaling.original_max_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = np.clip(smooth, 0.0, 1.0)
    return (frequencies * (smooth + (1 - smooth) / scaling.factor)).astype(np.float32)


def frequencies_by_length(dim: int, base: float, scaling: RotaryScaling, lengths: jax.Array) -> jax.Array:
    """Radians a token under a scaling that depends on the length: float32 [B, T, R/2] for lengths int [B, T]."""
    trained = jnp.asarray(rotary_frequencies(dim, base, scaling))
    if scaling.kind == "longrope":
        long = 1.0 / base ** (np.arange(0, dim, 2, dtype=np.float64) / dim) / np.asarray(scaling.long_factors)
        beyond = lengths[..., None] > scaling.original_max_positions
        return jnp.where(beyond, jnp.asarray(long, jnp.float32), trained)
    stretch = scaling.factor * lengths.astype(jnp.float32) / scaling.original_max_positions - (scaling.factor - 1)
    powers = jnp.asarray(-np.arange(0, dim, 2) / (dim - 2), jnp.float32)
    return trained * jnp.maximum(stretch, 1.0)[..., None] ** powers


def known_lengths(
    positions: jax.Array, real: jax.Array | None = None, segment_ids: jax.Array | None = None
) -> jax.Array:
    """int [B, T]: 1 + the highest position among the real tokens of each token's own segment.

    Args:
        positions: int [B, T].
        real: bool [B, T]; None for all.
        segment_ids: int [B, T]; None for one segment a row.
    """
    counted = positions if real is None else jnp.where(real, positions, 0)
    if segment_ids is None:
        return jnp.broadcast_to(counted.max(axis=1, keepdims=True) + 1, positions.shape)

    def one_row(ids, places):
        group = jnp.searchsorted(jnp.sort(ids), ids)
        return jnp.zeros_like(places).at[group].max(places)[group] + 1

    return jax.vmap(one_row)(segment_ids, counted)


def rotary_tables(
    positions: jax.Array, frequencies: np.ndarray | jax.Array, magnitude: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """cos and sin of position times frequency, times `magnitude`: two float32 [B, T, R/2], R the rotated features.

    Args:
        positions: int [B, T].
        frequencies: [R/2], or [B, T, R/2] where they depend on the length.
        magnitude: see RotaryScaling.magnitude.
    """
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if magnitude == 1.0 else (magnitude * cos, magnitude * sin)


def rotate(heads: jax.Array, tables: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotary embedding of the first R features, half-split layout: feature i turns with feature i + R/2.

    Args:
        heads: [B, T, N, H] queries or keys.
        tables: from rotary_tables.

    Returns:
        [B, T, N, H] in the dtype of `heads`, turned in float32.
    """
    cos, sin = (table[:, :, None, :] for table in tables)
    half = cos.shape[-1]
    first = heads[..., :half].astype(jnp.float32)
    second = heads[..., half : 2 * half].astype(jnp.float32)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(heads.dtype)
    if 2 * half == heads.shape[-1]:
        return turned
    return jnp.concatenate([turned, heads[..., 2 * half :]], axis=-1)


def model_rotary(
    config: ModelConfig, positions: jax.Array, lengths: jax.Array | None = None
) -> tuple[tuple[jax.Array, jax.Array] | None, ...]:
    """Tables for each entry of the layer pattern (one object where they are the same), or () if not rotary.

    Args:
        positions: int [B, T].
        lengths: int [B, T] from known_lengths, read where the scaling depends on it; None for the trained length.

    Returns:
        (cos, sin) an entry, None for one that turns nothing.
    """
    if config.positions != "rotary":
        return ()
    dim = config.head_dim if config.rotary_dim is None else config.rotary_dim
    made: dict[tuple[float, bool], tuple[jax.Array, jax.Array]] = {}

    def tables(layer: LayerConfig) -> tuple[jax.Array, jax.Array] | None:
        if not layer.rotary:
            return None
        base = config.rotary_base if layer.rotary_base is None else layer.rotary_base
        scaling = config.rotary_scaling if layer.rotary_scaled else None
        if (base, layer.rotary_scaled) not in made:
            frequencies = rotary_frequencies(dim, base, scaling)
            if scaling is not None and scaling.by_length and lengths is not None:
                frequencies = frequencies_by_length(dim, base, scaling, lengths)
            magnitude = 1.0 if scaling is None else scaling.magnitude
            made[base, layer.rotary_scaled] = rotary_tables(positions, frequencies, magnitude)
        return made[base, layer.rotary_scaled]

    return tuple(tables(layer) for layer in config.layer_pattern)


def relative_buckets(offsets: jax.Array, *, both_ways: bool, buckets: int, max_distance: int) -> jax.Array:
    """The bucket of each key-minus-query offset: exact for near ones, logarithmic to max_distance, then one for all.

    Args:
        offsets: int array, key position minus query position.
        both_ways: half of the buckets for keys after the query; otherwise those count as distance 0.
        buckets, max_distance: number of buckets; distance in tokens from which all share the last.

    Returns:
        int32 in [0, buckets). Reference: Raffel et al. 2020 (arXiv:1910.10683), section 2.1.
    """
    offsets = jnp.asarray(offsets, jnp.int32)
    start = jnp.zeros_like(offsets)
    if both_ways:
        buckets //= 2
        start = jnp.where(offsets > 0, buckets, 0)
        distance = jnp.abs(offsets)
    else:
        distance = jnp.maximum(-offsets, 0)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    logarithmic = exact + (ratio * (buckets - exact)).astype(jnp.int32)
    return start + jnp.where(distance < exact, distance, jnp.minimum(logarithmic, buckets - 1))
