"""Tagged sentences from a file, their splits and their counts."""

import pytest

from eval.sources.tagged import TaggedExample, read
from eval.tasks import get, load, subset, texts
from zoo.errors import InputError

TASK = get("twitter-ner")


def write(folder, text):
    (folder / "ner.txt").write_text(text)
    return folder / "ner.txt"


def index(*names):
    return tuple(TASK.labels.index(name) for name in names)


def test_sentences_are_read_as_they_are(tmp_path):
    lines = ["Empire\tB-facility", "State\tI-facility", "=\tO", "\t", "", '"\tO\r', "RT\tO", "", ""]
    path = write(tmp_path, "\n".join([*lines, "-DOCSTART- O", "", "x O", ""]))
    examples, families, dropped = read(TASK, path)
    assert examples == [
        TaggedExample(("Empire", "State", "="), index("B-facility", "I-facility", "O")),
        TaggedExample(('"', "RT"), index("O", "O")),
        TaggedExample(("x",), index("O")),
    ]
    assert families is None and dropped == {} and examples[0].texts == ("Empire State =",)


def test_columns_between_word_and_tag_are_passed_over(tmp_path):
    examples, _, _ = read(TASK, write(tmp_path, "EU NNP B-NP B-company\nrejects VBZ B-VP O\n"))
    assert examples == [TaggedExample(("EU", "rejects"), index("B-company", "O"))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tO\nb\n", ["line 2", "word and its tag"]),
        ("a\tO\n\tB-person\n", ["line 2", "word and its tag"]),
        ("a\tB-persn\n", ["line 1", '"B-persn"', 'did you mean "B-person"']),
        ("\n\n \n\n", ["empty"]),
        ("-DOCSTART- O\n", ["no sentence"]),
    ],
)
def test_faulty_lines_are_named(tmp_path, text, words):
    with pytest.raises(InputError) as caught:
        read(TASK, write(tmp_path, text))
    assert all(word in str(caught.value) for word in ["ner.txt", *words]) and "\n" not in str(caught.value)


def test_splits_of_sentences_do_not_leak(tmp_path):
    """Equal sentences, and those that differ in a word, are on one side; labels are counted by tag."""
    own = "Jim{0}\tB-person\n" + "".join(f"{word}{{0}}\tO\n" for word in "saw many old ships there today".split())
    blocks = [own.format(i) + f"y{i}{'z' * j}\tO\n" for i in range(60) for j in range(2)]
    write(tmp_path, "\n".join(blocks))
    splits = load("twitter-ner", tmp_path)
    sides = [{e.words[0] for e in getattr(splits, part)} for part in ("train", "validation", "test")]
    assert sides[0] and sides[2] and not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    counts = splits.counts()
    assert sum(c["B-person"] for c in counts.values()) == 120 and counts["test"]["O"] == 7 * len(splits.test)
    assert subset(splits.train, 5, 0) == subset(splits.train, 9, 0)[:5]
    assert texts(splits)[0] == " ".join(splits.train[0].words)
    assert splits.describe().startswith("twitter-ner: ")
