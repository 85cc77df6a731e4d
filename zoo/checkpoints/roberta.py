"""RoBERTa and XLM-R folders (Liu et al. 2019, arXiv:1907.11692; Conneau et al. 2019, arXiv:1911.02116).

BERT's encoder with one segment, a read-out of other names, a classifier with a hidden layer, and positions that start
behind the padding id's row. The reference counts tokens that are not the padding id; we count those that the mask
shows, and add the same offset.
"""

from collections.abc import Callable, Set
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

DECODER = "lm_head.decoder.weight"

TABLE = Table(
    name="RoBERTa",
    prefix="roberta.",
    keys=(
        Key("embed/token/embedding", TOKEN_TABLE, aliases=(DECODER,)),
        *EMBEDDINGS,
        *LAYERS,
        *linear("pooler", "pooler.dense"),
        *linear("masked_lm/dense", "lm_head.dense"),
        *norm("masked_lm/norm", "lm_head.layer_norm"),
        Key("masked_lm/kernel", DECODER, "linear"),
        Key("masked_lm/bias", "lm_head.bias", instead="lm_head.decoder.bias"),
        *linear("classifier/dense", "classifier.dense"),
        *linear("classifier", "classifier.out_proj"),
        *TOKEN_HEADS,
    ),
    buffers=BUFFERS,
    renamed=RENAMED,
    heads=("lm_head.", "classifier.", "qa_outputs."),
)
SIGNS = {"masked_lm": "lm_head.bias", "span": "qa_outputs.weight", "classifier": "classifier.out_proj.weight"}


def architectures(stem: str) -> dict[str, dict[str, Any]]:
    """The reference library's classes; the first is the language model."""
    return {
        f"{stem}ForMaskedLM": {"head": "masked_lm"},
        f"{stem}Model": {},
        f"{stem}ForSequenceClassification": {"head": "classifier"},
        f"{stem}ForTokenClassification": {"head": "token_classifier"},
        f"{stem}ForQuestionAnswering": {"head": "span"},
    }


def reader(
    family: str, stem: str, vocab_size: int
) -> Callable[[Settings, Set[str], str | None, bool], ModelConfig]:
    """The reader of `family`, whose classes begin with `stem`; arguments as in zoo/checkpoints/bert.py."""
    known = architectures(stem)

    def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
        shared = read_encoder(settings, vocab_size=vocab_size)
        offset = settings.count("pad_token_id", 1) + 1
        if shared["max_positions"] <= offset:
            raise settings.fault(
                f"max_position_embeddings is {shared['max_positions']}, of which {offset} stand before position 0"
            )
        shared["max_positions"] -= offset
        head = read_head(settings, names, architecture, known, SIGNS)
        return ModelConfig(
            family=family,
            **shared,
            **head,
            position_offset=offset,
            masked_lm_activation="gelu",
            classifier_hidden="row",
            classifier_activation="tanh",
            tie_embeddings=tied or head["head"] != "masked_lm",
            pooler="pooler.dense.weight" in names,
            head_dropout=settings.number("classifier_dropout", shared["dropout"]),
        )

    return read_config


def writer(model_type: str, stem: str) -> Callable[[ModelConfig], dict[str, Any]]:
    """The writer of the settings of `model_type`."""

    def write_config(config: ModelConfig) -> dict[str, Any]:
        out = {
            "model_type": model_type,
            "architectures": [architecture_of(config, stem)],
            **write_encoder(config),
            **write_labels(config),
            "max_position_embeddings": config.max_positions + config.position_offset,
            "pad_token_id": max(config.position_offset - 1, 0),
        }
        if config.head in CLASSES:
            out["classifier_dropout"] = config.head_dropout
        return out

    return write_config


def _format(family: str, model_type: str, stem: str, vocab_size: int) -> Format:
    return Format(
        table=TABLE,
        architectures=architectures(stem),
        read=reader(family, stem, vocab_size),
        write=writer(model_type, stem),
        read_out=DECODER,
        token_table=TOKEN_TABLE,
        tied=True,
        bare=(f"{stem}Model",),
        writes=lambda config: config.family == family,
    )


FORMATS = {
    "roberta": _format("roberta", "roberta", "Roberta", 50265),
    "xlm-roberta": _format("xlm_roberta", "xlm-roberta", "XLMRoberta", 30522),
}
