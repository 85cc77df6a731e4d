"""Mistral: LLaMA with grouped heads and, at first, a sliding window (Jiang et al. 2023, arXiv:2310.06825).

Mixtral has eight feed-forward networks in each layer, of which a token goes through two (arXiv:2401.04088).
"""

from zoo.families.llama import LLAMA2, shape
from zoo.layer_config import LayerConfig

MISTRAL = shape(
    LLAMA2.replace(family="mistral", max_positions=32768, layer_pattern=(LayerConfig(window=4096),)),
    *(32, 4096, 32, 14336, 8),
)
MIXTRAL = MISTRAL.replace(
    family="mixtral", rotary_base=1000000.0, layer_pattern=(LayerConfig(),), num_experts=8, experts_per_token=2
)

PRESETS = {
    "mistral-tiny": shape(
        MISTRAL, 2, 128, 4, 344, 2, vocab_size=8192, max_positions=512, layer_pattern=(LayerConfig(window=64),)
    ),
    "mistral-7b": MISTRAL,
    "mistral-7b-v0.3": MISTRAL.replace(vocab_size=32768, rotary_base=1000000.0, layer_pattern=(LayerConfig(),)),
    "mixtral-tiny": shape(MIXTRAL, 2, 128, 4, 172, 2, vocab_size=8192, max_positions=512, num_experts=4),
    "mixtral-8x7b": MIXTRAL,
    "mixtral-8x22b": shape(MIXTRAL, 56, 6144, 48, 16384, 8, vocab_size=32768, max_positions=65536),
}
