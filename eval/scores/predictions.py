"""What a model said about each example of a test set, as the text of a file, in the layout that its kind is read in.

| kind | file | layout |
|---|---|---|
| classification | predictions.tsv | label, prediction, probability, text |
| regression | predictions.tsv | label, prediction, text |
| tagging | predictions.conll | word, tag, predicted tag, with tabs; an empty line between sentences |
| | entities.txt | precision, recall and F1 by type of entity, where the tags are those of entities |
| spans | predictions.json | question id -> answer, "" for none: the official scripts' input |
| | na_prob.json | question id -> probability of no answer, for their v2.0 |
| choice | predictions.tsv | label, prediction, probability, context, right option, chosen option |
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.kinds import Evaluation
from eval.scores import entities
from eval.task import Task

PREDICTION_FILES = ("predictions.tsv", "predictions.conll", "entities.txt", "predictions.json", "na_prob.json")


def prediction_files(task: Task, examples: Sequence[Any], found: Evaluation) -> dict[str, str]:
    """File name -> text.

    Args:
        task: says the kind and names the labels.
        examples: those that were evaluated, in order.
        found: of them.
    """
    if task.kind == "tagging":
        files = {"predictions.conll": _tags(task, examples, found)}
        if entities.are_entities(task.labels):
            true = [[task.labels[tag] for tag in example.tags] for example in examples]
            said = [[task.labels[tag] for tag in tags] for tags in found.predictions]
            files["entities.txt"] = entities.table(entities.count_entities(true, said)) + "\n"
        return files
    if task.kind == "spans":
        files = {"predictions.json": {answer.id: answer.text for answer in found.predictions}}
        if any(example.nullable for example in examples):
            files["na_prob.json"] = {answer.id: _logistic(answer.null_odds) for answer in found.predictions}
        return {
            name: json.dumps(said, ensure_ascii=False, indent=1, allow_nan=False) + "\n" for name, said in files.items()
        }
    rows = {"classification": _classes, "regression": _ratings, "choice": _choices}[task.kind](task, examples, found)
    return {"predictions.tsv": "".join("\t".join(_flat(cell) for cell in row) + "\n" for row in rows)}


def _classes(task: Task, examples: Sequence[Any], found: Evaluation):
    yield "label", "prediction", "probability", "text"
    chances = _softmax(found.outputs).max(axis=1)
    for example, prediction, chance in zip(examples, found.predictions, chances, strict=True):
        yield task.labels[example.label], task.labels[prediction], f"{chance:.4f}", " ".join(example.texts)


def _ratings(task: Task, examples: Sequence[Any], found: Evaluation):
    yield "label", "prediction", "text"
    for example, prediction in zip(examples, found.predictions, strict=True):
        yield f"{example.label:g}", f"{prediction:.4f}", " ".join(example.texts)


def _choices(task: Task, examples: Sequence[Any], found: Evaluation):
    yield "label", "prediction", "probability", "context", "right option", "chosen option"
    chances = _softmax(found.outputs).max(axis=1)
    for example, prediction, chance in zip(examples, found.predictions, chances, strict=True):
        options = example.options[example.label], example.options[prediction]
        yield str(example.label), str(prediction), f"{chance:.4f}", example.context, *options


def _tags(task: Task, examples: Sequence[Any], found: Evaluation) -> str:
    names = task.labels
    sentences = []
    for example, predicted in zip(examples, found.predictions, strict=True):
        rows = zip(example.words, example.tags, predicted, strict=True)
        sentences.append("".join(f"{word}\t{names[tag]}\t{names[said]}\n" for word, tag, said in rows))
    return "\n".join(sentences)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def _logistic(odds: float) -> float:
    """1 / (1 + exp(-odds)), also far from 0."""
    return 1.0 / (1.0 + math.exp(-odds)) if odds > -700 else 0.0


def _flat(cell: str) -> str:
    """On one line and in one column."""
    return " ".join(cell.split())
