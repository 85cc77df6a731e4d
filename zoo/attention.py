"""attend(): the one door to attention kernels, and what each of them honours.

    scores = Q K^T * scale, capped, plus bias, masked      [B, N, T, S]
    out    = dropout(softmax over keys of scores) V        [B, T, N, H]

Query head q reads key-value head q // G. A query that sees no key gets a zero output and sends no gradient, in every
kernel. Each kernel honours all that it is given or refuses by name; none may ignore a mask, bias, cap or dropout.

| kernel             | what it is                                               | refuses                             |
|--------------------|----------------------------------------------------------|-------------------------------------|
| einsum             | the formula above, written out: the oracle               | nothing                             |
| xla                | jax.nn.dot_product_attention                             | dropout, soft cap, returned weights |
| cudnn              | the same through cuDNN's flash attention (CUDA, 16 bit)  | dropout, soft cap, returned weights |
| blockwise          | running maximum and sum over blocks; no T x S array      | returned weights                    |
| ring               | blockwise, tokens over the mesh axis `sequence`; keys    | returned weights; no such mesh, or  |
|                    | and values pass round (zoo.ring_attention)               | sizes that it does not divide       |
| gathered           | the same, each device gathering all keys and values      | as ring                             |
| splash             | TPU flash attention from jax's Pallas kernels            | dropout, bias, prefix, cache,       |
|                    | (zoo.splash)                                             | returned weights                    |
| splash_interpreted | splash run by Pallas's interpreter anywhere: slow, for   | as splash                           |
|                    | tests                                                    |                                     |

"auto" takes einsum where weights are asked for; ring or gathered on a mesh that splits tokens (gathered where all keys
and values are no larger than a device's own queries); splash on a TPU from SPLASH_FROM tokens where it honours the call
exactly (in place of gathered, too); cudnn on NVIDIA GPUs from Ampere on where it takes the call in 16 bit
(_cudnn_takes); else xla where it honours the call, and einsum where it does not, or where a CPU has few queries.

References: Vaswani et al. 2017, 3.2; Ainslie et al. 2023 (grouped heads); Rabe and Staats 2021 and Dao et al. 2022
(blockwise softmax: memory linear in length, the work still quadratic).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from zoo.blockwise import blockwise_attention
from zoo.dropout import Dropout, keep
from zoo.errors import InputError, nearest
from zoo.lowering import only_on, refusal
from zoo.masks import Mask, materialise
from zoo.partition import auto_mesh
from zoo.partition import platform as compiled_for
from zoo.remat import mark
from zoo.ring_attention import better_way, split_attention, splits_tokens
from zoo.splash import SPLASH_FROM, splash_attention, splash_divides, splash_refuses

# Queries of a step of generation, at most: with so few, CPUs multiply fastest as einsum has it.
FEW_QUERIES = 16
KERNELS = ("auto", "xla", "cudnn", "blockwise", "ring", "gathered", "splash", "splash_interpreted", "einsum")


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: Mask | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout: Dropout | None = None,
    kernel: str = "auto",
    return_weights: bool = False,
    see: Callable[[str, jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Attention of every query over the keys visible to it.

    Args:
        query: [B, T, N, H].
        key, value: [B, S, K, H], with K dividing N.
        mask: structure of visibility; None for all visible.
        bias: added to the scaled and capped scores, [B or 1, N, T, S].
        scale: multiplies QK^T; None for 1 / sqrt(H).
        soft_cap: c tanh(score / c) before bias and mask.
        dropout: on the weights after the softmax.
        kernel: one of KERNELS; see the module's text.
        return_weights: also give the weights that multiplied V, dropout included.
        see: given "scores" (before the mask) and "weights" with their arrays [B, N, T, S], answers what to go on with;
            needs the kernel that return_weights needs.

    Returns:
        out [B, T, N, H] in the dtype of `value`; weights float32 [B, N, T, S], or None unless asked for.

    Raises:
        InputError: unknown kernel; a kernel asked for what it cannot honour; K does not divide N.
    """
    if kernel not in KERNELS:
        raise InputError(f'attention kernel "{kernel}" is unknown{nearest(kernel, KERNELS)}')
    if query.shape[2] % key.shape[2]:
        raise InputError(f"attention: {key.shape[2]} key-value heads do not divide {query.shape[2]} query heads")
    mask = Mask() if mask is None else mask
    return_weights = return_weights or see is not None
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wants = [
        name
        for name, asked in (
            ("dropout", dropout is not None),
            ("a soft cap", soft_cap is not None),
            ("returned weights", return_weights),
        )
        if asked
    ]
    if kernel == "auto":
        kernel = _choose(query, key, value, mask, bias, dropout, wants, return_weights)
    if kernel == "einsum":
        out, weights = einsum_attention(query, key, value, mask, bias, scale, soft_cap, dropout, return_weights, see)
        return mark(out, "attention_result"), weights
    if kernel in ("blockwise", "ring", "gathered"):
        if return_weights:
            raise InputError(f'attention kernel "{kernel}" never forms the weights; return_weights needs "einsum"')
        arguments = (query, key, value, mask, bias, scale, soft_cap, dropout)
        if kernel == "blockwise" and auto_mesh() is None:
            return blockwise_attention(*arguments), None
        return split_attention(*arguments, way=kernel), None
    if kernel in ("splash", "splash_interpreted"):
        trouble = splash_refuses(query, key, mask, bias, dropout, return_weights)
        if trouble:
            raise InputError(f'attention kernel "{kernel}" does not honour {trouble}; use "blockwise" or "auto"')
        interpret = kernel == "splash_interpreted"
        return splash_attention(query, key, value, mask, scale, soft_cap, interpret=interpret), None
    if wants:
        raise InputError(f'attention kernel "{kernel}" does not honour {" or ".join(wants)}; use "einsum" or "auto"')
    dtype = value.dtype
    if kernel == "xla" and dtype.itemsize == 2 and auto_mesh() is None and jax.default_backend() == "cpu":
        # XLA on CPUs has no fast product of many small 16-bit matrices; in float32 it is also the more exact.
        query, key, value = (x.astype(jnp.float32) for x in (query, key, value))
    out = _library_attention(query, key, value, mask, bias, scale, kernel).astype(dtype)
    return mark(out, "attention_result"), None


def _choose(query, key, value, mask, bias, dropout, wants, return_weights):
    """The kernel that "auto" stands for."""
    if return_weights:
        return "einsum"
    mesh = auto_mesh()
    platform = compiled_for()
    flash = platform == "tpu" and query.shape[1] >= SPLASH_FROM
    flash = flash and not splash_refuses(query, key, mask, bias, dropout, return_weights)
    flash = flash and (mask.window is None or mask.query_order is None)
    if splits_tokens(query, key):
        way = better_way(query, key)
        return "splash" if flash and way == "gathered" and splash_divides(query, key) else way
    if flash or wants or (platform == "cpu" and query.shape[1] <= FEW_QUERIES):
        return "splash" if flash else "einsum"
    return "cudnn" if platform in ("gpu", "cuda") and _cudnn_takes(query, key, value, bias, mesh) else "xla"


def _cudnn_takes(query, key, value, bias, mesh):
    """Whether cuDNN's fused attention is sure to take a call whose mask may be any: it goes in as a bias of 16 bit.

    16 bit throughout; head_dim a multiple of 8 up to 128 (256 on some chips); as many keys as queries, an even number
    (its backward pass with a mask asks it); no bias, which would be rounded; tokens whole on each device.
    """
    length, head_dim = query.shape[1], query.shape[3]
    half = all(x.dtype == query.dtype for x in (key, value)) and query.dtype in (jnp.bfloat16, jnp.float16)
    shaped = key.shape[1] == length and length % 2 == 0 and head_dim % 8 == 0 and head_dim <= 128
    shaped = shaped and value.shape == key.shape and key.shape[3] == head_dim
    whole = mesh is None or mesh.shape.get("sequence", 1) == 1
    return half and shaped and bias is None and whole and _cuda_capability() >= 8.0


def _cuda_capability() -> float:
    """CUDA's number for the generation of GPUs here, 8.0 for A100; 0 for other makers' and without any."""
    try:
        return float(getattr(jax.local_devices(backend="gpu")[0], "compute_capability", 0))
    except (RuntimeError, ValueError, TypeError):  # no GPU; "gfx90a" on ROCm
        return 0.0


def einsum_attention(query, key, value, mask, bias, scale, soft_cap, dropout, return_weights, see=None):
    """The formula written out; arguments as in attend. Scores and softmax are float32."""
    batch, length, heads, head_dim = query.shape
    key_length, kv_heads = key.shape[1:3]
    # Products of [rows, in] and [in, out] for each row and key-value head: what lies by heads, as in zoo.cache, is read
    # where it is.
    grouped = query.swapaxes(1, 2).reshape(batch, kv_heads, -1, head_dim)
    key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
    scores = _by_heads(grouped, key, 3, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, heads, length, key_length) * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + bias
    scores = scores if see is None else see("scores", scores)
    weights = masked_softmax(scores, materialise(mask, length, key_length))
    if dropout is not None:
        index = jnp.arange(heads * length * key_length, dtype=jnp.uint32).reshape(heads, length, key_length)
        weights = jnp.where(keep(dropout, index), weights / (1.0 - dropout.rate), 0.0)
    weights = weights if see is None else see("weights", weights)
    out = _by_heads(weights.astype(value.dtype).reshape(batch, kv_heads, -1, key_length), value, 2)
    out = out.reshape(batch, heads, length, head_dim).swapaxes(1, 2)
    return out, weights if return_weights else None


def _by_heads(a: jax.Array, b: jax.Array, axis: int, **settings: Any) -> jax.Array:
    """[B, K, R, C] by b [B, K, ...], over the last axis of a and `axis` of b."""
    return jax.lax.dot_general(a, b, (((3,), (axis,)), ((0, 1), (0, 1))), **settings)


def masked_softmax(scores: jax.Array, seen: jax.Array | None) -> jax.Array:
    """Softmax over the last axis among the visible entries; hidden ones are exactly 0, and so is a row that sees none.

    Args:
        scores: float [..., T, S].
        seen: bool, broadcastable to scores; None for all visible.
    """
    if seen is None:
        return jax.nn.softmax(scores, axis=-1)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True, where=seen, initial=-1e30))
    powers = jnp.where(seen, jnp.exp(jnp.where(seen, scores - top, 0.0)), 0.0)
    total = powers.sum(axis=-1, keepdims=True)
    return powers / jnp.where(total == 0, 1.0, total)


def _library_attention(query, key, value, mask, bias, scale, kernel):
    if kernel == "cudnn":
        if query.dtype not in (jnp.bfloat16, jnp.float16):
            raise InputError(f'attention kernel "cudnn" needs bfloat16 or float16, not {query.dtype}; use "auto"')
        bias = None if bias is None else bias.astype(query.dtype)
        query = only_on("cuda", kernel, query)
    try:
        return _library_call(query, key, value, mask, bias, scale, kernel)
    except RuntimeError as error:
        if kernel == "cudnn" and "cuDNN" in str(error):
            raise refusal("cuda", kernel) from None
        raise


def _library_call(query, key, value, mask, bias, scale, kernel):
    if mask.only_causal and query.shape[1] == key.shape[1]:
        return jax.nn.dot_product_attention(
            query, key, value, bias, scale=scale, is_causal=True, implementation=kernel
        ).astype(value.dtype)
    seen = materialise(mask, query.shape[1], key.shape[1])
    out = jax.nn.dot_product_attention(query, key, value, bias, seen, scale=scale, implementation=kernel)
    if seen is not None:
        sees_any = jnp.any(seen, axis=-1)[:, 0, :, None, None]
        out = jnp.where(sees_any, out, 0)
    return out.astype(value.dtype)
