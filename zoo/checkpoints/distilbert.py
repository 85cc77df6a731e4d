"""DistilBERT folders (Sanh et al. 2019, arXiv:1910.01108): BERT's block in other words, without segments and pooler."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.encoder import (
    BUFFERS,
    LAYER,
    POST_NORM,
    TOKEN_HEADS,
    TOKEN_TABLE,
    architecture_of,
    read_head,
    write_labels,
)
from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, linear_to_heads, norm
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig

THEIRS = "transformer.layer.{layer}."
DECODER = "vocab_projector.weight"

TABLE = Table(
    name="DistilBERT",
    prefix="distilbert.",
    keys=(
        Key("embed/token/embedding", TOKEN_TABLE, aliases=(DECODER,)),
        Key("embed/position/embedding", "embeddings.position_embeddings.weight"),
        *norm("embed/norm", "embeddings.LayerNorm"),
        *linear_to_heads(f"{LAYER}attention/query", f"{THEIRS}attention.q_lin"),
        *linear_to_heads(f"{LAYER}attention/key", f"{THEIRS}attention.k_lin"),
        *linear_to_heads(f"{LAYER}attention/value", f"{THEIRS}attention.v_lin"),
        *linear(f"{LAYER}attention/out", f"{THEIRS}attention.out_lin", "linear_from_heads"),
        *norm(f"{LAYER}attention_norm", f"{THEIRS}sa_layer_norm"),
        *linear(f"{LAYER}mlp/up", f"{THEIRS}ffn.lin1"),
        *linear(f"{LAYER}mlp/down", f"{THEIRS}ffn.lin2"),
        *norm(f"{LAYER}mlp_norm", f"{THEIRS}output_layer_norm"),
        *linear("masked_lm/dense", "vocab_transform"),
        *norm("masked_lm/norm", "vocab_layer_norm"),
        Key("masked_lm/kernel", DECODER, "linear"),
        Key("masked_lm/bias", "vocab_projector.bias"),
        *linear("classifier/dense", "pre_classifier"),
        *linear("classifier", "classifier"),
        *TOKEN_HEADS,
    ),
    buffers=BUFFERS,
    heads=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "DistilBertForMaskedLM": {"head": "masked_lm"},
    "DistilBertModel": {},
    "DistilBertForSequenceClassification": {"head": "classifier"},
    "DistilBertForTokenClassification": {"head": "token_classifier"},
    "DistilBertForQuestionAnswering": {"head": "span"},
}
SIGNS = {"masked_lm": "vocab_projector.bias", "span": "qa_outputs.weight", "classifier": "pre_classifier.weight"}
# Settings that hold the dropout before a head's last product.
HEAD_DROPOUT = {head: "seq_classif_dropout" for head in ("classifier", "masked_lm", "none")} | {"span": "qa_dropout"}


def read_config(settings: Settings, names: Set[str], architecture: str | None, tied: bool) -> ModelConfig:
    """ModelConfig of a DistilBERT folder; arguments as in zoo/checkpoints/bert.py."""
    head = read_head(settings, names, architecture, ARCHITECTURES, SIGNS)
    dropout = settings.number("dropout", 0.1)
    rates = {"span": settings.number("qa_dropout", 0.1), "token_classifier": dropout}
    before_classifier = settings.number("seq_classif_dropout", 0.2)  # the rate of a head yet to be put on, too
    # How the position table began, and how it was stored, not how it is read.
    settings.ignore("sinusoidal_pos_embds", "tie_weights_", "output_past")
    return ModelConfig(
        family="distilbert",
        vocab_size=settings.whole("vocab_size", 30522),
        embed_dim=settings.whole("dim", 768, "hidden_size"),
        num_layers=settings.whole("n_layers", 6, "num_hidden_layers"),
        num_heads=settings.whole("n_heads", 12, "num_attention_heads"),
        mlp_dim=settings.whole("hidden_dim", 3072),
        max_positions=settings.whole("max_position_embeddings", 512),
        **POST_NORM,
        norm_eps=1e-12,
        activation=settings.choice("activation", "gelu", ACTIVATIONS),
        dropout=dropout,
        embed_dropout=dropout,
        attention_dropout=settings.number("attention_dropout", 0.1),
        initializer_range=settings.number("initializer_range", 0.02),
        **head,
        classifier_hidden="row",
        classifier_activation="relu",
        tie_embeddings=tied or head["head"] != "masked_lm",
        head_dropout=rates.get(head["head"], before_classifier),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json."""
    out = {
        "model_type": "distilbert",
        "architectures": [architecture_of(config, "DistilBert")],
        "vocab_size": config.vocab_size,
        "dim": config.embed_dim,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "hidden_dim": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        "activation": PUBLISHED_ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
        **write_labels(config),
    }
    if config.head in HEAD_DROPOUT:
        out[HEAD_DROPOUT[config.head]] = config.head_dropout
    return out


FORMATS = {
    "distilbert": Format(
        table=TABLE,
        architectures=ARCHITECTURES,
        read=read_config,
        write=write_config,
        read_out=DECODER,
        token_table=TOKEN_TABLE,
        tied=True,
        bare=("DistilBertModel",),
        writes=lambda config: config.family == "distilbert",
    )
}
