"""What a network must beat, for each kind of task: no pre-training, no network.

    classification    TF-IDF with logistic regression           eval.experiment.baseline
    regression        TF-IDF with ridge regression              here
    tagging           the most frequent tag of each word        here

All three learn from the labelled examples of the budget alone, and choose what they have to choose on these.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.experiment import baseline
from eval.experiment.baseline import BaselinePrediction
from eval.task import Task
from zoo.errors import InputError

NAMES = {"classification": "tf-idf", "regression": "tf-idf-ridge", "tagging": "word-tags"}
PENALTIES = (0.1, 1.0, 10.0)
FOLDS = 5


def name_of(task: Task) -> str:
    """The baseline of a task's kind, as a cell names it; InputError for a kind without one."""
    if task.kind not in NAMES:
        raise InputError(
            f"task {task.name}: there is no baseline for {task.kind} (there is for {', '.join(NAMES)}); leave bow out"
        )
    return NAMES[task.kind]


def fit_predict(task: Task, train: Sequence[Any], test: Sequence[Any], *, seed: int = 0) -> BaselinePrediction:
    """Fits the baseline of the task's kind on `train`, a label budget; predicts `test` without reading its labels."""
    name = name_of(task)
    if name == "tf-idf-ridge":
        return ridge(train, test, seed=seed)
    if name == "word-tags":
        return word_tags(train, test, len(task.labels))
    return baseline.fit_predict(train, test, seed=seed)


def ridge(train: Sequence[Any], test: Sequence[Any], *, seed: int = 0) -> BaselinePrediction:
    """TF-IDF rows as in `eval.experiment.baseline`, and for pairs a further column: the cosine of the two texts' rows.

    A pair's joined words say little of how alike its texts are (STS-B); the cosine says most, and is multiplied by PAIR
    so that the penalty hardly shrinks it. The penalty is chosen from 0.1, 1 and 10 by the squared error in 5-fold
    cross-validation on the labelled examples, and is 1 below 25 of them.

    Args:
        train: examples with ratings.
        test: E examples, whose ratings are not read.
        seed: of the folds.

    Returns:
        [E] float32 predictions, no further out than the ratings seen.

    Raises:
        InputError: no example, texts without a token.
    """
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold
    from threadpoolctl import threadpool_limits

    started = time.perf_counter()
    targets = np.array([example.label for example in train], np.float64)
    if not len(targets):
        raise InputError("TF-IDF baseline: no labelled example")
    rows, others = _rows(train, test)
    penalty, folds = 1.0, FOLDS if len(targets) >= 5 * FOLDS else 0

    def fitted(penalty: float, places: Any, held: Any) -> np.ndarray:
        found = Ridge(alpha=penalty).fit(rows[places], targets[places]).predict(held)
        return np.clip(found, targets[places].min(), targets[places].max())

    with threadpool_limits(1):
        if folds:
            errors = dict.fromkeys(PENALTIES, 0.0)
            for inside, outside in KFold(folds, shuffle=True, random_state=seed).split(targets):
                for value in PENALTIES:
                    errors[value] += float(np.sum((fitted(value, inside, rows[outside]) - targets[outside]) ** 2))
            penalty = min(PENALTIES, key=lambda value: (errors[value], value))
        predictions = fitted(penalty, np.arange(len(targets)), others)
    config = {"penalty": penalty, "grid": list(PENALTIES) if folds else [], "folds": folds}
    return BaselinePrediction(predictions.astype(np.float32), config, time.perf_counter() - started)


PAIR = 3.0


def _rows(train: Sequence[Any], test: Sequence[Any]) -> tuple[Any, Any]:
    """TF-IDF rows of both, fitted on the first; and the cosine of a pair's texts."""
    import scipy.sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    pairs = any(len(example.texts) > 1 for example in train)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=baseline.TOKEN)
    try:
        vectorizer.fit([text for example in train for text in example.texts])
    except ValueError:
        raise InputError("TF-IDF baseline: the labelled texts hold no token") from None
    made = []
    for examples in (train, test):
        rows = vectorizer.transform([" ".join(example.texts) for example in examples])
        if pairs:
            first, second = (vectorizer.transform([example.texts[k] for example in examples]) for k in (0, -1))
            cosine = np.asarray(first.multiply(second).sum(axis=1)).reshape(-1, 1)
            rows = scipy.sparse.hstack([rows, scipy.sparse.csr_matrix(PAIR * cosine)], format="csr")
        made.append(rows)
    return made[0], made[1]


def word_tags(train: Sequence[Any], test: Sequence[Any], num_tags: int) -> BaselinePrediction:
    """Each word gets the tag that it has most often in the labelled sentences.

    The word as it is written decides; else the word in lower case; else the most frequent tag of words that were seen
    once, which resemble the unseen. Of equally frequent tags the first is taken. I- tags that go on with nothing are
    left as they are: scoring says what they mean.

    Args:
        train: sentences with tags.
        test: E sentences, whose tags are not read.
        num_tags: C.

    Returns:
        Rows of [W_e] tags.

    Raises:
        InputError: no labelled word.
    """
    started = time.perf_counter()
    exact, lower = defaultdict(Counter), defaultdict(Counter)
    for example in train:
        for word, tag in zip(example.words, example.tags, strict=True):
            exact[word][tag] += 1
            lower[word.lower()][tag] += 1
    if not exact:
        raise InputError("baseline of tags: no labelled word")

    def most(counts: Counter) -> int:
        return min(counts, key=lambda tag: (-counts[tag], tag))

    once = Counter(most(counts) for counts in exact.values() if counts.total() == 1)
    unseen = most(once or sum(exact.values(), Counter()))
    best = {word: most(counts) for word, counts in exact.items()}
    lowered = {word: most(counts) for word, counts in lower.items()}
    rows = [tuple(best.get(word, lowered.get(word.lower(), unseen)) for word in example.words) for example in test]
    predictions = np.empty(len(rows), object)
    predictions[:] = rows
    return BaselinePrediction(predictions, {"words": len(exact), "tags": num_tags}, time.perf_counter() - started)
