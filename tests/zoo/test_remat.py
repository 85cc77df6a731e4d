"""Remat by name: the same gradients; what each keeps is what its table says; what is computed again is counted."""

import functools
from collections import Counter

import jax
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

import zoo
from zoo import remat
from zoo.errors import InputError

BATCH, LENGTH, LAYERS = 2, 6, 2
SIZES = {"vocab_size": 24, "embed_dim": 16, "num_heads": 4, "mlp_dim": 20, "num_layers": LAYERS, "max_positions": 8}
CONFIGS = {
    "llama": zoo.create("llama3-tiny", **SIZES, num_kv_heads=2, head_dim=8, scan=True).config,
    "bert": zoo.create("bert-tiny", **SIZES, dropout=0.1).config,
    "mixtral": zoo.create("mixtral-tiny", **SIZES, num_kv_heads=2, head_dim=4, num_experts=2, scan=True).config,
}
NAMES = ("none", "minimal", "dots", "full", "offload")
TOKENS = np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % 24


def loss(config):
    model = zoo.create(config)
    key = jax.random.key(1) if config.dropout else None
    return lambda params: (model.apply(params, TOKENS, logits_at=False, dropout_key=key).hidden ** 2).mean()


@functools.cache
def gradients(family, name):
    params = zoo.create(CONFIGS[family]).init(jax.random.key(0))
    return jax.jit(jax.grad(loss(CONFIGS[family].replace(remat=name))))(params)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("name", NAMES[1:])
def test_gradients_are_the_same_numbers(family, name):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
        gradients(family, name), gradients(family, "none"),
    )  # fmt: skip


def kept(config, capsys):
    """Numbers of the arrays that the backward pass gets of a scan's layers, the parameters' own left out."""
    params = zoo.create(config).init(jax.random.key(0))
    print_saved_residuals(loss(config), params)
    total = 0
    for line in capsys.readouterr().out.splitlines():
        kind, _, shape = line.split(" ")[0].rstrip("]").partition("[")
        shape = tuple(int(n) for n in shape.split(",") if n)
        if "argument" not in line and kind.startswith("f") and shape[:2] == (LAYERS, BATCH):
            total += int(np.prod(shape))
    return total / (LAYERS * BATCH * LENGTH)


@pytest.mark.parametrize("name", ["minimal", "dots", "full", "offload"])
@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_kept_is_what_the_table_says(family, name, capsys):
    """Of a pre-norm block, one with experts, and a post-norm block (whose norms read the FFN's update again)."""
    config = CONFIGS[family].replace(remat=name, scan=True, dropout=0.0)
    marked = remat.kept_numbers(config.replace(remat="minimal")) - config.embed_dim
    host = marked if name == "offload" else 0  # listed too, with where it lies
    assert kept(config, capsys) == remat.kept_numbers(config) + host
    assert remat.kept_numbers(config.replace(remat="none")) is None


def test_each_policy_computes_less_again_than_the_next():
    """Products of one llama layer: 7 of weights and 2 of attention; backward two more each; then those done again."""
    params = zoo.create(CONFIGS["llama"]).init(jax.random.key(0))

    def products(name):
        found = Counter()

        def walk(jaxpr):
            for equation in jaxpr.eqns:
                found[equation.primitive.name] += 1
                for value in equation.params.values():
                    for one in value if isinstance(value, tuple | list) else (value,):
                        inner = getattr(one, "jaxpr", one)
                        if hasattr(inner, "eqns"):
                            walk(inner)

        walk(jax.make_jaxpr(jax.grad(loss(CONFIGS["llama"].replace(remat=name))))(params).jaxpr)
        return found["dot_general"]

    counts = {name: products(name) for name in NAMES}
    plain = counts.pop("none")
    assert {name: count - plain for name, count in counts.items()} == {"minimal": 1, "offload": 1, "dots": 2, "full": 8}


def test_offload_is_refused_where_there_is_no_host_memory(monkeypatch):
    monkeypatch.setattr(remat, "_reaches_host", lambda: False)
    config = CONFIGS["llama"].replace(remat="offload", embed_dim=32, head_dim=8)
    with pytest.raises(InputError, match='remat "offload" needs a device that reaches pinned host memory'):
        zoo.create(config).init(jax.random.key(0))
    with pytest.raises(InputError, match='remat is "ful"; did you mean "full"'):
        config.replace(remat="ful")
