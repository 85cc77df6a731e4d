"""Products of 16-bit factors in a float32 model: the formula, its gradients, meshes, read-outs, remat."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from train.mesh_axes import make_mesh
from zoo import partition
from zoo.heads import read_out
from zoo.mixed_product import mixed_product, rows_product
from zoo.sharded_product import fanned, product


def drawn(shape, seed):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def rounded(x):
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16), np.float64)


@pytest.mark.parametrize("by_rows", (False, True))
@pytest.mark.parametrize("contracted", (1, 2))
def test_the_formula_and_its_gradients(by_rows, contracted):
    """Against float64 sums of the rounded factors; the slope is rounded too, and no other number is."""
    x = drawn((2, 3, 6) if contracted == 1 else (2, 3, 2, 3), 0)
    kernel = drawn((6, 5, 2) if contracted == 1 else (2, 3, 10), 1)
    flat = np.asarray(kernel).reshape(6, 10)
    if by_rows:
        kernel = jnp.moveaxis(kernel, range(contracted), range(kernel.ndim - contracted, kernel.ndim))
    y, back = jax.vjp(functools.partial(mixed_product, "bfloat16", "float32", contracted, by_rows), x, kernel)
    wide = rounded(x).reshape(6, 6)
    np.testing.assert_allclose(y.reshape(6, 10), wide @ rounded(flat), rtol=1e-6, atol=1e-6)
    slope = drawn(y.shape, 2)
    of_x, of_kernel = back(slope)
    narrow = rounded(slope).reshape(6, 10)
    np.testing.assert_allclose(of_x.reshape(6, 6), narrow @ rounded(flat).T, rtol=1e-6, atol=1e-6)
    if by_rows:
        of_kernel = jnp.moveaxis(of_kernel, range(of_kernel.ndim - contracted, of_kernel.ndim), range(contracted))
    np.testing.assert_allclose(of_kernel.reshape(6, 10), wide.T @ narrow, rtol=1e-6, atol=1e-6)
    assert y.dtype == of_x.dtype == of_kernel.dtype == jnp.float32


def test_a_written_transpose_changes_no_number():
    left, right = drawn((4, 8, 3, 2), 0).astype(jnp.bfloat16), drawn((4, 8, 5), 1).astype(jnp.bfloat16)
    run = jax.jit(rows_product, static_argnames=("free", "written"))
    found = [run(left, right, free=2, written=written) for written in (False, True)]
    assert found[0].shape == found[1].shape == (3, 2, 5) and found[1].dtype == jnp.float32
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mesh", ("fsdp=8", "data=2,fsdp=2,tensor=2", "fsdp=2,sequence=4"))
def test_a_mesh_changes_no_bit(mesh):
    """Small whole numbers, which 16 bit hold and whose sums are exact: the same bits from any number of devices."""
    whole = [jax.random.randint(jax.random.key(seed), shape, -4, 5) for seed, shape in ((0, (8, 4, 8)), (1, (8, 16)))]
    x, kernel = (numbers.astype(jnp.float32) for numbers in whole)

    def total(x, kernel):
        return jnp.sum(jnp.square(product("mlp/up/kernel", fanned(x), kernel, factors="bfloat16")) / 2)

    plain = jax.value_and_grad(total, argnums=(0, 1))(x, kernel)
    made = make_mesh(mesh)
    with jax.set_mesh(made):
        spec = partition.leaf_spec("mlp/up/kernel", kernel.shape, made.shape)
        placed = jax.device_put(kernel, jax.NamedSharding(made, spec))
        split = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(x, placed)
    # The slope, y itself, is rounded alike on all.
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(split), strict=True):
        np.testing.assert_array_equal(a, b)


@functools.cache
def network(**fields):
    return zoo.create("gpt2-tiny", num_layers=2, vocab_size=96, embed_dim=32, num_heads=2, mlp_dim=64, **fields)


def loss(params, model, tokens):
    return jnp.mean(jnp.square(model.apply(params, tokens).logits))


def dots(jaxpr):
    """dot_general's factors and results, those of inner programs too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield tuple(str(v.aval.dtype) for v in (*equation.invars, *equation.outvars))
        for held in jax.tree.leaves(equation.params, is_leaf=lambda value: hasattr(value, "eqns")):
            inner = getattr(held, "jaxpr", held)
            if hasattr(inner, "eqns"):
                yield from dots(inner)


@pytest.mark.parametrize("remat", ("none", "dots", "full"))
def test_all_products_with_weights_and_their_gradients_are_of_16_bit_factors(remat):
    tokens = jnp.arange(70).reshape(1, 70)
    mixed, plain = network(matmul_dtype="bfloat16", remat=remat), network()
    params = plain.init(jax.random.key(0))
    step = jax.make_jaxpr(jax.grad(loss), static_argnums=1)(params, mixed, tokens)
    kinds = list(dots(step.jaxpr))
    again = {"none": 0, "dots": 0, "full": 2 * 5}[remat]  # all of a block but down, whose result no gradient reads
    halves = [kind for kind in kinds if kind == ("bfloat16", "bfloat16", "float32")]
    # Per layer query, key, value, out, up, down; the read-out; each with two gradients. Attention's own stay float32.
    assert len(halves) == 3 * (2 * 6 + 1) + again
    assert not [kind for kind in kinds if "bfloat16" in kind and kind not in halves]
    near, exact = (jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, m, tokens) for m in (mixed, plain))
    # Each factor is rounded to 8 bits of precision, 2^-9 of it.
    assert abs(near[0] - exact[0]) < 1e-2 * exact[0]
    top = {jax.tree_util.keystr(path): float(jnp.abs(leaf).max()) for path, leaf in jax.tree.leaves_with_path(exact[1])}
    for (path, a), b in zip(jax.tree.leaves_with_path(near[1]), jax.tree.leaves(exact[1]), strict=True):
        name = jax.tree_util.keystr(path)
        assert "['key']['bias']" in name or float(jnp.abs(a - b).max()) < 2e-2 * top[name], name


def test_a_read_out_in_16_bit_sends_back_16_bit_factors():
    """What a bfloat16 model's logits send back is multiplied in bfloat16, where autodiff would take float32."""
    hidden, table = drawn((2, 40, 8), 0).astype(jnp.bfloat16), drawn((12, 8), 1)
    step = jax.make_jaxpr(jax.grad(lambda h, t: jnp.sum(read_out(h, t, by_rows=True) ** 2), argnums=(0, 1)))
    kinds = list(dots(step(hidden, table).jaxpr))
    assert kinds == [("bfloat16", "bfloat16", "float32")] * 3


def test_float32_said_changes_the_form_of_gradients_alone():
    tokens = jnp.arange(70).reshape(1, 70)
    said, plain = network(matmul_dtype="float32"), network()
    params = plain.init(jax.random.key(0))
    found = [jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, m, tokens) for m in (said, plain)]
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * float(jnp.abs(b).max()))
