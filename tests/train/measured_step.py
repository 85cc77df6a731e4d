"""Compiles a training step over eight virtual devices as `train plan` does, runs it, and watches this process's memory.

python tests/train/measured_step.py MESH REMAT      prints one JSON object: bytes of all devices, planned and measured
"""

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
    # Large buffers straight from the kernel and back to it, so that what is in use is what is resident.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
    os.execv(sys.executable, [sys.executable, *sys.argv])

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax  # noqa: E402
import numpy as np  # noqa: E402

import zoo  # noqa: E402
from train.mesh import MeshDriver, make_mesh  # noqa: E402
from train.optimizer import make_optimizer  # noqa: E402
from train.plan.compile import compile_on, traced_step  # noqa: E402
from train.plan.job import make_job  # noqa: E402
from train.plan.slices import parse_slice  # noqa: E402
from train.state import initial_state  # noqa: E402

MODEL = {"embed_dim": 512, "num_layers": 3, "num_heads": 8, "num_kv_heads": 8, "head_dim": 64, "mlp_dim": 1024,
         "vocab_size": 8192, "dtype": "float32"}  # fmt: skip


def resident() -> int:
    """Bytes of this process's memory that no file stands behind."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Watch:
    """The peak of `resident` while it is open."""

    def __enter__(self):
        self.peak, self.open = resident(), True
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def _look(self):
        while self.open:
            self.peak = max(self.peak, resident())
            time.sleep(0.0005)

    def __exit__(self, *_):
        self.open = False
        self.thread.join()


def main(mesh: str, remat: str) -> dict[str, float]:
    job = make_job("llama-7b", parse_slice("v5e:2x4"), batch=8, seq=128, mesh=mesh, changes=MODEL | {"remat": remat})
    driver = MeshDriver(make_mesh(job.mesh_shape, jax.devices()))
    planned = compile_on(job, driver)
    traced, _, batch = traced_step(job, driver)
    with jax.set_mesh(driver.mesh):
        run = traced.lower().compile()
    init = initial_state(zoo.create(job.model).init, make_optimizer(job.train), 0)
    jax.block_until_ready(driver.init(init))  # compiled, its memory given back
    ids = np.random.default_rng(0).integers(0, MODEL["vocab_size"], batch["tokens"].shape, np.int32)
    rows = {"tokens": ids, "segment_ids": np.ones_like(ids), "row_ids": np.arange(len(ids), dtype=np.int32)}
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = resident()
    state = driver.init(init)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    placed = driver.put(rows)
    with Watch() as watch:
        for _ in range(2):
            state, metrics = run(state, placed)
            jax.block_until_ready((state, metrics))
    assert bool(metrics["finite"])
    return {"planned": 8 * planned.total, "measured": watch.peak - before, "state": 8 * planned.arguments}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
