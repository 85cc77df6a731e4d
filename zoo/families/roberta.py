"""RoBERTa and XLM-R: BERT trained longer, on one segment and without next-sentence pairs (Liu et al. 2019; Conneau et
al. 2019, arXiv:1911.02116).

Positions begin at the third row of the table: the first two belong to the padding id of the original code. The presets
are the published masked language models, GELU in their read-out whatever the block uses.
"""

from zoo.config import ModelConfig
from zoo.families.bert import BERT

ROBERTA = BERT.replace(
    family="roberta",
    vocab_size=50265,
    position_offset=2,
    token_types=1,
    norm_eps=1e-5,
    pooler=False,
    head="masked_lm",
    masked_lm_activation="gelu",
    classifier_hidden="row",
    classifier_activation="tanh",
)
XLM_ROBERTA = ROBERTA.replace(family="xlm_roberta", vocab_size=250002)


def _shape(base: ModelConfig, num_layers: int, embed_dim: int, num_heads: int, **changes) -> ModelConfig:
    sizes = dict(num_kv_heads=None, head_dim=None, mlp_dim=None)
    return base.replace(num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads, **sizes, **changes)


PRESETS = {
    "roberta-tiny": _shape(ROBERTA, 2, 128, 2, vocab_size=8192),
    "roberta-base": ROBERTA,
    "roberta-large": _shape(ROBERTA, 24, 1024, 16),
    "xlm-roberta-base": XLM_ROBERTA,
    "xlm-roberta-large": _shape(XLM_ROBERTA, 24, 1024, 16),
}
