"""ModernBERT: what decoders learned since BERT, in an encoder (Warner et al. 2024, arXiv:2412.13663).

Norm before each update and without bias, rotary positions, gated GELU, no biases. Two layers of three see 64 tokens to
either side and turn with base 10,000; the third sees all, with base 160,000.
"""

from zoo.config import ModelConfig
from zoo.layer_config import LayerConfig

GLOBAL, LOCAL = LayerConfig(), LayerConfig(window=128, rotary_base=10000.0)


def pattern(num_layers: int) -> tuple[LayerConfig, ...]:
    """Global, local, local, and so on; the first reads the normalised embeddings as they are."""
    layers = [LOCAL if layer % 3 else GLOBAL for layer in range(num_layers)]
    return (LayerConfig(attention_norm=False), *layers[1:])


MODERNBERT = ModelConfig(
    family="modernbert",
    vocab_size=50368,
    embed_dim=768,
    num_layers=22,
    num_heads=12,
    mlp_dim=1152,
    max_positions=8192,
    layer_pattern=pattern(22),
    visibility="full",
    positions="rotary",
    rotary_base=160000.0,
    embed_norm=True,
    norm_bias=False,
    attention_bias=False,
    attention_out_bias=False,
    mlp_bias=False,
    activation="gelu",
    gated=True,
    residual_init=True,
    head="masked_lm",
    masked_lm_activation="gelu",
    head_bias=False,
    classifier_hidden="every",
    classifier_activation="gelu",
    classifier_norm=True,
)


def _shape(num_layers: int, embed_dim: int, num_heads: int, mlp_dim: int, **changes) -> ModelConfig:
    return MODERNBERT.replace(
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=None,
        head_dim=None,
        mlp_dim=mlp_dim,
        layer_pattern=pattern(num_layers),
        **changes,
    )


PRESETS = {
    "modernbert-tiny": _shape(4, 128, 2, 192, vocab_size=8192),
    "modernbert-base": MODERNBERT,
    "modernbert-large": _shape(28, 1024, 16, 2624),
}
