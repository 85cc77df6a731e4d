"""x W for a kernel W under a mesh: gathered to be used, its gradient summed in float32 and scattered as it is summed.

    forward    y  = x W            W gathered over its storage axes, in the dtype of the product
    backward   dx = dy W^T         W gathered again: no pass keeps a gathered kernel for another
               dW = sum over rows, tokens and devices of x dy, of which each device receives its own part

The partitioner would find the gathers by itself. The sum it writes as one of whole kernels, in the dtype of the
product, on every device, of which each then keeps its part; here it is a reduce-scatter of float32 over the storage
axes (fsdp, and sequence), followed by sums of the parts over data and slice, which are as much smaller.

So a scanned stack sends, a step and micro-batch and device, (1 - 1/n) (2 w + 4) bytes for each number of its kernels
over n devices: two gathers of w bytes, one scatter of 4. With w = 4 that is the 3 Psi of Rajbhandari et al. 2020
(arXiv:1910.02054, 7.2.2); with w = 2 it is 8 bytes, where sums in bfloat16 would send 6.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from zoo import partition


class Layout(NamedTuple):
    """How a kernel and what it multiplies lie on a mesh.

    Attributes:
        spec: where the kernel is stored.
        whole: where it is used: `spec` with the storage axes left out.
        rows: axes over which x's first dimension is spread.
        tokens: axes over which its second one is: () or ("sequence",).
    """

    spec: PartitionSpec
    whole: PartitionSpec
    rows: tuple[str, ...]
    tokens: tuple[str, ...]


def product(path: str | None, x: jax.Array, kernel: jax.Array, contracted: int = 1) -> jax.Array:
    """x W in the dtype of x.

    Args:
        path: where the kernel stands, or the end of it, as in partition.RULES; None leaves all to the partitioner.
        x: [rows, ..., *in].
        kernel: [*in, *out], in the parameters' own dtype, in which its gradient comes.
        contracted: how many dimensions `in` has.

    Returns:
        [rows, ..., *out]. Without a mesh, or where rows do not divide, jax.lax.dot_general and its gradient.
    """
    layout = path and _layout(path, x.shape, kernel.shape, x.ndim - contracted)
    if not layout or (layout.spec == layout.whole and x.dtype == kernel.dtype):
        return _dot(x, kernel.astype(x.dtype), range(x.ndim - contracted, x.ndim), range(contracted))
    return _sharded(layout, contracted, x, kernel)


def summed_parts(path: str, parts: jax.Array, rows: tuple[str, ...], tokens: tuple[str, ...]) -> jax.Array:
    """The sum over the first dimension, which lies over `rows` and `tokens`, placed as the parameter is stored.

    Args:
        path: of the parameter.
        parts: [devices of rows and tokens, *shape], float32, each device's own part.
        rows, tokens: axes of the enclosing mesh.
    """
    mesh = partition.auto_mesh()
    spec = partition.leaf_spec(path, parts.shape[1:], mesh.shape)
    layout = Layout(spec, partition.used_spec(spec, path), rows, tokens)
    return jax.shard_map(
        lambda part: _sum(layout, part[0]),
        in_specs=PartitionSpec((*rows, *tokens), *layout.whole),
        out_specs=spec,
    )(parts)


def _layout(path: str, x: tuple[int, ...], kernel: tuple[int, ...], free: int) -> Layout | None:
    mesh = partition.auto_mesh()
    if mesh is None:
        return None
    rows = partition.row_axes(mesh)
    if x[0] % partition.ways_of(rows, mesh.shape):
        return None
    sequence = mesh.shape.get("sequence", 1)
    tokens = ("sequence",) if free > 1 and sequence > 1 and x[1] % sequence == 0 else ()
    if partition.ways_of((*rows, *tokens), mesh.shape) == 1:
        return None
    spec = partition.fitted_spec(path, kernel, mesh.shape)
    return Layout(spec, partition.used_spec(spec, path), rows, tokens)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sharded(layout: Layout, contracted: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(layout, contracted, x, kernel)[0]


def _forward(layout, contracted, x, kernel):
    # The product stands here itself: remat "dots" would not see it inside a call of _sharded.
    whole = jax.lax.with_sharding_constraint(kernel.astype(x.dtype), layout.whole)
    return _dot(x, whole, range(x.ndim - contracted, x.ndim), range(contracted)), (x, kernel)


def _backward(layout, contracted, kept, slope):
    x, kernel = kept
    whole = jax.lax.with_sharding_constraint(kernel.astype(x.dtype), layout.whole)
    free = x.ndim - contracted
    back = _dot(slope, whole, range(free, slope.ndim), range(contracted, kernel.ndim))

    def summed(x, slope):
        return _sum(layout, _dot(x, slope, range(free), range(free), jnp.float32))

    batch = (layout.rows, layout.tokens, *(None,) * free)[:free]
    asked, given = layout.whole[:contracted], layout.whole[contracted:]
    gradient = jax.shard_map(
        summed,
        in_specs=(PartitionSpec(*batch, *asked), PartitionSpec(*batch, *given)),
        out_specs=layout.spec,
    )(x, slope)
    return back, gradient.astype(kernel.dtype)


_sharded.defvjp(_forward, _backward)


def _sum(layout: Layout, part: jax.Array) -> jax.Array:
    """Inside shard_map: this device's part of the sum over all devices of rows and tokens."""
    left = [*layout.tokens, *reversed(layout.rows)]
    for dim, (stored, used) in enumerate(zip(layout.spec, layout.whole, strict=True)):
        own = set(partition.axes_of(stored)) - set(partition.axes_of(used))
        over = tuple(axis for axis in partition.axes_of(stored) if axis in own and axis in left)
        if over:
            # Along the first axis: along the last, TPUs were seen to sum all and then slice.
            part = jax.lax.psum_scatter(jnp.moveaxis(part, dim, 0), over, scatter_dimension=0, tiled=True)
            part = jnp.moveaxis(part, 0, dim)
            left = [axis for axis in left if axis not in over]
        for axis in partition.axes_of(stored):
            if axis in own and axis not in over:  # every device of it has the same numbers, and keeps its piece
                size = part.shape[dim] // jax.lax.axis_size(axis)
                part = jax.lax.dynamic_slice_in_dim(part, jax.lax.axis_index(axis) * size, size, dim)
    return jax.lax.psum(part, tuple(left)) if left else part


def _dot(a, b, of_a, of_b, dtype=None):
    dims = ((tuple(of_a), tuple(of_b)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=dtype)
