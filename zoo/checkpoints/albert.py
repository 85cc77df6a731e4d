"""ALBERT folders (Lan et al. 2019, arXiv:1909.11942): one layer's parameters for all, and narrow embeddings."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.encoder import (
    BUFFERS,
    CLASSES,
    EMBEDDINGS,
    RENAMED,
    TOKEN_HEADS,
    TOKEN_TABLE,
    architecture_of,
    read_encoder,
    read_head,
    write_encoder,
    write_labels,
)
from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, linear_to_heads, norm
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig

SHARED = "blocks/shared/"
THEIRS = "encoder.albert_layer_groups.0.albert_layers.0."
DECODER = "predictions.decoder.weight"

TABLE = Table(
    name="ALBERT",
    prefix="albert.",
    keys=(
        Key("embed/token/embedding", TOKEN_TABLE, aliases=(DECODER,)),
        *EMBEDDINGS,
        *linear("embed/projection", "encoder.embedding_hidden_mapping_in"),
        *linear_to_heads(f"{SHARED}attention/query", f"{THEIRS}attention.query"),
        *linear_to_heads(f"{SHARED}attention/key", f"{THEIRS}attention.key"),
        *linear_to_heads(f"{SHARED}attention/value", f"{THEIRS}attention.value"),
        *linear(f"{SHARED}attention/out", f"{THEIRS}attention.dense", "linear_from_heads"),
        *norm(f"{SHARED}attention_norm", f"{THEIRS}attention.LayerNorm"),
        *linear(f"{SHARED}mlp/up", f"{THEIRS}ffn"),
        *linear(f"{SHARED}mlp/down", f"{THEIRS}ffn_output"),
        *norm(f"{SHARED}mlp_norm", f"{THEIRS}full_layer_layer_norm"),
        *linear("pooler", "pooler"),
        *linear("masked_lm/dense", "predictions.dense"),
        *norm("masked_lm/norm", "predictions.LayerNorm"),
        Key("masked_lm/kernel", DECODER, "linear"),
        Key("masked_lm/bias", "predictions.bias", instead="predictions.decoder.bias"),
        *linear("next_sentence", "sop_classifier.classifier"),
        *linear("classifier", "classifier"),
        *TOKEN_HEADS,
    ),
    buffers=BUFFERS,
    renamed=RENAMED,
    heads=("predictions.", "sop_classifier.", "classifier.", "qa_outputs."),
)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "AlbertForMaskedLM": {"head": "masked_lm"},
    "AlbertModel": {},
    "AlbertForPreTraining": {"head": "masked_lm", "pooler": True, "next_sentence": True},
    "AlbertForSequenceClassification": {"head": "classifier", "pooler": True},
    "AlbertForTokenClassification": {"head": "token_classifier"},
    "AlbertForQuestionAnswering": {"head": "span"},
}
DEFAULTS: dict[str, Any] = dict(
    vocab_size=30000,
    hidden_size=4096,
    num_attention_heads=64,
    intermediate_size=16384,
    hidden_act="gelu_new",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
SIGNS = {"masked_lm": "predictions.bias", "span": "qa_outputs.weight"}


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of an ALBERT folder; arguments as in zoo/checkpoints/bert.py.

    The sentence-order head stands where BERT has the next-sentence one (Lan et al. 2019, 3.1).
    """
    wanted = ARCHITECTURES[architecture] if architecture else {}
    shared = read_encoder(settings, **DEFAULTS)
    signs = SIGNS if architecture else SIGNS | {"classifier": "classifier.weight"}
    head = read_head(settings, names, architecture, ARCHITECTURES, signs)
    settings.only("num_hidden_groups", 1)
    settings.only("inner_group_num", 1)
    settings.only("down_scale_factor", 1)
    for name in ("gap_size", "net_structure_type", "num_memory_blocks"):
        settings.only(name, 0)
    return ModelConfig(
        family="albert",
        **shared,
        **head,
        shared_layers=True,
        embed_rank=settings.whole("embedding_size", 128),
        tie_embeddings=tied or head["head"] != "masked_lm",
        pooler=wanted.get("pooler", False) or "pooler.weight" in names,
        next_sentence=wanted.get("next_sentence", False) or "sop_classifier.classifier.weight" in names,
        head_dropout=settings.number("classifier_dropout_prob", 0.1),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    architecture = architecture_of(config, "Albert")
    if config.next_sentence and config.head not in (*CLASSES, "span"):
        architecture = "AlbertForPreTraining"
    return {
        "model_type": "albert",
        "architectures": [architecture],
        **write_encoder(config),
        "embedding_size": config.embed_rank,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "classifier_dropout_prob": config.head_dropout,
        **write_labels(config),
    }


FORMATS = {
    "albert": Format(
        table=TABLE,
        architectures=ARCHITECTURES,
        read=read_config,
        write=write_config,
        read_out=DECODER,
        token_table=TOKEN_TABLE,
        tied=True,
        bare=("AlbertModel",),
        writes=lambda config: config.family == "albert",
    )
}
