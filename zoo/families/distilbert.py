"""DistilBERT: BERT's block, half as many layers, no segments, no pooler (Sanh et al. 2019, arXiv:1910.01108)."""

from zoo.families.bert import BERT

DISTILBERT = BERT.replace(
    family="distilbert",
    num_layers=6,
    token_types=0,
    pooler=False,
    head="masked_lm",
    classifier_hidden="row",
    classifier_activation="relu",
    head_dropout=0.2,
)

PRESETS = {
    "distilbert-tiny": DISTILBERT.replace(
        num_layers=2, embed_dim=128, num_heads=2, num_kv_heads=None, head_dim=None, mlp_dim=None, vocab_size=8192
    ),
    "distilbert-base": DISTILBERT,
}
