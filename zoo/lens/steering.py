"""Steering vectors: the direction between two sets of texts at a site (Turner et al. 2023; Rimsky et al. 2023)."""

from typing import Any

import jax
import jax.numpy as jnp

from zoo.errors import InputError, nearest
from zoo.lens.interventions import axes_of
from zoo.lens.trace import Trace, run
from zoo.model import Model
from zoo.probe import parse

OVER = ("last", "mean")


def steering_vector(
    model: Model,
    params: dict[str, Any],
    positive: jax.Array,
    negative: jax.Array,
    site: str,
    positive_mask: jax.Array | None = None,
    negative_mask: jax.Array | None = None,
    over: str = "last",
) -> jax.Array:
    """Mean at `site` over the positive texts, less that over the negative ones; lens.steer adds it.

    Args:
        positive, negative: tokens [B, T] and [B', T'], which need not be as many or as long.
        site: such as "blocks.6.out"; with `*` the answer has one vector a layer.
        positive_mask, negative_mask: their padding masks.
        over: what of each text: its "last" real token, or the "mean" of its real ones.

    Returns:
        float32 [D], or what the site's array has after rows and positions; with a leading [L] for `*`.

    References: arXiv:2308.10248; arXiv:2312.06681.
    """
    parse(model.config, site)
    if over not in OVER:
        raise InputError(f'steering_vector: over is "{over}"{nearest(over, OVER)}')
    if not axes_of(site).startswith("BT"):
        raise InputError(f'steering_vector: site "{site}" holds no vector a token; "blocks.*.out" does')
    pairs = ((positive, positive_mask), (negative, negative_mask))
    traces = [run(model, params, tokens, site, padding_mask=mask, logits_at=False) for tokens, mask in pairs]
    means = [_mean(trace, site, over) for trace in traces]
    return means[0] - means[1]


def _mean(trace: Trace, site: str, over: str) -> jax.Array:
    values = trace.values[site].astype(jnp.float32)
    values = values if "*" in site else values[None]
    real = jnp.ones(values.shape[1:3], bool) if trace.real is None else trace.real
    if over == "last":
        last = jnp.cumsum(real, axis=1) == real.sum(axis=1, keepdims=True)
        real = real & last
    share = real / jnp.maximum(real.sum(axis=1, keepdims=True), 1) / len(real)
    mean = jnp.einsum("lbt...,bt->l...", values, share, precision="highest")
    return mean if "*" in site else mean[0]
