"""Mistral: LLaMA with grouped heads and, at first, a sliding window (Jiang et al. 2023, arXiv:2310.06825)."""

from zoo.families.llama import LLAMA2, shape
from zoo.layer_config import LayerConfig

MISTRAL = shape(
    LLAMA2.replace(family="mistral", max_positions=32768, layer_pattern=(LayerConfig(window=4096),)),
    *(32, 4096, 32, 14336, 8),
)

PRESETS = {
    "mistral-tiny": shape(
        MISTRAL, 2, 128, 4, 344, 2, vocab_size=8192, max_positions=512, layer_pattern=(LayerConfig(window=64),)
    ),
    "mistral-7b": MISTRAL,
    "mistral-7b-v0.3": MISTRAL.replace(vocab_size=32768, rotary_base=1000000.0, layer_pattern=(LayerConfig(),)),
}
