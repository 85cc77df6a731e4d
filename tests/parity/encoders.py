"""Cases of the encoder families, and their reference outputs. Shapes are shared, so that programs are few."""

from typing import Any

import numpy as np
import torch

from tests.parity.reference import BERT, Case

ROBERTA = BERT | dict(max_position_embeddings=74, pad_token_id=1)
DISTILBERT = dict(
    vocab_size=97, dim=48, n_heads=4, n_layers=2, hidden_dim=80, max_position_embeddings=72, pad_token_id=None
)
ALBERT = BERT | dict(embedding_size=20, num_hidden_layers=3)
ELECTRA = BERT | dict(embedding_size=20)
MODERNBERT = dict(
    vocab_size=97,
    hidden_size=48,
    num_attention_heads=4,
    num_hidden_layers=4,
    intermediate_size=40,
    max_position_embeddings=128,
    local_attention=16,
    pad_token_id=None,
)
THREE = dict(id2label={0: "no", 1: "yes", 2: "perhaps"})
ALL_BIASES = dict(norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True)

CASES = {
    "bert-token": Case("BertForTokenClassification", BERT, THREE, 20),
    "bert-span": Case("BertForQuestionAnswering", BERT, {}, 21),
    "roberta-masked-lm": Case("RobertaForMaskedLM", ROBERTA, dict(hidden_act="relu", layer_norm_eps=1e-3), 22),
    "roberta-untied": Case("RobertaForMaskedLM", ROBERTA, dict(tie_word_embeddings=False, type_vocab_size=1), 23),
    "roberta-backbone": Case("RobertaModel", ROBERTA, dict(pad_token_id=0), 24),
    "roberta-classifier": Case("RobertaForSequenceClassification", ROBERTA, THREE, 25),
    "roberta-token": Case("RobertaForTokenClassification", ROBERTA, THREE, 26),
    "roberta-span": Case("RobertaForQuestionAnswering", ROBERTA, {}, 27),
    "xlm-roberta-masked-lm": Case("XLMRobertaForMaskedLM", ROBERTA, {}, 28),
    "xlm-roberta-classifier": Case("XLMRobertaForSequenceClassification", ROBERTA, THREE, 29),
    "distilbert-masked-lm": Case("DistilBertForMaskedLM", DISTILBERT, dict(activation="relu"), 30),
    "distilbert-untied": Case("DistilBertForMaskedLM", DISTILBERT, dict(tie_word_embeddings=False), 31),
    "distilbert-classifier": Case("DistilBertForSequenceClassification", DISTILBERT, THREE, 32),
    "distilbert-token": Case("DistilBertForTokenClassification", DISTILBERT, THREE, 33),
    "distilbert-span": Case("DistilBertForQuestionAnswering", DISTILBERT, {}, 34),
    "distilbert-backbone": Case("DistilBertModel", DISTILBERT, {}, 35),
    "albert-masked-lm": Case("AlbertForMaskedLM", ALBERT, {}, 36),
    "albert-untied": Case("AlbertForMaskedLM", ALBERT, dict(tie_word_embeddings=False, hidden_act="gelu"), 37),
    "albert-pretraining": Case("AlbertForPreTraining", ALBERT, {}, 38),
    "albert-classifier": Case("AlbertForSequenceClassification", ALBERT, THREE, 39),
    "albert-token": Case("AlbertForTokenClassification", ALBERT, THREE, 40),
    "albert-span": Case("AlbertForQuestionAnswering", ALBERT, dict(embedding_size=48), 41),
    "albert-backbone": Case("AlbertModel", ALBERT, {}, 42),
    "electra-generator": Case("ElectraForMaskedLM", ELECTRA, dict(hidden_act="relu"), 43),
    "electra-discriminator": Case("ElectraForPreTraining", ELECTRA, dict(hidden_act="gelu_new"), 44),
    "electra-classifier": Case("ElectraForSequenceClassification", ELECTRA, THREE | dict(embedding_size=48), 45),
    "electra-token": Case("ElectraForTokenClassification", ELECTRA, THREE, 46),
    "electra-span": Case("ElectraForQuestionAnswering", ELECTRA, {}, 47),
    "electra-backbone": Case("ElectraModel", ELECTRA, {}, 48),
    "modernbert-masked-lm": Case("ModernBertForMaskedLM", MODERNBERT, {}, 49),
    "modernbert-classifier": Case("ModernBertForSequenceClassification", MODERNBERT, THREE, 50),
    "modernbert-mean": Case(
        "ModernBertForSequenceClassification", MODERNBERT, THREE | ALL_BIASES | dict(classifier_pooling="mean"), 51
    ),
    "modernbert-token": Case(
        "ModernBertForTokenClassification",
        MODERNBERT,
        THREE | dict(local_attention=9, classifier_activation="silu"),
        52,
    ),
    "modernbert-span": Case("ModernBertForQuestionAnswering", MODERNBERT, {}, 53),
    "modernbert-backbone": Case(
        "ModernBertModel", MODERNBERT, dict(hidden_activation="relu", norm_eps=1e-3, classifier_pooling="mean"), 54
    ),
}


def run(model: Any, batch: dict[str, np.ndarray], gradients: bool = False) -> Any:
    """The reference outputs for a batch of tests.golden.recipe, hidden states included."""
    config = model.config
    offset = config.pad_token_id + 1 if "roberta" in config.model_type else 0
    inputs = {
        "input_ids": torch.from_numpy(batch["tokens"]).long(),
        "attention_mask": torch.from_numpy(batch["padding_mask"]).long(),
        "position_ids": torch.from_numpy(batch["positions"]).long() + offset,
        "output_hidden_states": True,
    }
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.from_numpy(batch["token_types"]).long()
    with torch.set_grad_enabled(gradients):
        return model(**inputs)


def logits_of(out: Any) -> np.ndarray | None:
    """What our `logits` must be."""
    if getattr(out, "start_logits", None) is not None:
        return np.stack([out.start_logits.detach().numpy(), out.end_logits.detach().numpy()], axis=-1)
    for field in ("logits", "prediction_logits"):
        if getattr(out, field, None) is not None:
            return getattr(out, field).detach().numpy()
    return None
