"""Near copies between training and test set, against a plain definition; published splits say how many there are."""

import random

from hypothesis import given
from hypothesis import strategies as st

from eval.sources import leakage
from eval.sources.leakage import near_copies
from eval.sources.splits import normalise
from eval.tasks import Example, load

WORDS = st.lists(st.sampled_from("a b".split()), min_size=0, max_size=9).map(" ".join)


def runs(text):
    words = text.split()
    return {tuple(words[k : k + 3]) for k in range(max(1, len(words) - 2))}


def plainly(train, test):
    """Half or more of the 3-word runs of both are the same."""
    return sum(any(2 * len(runs(a) & runs(b)) >= len(runs(a) | runs(b)) for a in train) for b in test)


@given(st.lists(WORDS, min_size=1, max_size=8), st.lists(WORDS, min_size=1, max_size=8))
def test_counts_what_the_definition_says(train, test):
    assert near_copies(train, test) == plainly(train, test)


def test_literal_near_copies():
    text = "the acting alone is worth the price of a ticket today"
    assert near_copies([text], [text, text.replace("acting", "music"), "another thing altogether"]) == 2
    assert near_copies([text.replace("price", "cost").replace("alone", "too")], [text]) == 0
    assert near_copies(["one two"], ["one two", "one", "two one", "one two three"]) == 1
    assert near_copies(["a b c d"], ["a b c d e f"]) == 1, "2 of 4 runs is half"
    assert near_copies(["a b c d"], ["a b c d e f g"]) == 0, "2 of 5 is less"
    assert near_copies([], ["one two"]) == 0


def test_large_data_are_not_looked_through(monkeypatch):
    monkeypatch.setattr(leakage, "NEAR_LIMIT", 10)
    assert near_copies(["one two three"], ["one two three"]) is None


def test_published_splits_report_equal_and_near_texts(tmp_path):
    draw = random.Random(0)
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
    texts = [" ".join(draw.choice(words) for _ in range(12)) + f" n{i}" for i in range(60)]
    header = "Category\tText\nd\tstring\nclass\t\n"
    row = "{}\t{}".format
    train = [row(("acq", "earn")[i % 2], text) for i, text in enumerate(texts)]
    test = [row("acq", texts[0].upper()), row("earn", texts[1] + " more words here"), row("earn", "nothing like it")]
    (tmp_path / "reuters-r8-train.tab").write_text(header + "\n".join(train) + "\n")
    (tmp_path / "reuters-r8-test.tab").write_text(header + "\n".join(test) + "\n")
    splits = load("reuters-r8", tmp_path)
    assert splits.dropped == {"training texts that are in the test set": 1}
    assert splits.near == 1
    assert "1 training texts that are in the test set; 1 test texts have a near copy in training" in splits.describe()
    left = {normalise(e.text_a) for e in (*splits.train, *splits.validation)}
    assert not left & {normalise(e.text_a) for e in splits.test}


def test_splits_of_ones_own_leave_no_near_copy(tmp_path):
    draw = random.Random(1)
    words = "red green blue black white grey pink brown".split()
    rows = [" ".join(draw.choice(words) for _ in range(8)) + f" n{i // 2}" for i in range(0, 200, 2) for _ in range(2)]
    lines = [f"{i}\t{1 - 2 * (i % 2)}\t{text}" for i, text in enumerate(rows)]
    (tmp_path / "tweets_GroundTruth.txt").write_text("\n".join(lines))
    splits = load("tweets", tmp_path)
    assert splits.near == 0 and splits.test and isinstance(splits.test[0], Example)
    assert "near copy" not in splits.describe()
