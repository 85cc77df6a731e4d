"""Layouts: how one of our parameters is laid out in a published file, as a function there and its inverse back.

Our kernels are [in..., out...] with heads as axes of their own. A PyTorch Linear stores [out, in]; GPT's Conv1D stores
[in, out], as we do, and keeps query, key and value in one tensor. Every layout moves numbers and computes none, so
there and back is exact to the bit. Letters: D embed_dim, N heads (K for keys and values), H head_dim.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A pair of inverse functions between our arrays and one published array.

    Attributes:
        shape: our shapes -> the published shape.
        there: our arrays -> the published array.
        back: the published array and our shapes -> our arrays.
    """

    shape: Callable[[Sequence[Shape]], Shape]
    there: Callable[[Sequence[np.ndarray]], np.ndarray]
    back: Callable[[np.ndarray, Sequence[Shape]], list[np.ndarray]]


def _flat_in(shape: Shape, inputs: int) -> Shape:
    """The two-axis shape [in, out] of a kernel whose first `inputs` axes are its input."""
    return math.prod(shape[:inputs]), math.prod(shape[inputs:])


def _linear(inputs: int) -> Layout:
    """[in..., out...] <-> [out, in]; `inputs` of our axes are the input."""
    return Layout(
        shape=lambda ours: _flat_in(ours[0], inputs)[::-1],
        there=lambda ours: ours[0].reshape(_flat_in(ours[0].shape, inputs)).T,
        back=lambda theirs, ours: [theirs.T.reshape(ours[0])],
    )


def _reshaped(inputs: int) -> Layout:
    """[in..., out...] <-> [in, out], or <-> [out] where no axis is an input (a bias)."""

    def flat(shape: Shape) -> Shape:
        return _flat_in(shape, inputs) if inputs else (math.prod(shape),)

    return Layout(
        shape=lambda ours: flat(ours[0]),
        there=lambda ours: ours[0].reshape(flat(ours[0].shape)),
        back=lambda theirs, ours: [theirs.reshape(ours[0])],
    )


def _fused(inputs: int) -> Layout:
    """Several [in..., out...] <-> [in, sum of out], side by side in the order of the row."""

    def widths(ours: Sequence[Shape]) -> list[int]:
        return [math.prod(shape[inputs:]) for shape in ours]

    def shape(ours: Sequence[Shape]) -> Shape:
        return (*ours[0][:inputs], sum(widths(ours)))

    def there(ours: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([array.reshape(*array.shape[:inputs], -1) for array in ours], axis=-1)

    def back(theirs: np.ndarray, ours: Sequence[Shape]) -> list[np.ndarray]:
        ends = np.cumsum(widths(ours))[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(theirs, ends, axis=-1), ours, strict=True)]

    return Layout(shape=shape, there=there, back=back)


def _stacked_out() -> Layout:
    """Several [in, out...] <-> [sum of out, in], one above the other in the order of the row."""

    def heights(ours: Sequence[Shape]) -> list[int]:
        return [math.prod(shape[1:]) for shape in ours]

    def back(theirs: np.ndarray, ours: Sequence[Shape]) -> list[np.ndarray]:
        parts = np.split(theirs, np.cumsum(heights(ours))[:-1], axis=0)
        return [part.T.reshape(shape) for part, shape in zip(parts, ours, strict=True)]

    return Layout(
        shape=lambda ours: (sum(heights(ours)), ours[0][0]),
        there=lambda ours: np.concatenate([array.reshape(len(array), -1).T for array in ours], axis=0),
        back=back,
    )


def _interleaved(inputs: int) -> Layout:
    """Query, key, value [in, N, H] <-> [N 3 H, in], or [N, H] <-> [N 3 H]: head by head, the three of each together."""

    def there(ours: Sequence[np.ndarray]) -> np.ndarray:
        by_head = np.stack(ours, axis=inputs + 1)  # [in, N, 3, H]
        return by_head.reshape(*by_head.shape[:inputs], -1).T

    def back(theirs: np.ndarray, ours: Sequence[Shape]) -> list[np.ndarray]:
        *before, heads, features = ours[0]
        by_head = theirs.T.reshape(*before, heads, len(ours), features)
        return [by_head[..., i, :] for i in range(len(ours))]

    return Layout(
        shape=lambda ours: (len(ours) * math.prod(ours[0][inputs:]), *ours[0][:inputs]), there=there, back=back
    )


def _first_axis() -> Layout:
    """[...] <-> [1, ...]."""
    return Layout(
        shape=lambda ours: (1, *ours[0]), there=lambda ours: ours[0][None], back=lambda theirs, ours: [theirs[0]]
    )


def _patches() -> Layout:
    """[P, P, C, D] <-> [D, C, P, P]: height before width in both."""
    return Layout(
        shape=lambda ours: (ours[0][3], ours[0][2], ours[0][0], ours[0][1]),
        there=lambda ours: ours[0].transpose(3, 2, 0, 1),
        back=lambda theirs, ours: [theirs.transpose(2, 3, 1, 0)],
    )


LAYOUTS: dict[str, Layout] = {
    # the same array
    "same": Layout(shape=lambda ours: ours[0], there=lambda ours: ours[0], back=lambda theirs, ours: [theirs]),
    # [T, D] <-> [1, T, D]
    "first_axis": _first_axis(),
    # a convolution over patches
    "patches": _patches(),
    # [in, out] <-> [out, in]
    "linear": _linear(1),
    # query, key, value [D, N, H] <-> [N H, D]
    "linear_to_heads": _linear(1),
    # output projection [N, H, D] <-> [D, N H]
    "linear_from_heads": _linear(2),
    # bias [N, H] <-> [N H]
    "heads_bias": _reshaped(0),
    # Conv1D output projection [N, H, D] <-> [N H, D]
    "conv_from_heads": _reshaped(2),
    # Conv1D query, key, value: three [D, N, H] <-> [D, 3 N H]
    "conv_fused_heads": _fused(1),
    # their biases: three [N, H] <-> [3 N H]
    "fused_heads_bias": _fused(0),
    # query, key, value [D, N, H], [D, K, H] twice <-> [(N + 2 K) H, D]; gate and up [D, F] twice <-> [2 F, D]
    "linear_stacked": _stacked_out(),
    # query, key, value: three [D, N, H] <-> [N 3 H, D]
    "linear_interleaved_heads": _interleaved(1),
    # their biases: three [N, H] <-> [N 3 H]
    "interleaved_heads_bias": _interleaved(0),
}
