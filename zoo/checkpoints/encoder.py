"""What the folders of BERT and its descendants share: rows of their tables, settings, heads.

Each family's own page (bert, roberta, distilbert, albert, electra, modernbert) says what is different there.
"""

from collections.abc import Mapping, Set
from typing import Any

from zoo.checkpoints.keys import Key, linear, linear_to_heads, norm
from zoo.checkpoints.settings import ACTIVATIONS, PUBLISHED_ACTIVATIONS, Settings
from zoo.config import ModelConfig

LAYER = "blocks/layer_{layer}/"
THEIRS = "encoder.layer.{layer}."
TOKEN_TABLE = "embeddings.word_embeddings.weight"

EMBEDDINGS = (
    Key("embed/position/embedding", "embeddings.position_embeddings.weight"),
    Key("embed/segment/embedding", "embeddings.token_type_embeddings.weight"),
    *norm("embed/norm", "embeddings.LayerNorm"),
)
LAYERS = (
    *linear_to_heads(f"{LAYER}attention/query", f"{THEIRS}attention.self.query"),
    *linear_to_heads(f"{LAYER}attention/key", f"{THEIRS}attention.self.key"),
    *linear_to_heads(f"{LAYER}attention/value", f"{THEIRS}attention.self.value"),
    *linear(f"{LAYER}attention/out", f"{THEIRS}attention.output.dense", "linear_from_heads"),
    *norm(f"{LAYER}attention_norm", f"{THEIRS}attention.output.LayerNorm"),
    *linear(f"{LAYER}mlp/up", f"{THEIRS}intermediate.dense"),
    *linear(f"{LAYER}mlp/down", f"{THEIRS}output.dense"),
    *norm(f"{LAYER}mlp_norm", f"{THEIRS}output.LayerNorm"),
)
# Heads of one product, whose names are the same in all families.
TOKEN_HEADS = (*linear("token_classifier", "classifier"), *linear("span", "qa_outputs"))

BUFFERS = (r"embeddings\.(position_ids|token_type_ids)",)
RENAMED = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
CLASSES = ("classifier", "token_classifier")


# What the reference library takes where config.json does not say.
DEFAULTS: dict[str, Any] = dict(
    vocab_size=30522,
    hidden_size=768,
    num_attention_heads=12,
    intermediate_size=3072,
    hidden_act="gelu",
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)


def read_encoder(settings: Settings, **changes: Any) -> dict[str, Any]:
    """The fields of ModelConfig that BERT, RoBERTa, ELECTRA and ALBERT read from the same settings.

    Args:
        settings: of config.json.
        **changes: of DEFAULTS.
    """
    default = DEFAULTS | changes
    dropout = settings.number("hidden_dropout_prob", default["hidden_dropout_prob"])
    settings.only("position_embedding_type", "absolute")
    settings.ignore("output_past", "eos_token_ids")
    return dict(
        vocab_size=settings.whole("vocab_size", default["vocab_size"]),
        embed_dim=settings.whole("hidden_size", default["hidden_size"]),
        num_layers=settings.whole("num_hidden_layers", 12),
        num_heads=settings.whole("num_attention_heads", default["num_attention_heads"]),
        mlp_dim=settings.whole("intermediate_size", default["intermediate_size"]),
        max_positions=settings.whole("max_position_embeddings", 512),
        token_types=settings.whole("type_vocab_size", 2),
        **POST_NORM,
        norm_eps=settings.number("layer_norm_eps", 1e-12),
        activation=settings.choice("hidden_act", default["hidden_act"], ACTIVATIONS),
        dropout=dropout,
        embed_dropout=dropout,
        attention_dropout=settings.number("attention_probs_dropout_prob", default["attention_probs_dropout_prob"]),
        initializer_range=settings.number("initializer_range", 0.02),
    )


# What all of them but ModernBERT have in common without saying so.
POST_NORM: dict[str, Any] = dict(
    visibility="full",
    positions="learned",
    embed_norm=True,
    norm="layernorm",
    norm_placement="post",
    final_norm=False,
    pooling="cls",
)


def read_head(
    settings: Settings,
    names: Set[str],
    architecture: str | None,
    architectures: Mapping[str, dict[str, Any]],
    signs: Mapping[str, str],
) -> dict[str, Any]:
    """head, num_labels and label_names, from the architecture and the tensors that are there.

    Args:
        settings: of config.json.
        names: plain tensor names of the folder.
        architecture: a key of `architectures`, or None where config.json names none.
        architectures: what each must have.
        signs: head -> name of a tensor that tells it where the architecture does not.
    """
    wanted = architectures[architecture] if architecture else {}
    head = wanted.get("head", "none")
    if head == "none":
        head = next((head for head, name in signs.items() if name in names), "none")
    if head == "span" and settings.num_labels() != 2:
        raise settings.fault(f"num_labels is {settings.num_labels()}, but a span has a start and an end: 2")
    num_labels = settings.num_labels() if head in CLASSES else 0
    return dict(
        head=head,
        num_labels=num_labels,
        label_names=settings.labels(num_labels) if num_labels else (),
    )


def write_encoder(config: ModelConfig) -> dict[str, Any]:
    """The settings that `read_encoder` reads, and tie_word_embeddings."""
    return {
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


def write_labels(config: ModelConfig) -> dict[str, Any]:
    """id2label and label2id of a classifier; nothing for other heads."""
    if config.head not in CLASSES:
        return {}
    names = config.label_names or tuple(f"LABEL_{index}" for index in range(config.num_labels))
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def architecture_of(config: ModelConfig, stem: str, backbone: str = "Model") -> str:
    """The reference library's class for a head: `stem` + "ForMaskedLM" and the like."""
    endings = {
        "masked_lm": "ForMaskedLM",
        "classifier": "ForSequenceClassification",
        "token_classifier": "ForTokenClassification",
        "span": "ForQuestionAnswering",
    }
    return stem + endings.get(config.head, backbone)
