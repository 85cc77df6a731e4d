"""x W with both factors rounded to another dtype, and gradients written out: what training multiplies by.

    forward    y  = r(x) r(W)           summed in float32
    backward   dx = r(dy) r(W)^T        summed in float32, in the dtype of x
               dW = r(x)^T r(dy)        summed in float32, in the dtype of W

r rounds to the dtype. With 16 bit this is what matrix units compute, and what autocast does to a layer's product
(Micikevicius et al. 2017, arXiv:1710.03740, section 3); the stream, norms, activations and softmax stay float32, which
CPUs compute faster than bfloat16. Autodiff of the cast product would multiply float32 by 16 bit on the way back, for
which no machine has a unit; and of float32, where r is nothing, it makes dW as (dy^T x)^T, whose second transpose CPUs
copy. There is no forward mode: a model has it where ModelConfig.matmul_dtype is empty.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from zoo import partition


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def mixed_product(
    dtype: str, result: str, contracted: int, by_rows: bool, x: jax.Array, kernel: jax.Array
) -> jax.Array:
    """x W of factors in `dtype`.

    Args:
        dtype: "bfloat16", "float16" or "float32".
        result: dtype of y.
        contracted: how many last dimensions of x meet the kernel.
        by_rows: the kernel lies [*out, *in], as a token table does, and its transpose is never formed.
        x: [..., *in].
        kernel: [*in, *out], or [*out, *in].

    Returns:
        [..., *out] in `result`; gradients come in the dtypes of x and the kernel.
    """
    return _forward(dtype, result, contracted, by_rows, x, kernel)[0]


def _forward(dtype, result, contracted, by_rows, x, kernel):
    rounded = x.astype(dtype)
    first = kernel.ndim - contracted if by_rows else 0
    y = _dot(
        rounded,
        kernel.astype(dtype),
        range(x.ndim - contracted, x.ndim),
        range(first, first + contracted),
        result,
    )
    # The empty array remembers x's dtype.
    return y, (rounded, kernel, jnp.zeros((0,), x.dtype))


def _backward(dtype, result, contracted, by_rows, kept, slope):
    del result
    rounded, kernel, like = kept
    slope = slope.astype(dtype)
    free, given = rounded.ndim - contracted, kernel.ndim - contracted
    first = 0 if by_rows else contracted
    back = _dot(slope, kernel.astype(dtype), range(free, slope.ndim), range(first, first + given), like.dtype)
    left, right = (slope, rounded) if by_rows else (rounded, slope)
    return back, rows_product(left, right, free, written=writes_transpose()).astype(kernel.dtype)


mixed_product.defvjp(_forward, _backward)


def rows_product(left: jax.Array, right: jax.Array, free: int, *, written: bool) -> jax.Array:
    """The sum over the first `free` dimensions of left [*free, *a] times right [*free, *b]: [*a, *b], float32.

    Args:
        left, right: in one dtype.
        free: dimensions summed over.
        written: write out the transpose of a 16-bit `left`: one pass, after which XLA's CPU product has 16-bit factors.
            Where the summed dimension comes first it has none, and turns both to float32.
    """
    if not written or left.dtype.itemsize > 2:
        return _dot(left, right, range(free), range(free), jnp.float32)
    rows = left.reshape(-1, math.prod(left.shape[free:])).T
    rows = with_layout_constraint(rows, Layout((0, 1)))
    summed = _dot(rows, right.reshape(rows.shape[1], -1), (1,), (0,), jnp.float32)
    return summed.reshape(*left.shape[free:], *right.shape[free:])


def writes_transpose() -> bool:
    """Whether rows_product should, on what the program is made for; to be asked outside of shard_map.

    The partitioner would gather what has a layout of its own: under a mesh only inside shard_map.
    """
    return partition.auto_mesh() is None and jax.default_backend() == "cpu"


def _dot(a: jax.Array, b: jax.Array, of_a: Any, of_b: Any, dtype: Any) -> jax.Array:
    dims = ((tuple(of_a), tuple(of_b)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32).astype(dtype)
