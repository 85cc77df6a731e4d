"""Perplexity: windows by literal numbers, a bigram by hand, sums that do not depend on windows, masked models."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from eval.cli import evaluate
from eval.perplexity import causal_rows, ends, masked_rows, measure, window
from tests.eval.table_model import LETTERS, Letters, bigram, log_softmax, random_table
from zoo.checkpoints import run_folder
from zoo.errors import InputError

TABLE = random_table(2)
LOG_P = log_softmax(TABLE)


@pytest.fixture(scope="module")
def table_model():
    return bigram(TABLE)


@pytest.fixture(scope="module")
def masked(tokenizer):
    sizes = {"embed_dim": 32, "num_heads": 2, "num_layers": 1, "max_positions": 32, "initializer_range": 0.3}
    model = zoo.create("bert-tiny", vocab_size=tokenizer.vocab_size, head="masked_lm", pooler=False, **sizes)
    return model, model.init(jax.random.key(3))


def test_windows_of_four_that_move_by_two():
    """Ids 3..9 after BOS (1): each is a label once, with two tokens of its text or more before it."""
    ids = list(range(3, 10))
    rows = causal_rows(Letters(), ids, length=4, stride=2)
    assert [(row.inputs, row.places, row.labels) for row in rows] == [
        ([1, 3, 4, 5], (0, 1, 2, 3), (3, 4, 5, 6)),
        ([1, 5, 6, 7], (2, 3), (7, 8)),
        ([1, 6, 7, 8], (3,), (9,)),
    ]
    rows = causal_rows(Letters(adds_bos=False), ids, length=4, stride=2)
    assert [(row.inputs, row.labels) for row in rows] == [
        ([1, 3, 4, 5], (3, 4, 5, 6)),
        ([4, 5, 6, 7], (7, 8)),
        ([5, 6, 7, 8], (9,)),
    ]


def test_stride_as_long_as_the_window_makes_independent_blocks():
    rows = causal_rows(Letters(), list(range(3, 11)), length=4, stride=4)
    blocks = [causal_rows(Letters(), block, length=4, stride=4) for block in ([3, 4, 5, 6], [7, 8, 9, 10])]
    assert [(list(r.inputs), r.places, r.labels) for r in rows] == [
        (list(b.inputs), b.places, b.labels) for part in blocks for b in part
    ]
    rows = causal_rows(Letters(adds_bos=False), list(range(3, 11)), length=4, stride=4)
    assert [row.inputs for row in rows] == [[1, 3, 4, 5], [6, 7, 8, 9]]  # 7 is predicted from 6


def test_a_first_token_that_is_given():
    rows = causal_rows(Letters(adds_bos=False), [3, 4, 5, 6, 7], length=3, stride=1, given=1)
    assert [(row.inputs, row.labels) for row in rows] == [([3, 4, 5], (4, 5, 6)), ([4, 5, 6], (7,))]
    rows = causal_rows(Letters(), [3, 4, 5], length=4, stride=2, given=1)
    assert [(row.inputs, row.places, row.labels) for row in rows] == [([1, 3, 4], (1, 2), (4, 5))]


@given(st.integers(1, 40), st.integers(2, 12), st.data(), st.booleans(), st.integers(0, 1))
def test_each_token_is_scored_once_with_enough_before_it(count, length, data, adds_bos, first):
    stride = data.draw(st.integers(1, length))
    ids = list(range(3, 3 + count))
    rows = causal_rows(Letters(adds_bos), ids, length, stride, first)
    assert [label for row in rows for label in row.labels] == ids[first:]
    for number, row in enumerate(rows):
        assert len(row.inputs) <= length and (row.inputs[0] == 1 or not adds_bos) and list(row.inputs).count(1) <= 1
        for place, label in zip(row.places, row.labels, strict=True):
            if label > 3:
                assert row.inputs[place] in (label - 1, 1)  # the token before it; BOS alone stands at a block's head
            assert number == 0 or place + 1 >= length - stride


def test_a_bigram_by_hand(table_model, one):
    a, b, c, space = (LETTERS.index(x) for x in ("a", "b", "c", " "))
    ids = [1, c, a, space, b, c]
    nats = -sum(LOG_P[x, y] for x, y in zip(ids, ids[1:], strict=False))
    found = measure(*table_model, Letters(), ["ca bc"], length=4, stride=2, devices=one)
    assert found.nats == pytest.approx(nats, abs=1e-5)
    assert (found.tokens, found.bytes, found.words, found.texts, found.lossless) == (5, 5, 2, 1, True)
    assert found.per_token == pytest.approx(math.exp(nats / 5), rel=1e-6)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / 5, rel=1e-6)
    assert found.per_word == pytest.approx(math.exp(nats / 2), rel=1e-6)
    given = measure(*table_model, Letters(), ["ca bc"], score_first=False, devices=one)
    assert given.nats == pytest.approx(nats + LOG_P[1, c], abs=1e-5) and (given.tokens, given.bytes) == (4, 4)


def test_an_even_guess_costs_ln_v_a_token(one):
    found = measure(*bigram(np.zeros((8, 8))), Letters(), ["cab cab"], devices=one)
    assert found.nats / found.tokens == pytest.approx(math.log(8), abs=1e-6)
    assert found.per_token == pytest.approx(8, abs=1e-5)
    assert found.bits_per_byte == pytest.approx(3 * found.tokens / 7, abs=1e-6)


def test_a_text_that_fits_is_a_direct_forward_pass_and_twice_the_texts_cost_twice(gpt, tokenizer, one):
    model, params = gpt
    text = "hammer nail saw plank, the good glue."
    found = measure(model, params, tokenizer, [text], devices=one)
    ids = jnp.array([[tokenizer.bos_id, *tokenizer.encode(text)]])
    log_p = jax.nn.log_softmax(model.apply(params, ids[:, :-1]).logits[0])
    assert found.nats == pytest.approx(-float(log_p[jnp.arange(found.tokens), ids[0, 1:]].sum()), abs=1e-4)
    twice = measure(model, params, tokenizer, [text, text], devices=one)
    assert twice.nats == pytest.approx(2 * found.nats, rel=1e-6) and twice.bytes == 2 * len(text)
    assert twice.bits_per_byte == pytest.approx(found.bits_per_byte, rel=1e-6)
    whole = measure(model, params, tokenizer, [text], length=found.tokens, stride=1, devices=one)
    assert whole.nats == pytest.approx(found.nats, abs=1e-4)


def test_a_token_that_is_masked_is_predicted_from_both_sides(masked, tokenizer, one):
    model, params = masked
    text = "hammer nail saw"
    ids = tokenizer.encode(text)
    found = measure(model, params, tokenizer, [text], devices=one)
    nats = 0.0
    for at, label in enumerate(ids):
        row = [tokenizer.cls_id, *ids, tokenizer.sep_id]
        row[at + 1] = tokenizer.mask_id
        nats -= float(jax.nn.log_softmax(model.apply(params, jnp.array([row])).logits[0, at + 1])[label])
    assert found.pseudo and found.nats == pytest.approx(nats, abs=1e-4) and found.tokens == len(ids)
    assert found.stride == found.length - 2 == 30


def test_masked_windows(tokenizer):
    ids = list(range(10, 17))
    rows = masked_rows(tokenizer, ids, length=6, stride=2)
    cls, sep, mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    assert [row.labels for row in rows] == [(i,) for i in ids]
    assert rows[0].inputs == [cls, mask, 11, 12, 13, sep] and rows[3].inputs == [cls, 10, 11, 12, mask, sep]
    assert rows[4].inputs == [cls, 12, 13, mask, 15, sep] and rows[6].inputs == [cls, 13, 14, 15, mask, sep]
    assert all(row.inputs[row.places[0]] == mask for row in rows)


def test_ends():
    assert list(ends(7, 4, 2)) == [(0, 4), (4, 6), (6, 7)] and list(ends(0, 4, 2)) == []


@pytest.mark.parametrize(
    ("length", "stride", "line"),
    [
        (33, None, "length is 33; this model takes windows of 2 to 32 tokens"),
        (1, None, "length is 1"),
        (8, 9, "stride is 9; windows of 8 tokens move by 1 to 8"),
        (8, 0, "stride is 0"),
    ],
)
def test_windows_that_do_not_fit(table_model, length, stride, line):
    with pytest.raises(InputError, match=line):
        window(table_model[0], length, stride)


def test_no_token_to_score(table_model, one):
    with pytest.raises(InputError, match="no token to score in 2 texts"):
        measure(*table_model, Letters(), ["", ""])


@pytest.fixture(scope="module")
def folders(gpt, masked, tokenizer, tmp_path_factory):
    made = [tmp_path_factory.mktemp(name) for name in ("gpt", "masked")]
    for folder, network in zip(made, (gpt, masked), strict=True):
        run_folder.save(*network, folder, tokenizer)
    return [str(folder) for folder in made]


def test_the_command_prints_a_table_and_json(folders, gpt, tokenizer, tmp_path, capsys):
    page = tmp_path / "page.txt"
    page.write_text("hammer nail saw plank. Oven bread.", encoding="utf-8")
    assert evaluate(["perplexity", ",".join(folders), str(page), "--length", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = measure(*gpt, tokenizer, [page.read_text()], length=16)
    assert found[folders[0]]["perplexity"] == pytest.approx(expected.per_token, rel=1e-5)
    assert found[folders[1]]["pseudo"] and not found[folders[0]]["pseudo"]
    rows = tmp_path / "rows.tsv"
    rows.write_text("label\tsentence\n1\thammer nail\n0\toven bread\n", encoding="utf-8")
    assert evaluate(["perplexity", folders[0], str(rows), "--text", "sentence"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 texts") and "bits/byte" in out and "32 by 16" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["perplexity", "X", "none.txt"], 'no file "none.txt"; give a file, or a text of more than one word'),
        (["perplexity", "nowhere", "a text"], 'no folder "nowhere"'),
        (["perplexity", ",", "a text"], "which checkpoint?"),
        (["perplexity", "X,X", "a text"], "named twice"),
        (["perplexity", "X", "ROWS"], 'no column "text"'),
        (["perplexity", "X", "BAD"], "no UTF-8 at byte 3; save the text as UTF-8"),
        (["perplexity", "X", "a text", "--stride", "99"], "--stride is 99; windows of 32 tokens move by 1 to 32"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words, line, folders, tmp_path, capsys):
    (tmp_path / "rows.tsv").write_text("label\tsentence\n1\thammer\n", encoding="utf-8")
    (tmp_path / "bad.txt").write_bytes(b"abc\xff")
    meant = {"X": folders[0], "X,X": f"{folders[0]},{folders[0]}"}
    meant |= {"ROWS": str(tmp_path / "rows.tsv"), "BAD": str(tmp_path / "bad.txt")}
    assert evaluate([meant.get(word, word) for word in words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and line in err
