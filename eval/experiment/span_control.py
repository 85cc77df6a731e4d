"""The control of span question answering: answers that have nothing to do with the questions, and what chance scores.

The answer to one question stands in no other context, so answers are not dealt out as labels are. What is dealt out is
their lengths in words (0 where there is no answer), each to a place in its new context that is drawn evenly: places to
learn that follow from no question. Chance is what the predictions of the network so trained score when each is taken
to another question: to the same share of the way through that context, with as many words.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eval.kinds.spans import Answered
from eval.sources.squad import Answer, SpanExample, score_answers

PERMUTATIONS = 20
WORD = re.compile(r"\S+")


def dealt(examples: Sequence[SpanExample], random: np.random.Generator) -> tuple[SpanExample, ...]:
    """The same questions, each with a span of its own context that has the length of another question's answer."""
    lengths = [len(example.answers[0].text.split()) if example.answers else 0 for example in examples]
    order = random.permutation(len(examples))
    return tuple(_with_span(e, lengths[i], random) for e, i in zip(examples, order, strict=True))


def chance(examples: Sequence[SpanExample], said: Sequence[Answered], metric: str, seed: int = 0) -> float:
    """The mean score of the answers over permutations of the questions; see the module's head.

    Args:
        examples: E questions.
        said: the answer to each.
        metric: of eval.sources.squad.METRICS.
        seed: of the permutations.
    """
    random = np.random.default_rng([seed, 0xC4A])
    words = [[match.span() for match in WORD.finditer(example.context)] for example in examples]
    shapes = []
    for answer, spans in zip(said, words, strict=True):
        before = sum(end <= answer.start for _, end in spans)
        shapes.append((before / max(len(spans), 1), len(answer.text.split())))
    scores = []
    for _ in range(PERMUTATIONS):
        moved = [_moved(examples[e], words[e], *shapes[i]) for e, i in enumerate(random.permutation(len(examples)))]
        scores.append(score_answers(examples, moved, (metric,))[metric])
    return float(np.mean(scores))


def _with_span(example: SpanExample, length: int, random: np.random.Generator) -> SpanExample:
    words = [match.span() for match in WORD.finditer(example.context)]
    if not length or not words:
        return replace(example, answers=())
    count = min(length, len(words))
    first = int(random.integers(len(words) - count + 1))
    start, end = words[first][0], words[first + count - 1][1]
    return replace(example, answers=(Answer(example.context[start:end], start),))


def _moved(example: SpanExample, words: Sequence[tuple[int, int]], place: float, length: int) -> str:
    if not length or not words:
        return ""
    count = min(length, len(words))
    first = min(round(place * len(words)), len(words) - count)
    return example.context[words[first][0] : words[first + count - 1][1]]
