"""ELECTRA: BERT's encoder, trained to tell replaced tokens from real ones (Clark et al. 2020, arXiv:2003.10555).

A small generator with a masked-LM read-out makes the replacements; the discriminator is what is kept. Table 6 of the
paper; the small ones have embeddings of their own width.
"""

from zoo.config import ModelConfig
from zoo.families.bert import BERT

ELECTRA = BERT.replace(
    family="electra",
    pooler=False,
    head="replaced_token",
    masked_lm_activation="gelu",
    classifier_hidden="row",
    classifier_activation="gelu",
)


def _shape(num_layers: int, embed_dim: int, num_heads: int, embed_rank: int | None, **changes) -> ModelConfig:
    sizes = dict(num_kv_heads=None, head_dim=None, mlp_dim=None)
    return ELECTRA.replace(
        num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads, embed_rank=embed_rank, **sizes, **changes
    )


PRESETS = {
    "electra-tiny": _shape(2, 128, 2, 64, vocab_size=8192),
    "electra-small": _shape(12, 256, 4, 128),
    "electra-base": ELECTRA,
    "electra-large": _shape(24, 1024, 16, None),
    "electra-small-generator": _shape(12, 256, 4, 128, head="masked_lm"),
    "electra-base-generator": _shape(12, 256, 4, 768, head="masked_lm"),
    "electra-large-generator": _shape(24, 256, 4, 1024, head="masked_lm"),
}
