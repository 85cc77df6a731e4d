"""What one process of tests/bench/growth.py measures: a training step, a corpus prepared, or one opened.

    python tests/bench/growth_points.py '{"kind": "step", ...}'        # prints one JSON object

A process holds one point, so that the most memory it held is that point's, and it runs on one core, so that CPU time
is that of one thread (on accelerators time is the wall's). Memory is told twice: `program`, what the compiled step
needs by its own account (arguments, outputs that are not written over them, temporaries); and `process`, the arguments
and what the resident memory rose by while steps ran.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT = 400  # seconds; a process that takes longer is ended
WARM, LEAST, MOST, ENOUGH = 1, 3, 12, 1.5  # steps before, at least, at most; seconds after which no other begins
PAGE = 4096
CHUNK_BYTES = 1 << 24
TOKENIZER = "oneblock/gpt-tiny"
WORDS = 500_000


def status(name: str) -> int | None:
    """Bytes of VmRSS (resident now) or VmHWM (the most since it was forgotten); None where /proc does not tell."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


@contextlib.contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """A table that has, once the block is over: cpu and wall, seconds; memory, what the resident memory rose by."""
    found: dict[str, Any] = {}
    gc.collect()
    base = None
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again from what is resident now
        base = status("VmRSS")
    began = time.perf_counter(), time.process_time()
    yield found
    found["wall"], found["cpu"] = time.perf_counter() - began[0], time.process_time() - began[1]
    found["memory"] = None if base is None else max(PAGE, status("VmHWM") - base)


def settings_of(settings: dict[str, Any], batch: int | None = None) -> tuple[Any, Any]:
    """(ModelConfig, TrainConfig) of a step."""
    import zoo
    from train.config import TrainConfig

    config = zoo.create("llama-tiny", **settings["model"]).config
    train = TrainConfig(
        batch_size=batch or settings["batch"], seq_len=settings["length"], loss_chunk_bytes=CHUNK_BYTES
    )
    return config, train


def run_step(settings: dict[str, Any]) -> dict[str, Any]:
    """A whole training step: forward, backward, clipping, AdamW."""
    if settings.get("devices"):
        os.environ["JAX_PLATFORMS"] = "cpu"
        flag = f"--xla_force_host_platform_device_count={settings['devices']}"
        os.environ["XLA_FLAGS"] = f"{flag} {os.environ.get('XLA_FLAGS', '')}".strip()
    import jax
    import numpy as np

    import zoo
    from train.mesh import make_driver
    from train.optimizer import make_optimizer
    from train.state import initial_state
    from train.step import make_train_step
    from zoo.summary import count_parameters

    config, train = settings_of(settings)
    model, optimizer = zoo.create(config), make_optimizer(train)
    mesh = settings.get("mesh", "")
    driver = make_driver("mesh", mesh) if mesh else make_driver("jit")
    loss = objective(driver.row_shards)
    step = driver.compile(make_train_step(model, loss, optimizer, train))
    rows, length = train.batch_size, train.row_length
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length)).astype(np.int32)
    batch = {"tokens": ids, "segment_ids": np.ones_like(ids), "row_ids": np.arange(rows, dtype=np.int32)}
    make = initial_state(model.init, optimizer, 0)
    abstract = driver.abstract(make)
    compiled = step.lower(abstract, driver.shapes(batch)).compile()
    needs = compiled.memory_analysis()
    arguments = needs.argument_size_in_bytes
    found: dict[str, Any] = {
        "parameters": sum(count_parameters(config).values()),
        "arguments": arguments,
        "temporaries": needs.temp_size_in_bytes,
        "program": arguments + needs.output_size_in_bytes - needs.alias_size_in_bytes + needs.temp_size_in_bytes,
    }
    if settings.get("count"):
        found |= sent(compiled.as_text(), driver.sizes, found["parameters"])
    if settings.get("activations"):
        found["activations"] = activations(settings, model, loss, abstract.params)
    state, placed = driver.init(make), driver.put(batch, rows)
    jax.block_until_ready((state, placed))
    times, kernel = [], os.times().system
    with watched() as whole:
        while len(times) < WARM + LEAST or (len(times) < WARM + MOST and sum(t[0] for t in times[WARM:]) < ENOUGH):
            began = time.perf_counter(), time.process_time()
            state, metrics = compiled(state, placed)
            jax.block_until_ready((state, metrics))
            times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    kernel = os.times().system - kernel
    if not bool(metrics["finite"]):
        raise SystemExit("error: the loss is not finite")
    wall, cpu = ([t[clock] for t in times[WARM:]] for clock in (0, 1))
    clock = "cpu" if jax.default_backend() == "cpu" else "wall"
    seconds = statistics.median(cpu if clock == "cpu" else wall)
    share = kernel / max(1e-9, sum(t[1] for t in times))  # of CPU time: the kernel's, which hands out memory
    found |= {"seconds": seconds, "clock": clock, "wall": wall, "cpu": cpu, "kernel_share": share}
    found["token_seconds"] = seconds / (rows * settings["length"])
    if whole["memory"] is not None and not settings.get("devices"):
        found["process"] = arguments + whole["memory"]
    return found | {"backend": jax.default_backend()}


def objective(shards: int = 1) -> Any:
    """Next-token prediction, its logits in chunks of CHUNK_BYTES a device."""
    from functools import partial

    from train.cross_entropy import LossOptions
    from train.objectives import Objective, next_token

    return Objective(partial(next_token, options=LossOptions(chunk_bytes=CHUNK_BYTES * shards)))


def activations(settings: dict[str, Any], model: Any, loss: Any, params: Any) -> int:
    """Bytes of temporaries that come with tokens: of loss and gradient at 2 B rows, less those at B.

    What goes with the parameters is in both, and so falls out.
    """
    import jax
    import numpy as np

    from train.state import row_keys

    def total(params, batch):
        keys = row_keys(jax.random.key_data(jax.random.key(0)), np.int32(0), batch["row_ids"])
        return loss(model, params, batch, keys)[0][0]

    def temporaries(rows):
        ids = jax.ShapeDtypeStruct((rows, settings["length"] + 1), np.int32)
        batch = {"tokens": ids, "segment_ids": ids, "row_ids": jax.ShapeDtypeStruct((rows,), np.int32)}
        compiled = jax.jit(jax.value_and_grad(total)).lower(params, batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    return temporaries(2 * settings["batch"]) - temporaries(settings["batch"])


def sent(text: str, sizes: dict[str, int], parameters: int) -> dict[str, Any]:
    """Bytes that each device sends in a step, by kind of collective, and in units of 4 parameters (1 - 1 / n)."""
    from train.plan.collectives import by_kind_and_axes, collectives

    table = by_kind_and_axes(collectives(text, sizes, "cpu"))
    kinds: dict[str, float] = {}
    for (kind, _), row in table.items():
        kinds[kind] = kinds.get(kind, 0.0) + row["wire"]
    devices = max(sizes.values())
    found: dict[str, Any] = {"sent": sum(kinds.values()), "kinds": kinds}
    if devices > 1:
        found["share"] = found["sent"] / (4 * parameters * (1 - 1 / devices))
    return found


def run_corpus(settings: dict[str, Any]) -> dict[str, Any]:
    """What `python -m train prepare` does with a vocabulary at hand: read, encode, hold out, write, hash."""
    import zoo
    from train.data.shards import write_shards
    from train.data.sources import corpus

    tokenizer = zoo.load_tokenizer(TOKENIZER)
    tokenizer.encode_batch(["once, so that it is loaded"])
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "text.jsonl"
        size = write_text(path, settings["bytes"])
        with watched() as found:
            shards = write_shards(corpus(path), tokenizer, Path(place) / "shards", progress=False)
        tokens = len(shards.train.tokens) + len(shards.valid.tokens)
    known = {"seconds": found["cpu"], "process": found["memory"], "wall": found["wall"], "clock": "cpu"}
    return {key: value for key, value in known.items() if value is not None} | {"bytes": size, "tokens": tokens}


def write_text(path: Path, size: int) -> int:
    """A .jsonl of about `size` bytes: documents of 100 to 500 words, the r-th of WORDS in proportion to 1 / r.

    So there are always words that were not met before, as in text of people.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    syllables = [a + b for a in ("", *"bcdfghklmnprstvw") for b in "aeiou"]
    words = []
    for rank in range(1, WORDS + 1):
        word = ""
        while rank:
            rank, digit = divmod(rank, len(syllables))
            word += syllables[digit]
        words.append(word)
    known, written = np.array(words, object), 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            ranks = np.exp(rng.random(rng.integers(100, 500)) * np.log(WORDS)).astype(np.int64)
            line = json.dumps({"text": " ".join(known[ranks - 1])}) + "\n"
            written += file.write(line)
    return written


def run_opening(settings: dict[str, Any]) -> dict[str, Any]:
    """Opens a corpus for training: the shards, the index of rows (made at first, read after that), the first batch."""
    import numpy as np

    import zoo
    from train.data.pipeline import open_batches
    from train.data.shards import open_shards, write_shards

    tokenizer = zoo.load_tokenizer(TOKENIZER)
    rng = np.random.default_rng(0)

    def documents():
        left = settings["ids"]
        while left > 0:
            length = min(left, int(rng.integers(256, 769)))
            yield rng.integers(10, tokenizer.vocab_size, length, np.int64)
            left -= length

    def opened(shards):
        return open_batches(shards, tokenizer, style="gpt", row_length=settings["row"], batch_size=settings["batch"])

    parts: dict[str, list[dict[str, Any]]] = {"open": [], "index": [], "again": [], "batch": []}
    with tempfile.TemporaryDirectory() as place:
        write_shards(documents(), tokenizer, place, progress=False)
        for _ in range(5):
            with watched() as found:
                shards = open_shards(place)
            parts["open"].append(found)
            with watched() as found:
                batches = opened(shards)
            parts["again" if parts["index"] else "index"].append(found)
            with watched() as found:
                batches.batch(0)
            parts["batch"].append(found)
        rows, count = len(batches), len(shards.train)
        del shards, batches
    values: dict[str, Any] = {"rows": rows, "documents": count, "clock": "cpu"}
    for name, runs in parts.items():
        values[f"{name}_seconds"] = statistics.median(run["cpu"] for run in runs)
        if runs[0]["memory"] is not None:
            values[f"{name}_memory"] = statistics.median(run["memory"] for run in runs)
    return values


KINDS = {"step": run_step, "corpus": run_corpus, "opening": run_opening}


def main(words: list[str]) -> None:
    settings = json.loads(words[0])
    if hasattr(signal, "alarm"):
        signal.alarm(LIMIT)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(KINDS[settings["kind"]](settings)))


if __name__ == "__main__":
    main(sys.argv[1:])
