"""Initial parameters whose bits depend on the key and the shape alone, and on no mesh or compiler.

    x = stddev sqrt(2) erfinv(u),   u uniform in (-1, 1)

jax.lax.erf_inv will not do: compilers join a product and the sum after it into one operation with one rounding, or
do not, as the shape of the piece that a device holds suits them. Here each product is rounded before it is added to.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

# Giles 2012, "Approximating the erfinv function" (GPU Computing Gems, ch. 10), table 3: in w - 2.5 and sqrt(w) - 3.
CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
SQRT_HALF_BITS = 0x3F3504F3
LN_2 = 0.69314718


def normal(stddev: float) -> Callable[..., jax.Array]:
    """An initializer (key, shape, dtype) -> draws of mean 0; in float32, to about 3e-7 of each number."""

    def draw(key: jax.Array, shape: Sequence[int], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return _draw(key, np.float32(stddev * 2**0.5), tuple(shape)).astype(dtype)

    return draw


@functools.partial(jax.jit, static_argnames=("shape",))
def _draw(key: jax.Array, scale: np.float32, shape: tuple[int, ...]) -> jax.Array:
    """One program a shape, where this is not part of a larger one."""
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    return erf_inv(jax.random.uniform(key, shape, jnp.float32, lowest, 1.0)) * scale


def erf_inv(u: jax.Array) -> jax.Array:
    """The inverse error function of float32 u in (-1, 1), the same bits in every program."""
    w = -_log((1 - u) * (1 + u))
    central = w < 5
    x = jnp.where(central, w - 2.5, jnp.sqrt(w) - 3)
    value = jnp.where(central, np.float32(CENTRE[0]), np.float32(TAIL[0]))
    for centre, tail in zip(CENTRE[1:], TAIL[1:], strict=True):
        value = _rounded(value * x) + jnp.where(central, np.float32(centre), np.float32(tail))
    return value * u


def _log(t):
    """log of t in (0, 1]: t = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1))."""
    bits = jax.lax.bitcast_convert_type(t, jnp.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    rest = jax.lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1
    s = rest / (2 + rest)
    square = _rounded(s * s)
    series = jnp.full_like(s, 2 / 9)
    for k in (7, 5, 3, 1):
        series = _rounded(series * square) + np.float32(2 / k)
    return _rounded(exponent.astype(jnp.float32) * np.float32(LN_2)) + _rounded(series * s)


def _rounded(product):
    """A product that no compiler joins with the sum after it; nothing here comes near the bound."""
    return jnp.maximum(product, np.float32(-1e30))
