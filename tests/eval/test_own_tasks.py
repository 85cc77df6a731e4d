"""Files of one's own of every kind become splits that do not leak, and predictions files that others read."""

import json

import numpy as np
import pytest

from eval import tasks
from eval.examples import Example
from eval.kinds import Evaluation
from eval.kinds.spans import Answered
from eval.scores.predictions import prediction_files
from eval.sources.choices import Choice
from eval.sources.own_tasks import load_choices, load_own, load_spans, load_tagged
from eval.sources.squad import Answer, SpanExample
from eval.sources.tagged import TaggedExample
from eval.task import Task
from zoo import InputError


def conll(path, sentences, gap="\n"):
    path.write_text(gap.join("".join(f"{w}\tNN\t{t}\n" for w, t in sentence) for sentence in sentences))
    return path


def sentence(number, tag="I-place"):
    return [(f"word{number}", "O"), (f"Town{number}", tag), (f"near{number}", "O")]


def test_tagged_words_of_ones_own(tmp_path):
    path = conll(tmp_path / "places.conll", [sentence(n) for n in range(40)] + [[("Bob", "B-name"), ("Ray", "I-name")]])
    splits = load_tagged(path)
    assert splits.task.kind == "tagging" and splits.task.name == "places"
    assert splits.task.labels == ("O", "B-name", "I-name", "I-place")
    assert splits.task.main_metric == "entity_f1"
    every = [*splits.train, *splits.validation, *splits.test]
    assert len(every) == 41 and len(splits.test) > 3
    assert TaggedExample(("word0", "Town0", "near0"), (0, 3, 0)) in every
    test = conll(tmp_path / "test.conll", [[("x", "I-other")], sentence(3)])
    splits = load_tagged(path, test)
    assert "I-other" in splits.task.labels and len(splits.test) == 2
    assert splits.dropped["training texts that are in the test set"] == 1
    few = tasks.subset(splits.train, 5, seed=0)
    assert few == tasks.subset(splits.train, 9, seed=0)[:5]


def test_parts_of_speech_have_no_entities(tmp_path):
    splits = load_tagged(conll(tmp_path / "pos.txt", [[(f"w{n}", "NN"), ("runs", "VB")] for n in range(30)]))
    assert splits.task.labels == ("NN", "VB") and splits.task.main_metric == "accuracy"
    with pytest.raises(InputError, match='every word has the tag "NN"'):
        load_tagged(conll(tmp_path / "one.txt", [[("a", "NN")]]))
    (tmp_path / "bad.txt").write_text("a NN\nb\n")
    with pytest.raises(InputError, match="line 2: a word and its tag are needed"):
        load_tagged(tmp_path / "bad.txt")


def test_bare_tags_are_entities_and_bilou_is_warned_of(tmp_path):
    bare = conll(tmp_path / "bare.tsv", [[(f"gene{n}", "B"), ("p53", "I"), (f"in{n}", "O")] for n in range(30)])
    splits = load_tagged(bare)
    assert splits.task.main_metric == "entity_f1" and splits.warnings == ()
    bilou = conll(tmp_path / "bilou.tsv", [[(f"a{n}", "B-x"), ("b", "L-x"), (f"c{n}", "U-x")] for n in range(30)])
    (line,) = load_tagged(bilou).warnings
    assert "neighbours of one type run together; write E- for L- and S- for U-" in line
    with pytest.raises(InputError, match="bare tags L and U have no agreed reading; write E for L and S for U"):
        load_tagged(conll(tmp_path / "bad.tsv", [[("a", "B"), ("b", "L"), ("c", "U")]]))


def test_every_kind_honours_the_encoding(tmp_path):
    made = {
        "tagging": ("t.conll", "".join(f"caf\xe9{n} B-x\nis O\n\n" for n in range(30))),
        "classification": ("c.tsv", "text\tlabel\n" + "".join(f"caf\xe9 {n}\t{'ab'[n % 2]}\n" for n in range(30))),
        "choice": (
            "o.jsonl",
            "".join(f'{{"context": "caf\xe9 {n}", "options": ["x", "y"], "label": 0}}\n' for n in range(30)),
        ),
    }
    made["spans"] = (
        "s.json",
        squad(tmp_path / "s.json", 30, words="caf\xe9 and").read_text().replace("\\u00e9", "\xe9"),
    )
    for kind, (name, text) in made.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match="byte 0xe9 is not utf-8; .*--encoding latin-1"):
            tasks.from_file(tmp_path / name, kind=kind)
        assert "caf\xe9" in tasks.from_file(tmp_path / name, kind=kind, encoding="latin-1").train[0].texts[0]


def squad(path, count, impossible=False, shift=0, words="context"):
    data = []
    for n in range(count):
        context = f"{words} {n} holds treasure{n} somewhere"
        answer = {"text": f"treasure{n}", "answer_start": context.index("treasure") + (shift if n == 0 else 0)}
        asked = [{"id": f"{words}{n}-{k}", "question": f"what {k}?", "answers": [answer]} for k in range(2)]
        if impossible:
            asked[1] |= {"answers": [], "is_impossible": True}
        data.append({"title": f"title {words} {n}", "paragraphs": [{"context": context, "qas": asked}]})
    path.write_text(json.dumps({"version": "2.0" if impossible else "1.1", "data": data}))
    return path


def test_questions_on_one_text_stay_together(tmp_path):
    splits = load_spans(squad(tmp_path / "train.json", 40, shift=3))
    assert splits.task.kind == "spans" and splits.task.metrics == ("answer_f1", "exact_match")
    sides = [{e.title for e in part} for part in (splits.train, splits.validation, splits.test)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 40
    assert sum(len(part) for part in (splits.train, splits.validation, splits.test)) == 80
    assert splits.warnings == ('2 answers do not stand at their "answer_start": no place is learnt from them',)
    assert "warning: 2 answers" in splits.describe()


def test_a_file_to_test_on(tmp_path):
    train, dev = squad(tmp_path / "train.json", 40, True), squad(tmp_path / "dev.json", 5, True, words="paragraph")
    splits = load_own(train, "spans", dev)
    assert len(splits.test) == 10 and [e.id for e in splits.test[:2]] == ["paragraph0-0", "paragraph0-1"]
    assert "no_answer_f1" in splits.task.metrics and splits.warnings == ()
    contexts = [{e.context for e in part} for part in (splits.train, splits.validation)]
    assert len(contexts[1]) > 0 and not contexts[0] & contexts[1]
    with pytest.raises(InputError, match='holds no task of kind "span"; did you mean "spans"'):
        load_own(train, "span")


def test_choices_of_ones_own(tmp_path):
    rows = [{"context": f"c {n}", "options": [f"a {n}", f"b {n}"], "label": n % 2} for n in range(40)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    splits = load_choices(path)
    assert splits.task.kind == "choice" and splits.task.main_metric == "accuracy" and splits.task.labels == ()
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 40
    assert {e.label for e in tasks.subset(splits.train, 2, 0)} == {0, 1}


def task(kind, labels=()):
    return Task("own", "own", labels, ("text",), "y", "", kind=kind)


def test_tags_are_written_as_conll_evaluates_them():
    examples = [TaggedExample(("Bob", "sings"), (1, 0)), TaggedExample(("x",), (0,))]
    found = Evaluation((), [np.array([1, 1]), np.array([0])], 0.0, {})
    files = prediction_files(task("tagging", ("O", "B-n")), examples, found)
    assert files["predictions.conll"] == "Bob\tB-n\tB-n\nsings\tO\tB-n\n\nx\tO\tO\n"
    assert files["entities.txt"].splitlines()[1].split() == ["n", "0.5000", "1.0000", "0.6667", "1"]
    assert list(prediction_files(task("tagging", ("NN", "VB")), examples, found)) == ["predictions.conll"]


def test_answers_are_written_as_the_official_scripts_read_them():
    said = [Answered("1", "Caf\u00e9", "Caf\u00e9", 0, 4, -2.0), Answered("2", "", "x", 0, 1, np.inf)]
    examples = [SpanExample(a.id, "", "", "", (Answer("x", 0),)) for a in said]
    files = prediction_files(task("spans"), examples, Evaluation((), said, 0.0, {}))
    assert list(files) == ["predictions.json"] and "Caf\u00e9" in files["predictions.json"]
    assert json.loads(files["predictions.json"]) == {"1": "Caf\u00e9", "2": ""}
    examples[0] = SpanExample("1", "", "", "", (), True)
    chances = json.loads(prediction_files(task("spans"), examples, Evaluation((), said, 0.0, {}))["na_prob.json"])
    assert chances == {"1": pytest.approx(1 / (1 + np.e**2)), "2": 1.0}


def test_classes_ratings_and_choices_are_rows():
    two = np.log(np.array([[0.9, 0.1]], np.float32))
    found = Evaluation(two, np.array([0]), 0.0, {})
    rows = prediction_files(task("classification", ("no", "yes")), [Example("a\tb", "c\n", 1)], found)
    assert rows == {"predictions.tsv": "label\tprediction\tprobability\ttext\nyes\tno\t0.9000\ta b c\n"}
    rows = prediction_files(task("choice"), [Choice("c", ("x", "y"), 1)], found)["predictions.tsv"]
    assert rows.splitlines()[1] == "1\t0\t0.9000\tc\ty\tx"
    ratings = np.array([2.25], np.float32)
    rows = prediction_files(task("regression"), [Example("a", None, 2.5)], Evaluation(ratings, ratings, 0.0, {}))
    assert rows["predictions.tsv"].splitlines()[1] == "2.5\t2.2500\ta"


def test_options_of_one_text_are_counted(tmp_path):
    rows = [{"context": f"c {n}", "options": ["a", "a" if n < 3 else "b"], "label": 0} for n in range(40)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (line,) = load_choices(tmp_path / "mine.jsonl").warnings
    assert line == "questions with two options of the same text, of which the first counts as chosen: 3"


def test_texts_that_are_all_alike_cannot_be_split(tmp_path):
    rows = [{"context": "the sister said it is", "options": ["good", "bad"], "label": n % 2} for n in range(40)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="40 rows leave none for .*set: near copies .* .groups of texts: 1.; more"):
        load_choices(tmp_path / "mine.jsonl")


def test_a_first_line_of_data_is_warned_of(tmp_path):
    rows = "".join(f"harbor{n} tide{n} oven{n} sea{n}\t{'yes' if n % 2 else 'no'}\n" for n in range(40))
    (tmp_path / "bare.tsv").write_text(rows)
    assert "the first line looks like data" in tasks.from_file(tmp_path / "bare.tsv").warnings[0]
    (tmp_path / "good.tsv").write_text("text\tlabel\n" + rows)
    assert tasks.from_file(tmp_path / "good.tsv").warnings == ()


def test_rows_without_a_label_are_left_out_and_counted(tmp_path):
    lines = [f'{{"text": "a harbor {n}", "label": {n % 2}}}' for n in range(40)]
    lines[3:3] = ['{"text": "a tide"}', '{"text": "an oven", "label": null}', '{"text": "the sea", "label": " "}']
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    splits = tasks.from_file(tmp_path / "mine.jsonl")
    assert splits.dropped == {"without a label": 3} and "; left out: 3 without a label" in splits.describe()
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 40


def test_a_rating_beyond_what_can_be_learnt(tmp_path):
    (tmp_path / "r.tsv").write_text(
        "text\trating\n" + "".join(f"a tide {n}\t{n}\n" for n in range(20)) + "b c\t1e300\n"
    )
    with pytest.raises(InputError, match="line 22: the rating 1e300 is too large to learn"):
        tasks.from_file(tmp_path / "r.tsv", kind="regression")
