"""BERT folders: their settings and their key table (Devlin et al. 2018, arXiv:1810.04805)."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.encoder import (
    BUFFERS,
    CLASSES,
    EMBEDDINGS,
    LAYERS,
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
from zoo.checkpoints.keys import Key, Table, linear, norm
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig

DECODER = "cls.predictions.decoder.weight"

TABLE = Table(
    name="BERT",
    prefix="bert.",
    keys=(
        Key("embed/token/embedding", TOKEN_TABLE, aliases=(DECODER,)),
        *EMBEDDINGS,
        *LAYERS,
        *linear("pooler", "pooler.dense"),
        *linear("masked_lm/dense", "cls.predictions.transform.dense"),
        *norm("masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        Key("masked_lm/kernel", DECODER, "linear"),
        # The reference adds the decoder's own bias, which tying makes the same as the other.
        Key("masked_lm/bias", "cls.predictions.bias", instead="cls.predictions.decoder.bias"),
        *linear("next_sentence", "cls.seq_relationship"),
        *linear("classifier", "classifier"),
        *TOKEN_HEADS,
    ),
    buffers=BUFFERS,
    renamed=RENAMED,
    heads=("cls.", "classifier.", "qa_outputs."),
)

# What each architecture must have; more of it is taken where the tensors are there.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "BertModel": {},
    "BertForMaskedLM": {"head": "masked_lm"},
    "BertForPreTraining": {"head": "masked_lm", "pooler": True, "next_sentence": True},
    "BertForNextSentencePrediction": {"pooler": True, "next_sentence": True},
    "BertForSequenceClassification": {"head": "classifier", "pooler": True},
    "BertForTokenClassification": {"head": "token_classifier"},
    "BertForQuestionAnswering": {"head": "span"},
}
SIGNS = {"masked_lm": "cls.predictions.bias", "span": "qa_outputs.weight"}


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a BERT folder.

    Heads come from the architecture and from the tensors that are there: published BERT-base calls itself
    BertForMaskedLM and holds the pooler and the next-sentence head too.

    Args:
        settings: of config.json.
        names: plain tensor names of the folder.
        architecture: a key of ARCHITECTURES, or None where config.json names none.
        tied: whether the read-out is the token table.
    """
    wanted = ARCHITECTURES[architecture] if architecture else {}
    shared = read_encoder(settings)
    signs = SIGNS if architecture else SIGNS | {"classifier": "classifier.weight"}
    head = read_head(settings, names, architecture, ARCHITECTURES, signs)
    settings.ignore("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
    settings.ignore("pooler_size_per_head", "pooler_type")
    return ModelConfig(
        family="bert",
        **shared,
        **head,
        tie_embeddings=tied or head["head"] != "masked_lm",
        pooler=wanted.get("pooler", False) or "pooler.dense.weight" in names,
        next_sentence=wanted.get("next_sentence", False) or "cls.seq_relationship.weight" in names,
        head_dropout=settings.number("classifier_dropout", shared["dropout"]),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json, architecture included; a plain tied "lm" read-out is not BERT's and is left out."""
    architecture = architecture_of(config, "Bert")
    if config.next_sentence and config.head not in (*CLASSES, "span"):
        architecture = "BertForPreTraining" if config.head == "masked_lm" else "BertForNextSentencePrediction"
    out = {"model_type": "bert", "architectures": [architecture], **write_encoder(config), **write_labels(config)}
    if config.head in CLASSES:
        out["classifier_dropout"] = config.head_dropout
    return out


FORMATS = {
    "bert": Format(
        table=TABLE,
        architectures=ARCHITECTURES,
        read=read_config,
        write=write_config,
        read_out=DECODER,
        token_table=TOKEN_TABLE,
        tied=True,
        bare=("BertModel",),
        writes=lambda config: config.family == "bert",
    )
}
