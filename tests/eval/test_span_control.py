"""Answers that follow from no question: places of their own contexts, lengths of one another's answers."""

import numpy as np
import pytest

from eval.experiment.span_control import chance
from eval.experiment.trial import shuffled
from eval.kinds.spans import Answered
from eval.sources.squad import Answer, SpanExample


def questions(count=40):
    made = []
    for n in range(count):
        words = [f"w{n}-{k}" for k in range(12)]
        first, size = n % 9, 1 + n % 3
        start, text = len(" ".join(words[:first])) + (first > 0), " ".join(words[first : first + size])
        made.append(SpanExample(f"q{n}", "", " ".join(words), "which?", (Answer(text, start),) if n % 5 else (), True))
    return made


def test_answers_are_dealt_out_inside_their_own_contexts():
    before, after = questions(), shuffled(questions(), 3)
    assert shuffled(questions(), 3) == after != shuffled(questions(), 4)
    lengths = [[len(e.answers[0].text.split()) if e.answers else 0 for e in part] for part in (before, after)]
    assert sorted(lengths[0]) == sorted(lengths[1]) and lengths[0] != lengths[1]
    for old, new in zip(before, after, strict=True):
        assert (old.context, old.question, old.id) == (new.context, new.question, new.id)
        for answer in new.answers:
            assert new.context[answer.start : answer.start + len(answer.text)] == answer.text
    assert sum(e.answers == o.answers for e, o in zip(before, after, strict=True)) < 20


def test_chance_is_what_answers_score_on_other_questions():
    asked = questions()
    right = [
        Answered(e.id, a.text, a.text, a.start, a.start + len(a.text), 0.0)
        for e in asked
        for a in (e.answers or (Answer("", 0),))
    ]
    found = chance(asked, right, "exact_match")
    assert found == chance(asked, right, "exact_match") and 0.02 < found < 0.2
    silent = [Answered(e.id, "", "", 0, 0, 0.0) for e in asked]
    assert chance(asked, silent, "exact_match") == pytest.approx(np.mean([not e.answers for e in asked]))
