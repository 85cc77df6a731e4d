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

Where several kernels that the axis tensor splits read one x, each device has a part of each dx: `fanned` adds these up
on the device, so that one sum over tensor is sent for all (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from zoo import partition
from zoo.mixed_product import mixed_product, rows_product


class Layout(NamedTuple):
    """How a kernel and what it multiplies lie on a mesh, and in what dtype they meet.

    Attributes:
        spec: where the kernel is stored.
        whole: where it is used: `spec` with the storage axes left out.
        rows: axes over which x's first dimension is spread.
        tokens: axes over which its second one is: () or ("sequence",).
        factors: the 16-bit dtype to which both are rounded (zoo.mixed_product); None for x's own.
    """

    spec: PartitionSpec
    whole: PartitionSpec
    rows: tuple[str, ...]
    tokens: tuple[str, ...]
    factors: str | None = None

    def meets(self, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x rounded, and the gathered kernel in the same dtype."""
        dtype = self.factors or x.dtype
        return x.astype(dtype), jax.lax.with_sharding_constraint(kernel.astype(dtype), self.whole)


@struct.dataclass
class Fanned:
    """What several products read: x, and [tensor, *x] copies of it, one a device, that gather what each sends back."""

    x: jax.Array
    copies: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Of x."""
        return self.x.shape

    @property
    def ndim(self) -> int:
        """Of x."""
        return self.x.ndim

    def astype(self, dtype: Any) -> "Fanned":
        """Both in another dtype."""
        return Fanned(self.x.astype(dtype), self.copies.astype(dtype))


def fanned(x: jax.Array | Fanned) -> jax.Array | Fanned:
    """x [B, T, D], to be read by several products that the mesh axis tensor splits; without such a mesh as given."""
    mesh = partition.auto_mesh()
    if isinstance(x, Fanned) or mesh is None or mesh.shape.get("tensor", 1) == 1 or x.ndim != 3:
        return x
    spread = _spread(mesh, x.shape, 2)
    if spread is None:
        return x
    rows, tokens = spread
    copies = jnp.broadcast_to(x[None], (mesh.shape["tensor"], *x.shape))
    copies = jax.lax.with_sharding_constraint(copies, PartitionSpec("tensor", rows, tokens or None, None))
    return Fanned(x, copies)


def single(x: jax.Array | Fanned) -> jax.Array:
    """x alone."""
    return x.x if isinstance(x, Fanned) else x


def product(
    path: str | None, x: jax.Array | Fanned, kernel: jax.Array, contracted: int = 1, factors: str | None = None
) -> jax.Array:
    """x W in the dtype of x.

    Args:
        path: where the kernel stands, or the end of it, as in partition.RULES; None leaves all to the partitioner.
        x: [rows, ..., *in], or that fanned out.
        kernel: [*in, *out], in the parameters' own dtype, in which its gradient comes.
        contracted: how many dimensions `in` has.
        factors: the dtype to which x and W are rounded (zoo.mixed_product), x's own for its form of gradients alone;
            None or "" for autodiff's.

    Returns:
        [rows, ..., *out]. Without a mesh, or where rows do not divide, jax.lax.dot_general and its gradient.
    """
    other = factors if factors != single(x).dtype.name else None
    layout = path and _layout(path, x.shape, kernel.shape, x.ndim - contracted, other)
    if layout and isinstance(x, Fanned):
        return _fanned(layout, contracted, x.x, x.copies, kernel)
    x = single(x)
    if layout and not (layout.spec == layout.whole and x.dtype == kernel.dtype and not other):
        return _sharded(layout, contracted, x, kernel)
    if partition.auto_mesh() is None:
        return _flat(x, kernel, contracted, factors)
    if other:
        return mixed_product(other, x.dtype.name, contracted, False, x, kernel)
    return _dot(x, kernel.astype(x.dtype), range(x.ndim - contracted, x.ndim), range(contracted))


def _flat(x, kernel, contracted, factors):
    """The product as one of matrices: of kernels [D, N, H] the gradient would come as [N, H, D] and be copied."""
    given, taken = x.shape[: x.ndim - contracted], kernel.shape[contracted:]
    x = x.reshape(*given, -1) if contracted > 1 else x
    kernel = kernel.reshape(x.shape[-1], -1)
    if factors:
        y = mixed_product(factors, x.dtype.name, 1, False, x, kernel)
    else:
        y = _dot(x, kernel.astype(x.dtype), (x.ndim - 1,), (0,))
    return y.reshape(*given, *taken)


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


def _layout(
    path: str, x: tuple[int, ...], kernel: tuple[int, ...], free: int, factors: str | None
) -> Layout | None:
    mesh = partition.auto_mesh()
    if mesh is None:
        return None
    spread = _spread(mesh, x, free)
    if spread is None:
        return None
    spec = partition.fitted_spec(path, kernel, mesh.shape)
    return Layout(spec, partition.used_spec(spec, path), *spread, factors or None)


def _spread(mesh: Any, x: tuple[int, ...], free: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The axes over which rows and tokens of x lie; None where rows do not divide, or lie on one device."""
    rows = partition.row_axes(mesh)
    if x[0] % partition.ways_of(rows, mesh.shape):
        return None
    sequence = mesh.shape.get("sequence", 1)
    tokens = ("sequence",) if free > 1 and sequence > 1 and x[1] % sequence == 0 else ()
    return None if partition.ways_of((*rows, *tokens), mesh.shape) == 1 else (rows, tokens)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sharded(layout: Layout, contracted: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(layout, contracted, x, kernel)[0]


def _forward(layout, contracted, x, kernel):
    # The product stands here itself: remat "dots" would not see it inside a call of _sharded.
    rounded, whole = layout.meets(x, kernel)
    y = _dot(rounded, whole, range(x.ndim - contracted, x.ndim), range(contracted), x.dtype)
    return y, (rounded, kernel)


def _backward(layout, contracted, kept, slope):
    x, kernel = kept
    rounded, whole = layout.meets(slope, kernel)
    free = x.ndim - contracted
    back = _dot(rounded, whole, range(free, slope.ndim), range(contracted, kernel.ndim), slope.dtype)
    return back, _gradient(layout, contracted, x, rounded).astype(kernel.dtype)


_sharded.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fanned(layout: Layout, contracted: int, x: jax.Array, copies: jax.Array, kernel: jax.Array) -> jax.Array:
    del copies
    return _forward(layout, contracted, x, kernel)[0]


def _fanned_forward(layout, contracted, x, copies, kernel):
    del copies
    return _forward(layout, contracted, x, kernel)


def _fanned_backward(layout, contracted, kept, slope):
    x, kernel = kept
    rounded, whole = layout.meets(slope, kernel)
    free = x.ndim - contracted
    split = any("tensor" in partition.axes_of(entry) for entry in layout.whole)

    def part(rounded, whole):
        own = _dot(rounded, whole, range(free, rounded.ndim), range(contracted, whole.ndim), slope.dtype)
        if not split:  # the same on each device of tensor, and to be counted once
            own = jnp.where(jax.lax.axis_index("tensor") == 0, own, 0)
        return own[None]

    batch = _batch(layout, free)
    asked, given = layout.whole[:contracted], layout.whole[contracted:]
    back = jax.shard_map(
        part,
        in_specs=(PartitionSpec(*batch, *given), layout.whole),
        out_specs=PartitionSpec("tensor", *batch, *asked),
    )(rounded, whole)
    nothing = jnp.zeros(x.shape, slope.dtype)
    return nothing, back, _gradient(layout, contracted, x, rounded).astype(kernel.dtype)


_fanned.defvjp(_fanned_forward, _fanned_backward)


def _gradient(layout, contracted, x, slope):
    """dW in float32, stored as W is."""
    free = x.ndim - contracted
    written = partition.platform() == "cpu"

    def summed(x, slope):
        return _sum(layout, rows_product(x, slope, free, written=written))

    batch = _batch(layout, free)
    asked, given = layout.whole[:contracted], layout.whole[contracted:]
    return jax.shard_map(
        summed,
        in_specs=(PartitionSpec(*batch, *asked), PartitionSpec(*batch, *given)),
        out_specs=layout.spec,
    )(x, slope)


def _batch(layout, free):
    return (layout.rows, layout.tokens, *(None,) * free)[:free]


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
    """With a result in `dtype` where that is another than the factors'."""
    dims = ((tuple(of_a), tuple(of_b)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=None if dtype == a.dtype else dtype)
