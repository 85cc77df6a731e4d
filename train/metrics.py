"""Metrics as (sum, weight) pairs, added over micro-batches, devices, steps and hosts, and divided once.

A mean of means is wrong wherever weights differ, as numbers of masked tokens do.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.plan.chips import chip_of

Pair = tuple[Any, Any]


def accuracy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Pair:
    """How often the largest logit is the label's.

    Args:
        logits: [..., V].
        labels: [...] int32.
        weights: [...] 0 where a position does not count.

    Returns:
        (sum, weight), float32 scalars.
    """
    weights = weights.astype(jnp.float32)
    return jnp.sum((jnp.argmax(logits, -1) == labels) * weights), jnp.sum(weights)


def add(a: Mapping[str, Pair], b: Mapping[str, Pair]) -> dict[str, Pair]:
    """Pairs added name by name; a name that one of the two lacks counts as (0, 0) there."""
    names = list(a) + [name for name in b if name not in a]
    zero = (0.0, 0.0)
    return {n: (a.get(n, zero)[0] + b.get(n, zero)[0], a.get(n, zero)[1] + b.get(n, zero)[1]) for n in names}


def divide(pairs: Mapping[str, Pair]) -> dict[str, float]:
    """sum / weight of each pair as a Python float; 0 where the weight is 0."""
    return {
        name: float(np.float64(total) / np.float64(weight)) if weight else 0.0
        for name, (total, weight) in pairs.items()
    }


def peak_flops(device: jax.Device) -> float | None:
    """Published dense bf16 FLOP/s of one device, or None where train.plan.chips has none (of a CPU it never has)."""
    chip = chip_of(device.device_kind)
    return None if chip is None else chip.bf16_flops / chip.devices_a_chip


def mfu(tokens_per_second: float, flops_per_token: float, devices: list[jax.Device]) -> float | None:
    """Model FLOP utilisation (Chowdhery et al. 2022, PaLM, appendix B): the share of the peak that the model needs.

        MFU = tokens_per_second * flops_per_token / (number of devices * peak FLOP/s of one)

    Args:
        tokens_per_second: over all devices.
        flops_per_token: of forward and backward, without recomputation.
        devices: those that take part.

    Returns:
        A fraction, or None where the peak is unknown.
    """
    peak = peak_flops(devices[0])
    return None if peak is None else tokens_per_second * flops_per_token / (len(devices) * peak)
