"""Kernels of one platform: traced anywhere, refused in one line where the program is made for another.

A trace does not know for which devices it will be lowered: a pod's program is compiled on a machine without its chips.
So the refusal is an operation of its own, an identity that lowers for its platform alone.
"""

import functools

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from zoo.errors import InputError

NEEDS = {"cuda": "a CUDA device", "tpu": "a TPU"}


def only_on(platform: str, kernel: str, x: jax.Array) -> jax.Array:
    """x; lowering raises InputError for any platform but this ("cuda", "tpu"), saying which kernel needs it.

    >>> jax.jit(lambda x: only_on("tpu", "splash", x))(1.0)  # on a CPU: InputError
    """
    return _only_on(platform, kernel).bind(x)


def refusal(platform: str, kernel: str) -> InputError:
    """The error for a kernel that needs another platform."""
    return InputError(
        f'attention kernel "{kernel}" needs {NEEDS[platform]} and none is here; use "auto" or "blockwise"'
    )


@functools.cache
def _only_on(platform, kernel):
    primitive = Primitive(f"only_on_{platform}_{kernel}")

    def refuse(context, x):
        raise refusal(platform, kernel)

    primitive.def_abstract_eval(lambda x: x)
    primitive.def_impl(jax.jit(primitive.bind))
    mlir.register_lowering(primitive, refuse)
    mlir.register_lowering(primitive, lambda context, x: [x], platform=platform)
    ad.primitive_jvps[primitive] = lambda primals, tangents: (primitive.bind(*primals), *tangents)
    batching.primitive_batchers[primitive] = lambda arrays, axes: (primitive.bind(*arrays), axes[0])
    return primitive
