"""OLMo 2: LLaMA with its norms after each update, and one over whole query and key projections (arXiv:2501.00656)."""

from zoo.families.llama import LLAMA, shape

OLMO2 = LLAMA.replace(
    family="olmo2",
    vocab_size=100352,
    max_positions=4096,
    rotary_base=500000.0,
    norm_placement="after",
    qk_norm=True,
    qk_norm_over="projection",
)

PRESETS = {
    "olmo2-tiny": shape(OLMO2, 2, 128, 4, 344, vocab_size=8192, max_positions=512),
    "olmo2-1b": shape(OLMO2, 16, 2048, 16, 8192),
    "olmo2-7b": OLMO2,
    "olmo2-13b": shape(OLMO2, 40, 5120, 40, 13824),
    "olmo2-32b": shape(OLMO2, 64, 5120, 40, 27648, 8),
}
