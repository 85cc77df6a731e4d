"""Questions about a text whose answer is a part of it: SQuAD's JSON and SQuAD's scores.

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}], "is_impossible": false}]}]}]}

Scores are those of the official scripts, as fractions: an answer is put in lower case, without punctuation, articles
and spare spaces, and compared with each right answer; the best of these counts. F1 is over words. Where a file has
questions without an answer (v2.0), saying nothing is right for these alone.

References: Rajpurkar et al. 2016 (v1.1), Rajpurkar, Jia and Liang 2018 (v2.0).
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.sources import strict_json
from eval.sources.readers import read_text
from eval.task import Task
from zoo.errors import InputError, nearest

METRICS = ("answer_f1", "exact_match", "has_answer_f1", "has_answer_exact", "no_answer_f1", "no_answer_exact")
NOT_THERE = -1
PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Answer:
    """A right answer: its text, and the character of the context where it begins, -1 if it does not stand there."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class SpanExample:
    """One question.

    Attributes:
        id: names it in files of predictions.
        title: of the article.
        context: the text that is asked about.
        question: about it.
        answers: right ones, several where several people answered; () where the context does not say.
        nullable: whether its file has questions without an answer, so that none may be given.
    """

    id: str
    title: str
    context: str
    question: str
    answers: tuple[Answer, ...]
    nullable: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The context and the question."""
        return (self.context, self.question)

    @property
    def place(self) -> tuple[int, int] | None:
        """First character and the one after the last of the first answer that stands where it says; None for none."""
        return next(((a.start, a.start + len(a.text)) for a in self.answers if a.start != NOT_THERE), None)


def read(task: Task, path: Path) -> tuple[list[SpanExample], list[str], dict[str, int]]:
    """The questions of a file, in its order.

    An answer whose text does not stand at its `answer_start` is kept for scoring and gets the place -1, so that nothing
    is learnt from it (`misplaced` counts these). In a file without unanswerable questions, one without an answer is
    left out.

    Returns:
        (questions, the article or the context of each, which must not be split; what was left out -> how many).

    Raises:
        InputError: no SQuAD file, naming the first thing that is missing and where; an id that stands twice; answers
            none of which is where the file says.
    """
    content = strict_json.parse(read_text(path, task.encoding), f"{path}")
    articles = _need(content, "data", list, f"{path}")
    version2 = str(content.get("version", "")).lstrip("vV").startswith("2")
    found, seen = [], set()
    for a, article in enumerate(articles):
        where = f"{path}: data[{a}]"
        for p, paragraph in enumerate(_need(article, "paragraphs", list, where)):
            inside = f"{where}.paragraphs[{p}]"
            context = _need(paragraph, "context", str, inside)
            for q, asked in enumerate(_need(paragraph, "qas", list, inside)):
                at = f"{inside}.qas[{q}]"
                key = _need(asked, "id", str, at)
                if key in seen:
                    raise InputError(f'{at}: the id "{key}" stands twice')
                seen.add(key)
                version2 |= asked.get("is_impossible") is True
                answers = () if asked.get("is_impossible") is True else _answers(asked, context, at)
                question = _need(asked, "question", str, at).strip()
                found.append(SpanExample(key, str(article.get("title", "")), context, question, answers))
    examples = [
        SpanExample(e.id, e.title, e.context, e.question, e.answers, version2) for e in found if e.answers or version2
    ]
    answers = [answer for example in examples for answer in example.answers]
    if not examples or not answers:
        raise InputError(f"{path}: no question with an answer")
    if all(answer.start == NOT_THERE for answer in answers):
        raise InputError(f'{path}: no answer stands at its "answer_start", which counts characters of "context" from 0')
    titles = {example.title for example in examples}
    families = [example.title if len(titles) >= 10 else example.context for example in examples]
    return examples, families, {"without an answer": len(found) - len(examples)}


def misplaced(examples: Sequence[SpanExample]) -> int:
    """Answers that do not stand where their file says."""
    return sum(answer.start == NOT_THERE for example in examples for answer in example.answers)


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, then without a, an, the, then with single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(predicted: str, right: str) -> float:
    """1 where both are the same after `normalise_answer`, else 0."""
    return float(normalise_answer(predicted) == normalise_answer(right))


def word_f1(predicted: str, right: str, nullable: bool = False) -> float:
    """F1 of the words of both after `normalise_answer`; where one has none 0, or in v2.0 whether both have none."""
    said, there = normalise_answer(predicted).split(), normalise_answer(right).split()
    shared = sum((Counter(said) & Counter(there)).values())
    if nullable and not (said and there):
        return float(said == there)
    return 2 * shared / (len(said) + len(there)) if shared else 0.0


def answer_scores(example: SpanExample, predicted: str) -> tuple[float, float]:
    """(exact match, F1) of one answer, "" for none: each the best over the right answers."""
    right = [answer.text for answer in example.answers]
    if example.nullable:
        right = [text for text in right if normalise_answer(text)] or [""]
    return max(exact(predicted, text) for text in right), max(word_f1(predicted, t, example.nullable) for t in right)


def score_answers(
    examples: Sequence[SpanExample], predicted: Sequence[str], names: Sequence[str] = METRICS[:2]
) -> dict[str, float]:
    """Means over questions.

    Args:
        examples: Q questions.
        predicted: the answer to each, "" for none.
        names: of METRICS: has_answer_* is over questions that have an answer, no_answer_* over the others; 0 where
            there is no such question.

    Raises:
        InputError: an unknown metric, or no question.
    """
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise InputError(f'no metric "{unknown[0]}" of answers{nearest(unknown[0], METRICS)}')
    if not examples:
        raise InputError("no question was answered, so there is nothing to score")
    pairs = np.array([answer_scores(e, text) for e, text in zip(examples, predicted, strict=True)])
    answered = np.array([bool(example.answers) for example in examples])
    chosen = {"has_answer": answered, "no_answer": ~answered}
    found = {}
    for name in names:
        keep = chosen.get(name.rpartition("_")[0], np.ones(len(examples), bool))
        found[name] = float(pairs[keep, int(name.endswith("f1"))].mean()) if keep.any() else 0.0
    return found


def best_threshold(odds: Sequence[float], answered: Sequence[float], silent: Sequence[float]) -> float:
    """The threshold of "no answer" that scores best on a validation set.

    No answer is given where odds > threshold. Of equal scores the lowest threshold that is a midpoint of two odds.

    Args:
        odds: [Q] score of "no answer" above that of the best answer.
        answered: [Q] what each question scores with its best answer.
        silent: [Q] what it scores with none.
    """
    order = np.argsort(np.asarray(odds, np.float64), kind="stable")
    sorted_odds = np.asarray(odds, np.float64)[order]
    gains = (np.asarray(answered, np.float64) - np.asarray(silent, np.float64))[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])  # the k questions of least odds are answered
    cuts = [k for k in range(len(totals)) if k in (0, len(gains)) or sorted_odds[k - 1] < sorted_odds[k]]
    best = max(cuts, key=lambda k: (totals[k], -k))
    if best == 0:
        return float(sorted_odds[0] - 1)
    if best == len(gains):
        return float(sorted_odds[-1] + 1)
    return float((sorted_odds[best - 1] + sorted_odds[best]) / 2)


def _answers(asked: dict[str, Any], context: str, at: str) -> tuple[Answer, ...]:
    found = []
    for n, answer in enumerate(_need(asked, "answers", list, at)):
        text = _need(answer, "text", str, f"{at}.answers[{n}]")
        start = _need(answer, "answer_start", int, f"{at}.answers[{n}]")
        there = bool(text.strip()) and start >= 0 and context[start : start + len(text)] == text
        found.append(Answer(text, start if there else NOT_THERE))
    return tuple(found)


def _need(content: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise InputError(f'{where}: no "{key}"; SQuAD\'s JSON is needed (data, paragraphs, qas, answers)')
    if not isinstance(content[key], kind) or isinstance(content[key], bool):
        raise InputError(f'{where}: "{key}" is a {type(content[key]).__name__}; a {kind.__name__} is needed')
    return content[key]
