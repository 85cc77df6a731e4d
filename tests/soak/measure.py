"""Loads a random LLaMA of 1.8 GB over eight virtual devices, and writes it again, watching this process's own memory.

python tests/soak/measure.py FOLDER      prints one JSON object
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType  # noqa: E402

import zoo  # noqa: E402
from zoo.checkpoints.hugging_face import published_config  # noqa: E402
from zoo.checkpoints.keys import to_published  # noqa: E402
from zoo.checkpoints.placing import flatten  # noqa: E402
from zoo.checkpoints.safetensors_out import OutgoingTensor, write_shards  # noqa: E402

MODEL = zoo.create(
    "llama-7b", embed_dim=2048, num_layers=6, num_heads=16, num_kv_heads=8, head_dim=128, mlp_dim=5632, vocab_size=32000
)


def anonymous() -> int:
    """Bytes of this process's memory that no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this kernel does not tell RssAnon")


class Watch:
    """The peak of `anonymous` while it is open, looked at every half millisecond."""

    def __enter__(self):
        self.start = self.peak = anonymous()
        self.open = True
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def _look(self):
        while self.open:
            self.peak = max(self.peak, anonymous())
            time.sleep(0.0005)

    def __exit__(self, *_):
        self.open = False
        self.thread.join()


def write_random(folder: Path) -> int:
    """A Hugging Face folder of random float32 weights in shards of 500 MB; returns the size of the largest tensor."""
    form, values = published_config(MODEL.config)
    shapes = flatten(MODEL.init_shapes())
    draw = np.random.default_rng(0)
    published = to_published(form.table, shapes, lambda path: None, MODEL.config.num_layers, form.table.prefix)

    def noise(shape):
        return lambda: (0.02 * draw.standard_normal(shape, np.float32)).astype(np.float32)

    tensors = {
        name: OutgoingTensor(tensor.shape, tensor.dtype, noise(tensor.shape)) for name, tensor in published.items()
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    write_shards(folder, tensors, 500 * 10**6)
    return max(tensor.size for tensor in tensors.values())


def main(folder: Path) -> dict[str, float]:
    largest = write_random(folder / "model")
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    jax.block_until_ready(jax.device_put(np.zeros(8), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())))
    with Watch() as loading:
        started = time.perf_counter()
        model, params = zoo.load(folder / "model", mesh=mesh)
        seconds = time.perf_counter() - started
    resident = sum(shard.data.nbytes for leaf in jax.tree.leaves(params) for shard in leaf.addressable_shards)
    with Watch() as writing:
        zoo.export(model, params, folder / "again", max_shard_size="500MB")
    again = sum(path.stat().st_size for path in (folder / "again").glob("*.safetensors"))
    return {
        "devices": len(jax.devices()),
        "file_bytes": again,
        "resident_bytes": resident,
        "largest_tensor": largest,
        "load_seconds": seconds,
        "load_over_resident": loading.peak - loading.start - resident,
        "export_over_start": writing.peak - writing.start,
        "export_kept": anonymous() - writing.start,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
