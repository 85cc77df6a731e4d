"""BERT folders: their settings and their key table (Devlin et al. 2018, arXiv:1810.04805)."""

from collections.abc import Set
from typing import Any

from zoo.checkpoints.format import Format
from zoo.checkpoints.keys import Key, Table, linear, linear_to_heads, norm
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig

LAYER = "blocks/layer_{layer}/"
THEIRS = "encoder.layer.{layer}."
DECODER = "cls.predictions.decoder.weight"


TABLE = Table(
    name="BERT",
    prefix="bert.",
    keys=(
        Key("embed/token/embedding", "embeddings.word_embeddings.weight", aliases=(DECODER,)),
        Key("embed/position/embedding", "embeddings.position_embeddings.weight"),
        Key("embed/segment/embedding", "embeddings.token_type_embeddings.weight"),
        *norm("embed/norm", "embeddings.LayerNorm"),
        *linear_to_heads(f"{LAYER}attention/query", f"{THEIRS}attention.self.query"),
        *linear_to_heads(f"{LAYER}attention/key", f"{THEIRS}attention.self.key"),
        *linear_to_heads(f"{LAYER}attention/value", f"{THEIRS}attention.self.value"),
        *linear(f"{LAYER}attention/out", f"{THEIRS}attention.output.dense", "linear_from_heads"),
        *norm(f"{LAYER}attention_norm", f"{THEIRS}attention.output.LayerNorm"),
        *linear(f"{LAYER}mlp/up", f"{THEIRS}intermediate.dense"),
        *linear(f"{LAYER}mlp/down", f"{THEIRS}output.dense"),
        *norm(f"{LAYER}mlp_norm", f"{THEIRS}output.LayerNorm"),
        *linear("pooler", "pooler.dense"),
        *linear("masked_lm/dense", "cls.predictions.transform.dense"),
        *norm("masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        Key("masked_lm/kernel", DECODER, "linear"),
        # The reference adds the decoder's own bias, which tying makes the same as the other.
        Key("masked_lm/bias", "cls.predictions.bias", instead="cls.predictions.decoder.bias"),
        *linear("next_sentence", "cls.seq_relationship"),
        *linear("classifier", "classifier"),
    ),
    buffers=(r"embeddings\.(position_ids|token_type_ids)",),
    renamed=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
)

# What each architecture must have; more of it is taken where the tensors are there.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "BertModel": {},
    "BertForMaskedLM": {"head": "masked_lm"},
    "BertForPreTraining": {"head": "masked_lm", "pooler": True, "next_sentence": True},
    "BertForNextSentencePrediction": {"pooler": True, "next_sentence": True},
    "BertForSequenceClassification": {"head": "classifier", "pooler": True},
}


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
    head = wanted.get("head", "none")
    if head == "none" and "cls.predictions.bias" in names:
        head = "masked_lm"
    if head == "none" and architecture is None and "classifier.weight" in names:
        head = "classifier"
    dropout = settings.number("hidden_dropout_prob", 0.1)
    classifier_dropout = settings.number("classifier_dropout", None)
    num_labels = settings.num_labels() if head == "classifier" else 0
    settings.only("position_embedding_type", "absolute")
    settings.ignore("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
    settings.ignore("pooler_size_per_head", "pooler_type")
    return ModelConfig(
        family="bert",
        vocab_size=settings.whole("vocab_size", 30522),
        embed_dim=settings.whole("hidden_size", 768),
        num_layers=settings.whole("num_hidden_layers", 12),
        num_heads=settings.whole("num_attention_heads", 12),
        mlp_dim=settings.whole("intermediate_size", 3072),
        max_positions=settings.whole("max_position_embeddings", 512),
        token_types=settings.whole("type_vocab_size", 2),
        visibility="full",
        positions="learned",
        embed_norm=True,
        norm="layernorm",
        norm_placement="post",
        norm_eps=settings.number("layer_norm_eps", 1e-12),
        final_norm=False,
        activation=settings.choice("hidden_act", "gelu", ACTIVATIONS),
        dropout=dropout,
        embed_dropout=dropout,
        attention_dropout=settings.number("attention_probs_dropout_prob", 0.1),
        initializer_range=settings.number("initializer_range", 0.02),
        tie_embeddings=tied or head != "masked_lm",
        head=head,
        pooler=wanted.get("pooler", False) or "pooler.dense.weight" in names,
        next_sentence=wanted.get("next_sentence", False) or "cls.seq_relationship.weight" in names,
        num_labels=num_labels,
        pooling="cls",
        head_dropout=dropout if classifier_dropout is None else classifier_dropout,
        label_names=settings.labels(num_labels) if num_labels else (),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """The settings of config.json, architecture included; a plain tied "lm" read-out is not BERT's and is left out."""
    if config.head == "classifier":
        architecture = "BertForSequenceClassification"
    elif config.head == "masked_lm":
        architecture = "BertForPreTraining" if config.next_sentence else "BertForMaskedLM"
    else:
        architecture = "BertForNextSentencePrediction" if config.next_sentence else "BertModel"
    out = {
        "model_type": "bert",
        "architectures": [architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.token_types,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": PUBLISHED_ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": config.tie_embeddings,
    }
    if config.head == "classifier":
        names = config.label_names or tuple(f"LABEL_{index}" for index in range(config.num_labels))
        out["classifier_dropout"] = config.head_dropout
        out["id2label"] = {str(index): name for index, name in enumerate(names)}
        out["label2id"] = {name: index for index, name in enumerate(names)}
    return out


FORMATS = {
    "bert": Format(
        table=TABLE,
        architectures=ARCHITECTURES,
        read=read_config,
        write=write_config,
        read_out=DECODER,
        token_table="embeddings.word_embeddings.weight",
        tied=True,
        bare=("BertModel",),
        writes=lambda config: config.family == "bert",
    )
}
