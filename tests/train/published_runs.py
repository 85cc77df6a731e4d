"""Runs that MaxText published: its models and settings, and the seconds a step that its speed comes to.

Its own models (base 2048 wide, 16 heads of 128, FFN 7168 gated, 16 layers, scaled), rows of 2048 tokens; speed from
google/maxtext README.md ("Runtime Performance Results"), settings from MaxText/configs/v5e/*.sh and v5p/*.sh. They
count every score, masked or not, as model FLOPs; so does the conversion to seconds here.
"""

import math

# (slice, mesh, (width, heads, FFN, layers), rows a chip, remat, TFLOP/s a chip)
PUBLISHED = {
    "v5e 16B": ("v5e:16x16", "fsdp=256", (4096, 64, 28672, 32), 6, "full", 120),
    "v5e 32B": ("v5e:16x16", "fsdp=256", (8192, 64, 28672, 32), 4, "full", 132),
    "v5e 64B": ("v5e:16x16", "fsdp=256", (8192, 64, 28672, 64), 2, "full", 118),
    "v5e 128B": ("v5e:16x16", "fsdp=16,tensor=16", (8192, 128, 57344, 64), 1, "offload", 110),
    "v5p 32B": ("v5p:4x4x4", "fsdp=16,tensor=4", (8192, 64, 28672, 32), 7, "minimal", 328),
    "v5p 64B": ("v5p:4x4x4", "fsdp=16,tensor=4", (8192, 64, 28672, 64), 3, "minimal", 323),
    "v5p 128B": ("v5p:4x4x8", "fsdp=16,tensor=8", (8192, 128, 57344, 64), 1, "minimal", 315),
}
SEQ, VOCABULARY = 2048, 32000


def fields(name):
    """Of ModelConfig, over those of llama-7b."""
    _, _, (width, heads, ffn, layers), _, remat, _ = PUBLISHED[name]
    return {
        "embed_dim": width, "num_heads": heads, "num_kv_heads": heads, "head_dim": 128, "mlp_dim": ffn,
        "num_layers": layers, "vocab_size": VOCABULARY, "remat": remat, "dtype": "bfloat16", "scan": True,
        "attention_kernel": "splash",
    }  # fmt: skip


def batch(name):
    """Rows a step."""
    slice, *_, rows, _, _ = PUBLISHED[name]
    return rows * math.prod(int(side) for side in slice.partition(":")[2].split("x"))


def seconds(name):
    """Of a step, from what they published."""
    _, _, (width, heads, ffn, layers), rows, _, teraflops = PUBLISHED[name]
    weights = layers * (4 * width * heads * 128 + 3 * width * ffn) + width * VOCABULARY
    flops = rows * SEQ * (6 * weights + 12 * layers * heads * 128 * SEQ)
    return flops / (teraflops * 1e12)


def mesh_shape(name):
    """{axis: size}."""
    return {axis: int(size) for axis, size in (pair.split("=") for pair in PUBLISHED[name][1].split(","))}
