"""Log-likelihoods: by hand on a bigram, against a direct forward pass, at borders, for every batching."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from eval.language.likelihood import (
    encode_pairs,
    log_likelihoods,
    merge_prefixes,
    score_causal,
    shared_prefix,
    to_queries,
)
from eval.language.token_scores import Query, row_length, token_scores
from tests import made_up
from tests.eval.table_model import LETTERS, Letters, bigram, log_softmax, random_table
from zoo.errors import InputError

TABLE = random_table(1)
LOG_P = log_softmax(TABLE)


@pytest.fixture(scope="module")
def table_model():
    return bigram(TABLE)


def by_hand(ids):
    return sum(LOG_P[a, b] for a, b in zip(ids, ids[1:], strict=False))


def test_a_bigram_by_hand(table_model, one):
    a, b, c = (LETTERS.index(x) for x in "abc")
    pairs = [("c", "ca"), ("", "b"), ("b", ""), ("", "")]
    found = log_likelihoods(*table_model, Letters(), pairs, devices=one)
    assert found[0].log_prob == pytest.approx(by_hand([c, c, a]), abs=1e-5)
    assert found[1].log_prob == pytest.approx(LOG_P[1, b], abs=1e-5)  # after BOS
    assert [f.tokens for f in found] == [2, 1, 0, 0] and [f.bytes for f in found] == [2, 1, 0, 0]
    assert [f.log_prob for f in found[2:]] == [0, 0] and found[2].greedy
    assert found[2].per_token == -math.inf and found[0].per_byte == found[0].log_prob / 2


def test_greedy_is_the_likeliest_path(table_model, one):
    best = {i: int(LOG_P[i].argmax()) for i in range(3, 8)}
    texts = [(LETTERS[i], LETTERS[j]) for i in range(3, 8) for j in range(3, 8) if LETTERS[i] + LETTERS[j] != "ab"]
    texts = [(x, y) for x, y in texts if x.strip() and not (x == "a" and y.startswith("b"))]
    found = log_likelihoods(*table_model, Letters(), texts, devices=one)
    for (x, y), f in zip(texts, found, strict=True):
        assert f.greedy == (best[LETTERS.index(x)] == LETTERS.index(y))


def test_what_reaches_over_the_border_is_scored_with_the_continuation():
    """"ca" + "b" is c, ab: not c, a, b; and spaces belong to what follows."""
    letters = Letters()
    assert encode_pairs(letters, [("ca", "bc")]) == [([1, 5], [6, 5])]
    assert encode_pairs(letters, [("c ", "a"), ("c", " a"), (" ", "a")]) == [
        ([1, 5], [7, 3]),
        ([1, 5], [7, 3]),
        ([1], [7, 3]),
    ]


def test_exactly_one_bos_where_texts_begin_with_one():
    """Without it, an empty context still is something; a context of a text's own is left alone."""
    pairs = [("c", "b"), ("", "b")]
    assert encode_pairs(Letters(), pairs) == [([1, 5], [4]), ([1], [4])]
    assert encode_pairs(Letters(adds_bos=False), pairs) == [([5], [4]), ([1], [4])]


@pytest.mark.parametrize("kind", ["json", "sentencepiece"])
def test_real_tokenizers_split_where_the_whole_text_does(kind, tmp_path):
    if kind == "json":
        tokenizer = zoo.load_tokenizer(made_up.json_tokenizer(tmp_path / "t"))
    else:
        tokenizer = made_up.tokenizer()
    texts = [("The old river", " walks quiet."), ("The old riv", "er sings"), ("The river ", "walks"), ("", "Maple")]
    for (context, text), (before, after) in zip(texts, encode_pairs(tokenizer, texts), strict=True):
        assert before[0] == tokenizer.bos_id and before.count(tokenizer.bos_id) == 1
        assert before[1:] + after == tokenizer.encode(context + text)
        assert tokenizer.decode(after).strip().endswith(text.strip())


def test_equal_to_a_direct_forward_pass_whatever_the_batches(gpt, tokenizer, one):
    model, params = gpt
    texts = [("hammer nail saw", " plank glue"), ("oven", " bread butter"), ("oven", " spoon"), ("", "tide"), ("a", "")]
    found = log_likelihoods(model, params, tokenizer, texts, devices=one)
    for (before, after), f in zip(encode_pairs(tokenizer, texts), found, strict=True):
        ids = jnp.array([before + after])
        log_p = np.asarray(jax.nn.log_softmax(model.apply(params, ids).logits[0]), np.float64)
        expected = sum(log_p[len(before) - 1 + j, i] for j, i in enumerate(after))
        assert f.log_prob == pytest.approx(expected, abs=2e-5) and f.tokens == len(after)
    again = log_likelihoods(model, params, tokenizer, texts, batch_tokens=16, devices=jax.devices()[:2])
    assert [f.log_prob for f in again] == pytest.approx([f.log_prob for f in found], abs=1e-5)


def test_long_contexts_lose_their_beginning_and_say_so(table_model, one):
    letters = Letters()
    found = log_likelihoods(*table_model, letters, [("c" * 40, "ca"), ("ccc", "ca")], max_length=6, devices=one)
    assert [f.lost for f in found] == [36, 0]  # 41 ids with BOS, of which 5 have room
    assert found[0].log_prob == pytest.approx(found[1].log_prob, abs=1e-5)
    queries, _ = to_queries([([1, 5, 4, 3], [4, 4])], limit=4, keep_first=True)
    assert queries[0].inputs == [1, 4, 3, 4]  # BOS stays, "c" goes
    queries, _ = to_queries([([1, 5, 4, 3], [4, 4])], limit=4, keep_first=False)
    assert queries[0].inputs == [5, 4, 3, 4]
    with pytest.raises(InputError, match="continuation 0 has 8 tokens; the model reads 6 at a time"):
        log_likelihoods(*table_model, letters, [("c", "c" * 8)], max_length=6)


def test_rows_that_begin_others_are_read_from_them(table_model):
    model, _ = table_model
    queries = [Query([1, 5], [1], [3]), Query([1, 5], [1], [4]), Query([1, 5, 4], [1, 2], [4, 3]), Query([2], [0], [2])]
    rows, homes = merge_prefixes(model, queries)
    assert sorted(len(row.inputs) for row in rows) == [1, 3]
    for query, (row, start) in zip(queries, homes, strict=True):
        part = slice(start, start + len(query.places))
        assert rows[row].inputs[: len(query.inputs)] == tuple(query.inputs)
        assert rows[row].places[part] == list(query.places) and rows[row].labels[part] == list(query.labels)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12))
def test_merging_loses_nothing_and_leaves_no_row_that_begins_another(rows):
    model, _ = bigram(TABLE)
    queries = [Query(row, [len(row) - 1], [i]) for i, row in enumerate(rows)]
    merged, homes = merge_prefixes(model, queries)
    assert all(merged[r].labels[s] == i and merged[r].places[s] == len(rows[i]) - 1 for i, (r, s) in enumerate(homes))
    inputs = [row.inputs for row in merged]
    assert not any(a != b and b[: len(a)] == a for a in inputs for b in inputs) and len(set(inputs)) == len(inputs)


def test_lengths_are_few_and_waste_a_third_at_most():
    lengths = sorted({row_length(n, 4096) for n in range(1, 4097)})
    assert lengths[:7] == [16, 24, 32, 48, 64, 96, 128] and len(lengths) == 17
    assert all(n <= row_length(n, 4096) <= 1.5 * n for n in range(16, 4097))
    assert row_length(30, 31) == 31


def test_ids_beyond_the_tokenizer_have_no_probability(table_model, one):
    scores = token_scores(*table_model, [Query([5], [0, 0, 0], [0, 1, 2])], vocab_size=3, devices=one)
    assert np.exp(scores[0].log_probs).sum() == pytest.approx(1, abs=1e-6)
    assert scores[0].top.sum() == 1
    with pytest.raises(InputError, match="outside the vocabulary: 0 to 2"):
        token_scores(*table_model, [Query([5], [0], [3])], vocab_size=3)


def test_what_is_asked_wrongly_is_one_line(table_model, bert, gpt, tokenizer):
    with pytest.raises(InputError, match="row 0 of 1 tokens asks at place 1"):
        token_scores(*table_model, [Query([5], [1], [0])])
    with pytest.raises(InputError, match='this model has "none"'):
        model, params = bert
        token_scores(zoo.Model(model.config.replace(head="none")), params, [Query([5], [0], [0])])
    with pytest.raises(InputError, match="causal language model, and this one sees both ways"):
        log_likelihoods(*bert, tokenizer, [("a", "b")])
    with pytest.raises(InputError, match="do not belong together"):
        log_likelihoods(*table_model, tokenizer, [("a", "b")])


@pytest.mark.parametrize(
    ("name", "changes", "count"),
    [
        ("gpt2-tiny", {"num_layers": 2}, 1),
        ("llama-tiny", {"num_layers": 2, "scan": True}, 2),
        ("gemma3-tiny", {"layer_pattern": (zoo.LayerConfig(window=8), zoo.LayerConfig())}, 1),
    ],
)
def test_a_prefix_that_goes_in_once_changes_nothing(name, changes, count):
    """Learned and rotary positions, windows, scan; one device and two; a prefix padded from 37 to 48."""
    model = zoo.create(name, max_positions=64, initializer_range=0.1, **changes)
    params = model.init(jax.random.key(1))
    draws = np.random.default_rng(0)
    prefix = draws.integers(0, 200, 37).tolist()
    rows = [draws.integers(0, 200, n).tolist() for n in (3, 9, 9, 5)]
    cut = [Query(row, tuple(range(len(row))), tuple(reversed(row))) for row in rows]
    whole = [Query([*prefix, *q.inputs], tuple(p + 37 for p in q.places), q.labels) for q in cut]
    devices = jax.devices()[:count]
    expected = token_scores(model, params, whole, devices=devices[:1])
    found = token_scores(model, params, cut, prefix=prefix, devices=devices)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=2e-5)
    assert shared_prefix(model, whole)[0][:37] == tuple(prefix)
    merged = score_causal(model, params, whole, devices=devices[:1])
    np.testing.assert_allclose(merged[1].log_probs, expected[1].log_probs, atol=2e-5)


def test_a_prefix_ends_before_the_first_place(table_model):
    model, _ = table_model
    rows = [Query([5] * 40 + [i], [35, 40], [3, 4]) for i in range(4)]
    prefix, cut = shared_prefix(model, rows)
    assert prefix == (5,) * 35 and cut[3].places == (0, 5) and cut[3].inputs == [5] * 5 + [3]
    assert shared_prefix(model, rows[:3]) == ((), rows[:3])
    assert shared_prefix(model, [Query([5] * 20 + [i], [20], [3]) for i in range(9)])[0] == ()
