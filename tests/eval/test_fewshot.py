"""Few-shot prompting: prompts by the letter, answers by hand on a bigram, spreads over seeds and orders."""

import json

import numpy as np
import pytest

from eval import fewshot
from eval.cli import evaluate
from eval.examples import Example
from eval.fewshot import Prompted, baselines, measure, prompts_of, requests, summarise
from eval.language.prompts import Template, draw_shots, make_template
from eval.task import Task
from tests.eval.table_model import LETTERS, Letters, bigram, log_softmax, random_table
from zoo.checkpoints import run_folder
from zoo.errors import InputError

TASK = Task("moods", "Moods", ("very_bad", "good"), ("text",), "y", "")
PAIRS = Task("pairs", "Pairs", ("no", "yes"), ("one", "two"), "y", "")
LOG_P = log_softmax(random_table(7))


def test_a_prompt_by_the_letter():
    form = make_template(TASK)
    shots = [Example("so\n dull", None, 0), Example("fine {label}", None, 1)]
    assert form.prompt(shots, "well {text}") == (
        "Label each text: very bad or good.\n\n"
        "Text: so dull\nLabel: very bad\n\n"
        "Text: fine {label}\nLabel: good\n\n"
        "Text: well {text}\nLabel: "
    )
    pair = make_template(PAIRS, "{text} / {text_b}? {label}.\n", {"no": "never"}, "")
    assert pair.prompt([Example("a", "b", 0)], "c", "{text}") == "a / b? never.\nc / {text}? "
    assert make_template(PAIRS).question("a", "b") == "First text: a\nSecond text: b\nLabel: "


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"body": "{txt} {label}"}, r'the template names \{txt\}; did you mean "text"\?'),
        ({"body": "{text} {text_b} {label}"}, r"the template names \{text_b\}"),
        ({"body": "{text}"}, r"the template needs \{text\} and after it \{label\}, once"),
        ({"body": "{label} {text}"}, r"the template needs \{text\}"),
        ({"words": {"goood": "x"}}, 'no label "goood"; did you mean "good"'),
        ({"words": {"good": "very bad"}}, 'two labels are written "very bad"'),
        ({"words": {"good": " "}}, 'label "good" has no word'),
    ],
)
def test_templates_that_cannot_be(words, line):
    with pytest.raises(InputError, match=line):
        make_template(TASK, **words)


def test_shots_are_stratified_and_orders_permute_them():
    train = [Example(f"text {i}", None, i % 2) for i in range(40)]
    first = draw_shots(train, 8, seed=0)
    assert sorted(e.label for e in first) == [0] * 4 + [1] * 4
    assert draw_shots(train, 8, seed=0) == first and draw_shots(train, 8, seed=1) != first
    other = draw_shots(train, 8, seed=0, order=1)
    assert other != first and set(other) == set(first)
    assert draw_shots(train, 0, seed=3) == ()


def test_there_is_nothing_to_draw_without_examples_and_nothing_to_order_with_one():
    two = [(2, seed, order) for seed in (0, 1) for order in (0, 1)]
    assert prompts_of([0, 1, 2], 2, 2) == [(0, 0, 0), (1, 0, 0), (1, 1, 0), *two]


def test_answers_by_hand_on_a_bigram(one, monkeypatch):
    """The letter before the label decides, and the content-free text's letter is taken off."""
    a, b, c = (LETTERS.index(x) for x in "abc")
    form = Template("{text}{label} ", ("b", "ca"))
    train = [Example(f"{x}c", None, i) for x in ("c", "cc", "b", "bb") for i in (0, 1)]
    test = [Example("bc", None, 0), Example("bb", None, 1), Example("cb", None, 1)]
    found = measure(*bigram(random_table(7)), Letters(), form, train, test, (4, 0, 0), content_free="c", devices=one)
    for row, last in zip(found.log_probs, (c, b, b), strict=True):
        np.testing.assert_allclose(row, [LOG_P[last, b], LOG_P[last, c] + LOG_P[c, a]], atol=1e-5)
    np.testing.assert_allclose(found.content_free, [LOG_P[c, b], LOG_P[c, c] + LOG_P[c, a]], atol=1e-5)
    assert found.tokens.tolist() == [[1, 2]] * 3 and found.lost == 0 and found.labels.tolist() == [0, 1, 1]
    monkeypatch.setattr(fewshot, "BLOCK", 3)
    again = measure(*bigram(random_table(7)), Letters(), form, train, test, (4, 0, 0), content_free="c", devices=one)
    np.testing.assert_allclose(again.log_probs, found.log_probs, atol=1e-5)


def test_methods_and_their_scores():
    log_probs = np.log([[0.5, 0.2], [0.5, 0.3], [0.4, 0.1]])
    found = Prompted(4, 0, 0, log_probs, np.array([[1, 2]] * 3), np.log([0.6, 0.2]), np.array([0, 1, 1]), 0)
    assert found.predictions("raw").tolist() == [0, 0, 0]
    assert found.predictions("per token").tolist() == [0, 1, 0]  # sqrt(0.3) = 0.548 beats 0.5, sqrt(0.2) does not
    assert found.predictions("calibrated").tolist() == [1, 1, 0]  # 0.5/0.6 < 0.2/0.2; 0.4/0.6 > 0.1/0.2
    assert found.scores("per token")["accuracy"] == pytest.approx(2 / 3)


def _answers(shots, seed, order, predictions, labels):
    log_probs = np.where(np.arange(2) == np.array(predictions)[:, None], 0.0, -5.0)
    return Prompted(shots, seed, order, log_probs, np.ones((len(labels), 2), int), np.zeros(2), np.array(labels), 1)


def test_summary_over_seeds_orders_and_texts():
    labels = [0, 0, 1, 1]
    found = [
        _answers(4, 0, 0, [0, 0, 1, 1], labels),  # 1.0
        _answers(4, 0, 1, [0, 0, 0, 1], labels),  # 0.75
        _answers(4, 1, 0, [1, 0, 0, 1], labels),  # 0.5
        _answers(4, 1, 1, [1, 1, 0, 1], labels),  # 0.25
    ]
    raw = summarise(found)[0]
    assert raw.method == "raw" and raw.accuracy.mean == pytest.approx(0.625) and raw.accuracy.n == 2
    assert raw.seeds_range == pytest.approx((0.375, 0.875)) and raw.orders_range == pytest.approx(0.25)
    # 0.625 +- 12.7062047 * 0.25: two draws say nothing, and an accuracy lies between 0 and 1.
    assert (raw.accuracy.low, raw.accuracy.high) == (0.0, 1.0)
    assert raw.on_texts.mean == pytest.approx(0.625) and raw.on_texts.n == 4 and raw.lost == 4
    alone = summarise(found[:1])[0]
    assert alone.accuracy.low is None and alone.orders_range is None


def test_baselines():
    train = [Example("x", None, i) for i in (0, 1, 1)]
    assert baselines(train, [Example("x", None, i) for i in (1, 0, 0, 0)], 2) == {"majority": 0.25, "random": 0.5}


def test_requests_end_with_the_content_free_text():
    form = make_template(PAIRS, "{text}+{text_b}={label};", None, "")
    train = [Example("p", "q", 1), Example("r", "s", 0)]
    made = requests(form, train, [Example("a", "b", 0)], (1, 0, 0))
    shot = form.shot(draw_shots(train, 1, 0)[0])
    assert made == [(f"{shot}{asked}=", word) for asked in ("a+b", "N/A+N/A") for word in ("no", "yes")]


@pytest.fixture(scope="module")
def source(gpt, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    run_folder.save(*gpt, folder, tokenizer)
    return str(folder)


SHORT = ["--shots", "0,2", "--seeds", "2", "--test-limit", "6", "--template", "{text} {label}\\n", "--intro", ""]


def test_the_command_tells_the_time_then_the_numbers(source, table, capsys):
    assert evaluate(["fewshot", source, "--data", table, *SHORT, "--plan"]) == 0
    out = capsys.readouterr().out
    assert "3 prompts on 6 test texts: " in out and "tokens through the model, about" in out
    assert evaluate(["fewshot", source, "--data", table, *SHORT, "--orders", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(cell["shots"], cell["seed"], cell["order"]) for cell in found["prompts"]] == fewshot_cells(found)
    assert found["template"]["body"] == "{text} {label}\n" and found["baselines"]["random"] == 0.5
    means = [cell["raw"]["accuracy"] for cell in found["prompts"] if cell["shots"] == 2]
    summary = next(s for s in found["summaries"] if s["shots"] == 2 and s["method"] == "raw")
    assert summary["accuracy"]["mean"] == pytest.approx(np.mean(means))


def fewshot_cells(found):
    assert [s["method"] for s in found["summaries"]] == [*fewshot.METHODS] * 2
    return [(0, 0, 0), (2, 0, 0), (2, 0, 1), (2, 1, 0), (2, 1, 1)]


def test_the_table(source, table, capsys):
    assert evaluate(["fewshot", source, "--data", table, *SHORT]) == 0
    out = capsys.readouterr().out
    assert "calibrated" in out and "always the commonest label: 0." in out and "6 test texts" in out
    said = 'protocol: template "{text} {label}\\n", answers "kitchen, sea"; seeds 0, 1 of the examples, '
    said += 'orders of each: 1; calibrated by "N/A"; as many tokens as the model has positions'
    assert said in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--task", "twets"], 'no task "twets"; did you mean "tweets"?'),
        ([], "give one of --task NAME"),
        (["MINE", "--shots", "few"], '--shots holds "few"; whole numbers from 0 on'),
        (["MINE", "--seeds", "0"], "--seeds is 0; it must be 1 or more"),
        (["MINE", "--shots", "900"], "--shots 900 exceed the "),
        (["MINE", "--verbaliser", "sea:x"], '--verbaliser holds "sea:x"; name=word'),
        (["MINE", "--verbaliser", "see=x"], 'no label "see"; did you mean "sea"?'),
        (["MINE", "--template", "{text}"], "the template needs {text} and after it {label}, once"),
    ],
)
def test_bad_input_is_one_line(words, line, source, table, capsys):
    words = [part for word in words for part in (["--data", table] if word == "MINE" else [word])]
    assert evaluate(["fewshot", source, *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and line in err


def test_encoders_are_refused(bert, tokenizer, table, tmp_path, capsys):
    (tmp_path / "b").mkdir()
    run_folder.save(*bert, tmp_path / "b", tokenizer)
    assert evaluate(["fewshot", str(tmp_path / "b"), "--data", table]) == 2
    assert "need a causal language model, and this one sees both ways" in capsys.readouterr().err
