"""Weights in int8: a byte a number, a scale for each output, and the input columns that matter most left in float.

    W[i, j] = s[j] q[i, j]  for ordinary input columns i,   q whole from -127 to 127,  s[j] = max_i |W[i, j]| / 127
    x W     = (x q) s + x[outliers] W[outliers, :]

Rounding moves a weight by s[j] / 2 at most, so it moves an output by at most |x[i]| s[j] / 2 for each input: inputs
that are large make large errors. In Transformers a few input columns carry activations far larger than the rest, in
every layer and for nearly every token, and these decide the loss. Their rows of W are kept as they were and are exact;
so is the maximum that a scale goes by, which is now that of the other rows. That is the decomposition of LLM.int8()
(Dettmers et al. 2022, arXiv:2208.07339, 3.2): columns with an activation above 6 in magnitude. There activations are
rounded to int8, too, and outliers are looked for in each batch; here activations keep 16 bits (on a CPU; their own
elsewhere) and the columns are fixed beforehand, on texts, so that a row's numbers do not depend on its batch and
programs do not on its values.

Kernels of attention and FFN are int8, and the token table with the read-out (a scale for each piece). Norms, biases,
positions, routers and other heads stay float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from zoo.errors import InputError

LARGEST = 127
# Inputs whose products of int8 add up in 32 bits, whatever they are.
MOST_INPUTS = (2**31 - 1) // LARGEST**2


@struct.dataclass
class Int8Rows:
    """A table [V, D] with a scale for each row: that of tokens, and the read-out where it is tied.

    Attributes:
        rows: int8 [V, D], 0 in the columns that are outliers.
        scale: float32 [V].
        columns: int32 [O], which of the D are float.
        outliers: float32 [V, O], these.
    """

    rows: jax.Array
    scale: jax.Array
    columns: jax.Array
    outliers: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    def look_up(self, ids: jax.Array) -> jax.Array:
        """float32 [..., D] of ids [...]; those outside 0 to V - 1 give NaN."""
        ids = jnp.where(ids < 0, self.shape[0], ids)
        scale = jnp.take(self.scale, ids, axis=0, mode="fill", fill_value=jnp.nan)
        found = jnp.take(self.rows, ids, axis=0, mode="clip").astype(jnp.float32) * scale[..., None]
        exact = jnp.take(self.outliers, ids, axis=0, mode="fill", fill_value=jnp.nan)
        return found.at[..., self.columns].set(exact)

    def read_out(self, hidden: jax.Array) -> jax.Array:
        """float32 [..., V]: hidden [..., D] times the table's transpose."""
        x = hidden.reshape(-1, hidden.shape[-1])
        y = _whole(x, self.rows, self.columns, by_rows=True) * self.scale + _times(x[:, self.columns], self.outliers.T)
        return y.reshape(*hidden.shape[:-1], self.shape[0])


def product(x: jax.Array, q: jax.Array, scale: jax.Array, columns: jax.Array, rows: jax.Array) -> jax.Array:
    """x W in float32.

    Args:
        x: [..., *in], in float32, bfloat16 or float16, all of which hold every int8 exactly.
        q: int8 [*in, *out], 0 in the rows that are outliers.
        scale: float32 [*out].
        columns: int32 [O], places among the in inputs, counted as if flat.
        rows: float32 [O, *out], those rows of W.

    Returns:
        float32 [..., *out].
    """
    out = scale.shape
    met = q.ndim - len(out)
    flat = x.reshape(-1, int(np.prod(q.shape[:met])))
    y = _whole(flat, q.reshape(flat.shape[1], -1), columns) * scale.reshape(-1)
    if columns.shape[0]:
        y = y + _times(flat[:, columns], rows.reshape(columns.shape[0], -1))
    return y.reshape(*x.shape[: x.ndim - met], *out)


def parameters(
    module: nn.Module, met: tuple[int, ...], out: tuple[int, ...], outliers: int, stddev: float
) -> tuple[jax.Array, ...]:
    """Declares q, scale, columns and rows of a kernel in `module`: see `product`.

    Fresh ones are even draws of the standard deviation asked for, so that an untrained int8 model is one.
    """
    even = stddev * 3**0.5 / LARGEST

    def draw(key, shape, dtype):
        return jax.random.randint(key, shape, -LARGEST, LARGEST + 1, jnp.int32).astype(dtype)

    def first(key, shape, dtype):
        return jnp.arange(shape[0], dtype=dtype)

    q = module.param("kernel", draw, (*met, *out), jnp.int8)
    scale = module.param("kernel_scale", nn.initializers.constant(even), out, jnp.float32)
    columns = module.param("outlier_columns", first, (outliers,), jnp.int32)
    rows = module.param("outlier_kernel", nn.initializers.normal(stddev), (outliers, *out), jnp.float32)
    return q, scale, columns, rows


def table(module: nn.Module, rows: int, dim: int, outliers: int, stddev: float) -> Int8Rows:
    """Declares an Int8Rows in `module`."""
    even = stddev * 3**0.5 / LARGEST

    def draw(key, shape, dtype):
        return jax.random.randint(key, shape, -LARGEST, LARGEST + 1, jnp.int32).astype(dtype)

    def first(key, shape, dtype):
        return jnp.arange(shape[0], dtype=dtype)

    return Int8Rows(
        rows=module.param("embedding", draw, (rows, dim), jnp.int8),
        scale=module.param("embedding_scale", nn.initializers.constant(even), (rows,), jnp.float32),
        columns=module.param("outlier_columns", first, (outliers,), jnp.int32),
        outliers=module.param("outlier_embedding", nn.initializers.normal(stddev), (rows, outliers), jnp.float32),
    )


def token_table(params: dict[str, Any]) -> Any:
    """The token table of `params["embed"]["token"]`: an array [V, D], or Int8Rows."""
    if "embedding_scale" not in params:
        return params["embedding"]
    return Int8Rows(
        params["embedding"], params["embedding_scale"], params["outlier_columns"], params["outlier_embedding"]
    )


def rounded(matrix: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(q int8 [in, out], scale float32 [out], rows float32 [O, out]) of a float matrix [in, out].

    Raises:
        InputError: numbers that are not finite.
    """
    matrix = np.asarray(matrix, np.float32)
    if not np.isfinite(matrix).all():
        raise InputError("quantize: the weights are not finite")
    rows = matrix[columns]
    rest = np.array(matrix)
    rest[columns] = 0
    scale = np.abs(rest).max(axis=0) / np.float32(LARGEST)
    q = np.rint(rest / np.where(scale == 0, 1, scale)).clip(-LARGEST, LARGEST).astype(np.int8)
    return q, scale.astype(np.float32), rows


def require_float(config: Any, what: str) -> None:
    """Raises InputError where the weights are int8 and `what` needs them in float."""
    if getattr(config, "int8", None) is not None:
        raise InputError(f"{what} needs float weights, and these are int8: take the model from before zoo.quantize")


def _times(x: jax.Array, rows: jax.Array) -> jax.Array:
    return jnp.matmul(x.astype(jnp.float32), rows, precision=jax.lax.Precision.HIGHEST)


def _whole(x: jax.Array, q: jax.Array, columns: jax.Array, by_rows: bool = False) -> jax.Array:
    """x [M, I] times int8 [I, O] ([O, I] where by_rows), 0 in the inputs `columns`: in float32.

    A CPU multiplies int8 by int8 several times as fast as it turns them to float: there each row of x goes as two rows
    of int8, x = s (a + b / 254), off by s / 508 in a number at most, s = max |x| / 127. Sums of int8 are exact.
    """
    numbers = (((1,), (1 if by_rows else 0,)), ((), ()))
    if jax.default_backend() != "cpu" or x.shape[1] > MOST_INPUTS:
        return jax.lax.dot_general(x, q.astype(x.dtype), numbers, preferred_element_type=jnp.float32)
    x = jnp.where(jnp.zeros(x.shape[1], bool).at[columns].set(True), 0.0, x.astype(jnp.float32))
    scale = jnp.max(jnp.abs(x), axis=1, keepdims=True) / LARGEST
    parts = x / jnp.where(scale > 0, scale, 1.0)
    high = jnp.round(parts)
    low = jnp.round((parts - high) * (2 * LARGEST))
    both = jnp.concatenate([high, low]).astype(jnp.int8)
    sums = jax.lax.dot_general(both, q, numbers, preferred_element_type=jnp.int32).astype(jnp.float32)
    high, low = jnp.split(sums, 2)
    return (high + low / (2 * LARGEST)) * scale
