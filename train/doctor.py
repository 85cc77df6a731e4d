"""`python -m train doctor`: what this machine has, and whether a step of training comes out right on it."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def examine() -> Iterator[str]:
    """Lines about versions, devices, folders, and a test training; raises what fails."""
    import jax

    from train.metrics import peak_flops
    from zoo.packages import cache_folder

    yield f"python {platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    for device in jax.devices():
        peak = peak_flops(device)
        memory = (device.memory_stats() or {}).get("bytes_limit")
        facts = [f"{memory / 2**30:.1f} GiB"] if memory else []
        facts.append(f"published bf16 peak {peak / 1e12:g} TFLOP/s" if peak else "no published peak: MFU is not shown")
        yield f"device {device.id}: {device.device_kind} ({', '.join(facts)})"
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    yield f"cache folder {cache}: {'writable' if os.access(cache, os.W_OK) else 'NOT writable; set ONEBLOCK_CACHE'}"
    yield _trained()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _trained() -> str:
    """Twenty steps on one repeated batch: the loss has to fall from log V to well below."""
    import jax
    import numpy as np

    import zoo
    from train.config import TrainConfig
    from train.mesh import make_driver
    from train.objectives import Objective, next_token
    from train.optimizer import make_optimizer
    from train.state import initial_state
    from train.step import make_train_step
    from zoo.errors import InputError

    model = zoo.create("llama-tiny", vocab_size=64, embed_dim=32, num_layers=1)
    config = TrainConfig(steps=20, learning_rate=1e-2, schedule="constant")
    optimizer = make_optimizer(config)
    driver = make_driver("mesh")
    rows = 2 * driver.row_shards
    tokens = np.random.default_rng(0).integers(0, 64, (rows, 9), dtype=np.int32)
    batch = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "row_ids": np.arange(rows, dtype=np.int32)}
    began = time.perf_counter()
    state = driver.init(initial_state(model.init, optimizer, 0))
    step = driver.compile(make_train_step(model, Objective(next_token), optimizer, config))
    losses = []
    for _ in range(config.steps):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    if not (np.isfinite(losses).all() and losses[-1] < 0.7 * losses[0]):
        raise InputError(
            f"the test training went wrong: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps"
        )
    devices = f"{len(jax.devices())} device{'s' if len(jax.devices()) > 1 else ''}"
    return (
        f"test training on {devices}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps, "
        f"{time.perf_counter() - began:.1f} s with compilation"
    )
