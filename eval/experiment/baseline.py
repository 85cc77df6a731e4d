"""What a network must beat: logistic regression on TF-IDF weights of words and word pairs.

Protocol: lower case; a token is a run of word characters or a run of marks (so that ":)" and "!!" count); 1-grams and
2-grams, those in two texts or more once there are over 1,000 texts; weight (1 + ln tf) idf, rows of unit length;
L2-penalised multinomial logistic regression. The penalty 1 / C is chosen by accuracy in stratified cross-validation on
the labelled examples alone, from C in {1, 10, 100}: 5 folds, or 3 beyond 2,000 examples, and of equals the one nearest
10 is taken. With fewer than 50 examples, or fewer than 5 a class on average, there is too little to choose by, and C
is 10.

Up to 2,000 examples the fit runs in the space that their rows span, which changes no solution (an L2-penalised one
lies in it) and takes n columns in place of a hundred thousand.

Reference: Manning, Raghavan and Schuetze 2008, Introduction to Information Retrieval, sections 6.2-6.4.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.tasks import Example
from zoo.errors import InputError

GRID = (1.0, 10.0, 100.0)
DEFAULT_C = 10.0
SPAN_LIMIT = 2000
TOKEN = r"\w+|[^\w\s]+"


@dataclass(frozen=True)
class BaselinePrediction:
    """Predicted classes [E] int32, the settings that gave them (for a cell's config), and seconds."""

    predictions: np.ndarray
    config: dict[str, Any]
    seconds: float


def fit_predict(train: Sequence[Example], test: Sequence[Example], *, seed: int = 0) -> BaselinePrediction:
    """Fits on `train` (a label budget) and predicts `test`.

    Args:
        train: labelled examples; nothing else is looked at to fit, neither more text nor the test set.
        test: E examples, whose labels are not read. Two texts of a pair are joined.
        seed: of the folds' shuffle.

    Returns:
        The predictions; the same for the same arguments.

    Raises:
        InputError: fewer than two classes, or texts without a token.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    start = time.perf_counter()
    train_texts, test_texts = [_text(e) for e in train], [_text(e) for e in test]
    labels = np.array([e.label for e in train], np.int32)
    if len(set(labels.tolist())) < 2:
        raise InputError(f"TF-IDF baseline: {len(train)} labelled examples of one class; two classes are needed")

    def fit_and_predict(
        texts: list[str], targets: np.ndarray, others: list[str], grid: Sequence[float]
    ) -> list[np.ndarray]:
        vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, token_pattern=TOKEN, min_df=2 if len(texts) > 1000 else 1
        )
        try:
            rows = vectorizer.fit_transform(texts)
        except ValueError:
            raise InputError("TF-IDF baseline: the labelled texts hold no token") from None
        rows, other_rows = _span(rows, vectorizer.transform(others))
        return [LogisticRegression(C=c, max_iter=1000).fit(rows, targets).predict(other_rows) for c in grid]

    c, folds = DEFAULT_C, _folds(labels)
    with threadpool_limits(1):  # matrices this small lose more to threads that wait for one another than they gain
        if folds:
            c = _choose(train_texts, labels, folds, seed, fit_and_predict)
        (predictions,) = fit_and_predict(train_texts, labels, test_texts, [c])
    config = {"ngrams": [1, 2], "sublinear": True, "c": c, "grid": list(GRID) if folds else [], "folds": folds}
    return BaselinePrediction(predictions.astype(np.int32), config, time.perf_counter() - start)


def _span(rows: Any, others: Any) -> tuple[Any, Any]:
    """Coordinates of [n, d] `rows` and [m, d] `others` in an orthonormal basis of the space that `rows` span."""
    if rows.shape[0] > min(SPAN_LIMIT, rows.shape[1]):
        return rows, others
    values, vectors = np.linalg.eigh((rows @ rows.T).toarray())
    keep = values > 1e-10 * values[-1]
    scale = np.sqrt(values[keep])
    return vectors[:, keep] * scale, (others @ rows.T).toarray() @ (vectors[:, keep] / scale)


def _text(example: Example) -> str:
    return example.text_a if example.text_b is None else f"{example.text_a} {example.text_b}"


def _folds(labels: np.ndarray) -> int:
    counts = Counter(labels.tolist())
    if len(labels) < max(50, 5 * len(counts)):
        return 0
    return 5 if len(labels) <= 2000 else 3


def _choose(texts: list[str], labels: np.ndarray, folds: int, seed: int, fit_and_predict: Any) -> float:
    right, fold_of = dict.fromkeys(GRID, 0), _fold_of(labels, folds, seed)
    for fold in range(folds):
        held = fold_of == fold
        if len(set(labels[~held].tolist())) < 2:
            continue
        inside = [text for text, out in zip(texts, held, strict=True) if not out]
        outside = [text for text, out in zip(texts, held, strict=True) if out]
        for c, predictions in zip(GRID, fit_and_predict(inside, labels[~held], outside, GRID), strict=True):
            right[c] += int((predictions == labels[held]).sum())
    return max(GRID, key=lambda c: (right[c], -abs(np.log10(c / DEFAULT_C)), -c))


def _fold_of(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """[B] fold of each example: within each class, and on from class to class, folds are dealt in turn."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % folds
    return fold
