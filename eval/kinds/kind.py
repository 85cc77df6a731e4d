"""What a kind of task is: its head, how its examples become rows, what is minimised, what is read, how it is scored.

Fine-tuning, prediction, probes and experiments know a task by its Kind alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.encode import Encoded


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a fine-tuned model does on labelled examples.

    Attributes:
        outputs: of the model: [E, C] float32 logits, [E] ratings, or for kinds that answer for every token a tuple of E
            arrays [T_e, C].
        predictions: one for each example: [E] classes or ratings, or a list of what the kind predicts.
        loss: of an example (of a token where tokens are classified): a sum divided once.
        scores: metric name -> value.
    """

    outputs: Any
    predictions: Any
    loss: float
    scores: dict[str, float]

    @property
    def logits(self) -> Any:
        """`outputs`, by the name they have where classes are chosen."""
        return self.outputs


@dataclass(frozen=True)
class Kind:
    """A kind of task. Functions are module-level ones, so that a Kind is hashable and its programs are shared.

    Attributes:
        name: as `Task.kind` spells it.
        head: of ModelConfig.
        per_token: outputs have an axis of tokens, [B, T, ...].
        width: number of labels of the task -> outputs of the head.
        encode: (examples, tokenizer, model config, max_length) -> Encoded.
        loss: (model, params, batch, keys, *, train=True) -> ((sum, weight), {metric: pair}), for train.step.
        outputs: (model, params, batch) -> [B, ...] float32.
        score: (encoded, outputs, metric names, label names) -> Evaluation.
        metrics: those it knows; the first is the main one where a task names none.
        packs: several examples may share a row (eval.packing): one label an example, read from the pooled row.
        settle: (encoded, outputs) of validation examples -> keywords of `score` that are chosen on them (the threshold
            of "no answer"); None where nothing is chosen.
    """

    name: str
    head: str
    per_token: bool
    width: Callable[[int], int]
    encode: Callable[..., Encoded]
    loss: Callable[..., Any]
    outputs: Callable[..., Any]
    score: Callable[[Encoded, Any, Sequence[str], Sequence[str]], Evaluation]
    metrics: tuple[str, ...]
    packs: bool = False
    settle: Callable[[Encoded, Any], dict[str, Any]] | None = None


def read(model: Any, params: Any, batch: Any, keys: Any = None) -> Any:
    """The head's answer to a batch of eval.encode: [B, C], or [B, T, C] for every token; `keys` [B] turn dropout on.

    To a batch of eval.packing, whose weights are [R, S]: [R, S, C], an answer for each example of a row.
    """
    given = {"padding_mask": batch["segment_ids"], "token_types": batch.get("token_types"), "dropout_key": keys}
    if "weights" in batch and batch["weights"].ndim == 2:
        given |= {"segment_ids": batch["segment_ids"], "segments": batch["weights"].shape[1]}
    return model.apply(params, batch["tokens"], **given).logits


def mean_loss(losses: np.ndarray) -> float:
    """The mean in float64 of losses that were computed one by one."""
    return float(np.sum(losses, dtype=np.float64) / len(losses))
