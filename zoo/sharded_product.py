"""x W for a kernel W that a mesh's `fsdp` axis splits: gathered to be used, its gradient scattered as it is summed.

    forward    y  = x W            W gathered over fsdp, in the dtype of the product
    backward   dx = dy W^T         W gathered again: no pass keeps a gathered kernel for another
               dW = sum over rows, tokens and devices of x dy, of which each device of fsdp receives its own part

The partitioner would find the gathers by itself. The sum it writes as one of whole kernels on every device, of which
each then keeps its part (twice the bytes, where no later pass of a compiler fuses the two); here it is a
reduce-scatter over fsdp, followed by sums of the parts over sequence, data and slice, which are 1/fsdp as large.

So a scanned stack sends, a step and micro-batch and device, (1 - 1/n) (2 gathers + 1 scatter) of its kernels' bytes in
the dtype of activations over the n devices of fsdp (Rajbhandari et al. 2020, arXiv:1910.02054, 7.2.2: 3 Psi).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from zoo import partition


class Layout(NamedTuple):
    """How a kernel and what it multiplies lie on a mesh.

    Attributes:
        dim: the kernel's dimension that fsdp splits.
        whole: the kernel's PartitionSpec with fsdp left out.
        rows: axes over which x's first dimension is spread.
        tokens: the axis over which its second one is, or None.
        contracted: how many last dimensions of x meet the first ones of the kernel.
    """

    dim: int
    whole: PartitionSpec
    rows: tuple[str, ...]
    tokens: str | None
    contracted: int


@lru_cache(maxsize=64)
def product(path: str) -> Callable[..., jax.Array]:
    """A `dot_general` for nn.Dense and nn.DenseGeneral whose kernel stands at `path` (the end of it, as in RULES).

    Without a mesh, without fsdp on it, or where rows do not divide, it is jax.lax.dot_general.
    """
    return partial(_product, path)


def _product(path, x, kernel, dimension_numbers, precision=None, **options):
    layout = _layout(path, x.shape, kernel.shape, len(dimension_numbers[0][0]))
    if layout is None:
        return jax.lax.dot_general(x, kernel, dimension_numbers, precision=precision, **options)
    return _sharded(layout, precision, x, kernel)


def _layout(path: str, x: tuple[int, ...], kernel: tuple[int, ...], contracted: int) -> Layout | None:
    mesh = partition.auto_mesh()
    if mesh is None or mesh.shape.get("fsdp", 1) == 1:
        return None
    spec = partition.fitted_spec(path, kernel, mesh.shape)
    split = [dim for dim, entry in enumerate(spec) if "fsdp" in partition.axes_of(entry)]
    rows = partition.row_axes(mesh)
    if not split or x[0] % partition.ways_of(rows, mesh.shape):
        return None
    whole = PartitionSpec(
        *(tuple(axis for axis in partition.axes_of(entry) if axis != "fsdp") or None for entry in spec)
    )
    free = len(x) - contracted
    sequence = mesh.shape.get("sequence", 1)
    tokens = "sequence" if free > 1 and sequence > 1 and x[1] % sequence == 0 else None
    return Layout(split[0], whole, rows, tokens, contracted)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sharded(layout: Layout, precision: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(layout, precision, x, kernel)[0]


def _forward(layout, precision, x, kernel):
    # The product stands here itself: remat "dots" would not see it inside a call of _sharded.
    whole = jax.lax.with_sharding_constraint(kernel, layout.whole)
    lasts = tuple(range(x.ndim - layout.contracted, x.ndim))
    return _dot(x, whole, lasts, tuple(range(layout.contracted)), precision), (x, kernel)


def _backward(layout, precision, kept, slope):
    x, kernel = kept
    whole = jax.lax.with_sharding_constraint(kernel, layout.whole)
    free = x.ndim - layout.contracted
    back = _dot(slope, whole, tuple(range(free, slope.ndim)), tuple(range(layout.contracted, kernel.ndim)), precision)

    def summed(x, slope):
        part = _dot(x, slope, tuple(range(free)), tuple(range(free)), precision)
        # Along its first axis: along the last, TPUs were seen to sum all and then slice.
        part = jnp.moveaxis(part, layout.dim, 0)
        part = jax.lax.psum_scatter(part, "fsdp", scatter_dimension=0, tiled=True)
        part = jnp.moveaxis(part, 0, layout.dim)
        others = tuple(axis for axis in (layout.tokens, *reversed(layout.rows)) if axis not in (None, "fsdp"))
        return jax.lax.psum(part, others) if others else part

    batch = (layout.rows, layout.tokens, *(None,) * free)[:free]
    asked, given = layout.whole[: layout.contracted], layout.whole[layout.contracted :]
    parts = [axes if dim != layout.dim else (*partition.axes_of(axes), "fsdp") for dim, axes in enumerate(layout.whole)]
    scattered = jax.shard_map(
        summed,
        in_specs=(PartitionSpec(*batch, *asked), PartitionSpec(*batch, *given)),
        out_specs=PartitionSpec(*parts),
    )
    gradient = scattered(x, slope)
    return back, gradient


_sharded.defvjp(_forward, _backward)


def _dot(a, b, of_a, of_b, precision):
    return jax.lax.dot_general(a, b, ((of_a, of_b), ((), ())), precision=precision)
