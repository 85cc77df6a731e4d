"""LLaMA: causal, RMS norm before each update, rotary positions, gated SiLU, no biases; later grouped KV heads.

References: Touvron et al. 2023 (arXiv:2302.13971 and 2307.09288), Llama Team 2024 (arXiv:2407.21783).
"""

from zoo.config import ModelConfig
from zoo.layer_config import RotaryScaling

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


def _shape(base: ModelConfig, num_layers, embed_dim, num_heads, mlp_dim, num_kv_heads=None, **changes) -> ModelConfig:
    return base.replace(
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=None,
        mlp_dim=mlp_dim,
        **changes,
    )


PRESETS = {
    "llama-tiny": _shape(LLAMA, 2, 128, 4, 344, 2, vocab_size=8192, max_positions=512),
    "llama-7b": LLAMA,
    "llama-13b": _shape(LLAMA, 40, 5120, 40, 13824),
    "llama-33b": _shape(LLAMA, 60, 6656, 52, 17920),
    "llama-65b": _shape(LLAMA, 80, 8192, 64, 22016),
    "llama2-7b": LLAMA2,
    "llama2-13b": _shape(LLAMA2, 40, 5120, 40, 13824),
    "llama2-70b": _shape(LLAMA2, 80, 8192, 64, 28672, 8),
    "llama3-tiny": _shape(LLAMA3, 2, 128, 4, 344, 2, vocab_size=8192, max_positions=512),
    "llama3-8b": _shape(LLAMA3, 32, 4096, 32, 14336, 8),
    "llama3-70b": _shape(LLAMA3, 80, 8192, 64, 28672, 8),
    "llama3.1-8b": _shape(LLAMA31, 32, 4096, 32, 14336, 8),
    "llama3.2-1b": _shape(LLAMA32, 16, 2048, 32, 8192, 8),
}
