"""Qwen: LLaMA with biases on query, key and value (Qwen2, 2.5), then with a norm on each query and key head (Qwen3).

References: Qwen Team 2024 (arXiv:2407.10671 and 2412.15115), Qwen Team 2025 (arXiv:2505.09388).
"""

from zoo.families.llama import LLAMA, shape

QWEN25 = LLAMA.replace(
    family="qwen2", vocab_size=151936, max_positions=32768, rotary_base=1000000.0, attention_bias=True
)
QWEN3 = QWEN25.replace(family="qwen3", max_positions=40960, attention_bias=False, qk_norm=True)
TIED = dict(tie_embeddings=True)

PRESETS = {
    "qwen2.5-tiny": shape(QWEN25, 2, 128, 4, 344, 2, vocab_size=8192, max_positions=512, **TIED),
    "qwen2.5-0.5b": shape(QWEN25, 24, 896, 14, 4864, 2, **TIED),
    "qwen2.5-1.5b": shape(QWEN25, 28, 1536, 12, 8960, 2, max_positions=131072, **TIED),
    "qwen2.5-3b": shape(QWEN25, 36, 2048, 16, 11008, 2, **TIED),
    "qwen2.5-7b": shape(QWEN25, 28, 3584, 28, 18944, 4, vocab_size=152064, max_positions=131072),
    "qwen3-tiny": shape(QWEN3, 2, 128, 4, 344, 2, head_dim=64, vocab_size=8192, max_positions=512, **TIED),
    "qwen3-0.6b": shape(QWEN3, 28, 1024, 16, 3072, 8, head_dim=128, **TIED),
    "qwen3-1.7b": shape(QWEN3, 28, 2048, 16, 6144, 8, head_dim=128, **TIED),
    "qwen3-4b": shape(QWEN3, 36, 2560, 32, 9728, 8, head_dim=128, **TIED),
    "qwen3-8b": shape(QWEN3, 36, 4096, 32, 12288, 8, head_dim=128),
}
