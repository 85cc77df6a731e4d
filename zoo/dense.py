"""The affine map x W + b, as every room of the zoo makes it."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo import int8
from zoo.initializers import normal
from zoo.sharded_product import Fanned, product, single
from zoo.tiles import Tiles


class Dense(nn.Module):
    """x W + b over the last axes of x, in the dtype asked for; parameters kernel [*in, *out], bias [*out], float32.

    Under a mesh the gradients of both are summed over devices in float32 (zoo.sharded_product).

    Attributes:
        features: out: one size, or several.
        rule: where the parameters stand, or the end of it, as in partition.RULES: "mlp/up". None in a read-out, whose
            parts train.cross_entropy gathers and sums itself.
        dtype: of x and of the result.
        factors: the 16-bit dtype of x and the kernel in their product; "" for `dtype` (ModelConfig.matmul_dtype).
        stddev: of the initial kernel.
        contracted: how many last axes of x the kernel meets.
        use_bias: whether there is a bias, initially zeros.
        outliers: None for a float kernel; else it is int8 but for so many input columns (zoo.int8).
    """

    features: int | tuple[int, ...]
    rule: str | None
    dtype: str
    stddev: float
    contracted: int = 1
    use_bias: bool = True
    outliers: int | None = None
    factors: str = ""

    @nn.compact
    def __call__(self, x: jax.Array | Fanned) -> jax.Array:
        out = (self.features,) if isinstance(self.features, int) else self.features
        met = x.shape[x.ndim - self.contracted :]
        if self.outliers is None and isinstance(self.get_variable("params", "kernel"), Tiles):
            y = self.get_variable("params", "kernel").times(single(x).astype(self.dtype))
        elif self.outliers is None:
            kernel = self.param("kernel", normal(self.stddev), (*met, *out), jnp.float32)
            path = self.rule and f"{self.rule}/kernel"
            y = product(path, x.astype(self.dtype), kernel, self.contracted, self.factors)
        else:
            kernel = int8.parameters(self, met, out, self.outliers, self.stddev)
            y = int8.product(single(x).astype(self.dtype), *kernel).astype(self.dtype)
        if not self.use_bias:
            return y
        return add_bias(y, self.param("bias", nn.initializers.zeros_init(), out, jnp.float32))


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """y + b, rounded once to y's dtype: so the bias's gradient is a sum in float32."""
    return (y.astype(jnp.float32) + bias).astype(y.dtype)
