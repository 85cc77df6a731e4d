"""Span question answering: the part of a text that answers a question, or nothing.

    row       [CLS] question [SEP] window of the context [SEP]        <s> question [SEP] window </s>
    outputs   [T, 2]: how well an answer begins, and ends, at each place

    loss = sum over windows of -(log p(first place) + log p(last place)) / 2 over their number

A context that is longer than a row is read through windows that overlap. The right places are those of the pieces that
hold the first and the last character of the answer; in a window that does not hold all of it, and where there is no
answer, both are the null place: [CLS], or for a decoder </s>, its only place that has seen the whole row.
An answer scores z_begin[i] + z_end[j] with i <= j < i + 30, inside the context; the best over all windows of a
question is its answer, in the words of the context. "No answer" scores z_begin[null] + z_end[null], the least over the
windows; it is given, where the data have such questions, if it beats the best answer by more than a threshold (0, or
`choose_threshold` on a validation set).

References: Devlin et al. 2018, sections 4.2 and 4.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.encode import Encoded, buckets, check, first_place, frame_style
from eval.kinds.classification import log_losses
from eval.kinds.kind import Evaluation, Kind, mean_loss, read
from eval.sources.squad import METRICS, SpanExample, answer_scores, best_threshold, score_answers
from train.cross_entropy import cross_entropy
from train.metrics import Pair
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.tokenizer import Tokenizer

OVERLAP = 128
MOST_QUESTION = 64
MOST_ANSWER = 30
HIDDEN = -1e9


@dataclass(frozen=True, eq=False)
class Window:
    """What decoding needs of a row.

    Attributes:
        number: of the question, from 0.
        example: the question.
        first: place of the first piece of the context.
        spans: [n, 2] int64, the characters of the context that its pieces stand for.
        null: place that stands for "no answer here".
    """

    number: int
    example: SpanExample
    first: int
    spans: np.ndarray
    null: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What is said to a question.

    Attributes:
        id: of the question.
        text: the answer, "" for none.
        best: the best answer, whether it is given or not.
        start, end: its characters in the context; 0 and 0 where there is none.
        null_odds: score of "no answer" above that of `best`.
    """

    id: str
    text: str
    best: str
    start: int
    end: int
    null_odds: float


def encode_questions(
    examples: Sequence[SpanExample],
    tokenizer: Tokenizer,
    config: ModelConfig,
    max_length: int = 128,
    *,
    overlap: int = OVERLAP,
    most_question: int = MOST_QUESTION,
) -> Encoded:
    """Rows of question and window, one or more a question.

    Args:
        examples, tokenizer, config: see eval.encode.encode.
        max_length: most ids a row; 384 is usual.
        overlap: pieces that neighbouring windows share; at most half of a window.
        most_question: longer questions lose their end, as do those of more than half a row; they are counted.

    Returns:
        Encoded of rows, each with a `Window` in `notes` and two places as its label, -1 where the answer is not where
        the file says, so that there is nothing to learn.

    Raises:
        InputError: what eval.encode.encode refuses, or rows without room for a piece of the context.
    """
    check(examples, tokenizer, config, max_length)
    style, head = frame_style(config), first_place(tokenizer, config)
    room = max_length - len(tokenizer.frame([], [], style=style)[0])
    if room < 2:
        raise InputError(f"max_length {max_length} has no room for a question and its context; take 384")
    questions = tokenizer.encode_batch([example.question for example in examples])
    contexts = list(dict.fromkeys(example.context for example in examples))
    pieces_of = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    ids, token_types, labels, notes, truncated = [], [], [], [], 0
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        pieces, offsets = pieces_of[example.context]
        spans = np.array(offsets, np.int64).reshape(-1, 2)
        asked = question[: min(most_question, room // 2)]
        truncated += len(asked) < len(question)
        answer = _pieces_of_answer(example, spans)
        first = head + len(asked) + 1
        for start, end in _windows(len(pieces), room - len(asked), overlap):
            framed, types = tokenizer.frame(asked, pieces[start:end], style=style)
            null = 0 if style == "bert" or tokenizer.eos_id is None else len(framed) - 1
            places = answer
            if answer[0] >= 0:
                inside = start <= answer[0] and answer[1] < end
                places = (answer[0] - start + first, answer[1] - start + first) if inside else (null, null)
            elif not example.answers:
                places = (null, null)
            ids.append(np.array(framed, np.int32))
            token_types.append(np.array(types, np.int32))
            labels.append(places)
            notes.append(Window(number, example, first, spans[start:end], null))
    return Encoded(
        ids=tuple(ids),
        token_types=tuple(token_types) if config.token_types > 1 else None,
        labels=np.array(labels, np.int32),
        lengths=np.array([len(row) for row in ids], np.int64),
        buckets=buckets(max_length),
        pad_id=tokenizer.pad_id or 0,
        truncated=truncated,
        notes=tuple(notes),
    )


def loss(
    model: Any, params: Any, batch: Mapping[str, jax.Array], keys: jax.Array, *, train: bool = True
) -> tuple[Pair, dict[str, Pair]]:
    """The objective: (sum over windows, number of windows with a place to learn); arguments as in kinds.classification.

    Returns:
        ((loss sum, weight), {"accuracy": windows whose two places are both right}).
    """
    logits = read(model, params, batch, keys if train else None).astype(jnp.float32)
    logits = jnp.where(batch["segment_ids"][..., None] > 0, logits, HIDDEN).swapaxes(1, 2)  # [B, 2, T]
    labels = batch["labels"]
    weights = batch["weights"] * (labels[:, 0] >= 0)
    importance = weights * batch["label_weights"] if "label_weights" in batch else weights
    losses = jnp.mean(cross_entropy(logits, jnp.maximum(labels, 0)), axis=1)
    right = jnp.all(jnp.argmax(logits, axis=2) == labels, axis=1)
    correct = (jnp.sum(jnp.where(right, weights, 0.0)), jnp.sum(weights))
    return (jnp.sum(jnp.where(weights > 0, losses, 0.0) * importance), jnp.sum(importance)), {"accuracy": correct}


def score(
    encoded: Encoded,
    outputs: Sequence[np.ndarray],
    names: Sequence[str],
    label_names: Sequence[str] = (),
    *,
    null_threshold: float = 0.0,
) -> Evaluation:
    """The best answer to each question, against the right ones.

    Args:
        encoded, outputs: of the same rows.
        names: of eval.sources.squad.METRICS.
        label_names: not read.
        null_threshold: in data with questions without an answer, "no answer" needs this much more than the best answer.

    Returns:
        Evaluation whose predictions are an `Answered` a question, and whose loss is that of a window.
    """
    predictions = answers(encoded, outputs, null_threshold)
    losses = []
    for labels, logits in zip(encoded.labels, outputs, strict=True):
        if labels[0] >= 0:
            losses.append(log_losses(logits.T, labels).mean())
    examples = questions_of(encoded)
    scores = score_answers(examples, [answered.text for answered in predictions], names)
    return Evaluation(tuple(outputs), predictions, mean_loss(np.array(losses)) if losses else 0.0, scores)


def choose_threshold(encoded: Encoded, outputs: Sequence[np.ndarray]) -> dict[str, float]:
    """{"null_threshold": the one with the best F1 on these questions}; {} where every question has an answer."""
    examples, found = questions_of(encoded), answers(encoded, outputs)
    if not any(example.nullable for example in examples):
        return {}
    answered = [answer_scores(e, a.best)[1] for e, a in zip(examples, found, strict=True)]
    silent = [answer_scores(e, "")[1] for e in examples]
    return {"null_threshold": best_threshold([a.null_odds for a in found], answered, silent)}


def answers(encoded: Encoded, outputs: Sequence[np.ndarray], null_threshold: float = 0.0) -> list[Answered]:
    """What is said to each question."""
    best: dict[int, tuple[float, int, int]] = {}
    null: dict[int, float] = {}
    for window, logits in zip(encoded.notes, outputs, strict=True):
        wide = logits.astype(np.float64)
        null[window.number] = min(null.get(window.number, np.inf), wide[window.null].sum())
        found = _best_span(wide[window.first : window.first + len(window.spans)], window.spans)
        if found is not None and found[0] > best.get(window.number, (-np.inf,))[0]:
            best[window.number] = found
    said = []
    for number, example in enumerate(questions_of(encoded)):
        top, start, end = best.get(number, (-np.inf, 0, 0))
        odds = float(null[number] - top)
        text = example.context[start:end]
        given = "" if example.nullable and odds > null_threshold else text
        said.append(Answered(example.id, given, text, start, end, odds))
    return said


def questions_of(encoded: Encoded) -> list[SpanExample]:
    """The questions whose windows the rows are, in order."""
    return list({window.number: window.example for window in encoded.notes}.values())


def _windows(count: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """(first, after the last) piece of each window of `room` pieces, so that any two neighbours share some."""
    step = room - min(overlap, room // 2)
    starts = range(0, max(count - room, 0) + step, step)
    return [(start, min(start + room, count)) for start in starts]


def _pieces_of_answer(example: SpanExample, spans: np.ndarray) -> tuple[int, int]:
    """First and last piece of the answer in the whole context; (-1, -1) where it has no place or no piece."""
    if example.place is None:
        return -1, -1
    start, end = example.place
    touches = np.flatnonzero((spans[:, 0] < spans[:, 1]) & (spans[:, 1] > start) & (spans[:, 0] < end))
    return (int(touches[0]), int(touches[-1])) if len(touches) else (-1, -1)


def _best_span(scores: np.ndarray, spans: np.ndarray) -> tuple[float, int, int] | None:
    """(score, first character, character after the last) of the best answer of a window; None where it has no text."""
    if not len(spans):
        return None
    silent = spans[:, 0] == spans[:, 1]
    begins, ends = (np.where(silent, -np.inf, scores[:, side]) for side in (0, 1))
    found = (-np.inf, 0, 0)
    for length in range(min(MOST_ANSWER, len(spans))):
        sums = begins[: len(begins) - length] + ends[length:]
        at = int(sums.argmax())
        if sums[at] > found[0]:
            found = (float(sums[at]), int(spans[at, 0]), int(spans[at + length, 1]))
    return found if np.isfinite(found[0]) else None


SPANS = Kind(
    name="spans",
    head="span",
    per_token=True,
    width=lambda labels: 2,
    encode=encode_questions,
    loss=loss,
    outputs=read,
    score=score,
    metrics=METRICS,
    settle=choose_threshold,
)
