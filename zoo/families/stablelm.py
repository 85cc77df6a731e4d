"""StableLM: LLaMA with layer norms and a quarter of each head turned (Bellagente et al. 2024, arXiv:2402.17834).

The 12B model has attention beside the FFN, and a layer norm for each head of queries and keys.
"""

from zoo.config import ModelConfig
from zoo.families.llama import LLAMA2, shape

STABLELM = LLAMA2.replace(family="stablelm", vocab_size=50304, norm="layernorm", rotary_dim=32)


def _shape(num_layers: int, embed_dim: int, num_heads: int, mlp_dim: int, kv=None, **changes) -> ModelConfig:
    changes = {"rotary_dim": embed_dim // num_heads // 4} | changes
    return shape(STABLELM, num_layers, embed_dim, num_heads, mlp_dim, kv, **changes)


PRESETS = {
    "stablelm-tiny": _shape(2, 128, 4, 344, vocab_size=8192, max_positions=512),
    "stablelm-3b": _shape(32, 2560, 32, 6912),
    "stablelm-2-1.6b": _shape(24, 2048, 32, 5632, vocab_size=100352, attention_bias=True),
    "stablelm-2-12b": _shape(
        *(40, 5120, 32, 13824, 8),
        vocab_size=100352,
        parallel_block=True,
        qk_norm=True,
        qk_norm_over="own_head",
        qk_norm_kind="layernorm",
    ),
}
