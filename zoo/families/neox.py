"""GPT-NeoX and Pythia: GPT with rotary positions on a quarter of each head, attention and FFN side by side, untied.

References: Black et al. 2022 (arXiv:2204.06745), Biderman et al. 2023 (arXiv:2304.01373).
"""

from zoo.config import ModelConfig

NEOX = ModelConfig(
    family="gpt_neox",
    vocab_size=50432,
    embed_dim=6144,
    num_layers=44,
    num_heads=64,
    max_positions=2048,
    positions="rotary",
    rotary_dim=24,
    norm="layernorm",
    parallel_block=True,
    parallel_mlp_norm=True,
    activation="gelu",
    tie_embeddings=False,
    pooling="last",
)


def _pythia(num_layers: int, embed_dim: int, num_heads: int, **changes) -> ModelConfig:
    sizes = dict(num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads, vocab_size=50304) | changes
    rotated = embed_dim // num_heads // 4
    return NEOX.replace(**sizes, num_kv_heads=None, head_dim=None, mlp_dim=None, rotary_dim=rotated)


PRESETS = {
    "pythia-tiny": _pythia(2, 128, 4, vocab_size=8192, max_positions=512),
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, vocab_size=50432),
    "pythia-12b": _pythia(36, 5120, 40, vocab_size=50688),
    "gpt-neox-20b": NEOX.replace(activation="gelu_tanh"),
}
