"""GLUE and SuperGLUE from files in the layouts of their downloads, with the traps that these hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import tasks
from eval.examples import Example
from eval.sources.glue import GLUE, SUPERGLUE
from eval.tasks import load, locate
from tests.eval.glue_files import HEADERS, mnli, write
from zoo.errors import InputError


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def everything(splits):
    return {e for part in (splits.train, splits.validation) for e in part}


def test_cola_has_no_header_and_its_quotes_are_characters(tmp_path):
    train = [f"gj04\t{i % 2}\t{'*' * (1 - i % 2)}\tSentence {i} of the corpus." for i in range(40)]
    train[3] = 'gj04\t1\t\t"We yelled ourselves hoarse.'  # opens a quotation and never ends it
    train[7] = "gj04\t1\t\tThey said \"no\" and 'yes'."
    write(tmp_path, "CoLA/train.tsv", train, end="\r\n")
    dev = ["gj04\t1\t\tThe sailors rode the breeze.", "gj04\t0\t*\tSentence 5 of the corpus."]
    write(tmp_path, "CoLA/dev.tsv", dev)
    splits = load("cola", tmp_path)
    found = everything(splits)
    assert len(found) == 39 and splits.dropped == {"training texts that are in the test set": 1}
    assert Example('"We yelled ourselves hoarse.', None, 1) in found
    assert {Example(f"Sentence {i} of the corpus.", None, i) for i in (0, 1)} <= found
    assert [splits.task.labels[e.label] for e in splits.test] == ["acceptable", "unacceptable"]
    assert splits.task.main_metric == "matthews" and "2 dev" in splits.describe()


ANY_TEXT = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(
    st.lists(ANY_TEXT, min_size=1, max_size=6), st.sampled_from(["\n", "\r\n"]), st.sampled_from([b"", b"\xef\xbb\xbf"])
)
def test_any_scored_text_comes_back(tmp_path_factory, sentences, end, start):
    """Quotes, commas, form feeds, U+2028: none of them ends a field or a row of a scored file."""
    folder = tmp_path_factory.mktemp("glue")
    train = [f"gj04\t{i % 2}\t\ttraining sentence {i} of all" for i in range(30)]
    write(folder, "CoLA/train.tsv", train, end, start)
    write(folder, "CoLA/dev.tsv", [f"gj04\t1\t\t{text}" for text in sentences], end, start)
    splits = load("cola", folder)
    assert [e.text_a for e in splits.test] == [text.strip() for text in sentences]


def test_torn_training_rows_are_left_out_and_torn_scored_rows_refused(tmp_path):
    good = [f"{i}\t1\t2\tquestion {i} one\tquestion {i} two\t{i % 2}" for i in range(30)]
    torn = ["31\t1\t2\ta question that a line break", "tears in two\t1", "32\t1\t2\ta\ttab\tinside\t0"]
    write(tmp_path, "QQP/train.tsv", [HEADERS["QQP"], *good, *torn])
    write(tmp_path, "QQP/dev.tsv", [HEADERS["QQP"], "9\t1\t2\tone thing\tanother\t1"])
    splits = load("qqp", tmp_path)
    assert splits.dropped["with a torn row"] == 3 and len(everything(splits)) == 30
    assert splits.task.labels[splits.test[0].label] == "duplicate"
    write(tmp_path, "QQP/dev.tsv", [HEADERS["QQP"], "9\t1\t2\tone thing\tanother\t1", torn[0]])
    refused(lambda: load("qqp", tmp_path), "dev.tsv", "line 3", "4 fields where 6")
    write(tmp_path, "QQP/train.tsv", [HEADERS["QQP"], *good, *torn * 4])
    refused(lambda: load("qqp", tmp_path), "train.tsv", "12 of 42 rows")


def test_mnli_is_scored_on_both_sets_with_labels_by_name(tmp_path):
    mnli(tmp_path)
    splits = load("mnli", tmp_path)
    names = splits.task.labels
    assert [(e.text_a, names[e.label]) for e in splits.test] == [
        ("premise 900", "neutral"),
        ("premise 902", "entailment"),
    ]
    assert list(splits.tests) == ["matched", "mismatched"] and splits.tests["matched"] == splits.test
    (only,) = splits.extra_tests["mismatched"]
    assert (only.text_b, names[only.label]) == ("hypothesis 950", "contradiction")
    assert splits.dropped["without a label that annotators agreed on"] == 1
    assert "2 matched, 1 mismatched" in splits.describe()
    assert "training texts that are in the test set" not in {why for why, count in splits.dropped.items() if count}
    path = tmp_path / "MNLI/train.tsv"
    path.write_text(path.read_text().replace("premise 4\thypothesis 4", "premise 950\thypothesis 950"))
    assert load("mnli", tmp_path).dropped["training texts that are in the test set"] == 1, "in the mismatched one"
    path.write_text(path.read_text().replace("\tneutral\n", "\tneutrall\n", 1))
    refused(lambda: load("mnli", tmp_path), "train.tsv", "line 3", '"neutrall"', 'did you mean "neutral"')


def test_sts_b_keeps_ratings_as_floats_within_their_range(tmp_path):
    def row(i, score):
        return f"{i}\tmain-news\tMSRpar\t2012\t000{i}\tnone\tnone\tone {i}\ttwo {i}\t{score}"

    write(tmp_path, "STS-B/train.tsv", [HEADERS["STS-B"], *(row(i, i / 8) for i in range(40))])
    write(tmp_path, "STS-B/dev.tsv", [HEADERS["STS-B"], row(90, "3.800"), row(91, "0.000")])
    splits = load("sts-b", tmp_path)
    assert [e.label for e in splits.test] == [3.8, 0.0] and all(type(e.label) is float for e in everything(splits))
    assert splits.task.kind == "regression" and splits.counts()["test"] == {"examples": 2}
    write(tmp_path, "STS-B/dev.tsv", [HEADERS["STS-B"], row(90, "5.2")])
    refused(lambda: load("sts-b", tmp_path), "line 2", "5.2", "0 to 5")
    write(tmp_path, "STS-B/dev.tsv", [HEADERS["STS-B"], row(90, "nan")])
    refused(lambda: load("sts-b", tmp_path), "line 2", '"nan"', "number")


def test_mrpc_from_either_layout(tmp_path):
    """The download holds Microsoft's files; scripts make train.tsv and dev.tsv of them by the ids of dev_ids.tsv."""
    rows = [f'{i % 2}\t{100 + i}\t{200 + i}\tFirst {i} said "so.\tSecond {i} said.' for i in range(20)]
    mark = b"\xef\xbb\xbf"
    write(tmp_path, "one/MRPC/train.tsv", [HEADERS["MRPC"], *rows[2:]], start=mark)
    write(tmp_path, "one/MRPC/dev.tsv", [HEADERS["MRPC"], *rows[:2]], start=mark)
    made = load("mrpc", tmp_path / "one")
    write(tmp_path, "two/MRPC/msr_paraphrase_train.txt", [HEADERS["MRPC"], *rows], end="\r\n", start=mark)
    refused(lambda: load("mrpc", tmp_path / "two"), "dev_ids.tsv", "no such file")
    write(tmp_path, "two/MRPC/dev_ids.tsv", ["101\t201", "100\t200"], end="\r\n")
    assert load("mrpc", tmp_path / "two") == made
    assert [e.text_a for e in made.test] == ['First 0 said "so.', 'First 1 said "so.']
    assert [made.task.labels[e.label] for e in made.test] == ["different", "paraphrase"]
    refused(lambda: load("mrpc", tmp_path / "three"), "three: no such folder")
    (tmp_path / "three/mrpc").mkdir(parents=True)
    refused(lambda: load("mrpc", tmp_path / "three"), 'no folder "MRPC" in it; did you mean "mrpc"')
    (tmp_path / "three/mrpc").rename(tmp_path / "three/MRPC")
    refused(lambda: load("mrpc", tmp_path / "three"), "MRPC/train.tsv: no such file")


@pytest.mark.parametrize(("name", "folder"), [("rte", "RTE"), ("qnli", "QNLI"), ("wnli", "WNLI"), ("sst-2", "SST-2")])
def test_the_other_tasks_by_their_own_headers(tmp_path, name, folder):
    task = tasks.get(name)
    texts = ["{0} a", "{0} b"] if len(task.text_fields) == 2 else ["{0} a "]
    front = ["{0}"] if HEADERS[folder].startswith("index") else []

    def row(i):
        return "\t".join([*front, *texts, task.spellings[i % 2]]).format(i)

    write(tmp_path, f"{folder}/train.tsv", [HEADERS[folder], *map(row, range(30))])
    write(tmp_path, f"{folder}/dev.tsv", [HEADERS[folder], row(70), row(71)])
    splits = load(name, tmp_path)
    assert splits.test == (
        Example("70 a", "70 b" if len(texts) == 2 else None, 0),
        Example("71 a", "71 b" if len(texts) == 2 else None, 1),
    )
    assert load(name, tmp_path / folder) == splits, "the task's own folder will do"
    assert locate(tmp_path / folder, f"{folder}/dev.tsv") == tmp_path / folder / "dev.tsv"


def test_a_scored_row_is_never_left_out(tmp_path):
    """Published figures are over every row of the development set, one without a second text among them."""
    rows = [f"{i}\t{i} a\t{i} b\t{'not_' * (i > 16)}entailment" for i in range(20)]
    write(tmp_path, "RTE/train.tsv", [HEADERS["RTE"], *rows, "40\t40 a\t \tentailment"])
    write(tmp_path, "RTE/dev.tsv", [HEADERS["RTE"], "0\tx a\t \tentailment", "1\ty a\ty b\tnot_entailment"])
    splits = load("rte", tmp_path)
    assert [e.text_b for e in splits.test] == ["", "y b"] and splits.dropped["with empty text"] == 1


def test_pairs_of_one_premise_fall_on_one_side(tmp_path):
    rows = [f"{i}\tpremise number {i // 3} of all\thypothesis {i}\t{'not_' * (i % 2)}entailment" for i in range(300)]
    write(tmp_path, "RTE/train.tsv", [HEADERS["RTE"], *rows])
    write(tmp_path, "RTE/dev.tsv", [HEADERS["RTE"], "0\tx a\tx b\tentailment"])
    splits = load("rte", tmp_path)
    assert 10 < len(splits.validation) < 60 and len(everything(splits)) == 300
    assert not {e.text_a for e in splits.train} & {e.text_a for e in splits.validation}


def test_boolq_and_wic(tmp_path):
    def boolq(i):
        return {"question": f"is {i} even", "passage": f"About {i}.", "idx": i, "label": i % 2 == 0}

    write(tmp_path, "BoolQ/train.jsonl", [json.dumps(boolq(i)) for i in range(30)])
    write(tmp_path, "BoolQ/val.jsonl", [json.dumps(boolq(50))])
    splits = load("boolq", tmp_path)
    assert splits.test == (Example("is 50 even", "About 50.", 1),) and splits.task.labels[1] == "yes"

    def wic(i, word="place", **changes):
        one, two = f"Do you want to come over to my {word} later {i}?", f"A political {word} with no {word}"
        span = {"start1": one.index(word), "end1": one.index(word) + len(word), "start2": 12, "end2": 12 + len(word)}
        row = {"word": word, "sentence1": one, "sentence2": two, "idx": i, "label": i % 2 == 1, **span, "version": 1.1}
        return json.dumps(row | changes)

    write(tmp_path, "WiC/train.jsonl", [wic(i) for i in range(30)])
    write(tmp_path, "WiC/val.jsonl", [wic(61)])
    splits = load("wic", tmp_path)
    first = "place: Do you want to come over to my * place * later 61?"
    assert splits.test == (Example(first, "A political * place * with no place", 1),)
    write(tmp_path, "WiC/val.jsonl", [wic(61, end2=99)])
    refused(lambda: load("wic", tmp_path), "val.jsonl", "line 1", "end2 99", "no part of a text")
    write(tmp_path, "WiC/val.jsonl", [wic(61, start1="here")])
    refused(lambda: load("wic", tmp_path), "start1 and end1")


def test_without_a_folder_the_error_says_what_to_give():
    refused(lambda: load("cola"), "cola is not fetched", "folder", "GLUE publishes")
    refused(lambda: load("boolq"), "SuperGLUE publishes")


def test_every_benchmark_task_is_whole():
    assert [task.name for task in GLUE] == "cola sst-2 mrpc sts-b qqp mnli qnli rte wnli".split()
    for task in (*GLUE, *SUPERGLUE):
        assert task.hidden and task.sizes and task.reference and task.licence and task.main_metric in task.metrics
        assert len(task.sizes) == 3 + 2 * len(task.extra_tests)
