"""ALBERT: BERT whose layers share one set of parameters and whose embeddings are 128 wide (Lan et al. 2019).

arXiv:1909.11942, tables 1 and 2; the second published version, which has no dropout in the block. The presets have the
masked-LM read-out; the published files hold a pooler and a sentence-order head too.
"""

from zoo.config import ModelConfig
from zoo.families.bert import BERT

ALBERT = BERT.replace(
    family="albert",
    vocab_size=30000,
    embed_rank=128,
    shared_layers=True,
    activation="gelu_tanh",
    dropout=0.0,
    embed_dropout=0.0,
    attention_dropout=0.0,
    head_dropout=0.1,
    pooler=False,
    head="masked_lm",
)


def _shape(num_layers: int, embed_dim: int, num_heads: int, **changes) -> ModelConfig:
    sizes = dict(num_kv_heads=None, head_dim=None, mlp_dim=None)
    return ALBERT.replace(num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads, **sizes, **changes)


PRESETS = {
    "albert-tiny": _shape(4, 128, 2, embed_rank=64, vocab_size=8192),
    "albert-base-v2": ALBERT,
    "albert-large-v2": _shape(24, 1024, 16),
    "albert-xlarge-v2": _shape(24, 2048, 16),
    "albert-xxlarge-v2": _shape(12, 4096, 64),
}
