"""Phi-3 and Phi-4: LLaMA's block at their own sizes (Abdin et al. 2024, arXiv:2404.14219 and 2412.08905)."""

from zoo.families.llama import LLAMA2, shape
from zoo.layer_config import LayerConfig

PHI3 = LLAMA2.replace(family="phi3", vocab_size=32064, layer_pattern=(LayerConfig(window=2047),))
PHI4 = PHI3.replace(
    vocab_size=100352, max_positions=16384, rotary_base=250000.0, layer_pattern=(LayerConfig(),)
)

PRESETS = {
    "phi3-tiny": shape(PHI3, 2, 128, 4, 344, vocab_size=8192, max_positions=512),
    "phi3-mini": shape(PHI3, 32, 3072, 32, 8192),
    "phi3-medium": shape(PHI3, 40, 5120, 40, 17920, 10),
    "phi4": shape(PHI4, 40, 5120, 40, 17920, 10),
}
