"""Tasks read from small files in the very formats: labels by name, splits without leaks, budgets that nest."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import tasks
from eval.sources.rows import read_examples
from eval.sources.splits import fraction, group_keys, normalise
from eval.tasks import Example, from_file, load, subset, texts
from zoo.errors import InputError

WORDS = "bright cold film plot slow warm actor scene quiet music score ending".split()


def sentence(draw):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(5, 12)))


def ratings(folder, name, count=300):
    """A made-up ratings file of the four-domain set's format; returns the texts with a rating other than zero."""
    draw, lines, kept = random.Random(0), [], []
    for i in range(count):
        rating = draw.choice([-2.5, -0.1, 0.0, 0.25, 3.5])
        text = f"{sentence(draw)} n{i}"
        lines.append(f"{i // 3}_{i % 3}\t{rating}\t{text}")
        kept += [text] * (rating != 0)
    (folder / name).write_bytes("\r\n".join([*lines, f"{count}_0\t1.5\t  "]).encode())
    return kept


def newsgroups(folder):
    header = "Category\tText\nd\tstring\nclass\t\n"
    rows = [f"{('acq', 'earn')[i % 2]}\tbody {i} words of text {i}" for i in range(60)]
    (folder / "reuters-r8-train.tab").write_text(header + "\n".join([*rows, "earn\tShared, text!"]) + "\n")
    (folder / "reuters-r8-test.tab").write_text(header + "earn\tshared text\nacq\tonly here\n")


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def all_texts(examples):
    return [example.text_a for example in examples]


def test_ratings_become_labels_by_sign(tmp_path):
    kept = ratings(tmp_path, "movieReviewSnippets_GroundTruth.txt")
    splits = load("movie-sentences", tmp_path)
    everything = [*splits.train, *splits.validation, *splits.test]
    assert Counter(all_texts(everything)) == Counter(kept)
    assert splits.dropped == {"with zero rating": 300 - len(kept), "with empty text": 1}
    assert splits.task.labels == ("negative", "positive")
    by_text = dict(line.split("\t")[2:0:-1] for line in (tmp_path / splits.task.train_file).read_text().splitlines())
    assert all(example.label == (float(by_text[example.text_a]) > 0) for example in everything)
    assert splits.counts()["test"]["positive"] == sum(example.label for example in splits.test)
    assert f"{len(splits.train)} train" in splits.describe() and "with zero rating" in splits.describe()


def test_a_split_depends_on_the_text_and_not_on_its_place(tmp_path):
    ratings(tmp_path, "tweets_GroundTruth.txt")
    path = tmp_path / "tweets_GroundTruth.txt"
    first = load("tweets", tmp_path)
    lines = path.read_text().splitlines()
    random.Random(1).shuffle(lines)
    path.write_text("\n".join(lines))
    second = load("tweets", tmp_path)
    for split in ("train", "validation", "test"):
        assert set(getattr(first, split)) == set(getattr(second, split))
    shares = [len(getattr(first, split)) / 240 for split in ("train", "validation", "test")]
    assert 0.55 < shares[0] < 0.8 and 0.02 < shares[1] < 0.13 and 0.15 < shares[2] < 0.35


def test_sentences_of_one_review_stay_together(tmp_path):
    ratings(tmp_path, "amazonReviewSnippets_GroundTruth.txt")
    splits = load("amazon-sentences", tmp_path)
    lines = (tmp_path / splits.task.train_file).read_text().splitlines()
    review = {line.split("\t")[2]: line.split("_")[0] for line in lines}
    sides = [{review[text] for text in all_texts(getattr(splits, split))} for split in ("train", "validation", "test")]
    assert all(sides) and not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])


def test_equal_and_nearly_equal_texts_share_a_key():
    near = "the acting alone is worth the price of a ticket today"
    keys = group_keys(
        ["Great film!!", "great film", near, near.replace("acting", "music"), "another thing altogether", "!"]
    )
    assert keys[0] == keys[1] == "great film"
    assert keys[2] == keys[3] and len({keys[0], keys[2], keys[4], keys[5]}) == 4
    assert group_keys(["a b", "c d", "e f"], ["x", "y", "x"]) == ["a b", "c d", "a b"]
    apart = group_keys([near, near.replace("acting", "music")], near=False)
    assert apart[0] != apart[1]


def test_hash_of_a_text_is_pinned():
    """Splits must not move between versions: published numbers would no longer compare."""
    assert fraction("great film", "test") == pytest.approx(0.4569037, abs=1e-7)
    assert normalise("  It's GREAT -- 10/10!  ") == "it s great 10 10" and normalise(" :) ") == ":)"


def test_published_splits_are_kept_and_their_overlap_leaves_the_training_set(tmp_path):
    newsgroups(tmp_path)
    splits = load("reuters-r8", tmp_path)
    assert all_texts(splits.test) == ["shared text", "only here"]
    assert [splits.task.labels[e.label] for e in splits.test] == ["earn", "acq"]
    assert len(splits.train) + len(splits.validation) == 60
    assert splits.dropped["training texts that are in the test set"] == 1
    corpus = texts("reuters-r8", tmp_path)
    assert corpus == tuple(all_texts(splits.train))
    assert not {normalise(t) for t in corpus} & {normalise(t) for t in all_texts(splits.test + splits.validation)}


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_a_file_of_ones_own(tmp_path, suffix):
    draw = random.Random(2)
    rows = [(sentence(draw) + f" n{i}", str((i * 5) % 12)) for i in range(120)]
    path = tmp_path / f"mine.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(json.dumps({"sentence": text, "y": int(label)}) for text, label in rows))
    else:
        mark = {"tsv": "\t", "csv": ","}[suffix]
        path.write_text("\n".join(mark.join(row) for row in [("sentence", "y"), *rows]))
    splits = from_file(path)
    assert splits.task.labels == tuple(str(i) for i in range(12)), "numbers are ordered as numbers"
    found = {(e.text_a, splits.task.labels[e.label]) for e in splits.train + splits.validation + splits.test}
    assert found == set(rows)
    assert splits.train and splits.test


def test_pairs_and_a_test_file(tmp_path):
    lines = [{"q": f"question {i}", "s": f"answer {i}", "y": "yes" if i % 2 else "no"} for i in range(40)]
    train, test = tmp_path / "train.jsonl", tmp_path / "test.csv"
    train.write_text("\n".join(map(json.dumps, lines)))
    test.write_text("y,q,s\nyes,question 3,answer 3\nno,question 3,answer 4\n")
    splits = from_file(train, text="q", text_b="s", test=test, labels=("yes", "no"))
    assert splits.test == (Example("question 3", "answer 3", 0), Example("question 3", "answer 4", 1))
    assert splits.dropped["training texts that are in the test set"] == 1
    assert len(splits.train) + len(splits.validation) == 39
    assert len(texts(splits)) == 2 * len(splits.train)


def test_bad_files_are_refused_by_name(tmp_path):
    def file(content, name="mine.tsv"):
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / name

    body = "\n".join(f"text number {i}\t{'ab'[i % 2]}" for i in range(40))
    good = f"sentence\ty\n{body}\n"
    refused(lambda: from_file(file(good), label="label_y"), '"label_y"', "sentence, y")
    refused(lambda: from_file(file(good), text="sentense"), 'did you mean "sentence"')
    refused(lambda: from_file(file(good), labels=("a", "bb")), "line 3", '"b"', 'did you mean "bb"')
    refused(lambda: from_file(file(good.replace("\tb", "\ta"))), "one class only", '"a"')
    benchmark = replace(from_file(file(good)).task, benchmark="GLUE")  # of whose rows none is left out in silence
    refused(lambda: read_examples(benchmark, file(good.replace("\tb", "\t "))), "line 3", '"y" is empty')
    refused(lambda: from_file(file("sentence\ty\nx\ta\n")), "more are needed")
    refused(lambda: from_file(file("sentence\ty\n \ta\n")), "no row with a text", "1 with empty text")
    refused(lambda: from_file(file("")), "empty")
    refused(lambda: from_file(file(good.encode() + b"caf\xe9\ta\n")), "line 42", "0xe9")
    refused(lambda: from_file(file(good, "mine.txt")), '".txt"', ".tsv")
    scores = "sentence\ty\n" + "\n".join(f"text number {i}\t{i / 7}" for i in range(80))
    refused(lambda: from_file(file(scores)), "80 values in 80 rows")
    refused(lambda: from_file(file('{"sentence": "a", "y": 1}\n{"y": 1}\n', "mine.jsonl")), "line 2", '"sentence"')


def test_bad_ratings_and_unknown_names(tmp_path):
    (tmp_path / "tweets_GroundTruth.txt").write_text("1\tgood\tsome text\n")
    refused(lambda: load("tweets", tmp_path), "line 1", '"good"', "number")
    refused(lambda: load("tweet"), 'did you mean "tweets"')
    refused(lambda: load("movie-sentences", tmp_path), "movieReviewSnippets_GroundTruth.txt", "no such file")
    refused(lambda: tasks.get("reuters-r8").label_index("earnings"), 'did you mean "earn"')
    assert tasks.get("reuters-r8").label_index("earn") == 2
    newsgroups(tmp_path)
    path = tmp_path / "reuters-r8-train.tab"
    path.write_text(path.read_text() + "acqq\tlast\n")
    refused(lambda: load("reuters-r8", tmp_path), "line 65", '"acqq"', 'did you mean "acq"')


def test_every_task_is_described_completely():
    for name, task in tasks.TASKS.items():
        assert task.name == name and task.num_labels == len(set(task.labels))
        assert task.num_labels >= 2 if task.kind in ("classification", "tagging") else not task.labels
        assert task.main_metric in task.metrics and task.licence and task.reference and (task.source or task.benchmark)
        assert task.sizes and task.label_field not in task.text_fields
    assert len({task.title for task in tasks.TASKS.values()}) == len(tasks.TASKS)


def test_ratings_are_predicted_as_numbers(tmp_path):
    ratings(tmp_path, "movieReviewSnippets_GroundTruth.txt")
    signs, numbers = load("movie-sentences", tmp_path), load("movie-ratings", tmp_path)
    assert numbers.task.kind == "regression" and numbers.task.main_metric == "pearson"
    everything = [*numbers.train, *numbers.validation, *numbers.test]
    assert len(everything) == 300, "a rating of zero is a rating"
    assert {e.label for e in everything} == {-2.5, -0.1, 0.0, 0.25, 3.5}
    assert set(all_texts(signs.test)) <= set(all_texts(numbers.test)), "a text is on the same side in both"
    few = subset(numbers.train, 20, 0)
    assert len(few) == 20 and few == subset(numbers.train, 50, 0)[:20]
    pool = [Example(f"text {i}", None, 0.0 if i % 2 else i / 100) for i in range(200)]
    assert 20 < sum(e.label == 0.0 for e in subset(pool, 60, 0)) < 40, "a rating is no class of its own"


def test_a_file_of_ratings_of_ones_own(tmp_path):
    draw = random.Random(3)
    rows = [(f"{sentence(draw)} n{i}", f"{draw.uniform(-3, 3):.2f}") for i in range(80)]
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join("\t".join(row) for row in [("remark", "score"), *rows]))
    splits = from_file(path, kind="regression")
    assert splits.task.label_field == "score" and splits.task.text_fields == ("remark",)
    assert splits.task.metrics == ("pearson", "spearman", "mean_absolute_error")
    found = {(e.text_a, e.label) for e in splits.train + splits.validation + splits.test}
    assert found == {(text, float(value)) for text, value in rows}
    refused(lambda: from_file(path), "score", "remark")
    refused(lambda: from_file(path, label="score"), "values in 80 rows", "regression")
    refused(lambda: from_file(path, kind="regression", labels=("1", "2")), "names of labels", "regression")
    refused(lambda: from_file(path, kind="regresion"), 'did you mean "regression"')
    path.write_text(path.read_text().replace(rows[4][1], "3,5"))
    refused(lambda: from_file(path, text="remark", label="score", kind="regression"), "line 6", '"3,5"', "number")
    path.write_text("remark\tscore\n" + "\n".join(f"{text}\t2.0" for text, _ in rows))
    refused(lambda: from_file(path, text="remark", label="score", kind="regression"), "rating 2", "differ")


def test_labels_never_reach_the_input(tmp_path):
    path = tmp_path / "mine.tsv"
    draw = random.Random(4)
    rows = [f"{'good' if i % 2 else 'bad'}\t{sentence(draw)} n{i}\t{'good' if i % 2 else 'bad'}" for i in range(60)]
    path.write_text("\n".join(["copy\tremark\ty", *rows]))
    assert not from_file(path, text="remark", label="y").warnings
    refused(lambda: from_file(path, text="y", label="y"), '"y" is named twice')
    refused(lambda: from_file(path, text="remark", text_b="y", label="y"), '"y" is named twice')
    refused(lambda: from_file(path, text="copy", label="y"), '60 of 60 texts in column "copy"', "their own label")
    refused(lambda: from_file(path, text="remark", text_b="copy", label="y"), "their own label")
    parts = [row.split("\t") for row in rows]
    path.write_text("\n".join(["remark\ty", *(f"{copy.upper()}: {text}\t{y}" for copy, text, y in parts)]))
    splits = from_file(path)
    assert "60 of 60" in splits.warnings[0] and "begin or end" in splits.warnings[0]
    assert "warning: " in splits.describe()


def test_doubtful_files_are_warned_of(tmp_path):
    path = tmp_path / "mine.tsv"
    draw = random.Random(5)
    rows = [f"{sentence(draw)} n{i}\t{'ab'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["remark\ty", *rows, "The very same.\ta", "the VERY same!\tb"]))
    splits = from_file(path)
    assert splits.warnings == ("texts that stand in the file with more than one label: 1",)
    path.write_text("\n".join(["remark\ty", *rows]))
    assert from_file(path, labels=("a", "b", "c")).warnings == ("no training text has the label c",)
    assert from_file(path).warnings == ()
    refused(lambda: from_file(path, main_metric="acuracy"), 'did you mean "accuracy"')
    refused(lambda: from_file(path, main_metric="pearson"), 'no metric "pearson" of classification')
    refused(lambda: from_file(path, labels=("a", "b", "c"), main_metric="f1"), "two classes, and these are 3")
    assert from_file(path, main_metric="f1").task.metrics == ("f1", "accuracy", "macro_f1")


POOL = tuple(Example(f"text {i}", None, label) for i, label in enumerate([0] * 70 + [1] * 25 + [2] * 4 + [3]))


@given(st.permutations(range(len(POOL))), st.integers(0, 5), st.integers(1, 99), st.integers(1, 99))
def test_budgets_nest_and_hold_every_class(order, seed, fewer, more):
    fewer, more = sorted((fewer, more))
    small = subset([POOL[i] for i in order], fewer, seed)
    large = subset(POOL, more, seed)
    assert large[:fewer] == small, "a prefix of the larger draw, whatever the order of the pool"
    assert len(set(small)) == fewer and set(small) <= set(POOL)
    counts = Counter(example.label for example in small)
    assert len(counts) == 4 if fewer >= 4 else len(counts) == fewer
    for label, size in ((0, 70), (1, 25), (2, 4), (3, 1)):
        assert abs(counts[label] - fewer * size / 100) <= 2.5


def test_budgets_differ_by_seed_and_have_bounds():
    assert set(subset(POOL, 50, 0)) != set(subset(POOL, 50, 1))
    assert set(subset(POOL, None, 0)) == set(POOL) and subset(POOL, None, 3) == subset(POOL, 100, 3)
    for bad in (0, -1, 101):
        refused(lambda bad=bad: subset(POOL, bad, 0), str(bad), "100 training examples; take 2 to all of them")
    refused(lambda: subset([replace(e, label=0.5) for e in POOL], 0, 0), "take 1 to all of them")  # ratings
