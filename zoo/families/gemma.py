"""Gemma: LLaMA with norms of 1 + scale, scaled and tied embeddings, gated tanh GELU and wide heads.

Gemma 2 puts norms on both sides of each update, caps scores and logits, and alternates local and global layers. Gemma 3
gives up the caps for a norm on queries and keys, and has five local layers, of another rotary base, to a global one.
References: Gemma Team 2024 (arXiv:2403.08295 and 2408.00118), Gemma Team 2025 (arXiv:2503.19786).
"""

from zoo.config import ModelConfig
from zoo.families.llama import LLAMA, shape
from zoo.layer_config import LayerConfig, RotaryScaling

GEMMA = LLAMA.replace(
    family="gemma",
    vocab_size=256000,
    max_positions=8192,
    norm_unit_offset=True,
    activation="gelu_tanh",
    tie_embeddings=True,
)
GEMMA2 = GEMMA.replace(
    family="gemma2",
    norm_placement="both",
    layer_pattern=(LayerConfig(window=4096), LayerConfig()),
    attention_soft_cap=50.0,
    logit_soft_cap=30.0,
)
GEMMA3 = GEMMA2.replace(
    family="gemma3",
    vocab_size=262144,
    max_positions=32768,
    qk_norm=True,
    rotary_base=1000000.0,
    layer_pattern=(*(LayerConfig(window=512, rotary_base=10000.0),) * 5, LayerConfig()),
    attention_soft_cap=None,
    logit_soft_cap=None,
)

# From 4B on: published with a model of images beside it, whose placeholders widen the vocabulary by 64.
GEMMA3_LONG = GEMMA3.replace(
    vocab_size=262208,
    max_positions=131072,
    rotary_scaling=RotaryScaling("linear", 8.0),
    layer_pattern=(*(LayerConfig(window=1024, rotary_base=10000.0, rotary_scaled=False),) * 5, LayerConfig()),
)


def _shape(base: ModelConfig, num_layers, embed_dim, num_heads, mlp_dim, num_kv_heads, **changes) -> ModelConfig:
    changes = {"head_dim": 256, "embed_scale": embed_dim**0.5} | changes
    return shape(base, num_layers, embed_dim, num_heads, mlp_dim, num_kv_heads, **changes)


PRESETS = {
    "gemma-2b": _shape(GEMMA, 18, 2048, 8, 16384, 1),
    "gemma-7b": _shape(GEMMA, 28, 3072, 16, 24576, 16),
    "gemma2-2b": _shape(GEMMA2, 26, 2304, 8, 9216, 4),
    "gemma2-9b": _shape(GEMMA2, 42, 3584, 16, 14336, 8),
    # Scores of the 27B model are divided by sqrt(D / N) and not by sqrt(H).
    "gemma2-27b": _shape(GEMMA2, 46, 4608, 32, 36864, 16, head_dim=128, score_scale=144**-0.5),
    "gemma3-tiny": _shape(
        GEMMA3,
        *(3, 128, 4, 344, 1),
        head_dim=64,
        vocab_size=8192,
        max_positions=512,
        layer_pattern=(LayerConfig(window=64, rotary_base=10000.0), LayerConfig()),
    ),
    "gemma3-270m": _shape(GEMMA3, 18, 640, 4, 2048, 1),
    "gemma3-1b": _shape(GEMMA3, 26, 1152, 4, 6912, 1),
    # Text to vectors: it sees both ways (arXiv:2509.20354).
    "embeddinggemma-300m": _shape(
        GEMMA3, *(24, 768, 3, 1152, 1), visibility="full", head="none", max_positions=2048
    ),
    "gemma3-4b": _shape(GEMMA3_LONG, 34, 2560, 8, 10240, 4),
    "gemma3-12b": _shape(GEMMA3_LONG, 48, 3840, 16, 15360, 8),
    "gemma3-27b": _shape(GEMMA3_LONG, 62, 5376, 32, 21504, 16, head_dim=128, score_scale=168**-0.5),
}
