"""python -m zoo embed and fill: what is printed and written, and errors of one line."""

import numpy as np
import pytest

import zoo
from zoo import cli
from zoo.command_line import run
from zoo.text_commands import lines

PATH = "oneblock/bert-tiny"


def command(*words) -> int:
    return run("zoo", cli.SUBCOMMANDS, [str(word) for word in words])


def vectors(texts, **options):
    return zoo.embed(*zoo.load(PATH), texts, tokenizer=zoo.load_tokenizer(PATH), **options)


def test_cosines_of_a_few_texts(capsys):
    texts = ["oil prices rose", "the price of oil went up", "my car"]
    assert command("embed", PATH, *texts) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "cosines, mean pooling of 128 features"
    found = vectors(texts)
    for number, (line, row) in enumerate(zip(out[2:], found @ found.T, strict=True)):
        assert line == f"{number + 1:>4}  " + "".join(f"{value:7.3f}" for value in row) + f"  {texts[number]}"


def test_vectors_of_a_file(tmp_path, capsys):
    texts = [f"oil number {number}" for number in range(13)]
    (tmp_path / "texts.txt").write_text("\n".join(texts[1:]) + "\n\n")
    out = tmp_path / "made" / "vectors.npy"
    words = ("embed", PATH, texts[0], "--data", tmp_path / "texts.txt", "--pooling", "cls", "--no-normalize")
    assert command(*words, "--out", out, "--max-length", 4) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}: 13 vectors of 128, cls pooling\n"
    assert said.err == "warning: 13 of 13 texts are longer than 4 tokens: their ends are left out\n"
    with pytest.warns(UserWarning):
        expected = vectors(texts, pooling="cls", normalize=False, max_length=4)
    np.testing.assert_array_equal(np.load(out, allow_pickle=False), expected)
    assert [path.name for path in out.parent.iterdir()] == ["vectors.npy"]


def test_gaps(capsys):
    assert command("fill", PATH, "The [MASK] of [MASK] rose.", "--top", "2") == 0
    out = capsys.readouterr().out.splitlines()
    found = zoo.fill_mask(*zoo.load(PATH), ["The [MASK] of [MASK] rose."], tokenizer=zoo.load_tokenizer(PATH), top=2)
    assert [line for line in out if not line.startswith("  ")] == ["The [MASK] of [MASK] rose.", "gap 1", "gap 2"]
    shares = [line.split()[0] for line in out if line.startswith("  ")]
    assert shares == [f"{guess.probability:.4f}" for gap in found[0] for guess in gap]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("embed", PATH), "there are no texts; write them behind the path"),
        (("embed", PATH, "a", "--out", "x.json"), '--out is "x.json"; name a .npy file, such as x.npy'),
        (("embed", PATH, ""), "text 0 of 1 is empty"),
        (("embed", PATH, "a", "--data", "absent.txt"), "no such file or folder: absent.txt"),
        (("embed", PATH, "a", "--pooling", "max"), "--pooling"),
        (("fill", PATH, "no gap"), "text 0 of 1 has no gap"),
        (("fill", "oneblock/gpt-tiny", "[MASK]"), "filling a gap needs a masked language model"),
        (("fill", PATH), "there are no texts"),
    ],
)
def test_bad_input_gets_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(*words) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("error: ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_line_ends_where_editors_end_it(tmp_path):
    """And not at the other characters that Unicode parts lines at: a text keeps its place among the vectors."""
    texts = ["a\u2028b", "c\x85d", "e\x0bf\x0cg", "h\x1ci\x1dj\x1ek", "l\u2029m", "n"]
    for end in ("\n", "\r\n"):
        (tmp_path / "texts.txt").write_bytes("".join(text + end for text in [*texts, "", " "]).encode())
        assert lines(tmp_path / "texts.txt") == texts


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"a\nb\xff\n", "line 2 is not UTF-8"), (b"a\n\nb\n", "line 2 is empty"), (b"\n", "holds no text")],
)
def test_files_of_texts(content, said, capsys, tmp_path):
    (tmp_path / "texts.txt").write_bytes(content)
    assert command("embed", PATH, "--data", tmp_path / "texts.txt") == 2
    assert said in capsys.readouterr().err
