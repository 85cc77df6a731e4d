"""In what dtype a run multiplies by its weights: as the model says, in 16 bit, or in what is faster here.

`TrainConfig.matmul` is a setting of the run: the checkpoint it makes is a float32 model as any other. "auto" is
measured once, before the run's folder is made; what it found is the run's setting from then on, on other machines too.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp

from train.config import RunConfig
from train.distributed import from_first, together
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.mixed_product import mixed_product

# A layer's product of a small batch: long enough to be timed, and over in milliseconds.
ROWS, WIDTH, TRIES = 1024, 768, 5
# Rounding has a price; so much faster is worth it.
WORTH = 1.2


def settled(config: RunConfig, folder: str | Path) -> RunConfig:
    """The config with "auto" replaced: by what the run in `folder` found when it began, else by what is measured.

    Of several processes all call it; the first decides.
    """
    if config.train.matmul != "auto":
        return config
    found = from_first(together(lambda: _found(config, Path(folder) / "config.json")))
    return RunConfig(config.model, config.train.replace(matmul=found))


def _found(config, own):
    if jax.process_index():
        return ""
    if own.exists():
        return RunConfig.load(own).train.matmul
    if config.model.dtype != "float32":
        return "float32"
    return "bfloat16" if gain() >= WORTH else "float32"


def trained(config: RunConfig) -> ModelConfig:
    """The model's config as the steps of the run compute it.

    Raises:
        InputError: products in 16 bit of a model whose activations are in another 16-bit dtype.
    """
    model, matmul = config.model, config.train.matmul
    if matmul in ("", "float32"):
        # Said, float32 comes with gradients of its own: quicker on CPUs than autodiff's, and without forward mode.
        return model.replace(matmul_dtype="float32") if model.dtype == "float32" else model
    if model.dtype not in ("float32", matmul):
        raise InputError(
            f'matmul "{matmul}" does not go with dtype "{model.dtype}"; leave it out, or set dtype float32'
        )
    return model.replace(matmul_dtype=matmul)


def gain() -> float:
    """How many times as fast a product and its gradients are with factors in bfloat16 as in float32, here and now."""
    x = jnp.ones((ROWS, WIDTH), jnp.float32)
    kernel = jnp.ones((WIDTH, WIDTH), jnp.float32)

    def seconds(product):
        run = jax.jit(jax.grad(lambda x, kernel: jnp.sum(jnp.square(product(x, kernel))), argnums=(0, 1)))
        jax.block_until_ready(run(x, kernel))
        times = []
        for _ in range(TRIES):
            began = time.perf_counter()
            jax.block_until_ready(run(x, kernel))
            times.append(time.perf_counter() - began)
        return min(times)

    def rounded(x, kernel):
        return mixed_product("bfloat16", "float32", 1, False, x, kernel)

    return seconds(jnp.matmul) / seconds(rounded)
