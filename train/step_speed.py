"""How fast a step of a LLaMA of a billion parameters is here: its share of the peak, beside what the plan says."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import zoo
from train.config import RunConfig, TrainConfig
from train.mesh import make_driver
from train.metrics import mfu
from train.objectives import make_objective
from train.opening import flops_per_token
from train.optimizer import make_optimizer
from train.plan.chips import chip_of
from train.plan.roofline import estimate
from train.state import initial_state
from train.step import make_train_step
from zoo.errors import InputError
from zoo.summary import summarise

BILLION = {
    "vocab_size": 32_000, "embed_dim": 2048, "num_layers": 18, "num_heads": 16, "num_kv_heads": 16, "mlp_dim": 5632,
    "max_positions": 2048, "dtype": "bfloat16", "remat": "full", "scan": True,
}  # fmt: skip
SMALL = {"vocab_size": 512, "embed_dim": 128, "num_layers": 2, "max_positions": 128}
WARM, TIMED = 2, 5


@dataclass(frozen=True)
class NoTokenizer:
    """What next-token prediction asks of a tokenizer, where no text is read."""

    vocab_size: int
    pad_id: int = 0
    special_ids: tuple[int, ...] = ()


def bench(fields: dict[str, Any] | None = None, rows: int = 4) -> Iterator[str]:
    """Lines: the model, the measured step, the plan's.

    Args:
        fields: of ModelConfig, over "llama-7b"; None: of a billion parameters, on CPUs of a tiny model.
        rows: a device and step.

    Raises:
        InputError: the step does not fit the memory.
    """
    device = jax.devices()[0]
    fields = fields or (SMALL if device.platform == "cpu" else BILLION)
    model = zoo.create("llama-tiny" if fields is SMALL else "llama-7b", **fields)
    seq_len = model.config.max_positions
    driver = make_driver("mesh", "fsdp=-1")
    common = {"steps": 100, "driver": "mesh", "mesh": f"fsdp={len(driver.devices)}"}
    train = TrainConfig(batch_size=rows * driver.row_shards, seq_len=seq_len, **common)
    count = summarise(model.config, seq_len).total_parameters
    yield (
        f"bench: LLaMA of {count / 1e6:,.3g} M parameters, {train.batch_size} rows of {seq_len} tokens, "
        f"fsdp={len(driver.devices)}, {model.config.dtype}"
    )
    try:
        seconds = _seconds(model, driver, train)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise InputError(
                f"the bench's step does not fit the memory of {device.device_kind}; it needs about "
                f"{count * 16 / len(driver.devices) / 2**30:.0f} GiB a device and more"
            ) from error
        raise
    rate = train.batch_size * seq_len / seconds
    per_token = flops_per_token(RunConfig(model.config, train))
    share = mfu(rate, per_token, driver.devices)
    told = f"MFU {share:.1%}" if share is not None else "no MFU: this device has no published peak"
    yield f"measured: {seconds * 1e3:,.1f} ms a step, {rate:,.0f} tokens/s, {told}"
    chip = chip_of(device.device_kind)
    if chip is None:
        yield f"planned: nothing, for {device.device_kind} is not in the table of chips (train/plan/chips.py)"
        return
    found = estimate(model.config, train, {"fsdp": len(driver.devices)}, chip).prediction
    best, worst = found.step
    yield (
        f"planned: {best * 1e3:,.1f} to {worst * 1e3:,.1f} ms a step, "
        f"MFU {found.mfu[1]:.1%} to {found.mfu[0]:.1%} (by formula; train/plan)"
    )


def _seconds(model: zoo.Model, driver: Any, train: TrainConfig) -> float:
    """The median time of a step."""
    optimizer = make_optimizer(train)
    objective = make_objective(train, model, NoTokenizer(model.config.vocab_size), driver.row_shards)  # type: ignore[arg-type]
    places = driver.rows(train.batch_size)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (train.batch_size, train.row_length))
    whole = {"tokens": tokens.astype(np.int32), "segment_ids": np.ones_like(tokens, np.int32)}
    batch = {name: value[places] for name, value in whole.items()} | {"row_ids": places.astype(np.int32)}
    batch = driver.put(batch, train.batch_size)
    state = driver.init(initial_state(model.init, optimizer, 0))
    step = driver.compile(make_train_step(model, objective, optimizer, train))
    times = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready(metrics)
        times.append(time.perf_counter() - began)
    if not bool(metrics["finite"]):
        raise RuntimeError("the measured steps were not finite, so that none was applied")
    return float(np.median(times[WARM:]))
