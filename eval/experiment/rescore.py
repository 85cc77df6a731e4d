"""Scores of predictions that are kept: on redrawn test examples, and by chance.

    score = scorer(task, gold, predictions, "accuracy")
    score()                     # on the test set as it is
    score(counts)               # with example e counted counts[e] times: a bootstrap draw

Chance is what these predictions would score if they had nothing to do with the texts: the mean over permutations of the
true labels (for tags, of the tags of all words).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eval import metrics
from eval.scores.entities import EntityCounts, entities
from eval.task import Task
from zoo.errors import InputError, nearest

Score = Callable[..., float]
PERMUTATIONS = {"tagging": 20}  # else 200: entities are slow to count
KEPT = ("classification", "regression", "tagging", "choice")
TAG_METRICS = ("entity_f1", "entity_precision", "entity_recall", "accuracy")


def require(task: Task) -> None:
    """Raises InputError where the task's main metric is none of its kind."""
    known = _names(task)
    if known and task.main_metric not in known:
        near = nearest(task.main_metric, known)
        raise InputError(f'task {task.name}: no metric "{task.main_metric}" of {task.kind}{near}')


def can(task: Task, name: str) -> bool:
    """Whether predictions of this task can be scored anew by this metric."""
    return name in _names(task)


def kept(task: Task, predictions: Any) -> tuple[Any, ...] | None:
    """Predictions of an Evaluation as a cell keeps them: classes, ratings, rows of tags; None for other kinds."""
    if task.kind not in KEPT:
        return None
    if task.kind == "tagging":
        return tuple(tuple(int(tag) for tag in row) for row in predictions)
    return tuple(np.asarray(predictions).tolist())


def gold(task: Task, examples: Sequence[Any]) -> tuple[Any, ...] | None:
    """True labels in the form of `kept`."""
    if task.kind not in KEPT:
        return None
    return tuple(tuple(e.tags) if task.kind == "tagging" else e.label for e in examples)


def scorer(task: Task, gold: Sequence[Any], predictions: Sequence[Any], name: str) -> Score:
    """The metric of kept predictions as a function of how often each example counts.

    Args:
        task: says the kind and the label names.
        gold: [E] true classes, ratings, or rows of tags.
        predictions: [E] the like.
        name: a metric of the kind.

    Returns:
        counts ([E] whole numbers from 0; none for the examples as they are) -> value.

    Raises:
        InputError: lengths that differ, a metric or kind that cannot be scored anew.
    """
    if len(gold) != len(predictions):
        raise InputError(f"{len(predictions)} predictions for {len(gold)} test examples")
    if not can(task, name):
        raise InputError(f"{name} of {task.kind} cannot be computed from predictions alone")
    if task.kind == "regression":
        return _ratings(np.asarray(gold, np.float64), np.asarray(predictions, np.float64), name)
    if task.kind == "tagging":
        return _tags(task.labels, gold, predictions, name)
    width = len(task.labels) or max(*gold, *predictions) + 1
    return _classes(np.asarray(gold, np.int64), np.asarray(predictions, np.int64), width, name)


def chance(task: Task, gold: Sequence[Any], predictions: Sequence[Any], name: str, seed: int = 0) -> float:
    """The mean score over permutations of the true labels; see the module's head."""
    random = np.random.default_rng([seed, 0xC4A])
    found = []
    flat = [tag for row in gold for tag in row] if task.kind == "tagging" else list(gold)
    for _ in range(PERMUTATIONS.get(task.kind, 200)):
        dealt = [flat[i] for i in random.permutation(len(flat))]
        if task.kind == "tagging":
            rest = iter(dealt)
            dealt = [tuple(next(rest) for _ in row) for row in gold]
        found.append(scorer(task, dealt, predictions, name)())
    return float(np.mean(found))


def _names(task: Task) -> tuple[str, ...]:
    known = {"regression": metrics.RATING_METRICS, "classification": metrics.METRICS, "choice": ("accuracy",)}
    return tuple(known.get(task.kind, TAG_METRICS if task.kind == "tagging" else ()))


def _classes(gold: np.ndarray, predictions: np.ndarray, width: int, name: str) -> Score:
    codes, metric = gold * width + predictions, metrics.METRICS[name]

    def score(counts: np.ndarray | None = None) -> float:
        return metric(np.bincount(codes, counts, minlength=width**2).reshape(width, width))

    return score


def _ratings(gold: np.ndarray, predictions: np.ndarray, name: str) -> Score:
    metric = metrics.RATING_METRICS[name]

    def score(counts: np.ndarray | None = None) -> float:
        if counts is None:
            return metric(predictions, gold)
        rows = np.repeat(np.arange(len(gold)), counts)
        return metric(predictions[rows], gold[rows])

    return score


def _tags(names: Sequence[str], gold: Sequence[Any], predictions: Sequence[Any], name: str) -> Score:
    """From counts by sentence, which add up: of entities, or of words where it is accuracy."""
    rows = np.zeros((len(gold), 3), np.int64)  # found, predicted, true
    for place, (true, said) in enumerate(zip(gold, predictions, strict=True)):
        if len(true) != len(said):
            raise InputError(f"sentence {place} has {len(true)} words and {len(said)} predicted tags")
        if name == "accuracy":
            rows[place] = sum(t == s for t, s in zip(true, said, strict=True)), len(said), len(true)
        else:
            there, found = (set(entities([names[tag] for tag in tags])) for tags in (true, said))
            rows[place] = len(there & found), len(found), len(there)
    measure = {"entity_f1": "f1", "entity_recall": "recall"}.get(name, "precision")

    def score(counts: np.ndarray | None = None) -> float:
        sums = rows.sum(axis=0) if counts is None else counts @ rows
        return getattr(EntityCounts(*(int(value) for value in sums)), measure)

    return score
