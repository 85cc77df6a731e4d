"""BERT: sees both ways, normalises after each update, learned positions, two segments (Devlin et al. 2018).

The presets read out with the token table alone, so that they count as published (base with pooler 109,482,240).
Masked-LM pre-training switches to head="masked_lm", which adds BERT's transform.
"""

from zoo.config import ModelConfig

BERT = ModelConfig(
    family="bert",
    vocab_size=30522,
    embed_dim=768,
    num_layers=12,
    num_heads=12,
    max_positions=512,
    visibility="full",
    token_types=2,
    embed_norm=True,
    norm_placement="post",
    norm_eps=1e-12,
    final_norm=False,
    activation="gelu",
    dropout=0.1,
    embed_dropout=0.1,
    attention_dropout=0.1,
    head_dropout=0.1,
    pooler=True,
    head="lm",
)


def _shape(num_layers: int, embed_dim: int) -> ModelConfig:
    return BERT.replace(
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_heads=embed_dim // 64,
        num_kv_heads=None,
        head_dim=None,
        mlp_dim=None,
    )


# The small shapes are those of Turc et al. 2019 (arXiv:1908.08962), table 1.
PRESETS = {
    "bert-tiny": _shape(2, 128),
    "bert-mini": _shape(4, 256),
    "bert-small": _shape(4, 512),
    "bert-medium": _shape(8, 512),
    "bert-base": BERT,
    "bert-large": _shape(24, 1024),
}
