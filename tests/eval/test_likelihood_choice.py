"""Multiple choice by likelihood: by hand on a bigram, and each measure by literal numbers."""

import json

import numpy as np
import pytest

from eval.cli import evaluate
from eval.language.likelihood_choice import ChoiceScores, score_options
from tests.eval.table_model import LETTERS, Letters, bigram, log_softmax, random_table
from zoo.checkpoints import run_folder
from zoo.errors import InputError

LOG_P = log_softmax(random_table(8))


def path(text, before="<s>"):
    ids = [LETTERS.index(before), *Letters().encode(text)]
    return sum(LOG_P[x, y] for x, y in zip(ids, ids[1:], strict=False))


def test_by_hand_on_a_bigram(one):
    contexts, options = ["c", "bb"], [["b", "cca", "ab"], ["a", "c"]]
    found = score_options(*bigram(random_table(8)), Letters(), contexts, options, domain="", devices=one)
    for context, texts, values, prior in zip(contexts, options, found.log_probs, found.prior, strict=True):
        np.testing.assert_allclose(values, [path(" " + text, context[-1]) for text in texts], atol=1e-5)
        np.testing.assert_allclose(prior, [path(" " + text) for text in texts], atol=1e-5)
    assert [t.tolist() for t in found.tokens] == [[2, 4, 2], [2, 2]]
    assert [b.tolist() for b in found.bytes] == [[1, 3, 2], [1, 1]] and found.lost == 0
    both = zip(found.log_probs, found.prior, strict=True)
    assert found.predictions("acc_pmi").tolist() == [np.argmax(values - prior) for values, prior in both]


def test_each_measure_may_choose_another_option():
    found = ChoiceScores(
        log_probs=(np.array([-4.0, -5.0, -6.0, -7.0]),),
        tokens=(np.array([1, 2, 1, 1]),),
        bytes=(np.array([1, 2, 4, 2]),),
        prior=(np.array([-4.0, -5.0, -6.0, -9.0]),),
        lost=0,
    )
    chosen = {name: int(found.predictions(name)[0]) for name in ("acc", "acc_per_token", "acc_norm", "acc_pmi")}
    assert chosen == {"acc": 0, "acc_per_token": 1, "acc_norm": 2, "acc_pmi": 3}


def test_accuracy_with_intervals():
    values = tuple(np.array(v) for v in ([0.0, -1.0], [0.0, -1.0], [-1.0, 0.0], [0.0, -1.0, -2.0]))
    ones = tuple(np.ones(len(v), int) for v in values)
    found = ChoiceScores(values, ones, ones, None, 0)
    interval = found.accuracy([0, 1, 1, 0])["acc"]
    assert interval.mean == 0.75 and interval.n == 4
    assert interval.low == 0.0 and interval.high == 1.0  # 0.75 +- 3.18244631 * 0.5 / 2, cut off
    many = ChoiceScores(values[:1] * 15 + values[2:3], ones[:1] * 15 + ones[2:3], ones[:1] * 15 + ones[2:3], None, 0)
    interval = many.accuracy([0] * 16)["acc"]
    assert interval.mean == 15 / 16 and interval.low == pytest.approx(15 / 16 - 2.13144955 * 0.25 / 4, rel=1e-6)
    assert set(found.accuracy([0, 1, 1, 2])) == {"acc", "acc_norm", "acc_per_token"}
    with pytest.raises(InputError, match="question 0 has 2 options and label 2"):
        found.accuracy([2, 1, 1, 0])
    with pytest.raises(InputError, match="3 labels for 4 questions"):
        found.accuracy([0, 1, 1])
    with pytest.raises(InputError, match="pass domain"):
        found.predictions("acc_pmi")


def test_bad_input(one):
    model = bigram(random_table(8))
    with pytest.raises(InputError, match="question 1 has no option"):
        score_options(*model, Letters(), ["a", "b"], [["c"], []])
    with pytest.raises(InputError, match="1 contexts with 2 lists"):
        score_options(*model, Letters(), ["a"], [["c"], ["b"]])


def test_the_command(gpt, tokenizer, tmp_path, capsys):
    folder = tmp_path / "gpt"
    folder.mkdir()
    run_folder.save(*gpt, folder, tokenizer)
    data = tmp_path / "mine.jsonl"
    rows = [("hammer nail", ["saw", "plank glue"], 1), ("oven", ["bread", "butter", "spoon"], 0)]
    lines = [json.dumps({"context": c, "options": o, "label": i}) for c, o, i in rows]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["choose", str(folder), "--data", str(data), "--template", "Q: {context}\\nA:"]
    assert evaluate([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = score_options(
        *gpt, tokenizer, [f"Q: {c}\nA:" for c, _, _ in rows], [o for _, o, _ in rows], domain="A:"
    ).accuracy([1, 0])
    assert {name: found[name][0] for name in expected} == {name: one.mean for name, one in expected.items()}
    assert found["random"] == pytest.approx((1 / 2 + 1 / 3) / 2) and found["questions"] == 2
    assert evaluate(words) == 0
    shown = capsys.readouterr().out
    assert "likeliest per byte" in shown and "the same text" not in shown
    assert 'protocol: template "Q: {context}\\nA:", options\' own likelihood after "A:"; as many' in shown
    data.write_text(lines[0] + "\n" + lines[1].replace("butter", "bread") + "\n")
    assert evaluate(words) == 0
    assert "two options of the same text, of which the first counts as chosen: 1" in capsys.readouterr().out
    for wrong, line in (
        (["choose", str(folder), "--task", "tweets"], "task tweets is of kind classification; of multiple choice are "),
        (["choose", str(folder)], "give one of --task NAME"),
        ([*words[:4], "--template", "x"], "the template needs {context}, once"),
    ):
        assert evaluate(wrong) == 2
        assert line in capsys.readouterr().err
