"""Pairs add up and divide once; MFU by its formula."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from train.config import RunConfig, TrainConfig
from train.metrics import accuracy, add, divide, mfu, peak_flops
from train.opening import flops_per_token

pairs = st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 9).map(float)), min_size=1, max_size=6)


@given(pairs)
def test_the_mean_is_that_of_all_and_not_of_means(given_pairs):
    total = {}
    for pair in given_pairs:
        total = add(total, {"loss": pair})
    weight = sum(w for _, w in given_pairs)
    expected = sum(s for s, _ in given_pairs) / weight if weight else 0.0
    assert divide(total)["loss"] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_name_that_one_side_lacks_counts_as_nothing():
    assert add({"a": (1.0, 2.0)}, {"b": (3.0, 4.0)}) == {"a": (1.0, 2.0), "b": (3.0, 4.0)}


def test_accuracy_counts_weights():
    logits = jnp.array([[1.0, 2.0], [2.0, 1.0], [0.0, 3.0]])
    total, weight = accuracy(logits, jnp.array([1, 1, 1]), jnp.array([1, 1, 0]))
    assert (float(total), float(weight)) == (1.0, 2.0)


def test_mfu():
    h100 = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
    assert mfu(1e6, 1e9, [h100, h100]) == pytest.approx(1e15 / (2 * 989e12))
    assert mfu(1e6, 1e9, [SimpleNamespace(device_kind="cpu")]) is None
    assert peak_flops(SimpleNamespace(device_kind="TPU v4")) == 275e12


def test_flops_count_the_read_out_where_it_is_computed():
    """By hand, 2 layers x 128: 3 (24 D^2 L + 4 D keys L + 2 D V share), and for the masked-LM head 2 D^2 share more."""
    model = zoo.ModelConfig(vocab_size=1000)
    matrices, length = 2 * 2 * 12 * 128**2, 64
    causal = 3 * (matrices + 2 * 4 * 128 * (length + 1) / 2 + 2 * 128 * 1000)
    assert flops_per_token(RunConfig(model, TrainConfig())) == pytest.approx(causal)
    masked = RunConfig(
        model.replace(visibility="full", head="masked_lm"), TrainConfig(objective="masked_lm", mask_rate=0.25)
    )
    both_ways = 3 * (matrices + 2 * 4 * 128 * length + 0.25 * (2 * 128 * 1000 + 2 * 128**2))
    assert flops_per_token(masked) == pytest.approx(both_ways)
    assert np.isfinite(causal)
