"""ELECTRA folders (Clark et al. 2020, arXiv:2003.10555): generators, discriminators, and what is tuned from them."""

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

DECODER = "generator_lm_head.weight"

TABLE = Table(
    name="ELECTRA",
    prefix="electra.",
    keys=(
        Key("embed/token/embedding", TOKEN_TABLE, aliases=(DECODER,)),
        *EMBEDDINGS,
        *linear("embed/projection", "embeddings_project"),
        *LAYERS,
        *linear("masked_lm/dense", "generator_predictions.dense"),
        *norm("masked_lm/norm", "generator_predictions.LayerNorm"),
        Key("masked_lm/kernel", DECODER, "linear"),
        Key("masked_lm/bias", "generator_lm_head.bias"),
        *linear("classifier/dense", "classifier.dense"),
        *linear("classifier", "classifier.out_proj"),
        *linear("replaced_token/dense", "discriminator_predictions.dense"),
        *linear("replaced_token", "discriminator_predictions.dense_prediction"),
        *TOKEN_HEADS,
    ),
    buffers=BUFFERS,
    renamed=RENAMED,
    heads=("generator_", "discriminator_predictions.", "classifier.", "qa_outputs."),
)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "ElectraForMaskedLM": {"head": "masked_lm"},
    "ElectraModel": {},
    "ElectraForPreTraining": {"head": "replaced_token"},
    "ElectraForSequenceClassification": {"head": "classifier"},
    "ElectraForTokenClassification": {"head": "token_classifier"},
    "ElectraForQuestionAnswering": {"head": "span"},
}
SIGNS = {
    "replaced_token": "discriminator_predictions.dense.weight",
    "masked_lm": "generator_lm_head.bias",
    "span": "qa_outputs.weight",
    "classifier": "classifier.out_proj.weight",
}


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of an ELECTRA folder; arguments as in zoo/checkpoints/bert.py."""
    shared = read_encoder(settings, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    width = settings.whole("embedding_size", 128)
    head = read_head(settings, names, architecture, ARCHITECTURES, SIGNS)
    # Of the head for multiple choice, which is not read.
    settings.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
    return ModelConfig(
        family="electra",
        **shared,
        **head,
        embed_rank=None if width == shared["embed_dim"] else width,
        masked_lm_activation="gelu",
        classifier_hidden="row",
        classifier_activation="gelu",
        tie_embeddings=tied or head["head"] != "masked_lm",
        head_dropout=settings.number("classifier_dropout", shared["dropout"]),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    architecture = architecture_of(config, "Electra")
    out = {
        "model_type": "electra",
        "architectures": ["ElectraForPreTraining" if config.head == "replaced_token" else architecture],
        **write_encoder(config),
        "embedding_size": config.embed_width,
        **write_labels(config),
    }
    if config.head in CLASSES:
        out["classifier_dropout"] = config.head_dropout
    return out


FORMATS = {
    "electra": Format(
        table=TABLE,
        architectures=ARCHITECTURES,
        read=read_config,
        write=write_config,
        read_out=DECODER,
        token_table=TOKEN_TABLE,
        tied=True,
        bare=("ElectraModel",),
        writes=lambda config: config.family == "electra",
    )
}
