"""Programs for devices that are not here: cuDNN's calls in one for CUDA, splash compiled by the TPU's own compiler."""

import importlib.util
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from zoo import attention
from zoo.attention import attend
from zoo.errors import InputError
from zoo.masks import Mask

B, T, N, K, H = 2, 256, 8, 4, 64


def gradients(mask, kernel, bias=None, **options):
    """d loss / d (query, key, value), as a function of them and of segment ids."""

    def loss(query, key, value, ids):
        full = mask.replace(query_segments=ids, key_segments=ids, key_valid=ids > 0) if ids is not None else mask
        return attend(query, key, value, mask=full, kernel=kernel, bias=bias, **options)[0].astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))


# cuDNN ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cudnn(monkeypatch):
    """jax asks which cuDNN is installed before it writes a call of it: here it is told of one."""
    door = jax.nn.dot_product_attention.__globals__["cudnn_dot_product_attention"]
    monkeypatch.setitem(door.__globals__, "check_cudnn_version", lambda: 91300)


def for_cuda(mask, ids=None, dtype=jnp.bfloat16, kernel="cudnn", length=T, keys=T, head_dim=H, **options):
    """The text of the program for CUDA, forward and backward."""
    query, key = ((B, length, N, head_dim), (B, keys, K, head_dim))
    query, key = jax.ShapeDtypeStruct(query, dtype), jax.ShapeDtypeStruct(key, dtype)
    traced = jax.jit(gradients(mask, kernel, **options)).trace(query, key, key, ids)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_cudnn_lowers_for_cuda(cudnn, dtype):
    """Causal grouped heads: the flash calls of both passes, and no T x T array."""
    text = for_cuda(Mask(causal=True), dtype=dtype)
    assert set(re.findall(r"__cudnn\$\w+", text)) == {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    assert "CAUSAL" in text and f"{T}x{T}" not in text


def test_cudnn_is_given_segments_padding_and_bias(cudnn):
    """They go as an additive bias [.., T, T] into the same two calls."""
    ids = jax.ShapeDtypeStruct((B, T), jnp.int32)
    text = for_cuda(Mask(causal=True), ids)
    calls = {"__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"}
    assert set(re.findall(r"__cudnn\$\w+", text)) == calls and f"{T}x{T}" in text
    assert set(re.findall(r"__cudnn\$\w+", for_cuda(Mask(), bias=jnp.zeros((1, N, T, T))))) == calls


@pytest.fixture
def ampere(cudnn, monkeypatch):
    """As on a machine with an A100."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(attention, "_cuda_capability", lambda: 8.0)


SEGMENTS = jax.ShapeDtypeStruct((B, T), jnp.int32)


MASKED = [(Mask(causal=True), None), (Mask(), None), (Mask(causal=True), SEGMENTS), (Mask(), SEGMENTS),
          (Mask(causal=True, window=40), SEGMENTS)]  # fmt: skip


@pytest.mark.parametrize("mask,ids", MASKED, ids=str)
def test_auto_on_a_gpu_is_cudnn_with_the_same_mask(ampere, mask, ids):
    """The very program of the kernel by name: flash calls in both passes, what hides tokens among their arguments."""
    found = for_cuda(mask, ids, kernel="auto")
    assert found == for_cuda(mask, ids) and "fmha" in found
    assert ("fmhaScaleBias" in found) == (ids is not None or mask.window is not None)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": jnp.float32},
        {"head_dim": 20},
        {"head_dim": 256},
        {"length": 255, "keys": 255},
        {"length": 2, "keys": 256},
        {"bias": jnp.zeros((1, N, T, T))},
        {"soft_cap": 30.0},
    ],
    ids=str,
)
def test_auto_leaves_to_xla_what_cudnn_might_not_take(ampere, options):
    assert "cudnn" not in for_cuda(Mask(causal=True), kernel="auto", **options)


def test_auto_is_cudnn_for_cuda_alone_and_from_ampere_on(ampere, monkeypatch):
    for generation in (0.0, 7.5):  # another maker's, a T4
        monkeypatch.setattr(attention, "_cuda_capability", lambda generation=generation: generation)
        assert "cudnn" not in for_cuda(Mask(causal=True), kernel="auto")
    monkeypatch.undo()
    assert attention._cuda_capability() == 0.0  # none is here
    assert "cudnn" not in for_cuda(Mask(causal=True), kernel="auto")


def test_cudnn_is_refused_for_other_devices(cudnn):
    """With cuDNN installed and no GPU the trace succeeds, and the program for a CPU is refused, in one line."""
    arrays = (jnp.zeros((B, 8, N, H), jnp.bfloat16), *(jnp.zeros((B, 8, K, H), jnp.bfloat16),) * 2)
    message = '^attention kernel "cudnn" needs a CUDA device and none is here; use "auto" or "blockwise"'
    with pytest.raises(InputError, match=message):
        attend(*arrays, kernel="cudnn")
    with pytest.raises(InputError, match=message):
        jax.jit(gradients(Mask(causal=True), "cudnn"))(*arrays, None)


# TPU ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chips():
    """Four chips of a v5e, described by libtpu."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install 'oneblock[plan]'")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.experimental import topologies

    return np.asarray(topologies.get_topology_desc(topology_name="v5e:2x2", platform="tpu").devices)


def for_tpu(chips, axes, mask, kernel, length, head_dim=H):
    """The program of both passes, compiled for the chips."""
    mesh = jax.sharding.Mesh(chips.reshape(tuple(axes.values())), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    at = NamedSharding(
        mesh, PartitionSpec(*(axis if axis in axes else None for axis in ("data", "sequence", "tensor")))
    )
    query, key = (jax.ShapeDtypeStruct((B, length, n, head_dim), jnp.bfloat16, sharding=at) for n in (N, K))
    ids = jax.ShapeDtypeStruct((B, length), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh), jax.default_matmul_precision("default"):
        return jax.jit(gradients(mask, kernel)).lower(query, key, key, ids).compile()


KERNELS = ("splash_mha_fwd_segmented_residuals", "splash_mha_dq_segmented", "splash_mha_dkv_segmented")


@pytest.mark.parametrize(
    ("axes", "window", "kernel", "length"),
    [
        ({"data": 2, "tensor": 2}, None, "auto", 1024),  # by the platform of the mesh, on a machine without chips
        ({"data": 2, "sequence": 2}, None, "splash", 512),
        ({"data": 1, "tensor": 4}, 100, "splash", 300),
    ],
    ids=["rows and heads", "rows and tokens", "window"],
)
def test_splash_compiles_for_a_tpu(chips, axes, window, kernel, length):
    """Forward and both backward kernels under shard_map, causal, packed and padded, grouped heads."""
    text = for_tpu(chips, axes, Mask(causal=True, window=window), kernel, length).as_text()
    assert all(name in text for name in KERNELS) and "tpu_custom_call" in text
    assert ("all-gather" in text) == ("sequence" in axes)


def test_the_ring_compiles_for_a_tpu(chips):
    """Keys and values go from chip to chip, and are never gathered."""
    text = for_tpu(chips, {"sequence": 4}, Mask(causal=True), "ring", 1024).as_text()
    assert "collective-permute" in text and "all-gather" not in text
