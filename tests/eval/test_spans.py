"""Questions become windows that hold their answers, and answers come back in the words of the context."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from eval.encode import collate
from eval.finetune import FinetuneConfig, finetune, with_task_head
from eval.kinds import SPANS
from eval.kinds.spans import _best_span, answers, choose_threshold, encode_questions, loss
from eval.predict import evaluate, predict_encoded
from eval.sources.squad import Answer, SpanExample
from tests import made_up
from zoo import InputError
from zoo.tokenizer import load_tokenizer

SIZES = {"embed_dim": 32, "num_heads": 2, "num_layers": 2, "max_positions": 64, "initializer_range": 0.05}


@pytest.fixture(scope="module")
def word_pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] who when ? a b c d e f g ##g . \u00e9t\u00e9".split()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def own():
    return made_up.tokenizer()


def reader(tokenizer, family="bert-tiny", **changes):
    return zoo.create(family, vocab_size=tokenizer.vocab_size, **(SIZES | changes)).config


def ask(context, answer=None, question="who?", nullable=False, key="q"):
    there = () if answer is None else (Answer(answer, context.index(answer)),)
    return SpanExample(key, "", context, question, there, nullable)


def spoken(tokenizer, encoded, row):
    return " ".join(tokenizer.piece(i) for i in encoded.ids[row])


def test_a_short_context_is_one_window(word_pieces):
    encoded = encode_questions([ask("a b. Cc d gg", "Cc d")], word_pieces, reader(word_pieces), 32)
    assert spoken(word_pieces, encoded, 0) == "[CLS] who ? [SEP] a b . [UNK] d g ##g [SEP]"
    assert encoded.labels.tolist() == [[7, 8]]
    assert encoded.token_types[0].tolist() == [0] * 4 + [1] * 8
    assert encoded.notes[0].first == 4 and encoded.notes[0].null == 0
    assert encoded.notes[0].spans.tolist() == [[0, 1], [2, 3], [3, 4], [5, 7], [8, 9], [10, 11], [11, 12]]


def test_long_contexts_are_read_through_windows_that_overlap(word_pieces):
    """[CLS] who ? [SEP] and the last [SEP] leave 5 of 10 places; neighbours share 2 pieces."""
    example = ask("a b c d e f g a b", "e f")
    encoded = encode_questions([example], word_pieces, reader(word_pieces), 10, overlap=2)
    rows = [spoken(word_pieces, encoded, row)[len("[CLS] who ? [SEP] ") :] for row in range(len(encoded))]
    assert rows == ["a b c d e [SEP]", "d e f g a [SEP]", "g a b [SEP]"]
    # The first window has half of the answer, the last none of it: both point at [CLS].
    assert encoded.labels.tolist() == [[0, 0], [5, 6], [0, 0]]
    assert [note.number for note in encoded.notes] == [0, 0, 0]


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(8, 20), st.integers(0, 12), st.data())
def test_every_piece_is_in_a_window_and_short_answers_are_whole_in_one(word_pieces, length, row, overlap, data):
    words = [data.draw(st.sampled_from("abcdef")) for _ in range(length)]
    context = " ".join(words)
    room = row - 5
    shared = min(overlap, room // 2)
    size = data.draw(st.integers(1, min(length, shared + 1)))
    start = data.draw(st.integers(0, length - size))
    example = SpanExample("q", "", context, "who?", (Answer(context[2 * start : 2 * (start + size) - 1], 2 * start),))
    encoded = encode_questions([example], word_pieces, reader(word_pieces), row, overlap=overlap)
    seen = {tuple(span) for note in encoded.notes for span in note.spans.tolist()}
    assert seen == {(2 * i, 2 * i + 1) for i in range(length)}
    assert max(len(ids) for ids in encoded.ids) <= row
    found = 0
    for ids, (first, last), note in zip(encoded.ids, encoded.labels, encoded.notes, strict=True):
        if first != note.null:
            found += 1
            spans = note.spans[first - note.first : last - note.first + 1]
            assert context[spans[0, 0] : spans[-1, 1]] == example.answers[0].text
            assert ids[first] == word_pieces.encode(words[start])[0]
    assert found >= 1


def test_questions_that_are_too_long_lose_their_end_and_are_counted(word_pieces):
    example = ask("a b c d", "d", question="who " * 30)
    encoded = encode_questions([example], word_pieces, reader(word_pieces), 13)
    assert encoded.truncated == 1
    assert spoken(word_pieces, encoded, 0) == "[CLS] who who who who who [SEP] a b c d [SEP]"
    with pytest.raises(InputError, match="max_length 4 has no room for a question and its context"):
        encode_questions([example], word_pieces, reader(word_pieces), 4)


def test_decoders_put_nothing_at_their_last_place(own):
    config = reader(own, "gpt2-tiny")
    encoded = encode_questions([ask("river stone", None, nullable=True)], own, config, 32)
    assert encoded.ids[0][0] == own.bos_id and encoded.ids[0][-1] == own.eos_id
    assert encoded.labels.tolist() == [[len(encoded.ids[0]) - 1] * 2]
    assert encoded.token_types is None


def test_an_answer_out_of_place_is_not_learnt(word_pieces):
    example = SpanExample("q", "", "a b c", "who?", (Answer("c", -1),))
    encoded = encode_questions([example, ask("a b", "b")], word_pieces, reader(word_pieces), 16)
    assert encoded.labels.tolist() == [[-1, -1], [5, 5]]
    model, params = with_task_head(*network(word_pieces), FinetuneConfig(dropout=0.0), 2, (), SPANS)
    batch = collate(encoded, [0, 1], 2)
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    alone = collate(encode_questions([ask("a b", "b")], word_pieces, reader(word_pieces), 16), [0], 2)
    both, one = (loss(model, params, given, keys, train=False) for given in (batch, alone))
    assert float(both[0][1]) == float(one[0][1]) == 1.0
    assert float(both[0][0]) == pytest.approx(float(one[0][0]), rel=1e-6)


def network(tokenizer, family="bert-tiny"):
    model = zoo.create(family, vocab_size=tokenizer.vocab_size, **SIZES)
    return model, model.init(jax.random.key(0))


def places(encoded, *wanted):
    """Logits that are 0 but for (row, place, side, value)."""
    found = [np.zeros((len(ids), 2), np.float32) for ids in encoded.ids]
    for row, place, side, value in wanted:
        found[row][place, side] = value
    return found


def test_the_answer_is_in_the_words_of_the_context(word_pieces):
    context = "A  B.\u00c9t\u00e9 d gg"
    encoded = encode_questions([ask(context, "d")], word_pieces, reader(word_pieces), 32)
    row = spoken(word_pieces, encoded, 0).split()
    first, last = row.index("b"), row.index("g")
    said = answers(encoded, places(encoded, (0, first, 0, 5.0), (0, last, 1, 5.0)))[0]
    assert said.text == "B.\u00c9t\u00e9 d g" and context[said.start : said.end] == said.text


def test_the_best_pair_is_in_order_short_enough_and_inside_the_context(word_pieces):
    encoded = encode_questions([ask("a b c d e f", "d")], word_pieces, reader(word_pieces), 32)
    # The end before the start, the question and [CLS] all have higher scores and are passed over.
    logits = places(
        encoded, (0, 8, 0, 5.0), (0, 5, 1, 4.0), (0, 9, 1, 3.0), (0, 1, 0, 50.0), (0, 0, 0, 50.0), (0, 0, 1, 50.0)
    )
    said = answers(encoded, logits)[0]
    assert said.text == "e f"
    assert said.null_odds == pytest.approx(100.0 - 8.0)
    long = encode_questions([ask("a " * 50 + "b", "b")], word_pieces, reader(word_pieces), 64)
    logits = places(long, (0, 4, 0, 5.0), (0, 40, 1, 5.0), (0, 33, 1, 2.0), (0, 34, 1, 4.0))
    assert len(answers(long, logits)[0].text.split()) == 30  # places 4 to 33


def test_the_best_window_answers_and_the_least_null_counts(word_pieces):
    encoded = encode_questions(
        [ask("a b c d e f g a b", "e f", nullable=True)], word_pieces, reader(word_pieces), 10, overlap=2
    )
    logits = places(
        encoded,
        (0, 4, 0, 1.0),
        (0, 4, 1, 1.0),
        (1, 5, 0, 2.0),
        (1, 6, 1, 2.0),
        (0, 0, 0, 9.0),
        (1, 0, 0, 3.0),
        (2, 0, 1, 6.0),
    )
    said = answers(encoded, logits)[0]
    assert said.null_odds == pytest.approx(3.0 - 4.0) and said.text == "e f"
    silent = answers(encoded, logits, null_threshold=-2.0)[0]
    assert silent.text == "" and silent.best == "e f"
    found = SPANS.score(encoded, logits, ("exact_match", "has_answer_exact", "no_answer_exact"))
    assert found.scores == {"exact_match": 1.0, "has_answer_exact": 1.0, "no_answer_exact": 0.0}
    assert [p.id for p in found.predictions] == ["q"]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.booleans()), min_size=1, max_size=40))
def test_no_pair_is_better_than_the_best(pieces):
    """Against every pair; pieces of no character neither begin nor end an answer."""
    scores = np.array([(a, b) for a, b, _ in pieces], np.float64)
    spans = np.array([(2 * i, 2 * i + there) for i, (_, _, there) in enumerate(pieces)])
    pairs = [
        scores[i, 0] + scores[j, 1]
        for i in range(len(pieces))
        for j in range(i, min(i + 30, len(pieces)))
        if pieces[i][2] and pieces[j][2]
    ]
    found = _best_span(scores, spans)
    assert (found is None) == (not pairs)
    if pairs:
        top, start, end = found
        assert top == max(pairs)
        assert scores[start // 2, 0] + scores[(end - 1) // 2, 1] == top


def test_questions_of_version_1_are_always_answered(word_pieces):
    encoded = encode_questions([ask("a b", "b")], word_pieces, reader(word_pieces), 16)
    assert answers(encoded, places(encoded, (0, 0, 0, 99.0)))[0].text != ""


def test_a_context_without_a_piece_has_no_answer(word_pieces):
    examples = [ask("\u0000", None, nullable=True, key="1"), ask("a b", "a", nullable=True, key="2")]
    encoded = encode_questions(examples, word_pieces, reader(word_pieces), 16)
    said = answers(encoded, places(encoded, (1, 4, 0, 1.0)))
    assert [a.text for a in said] == ["", "a"] and said[0].null_odds == np.inf
    assert np.isfinite(choose_threshold(encoded, places(encoded, (1, 4, 0, 1.0)))["null_threshold"])
    assert (
        choose_threshold(encode_questions([ask("a b", "b")], word_pieces, reader(word_pieces), 16), [np.zeros((7, 2))])
        == {}
    )


def test_the_loss_does_not_see_padding(word_pieces):
    """The same window in a longer bucket: padding takes no probability."""
    model, params = with_task_head(*network(word_pieces), FinetuneConfig(dropout=0.0), 2, (), SPANS)
    assert model.config.head == "span"
    encoded = encode_questions([ask("a b c d", "c d"), ask("a " * 40, "a")], word_pieces, model.config, 64)
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    (total, weight), _ = loss(model, params, collate(encoded, [0], 2), keys, train=False)
    (both, two), _ = loss(model, params, collate(encoded, [0, 1], 2), keys, train=False)
    (other, _), _ = loss(model, params, collate(encoded, [1], 2), keys, train=False)
    assert (float(weight), float(two)) == (1.0, 2.0)
    assert float(both) == pytest.approx(float(total) + float(other), rel=1e-5)
    outputs = predict_encoded(model, params, encoded, kind=SPANS, devices=jax.devices()[:1])
    logs = [jax.nn.log_softmax(logits, axis=0) for logits in outputs]
    expected = [-(log[a, 0] + log[b, 1]) / 2 for log, (a, b) in zip(logs, encoded.labels, strict=True)]
    assert float(both) == pytest.approx(float(sum(expected)), rel=1e-5)
    found = SPANS.score(encoded, outputs, ("exact_match",))
    assert found.loss == pytest.approx(float(both) / 2, rel=1e-5)


def made(count, seed, nullable=False):
    """ "river?" asks for the two words after "river"; where there is none, there is no answer."""
    draw, names = random.Random(seed), "silver copper garden marble winter".split()
    examples = []
    for number in range(count):
        word = draw.choice(["river", "stone"])
        there = not nullable or draw.random() < 0.6
        other = "stone" if word == "river" else "river"
        before = [draw.choice(names) for _ in range(draw.randint(0, 6))]
        pair = draw.choices(names, k=2)
        context = " ".join([*before, other, *draw.choices(names, k=3), *([word, *pair] if there else []), "sings"])
        answer = Answer(" ".join(pair), context.index(f"{word} ") + len(word) + 1) if there else None
        examples.append(SpanExample(str(number), "", context, word, (answer,) if answer else (), nullable))
    return examples


def test_answers_are_learnt_and_so_is_when_there_is_none(own, one):
    config = FinetuneConfig(learning_rate=4e-3, epochs=16, max_length=64, dropout=0.0)
    tuned = finetune(*network(own), own, made(240, 0, nullable=True), config, 2, kind=SPANS, devices=one)
    encoded = encode_questions(made(60, 1, nullable=True), own, tuned.model.config, 64)
    found = evaluate(tuned.model, tuned.params, encoded, SPANS.metrics, kind=SPANS, devices=one)
    assert found.scores["exact_match"] > 0.8 and found.scores["no_answer_exact"] > 0.7
    assert found.scores["answer_f1"] >= found.scores["exact_match"]
    settled = SPANS.settle(encoded, found.outputs)
    best = evaluate(tuned.model, tuned.params, encoded, ("answer_f1",), kind=SPANS, settled=settled, devices=one)
    assert best.scores["answer_f1"] >= found.scores["answer_f1"]
