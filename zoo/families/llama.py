"""LLaMA: causal, RMS norm before each update, rotary positions, gated SiLU, no biases; later grouped KV heads.

SmolLM2 is LLaMA small and tied; SmolLM3 leaves every fourth layer without positions.
References: Touvron et al. 2023 (arXiv:2302.13971 and 2307.09288), Llama Team 2024 (arXiv:2407.21783), Ben Allal et al.
2025 (arXiv:2502.02737).
"""

from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig, RotaryScaling

LLAMA = ModelConfig(
    family="llama",
    vocab_size=32000,
    embed_dim=4096,
    num_layers=32,
    num_heads=32,
    mlp_dim=11008,
    max_positions=2048,
    positions="rotary",
    norm="rmsnorm",
    norm_eps=1e-6,
    attention_bias=False,
    attention_out_bias=False,
    mlp_bias=False,
    activation="silu",
    gated=True,
    tie_embeddings=False,
    pooling="last",
)

LLAMA2 = LLAMA.replace(max_positions=4096, norm_eps=1e-5)
LLAMA3 = LLAMA2.replace(vocab_size=128256, max_positions=8192, rotary_base=500000.0)
LLAMA31 = LLAMA3.replace(max_positions=131072, rotary_scaling=RotaryScaling("llama3", 8.0))
LLAMA32 = LLAMA31.replace(rotary_scaling=RotaryScaling("llama3", 32.0), tie_embeddings=True)
SMOLLM2 = LLAMA2.replace(vocab_size=49152, max_positions=8192, rotary_base=100000.0, tie_embeddings=True)
SMOLLM3 = LLAMA.replace(
    family="smollm3",
    vocab_size=128256,
    max_positions=65536,
    rotary_base=5000000.0,
    layer_pattern=(LayerConfig(), LayerConfig(), LayerConfig(), LayerConfig(rotary=False)),
    tie_embeddings=True,
)


def shape(base: ModelConfig, num_layers, embed_dim, num_heads, mlp_dim, num_kv_heads=None, **changes) -> ModelConfig:
    """`base` at other sizes; heads share the width unless head_dim is among the changes."""
    return base.replace(
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        mlp_dim=mlp_dim,
        **{"head_dim": None} | changes,
    )


PRESETS = {
    "llama-tiny": shape(LLAMA, 2, 128, 4, 344, 2, vocab_size=8192, max_positions=512),
    "llama-7b": LLAMA,
    "llama-13b": shape(LLAMA, 40, 5120, 40, 13824),
    "llama-33b": shape(LLAMA, 60, 6656, 52, 17920),
    "llama-65b": shape(LLAMA, 80, 8192, 64, 22016),
    "llama2-7b": LLAMA2,
    "llama2-13b": shape(LLAMA2, 40, 5120, 40, 13824),
    "llama2-70b": shape(LLAMA2, 80, 8192, 64, 28672, 8),
    "llama3-tiny": shape(LLAMA3, 2, 128, 4, 344, 2, vocab_size=8192, max_positions=512),
    "llama3-8b": shape(LLAMA3, 32, 4096, 32, 14336, 8),
    "llama3-70b": shape(LLAMA3, 80, 8192, 64, 28672, 8),
    "llama3.1-8b": shape(LLAMA31, 32, 4096, 32, 14336, 8),
    "llama3.2-1b": shape(LLAMA32, 16, 2048, 32, 8192, 8),
    "llama3.2-3b": shape(LLAMA32, 28, 3072, 24, 8192, 8),
    "smollm2-135m": shape(SMOLLM2, 30, 576, 9, 1536, 3),
    "smollm2-360m": shape(SMOLLM2, 32, 960, 15, 2560, 5),
    "smollm2-1.7b": shape(SMOLLM2, 24, 2048, 32, 8192, rotary_base=130000.0),
    "smollm3-tiny": shape(SMOLLM3, 4, 128, 4, 344, 2, vocab_size=8192, max_positions=512),
    "smollm3-3b": shape(SMOLLM3, 36, 2048, 16, 11008, 4),
}
