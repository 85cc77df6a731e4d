"""SQuAD's files are read as they are, its faults are named, and scores are the official scripts'."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.sources.squad import (
    Answer,
    SpanExample,
    answer_scores,
    best_threshold,
    exact,
    misplaced,
    normalise_answer,
    read,
    score_answers,
    word_f1,
)
from eval.task import Task
from zoo import InputError

TASK = Task("own", "own", (), ("context", "question"), "answers", "", kind="spans", reader="squad")
CONTEXT = "Die Stra\u00dfe f\u00fchrt zum Caf\u00e9 \U0001f989. It opened in 1912."


def question(key, answers, **more):
    return {"id": key, "question": f"  {key}? ", "answers": answers, **more}


def at(text, context=CONTEXT):
    return {"text": text, "answer_start": context.index(text)}


def write(folder, qas, version="1.1", context=CONTEXT, title="Street"):
    path = folder / "squad.json"
    content = {"version": version, "data": [{"title": title, "paragraphs": [{"context": context, "qas": qas}]}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_places_are_characters_also_beyond_the_basic_plane(tmp_path):
    qas = [question("a", [at("\U0001f989"), at("Caf\u00e9 \U0001f989")]), question("b", [at("1912")])]
    examples, families, dropped = read(TASK, write(tmp_path, qas))
    assert [e.id for e in examples] == ["a", "b"]
    assert examples[0].question == "a?" and examples[0].title == "Street"
    for example in examples:
        for answer in example.answers:
            assert CONTEXT[answer.start : answer.start + len(answer.text)] == answer.text
    assert examples[0].place == (CONTEXT.index("\U0001f989"), CONTEXT.index("\U0001f989") + 1)
    assert not examples[0].nullable and families == [CONTEXT, CONTEXT]
    assert examples[0].texts == (CONTEXT, "a?")
    assert dropped == {"without an answer": 0}


def test_an_answer_that_is_not_where_the_file_says_is_scored_but_not_learnt(tmp_path):
    byte_offset = {"text": "1912", "answer_start": CONTEXT.index("1912") + 7}
    qas = [question("a", [byte_offset, at("1912")]), question("b", [byte_offset]), question("c", [at("Caf\u00e9")])]
    examples, _, _ = read(TASK, write(tmp_path, qas))
    assert misplaced(examples) == 2
    assert examples[0].answers[0] == Answer("1912", -1)
    assert examples[0].place == (CONTEXT.index("1912"), CONTEXT.index("1912") + 4)  # the second answer's
    assert examples[1].place is None
    assert answer_scores(examples[1], "in 1912") == (0.0, pytest.approx(2 / 3))
    with pytest.raises(InputError, match='no answer stands at its "answer_start", which counts characters'):
        read(TASK, write(tmp_path, qas[1:2]))


def test_unanswerable_questions_make_a_file_of_version_2(tmp_path):
    qas = [question("a", [at("1912")], is_impossible=False), question("b", [], is_impossible=True)]
    for version in ("v2.0", ""):
        examples, _, dropped = read(TASK, write(tmp_path, qas, version))
        assert [e.nullable for e in examples] == [True, True]
        assert examples[1].answers == () and examples[1].place is None and not any(dropped.values())
    plausible = [question("b", [at("1912")], is_impossible=True), qas[0]]
    assert read(TASK, write(tmp_path, plausible))[0][0].answers == ()


def test_a_question_without_an_answer_in_version_1_is_left_out_and_counted(tmp_path):
    examples, families, dropped = read(TASK, write(tmp_path, [question("a", [at("1912")]), question("b", [])]))
    assert [e.id for e in examples] == ["a"] and len(families) == 1 and dropped == {"without an answer": 1}


def test_articles_are_families_where_there_are_enough(tmp_path):
    data = [
        {
            "title": f"T{n}",
            "paragraphs": [{"context": c, "qas": [question(f"{n}{c}", [at("x", c)])]} for c in ("x", "xy")],
        }
        for n in range(10)
    ]
    path = tmp_path / "many.json"
    path.write_text(json.dumps({"data": data}))
    assert read(TASK, path)[1] == [f"T{n}" for n in range(10) for _ in range(2)]


@pytest.mark.parametrize(
    "content, line",
    [
        ("[1]", 'no "data"; SQuAD\'s JSON is needed'),
        ("{", "not JSON"),
        ('{"data": 3}', '"data" is a int; a list is needed'),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r'data\[0\].paragraphs\[0\]: no "context"'),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1", "question": "q", "answers": [{}]}]}]}]}',
            r'data\[0\].paragraphs\[0\].qas\[0\].answers\[0\]: no "text"',
        ),
        ('{"data": []}', "no question with an answer"),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": '
            '[{"id": "1", "question": "q", "answers": []}, {"id": "1"}]}]}]}',
            'the id "1" stands twice',
        ),
    ],
)
def test_other_files_are_one_line(tmp_path, content, line):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(InputError, match=line) as error:
        read(TASK, path)
    assert "\n" not in str(error.value)


def test_answers_are_compared_as_the_official_scripts_do():
    assert normalise_answer("The  Eiffel-Tower, (an) A. ") == "eiffeltower"
    assert normalise_answer("Caf\u00e9 \u201cX\u201d") == "caf\u00e9 \u201cx\u201d"  # ASCII punctuation alone
    assert normalise_answer("theatre a-b") == "theatre ab"
    assert exact("the U.S.", "US") == 1.0 and exact("US", "U S") == 0.0
    assert word_f1("in the year 1912", "1912") == pytest.approx(2 * (1 / 3) * 1 / (1 / 3 + 1))
    assert word_f1("to be or not to be", "to be") == pytest.approx(2 * (2 / 6) * 1 / (2 / 6 + 1))
    assert word_f1("left", "right") == 0.0


def test_texts_without_a_word_score_as_their_version_says():
    """v1.1's script gives F1 0 where nothing is shared; v2.0's gives 1 where both hold nothing."""
    assert word_f1("the", "a") == 0.0 and word_f1("the", "a", nullable=True) == 1.0
    assert word_f1("the", "cat", nullable=True) == 0.0 and exact("the", "a") == 1.0


def example(key, answers, nullable=False):
    return SpanExample(key, "", "c", "q", tuple(Answer(text, -1) for text in answers), nullable)


def test_the_best_of_several_right_answers_counts():
    several = example("a", ["Denver Broncos", "The Broncos", "broncos win"])
    assert answer_scores(several, "Broncos") == (1.0, 1.0)
    assert answer_scores(several, "Broncos of Denver") == (0.0, pytest.approx(0.8))


def test_nothing_is_right_only_where_there_is_no_answer():
    assert answer_scores(example("a", [], nullable=True), "") == (1.0, 1.0)
    assert answer_scores(example("a", [], nullable=True), "cat") == (0.0, 0.0)
    assert answer_scores(example("a", ["cat"], nullable=True), "") == (0.0, 0.0)
    # v2.0's script drops right answers that hold no word.
    assert answer_scores(example("a", ["the", "cat"], nullable=True), "the") == (0.0, 0.0)


def test_means_over_questions():
    examples = [example("a", ["cat"], True), example("b", ["red dog"], True), example("c", [], True)]
    found = score_answers(examples, ["cat", "dog", "bird"], tuple(f"{part}_answer_exact" for part in ("has", "no")))
    assert found == {"has_answer_exact": 0.5, "no_answer_exact": 0.0}
    found = score_answers(examples, ["cat", "dog", ""], ("exact_match", "answer_f1", "has_answer_f1", "no_answer_f1"))
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert found["answer_f1"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert found["has_answer_f1"] == pytest.approx((1 + 2 / 3) / 2) and found["no_answer_f1"] == 1.0
    with pytest.raises(InputError, match='no metric "exact" of answers'):
        score_answers(examples, ["", "", ""], ("exact",))
    with pytest.raises(InputError, match="no question was answered"):
        score_answers([], [])


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.5, 0.0, 0.25, 3.0, 7.0]), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_no_threshold_is_better_than_the_best(questions):
    odds = np.array([o for o, _, _ in questions])
    answered = np.array([0.0 if empty else score for _, score, empty in questions])
    silent = np.array([float(empty) for _, _, empty in questions])

    def total(threshold):
        return np.where(odds > threshold, silent, answered).sum()

    best = best_threshold(odds, answered, silent)
    assert total(best) == max(total(t) for t in (-9.0, -1.0, 0.1, 1.0, 5.0, 9.0))
    assert best not in odds
