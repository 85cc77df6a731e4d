"""Tags: words and pieces are aligned for every layout, losses count labelled pieces alone, and tagging is learnt."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from eval.encode import collate
from eval.finetune import FinetuneConfig, finetune, with_task_head
from eval.kinds import TAGGING
from eval.kinds.tagging import encode_words, entity_counts, loss, pieces_of_words, unread_words
from eval.predict import evaluate, predict_encoded
from eval.scores.entities import EntityCounts, total
from eval.sources.tagged import TaggedExample
from tests import made_up
from zoo import InputError
from zoo.tokenizer import load_tokenizer

CONFIG = FinetuneConfig(learning_rate=5e-3, epochs=14, max_length=32, dropout=0.0)
NAMES = ("O", "B-thing", "I-thing")


@pytest.fixture(scope="module")
def word_pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] em ##pire state building ' s".split()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def byte_pieces(tmp_path_factory):
    return load_tokenizer(made_up.json_tokenizer(tmp_path_factory.mktemp("bytes") / "json"))


@pytest.fixture(scope="module")
def own():
    return made_up.tokenizer()


def reader(tokenizer, family="bert-tiny", length=128):
    return zoo.create(family, vocab_size=tokenizer.vocab_size, max_positions=length).config


def example(words, tags=None):
    words = tuple(words.split(" "))
    return TaggedExample(words, tuple(tags or range(len(words))))


def test_a_word_is_labelled_at_its_first_piece(word_pieces):
    encoded = encode_words([example("Empire State Building 's")], word_pieces, reader(word_pieces))
    assert [word_pieces.piece(i) for i in encoded.ids[0]] == "[CLS] em ##pire state building ' s [SEP]".split()
    assert encoded.labels[0].tolist() == [-1, 0, -1, 1, 2, 3, -1, -1]
    assert encoded.notes[0].places.tolist() == [1, 3, 4, 5]
    assert encoded.lengths.tolist() == [8] and encoded.truncated == 0


def test_pieces_that_carry_the_space_before_them_are_aligned(byte_pieces):
    """Words cut one by one would be other pieces: such a vocabulary has " stone" and "stone"."""
    text = "river stone xq"
    encoded = encode_words([example(text)], byte_pieces, reader(byte_pieces, "gpt2-tiny"))
    assert encoded.ids[0].tolist() == [byte_pieces.bos_id, *byte_pieces.encode(text), byte_pieces.eos_id]
    pieces = [byte_pieces.piece(i) for i in encoded.ids[0]]
    stone = pieces.index("\u0120stone")
    assert encoded.notes[0].places[1] == stone and encoded.labels[0][stone] == 1


def test_decoders_read_a_word_at_its_last_piece(byte_pieces):
    """Its first piece has not seen the rest of the word."""
    encoded = encode_words([example("xqxq zz")], byte_pieces, reader(byte_pieces, "gpt2-tiny"))
    spans = byte_pieces.encode_with_offsets(["xqxq zz"])[0][1]
    inside = [place for place, (start, _) in enumerate(spans, 1) if start < 4]
    assert len(inside) > 1
    assert encoded.notes[0].places.tolist() == [inside[-1], len(spans)]
    expected = np.full(len(spans) + 2, -1)
    expected[[inside[-1], len(spans)]] = [0, 1]
    assert encoded.labels[0].tolist() == expected.tolist()


def test_sentencepiece_words_begin_at_their_space_mark(own):
    encoded = encode_words([example("river stone. walks")], own, reader(own))
    begins = [at for at, i in enumerate(encoded.ids[0]) if own.piece(i).startswith("\u2581")]
    assert encoded.notes[0].places.tolist() == begins and len(begins) == 3


def test_words_without_a_piece_are_predicted_outside_and_counted(word_pieces):
    words = example("state \u0000\u200b building", tags=(1, 1, 2))
    encoded = encode_words([words], word_pieces, reader(word_pieces))
    assert encoded.notes[0].places.tolist() == [1, -1, 2]
    logits = np.zeros((4, 3), np.float32)
    logits[1, 1] = logits[2, 2] = 9.0
    found = TAGGING.score(encoded, [logits], ("accuracy", "unread_words", "entity_f1"), NAMES)
    assert found.predictions[0].tolist() == [1, 0, 2]
    assert found.scores == {"accuracy": pytest.approx(2 / 3), "unread_words": 1, "entity_f1": 0.5}


def test_words_beyond_the_row_are_predicted_outside_and_counted(word_pieces):
    sentence = example("empire state building state", tags=(1, 2, 1, 2))
    encoded = encode_words([sentence], word_pieces, reader(word_pieces), max_length=5)
    assert encoded.labels[0].tolist() == [-1, 1, -1, 2, -1]
    assert encoded.truncated == 1 and unread_words(encoded) == 2
    logits = np.eye(3, dtype=np.float32)[[0, 1, 0, 2, 0]]
    found = TAGGING.score(encoded, [logits], ("entity_precision", "entity_recall"), NAMES)
    assert found.predictions[0].tolist() == [1, 2, 0, 0]
    assert found.scores == {"entity_precision": 1.0, "entity_recall": 0.5}


def test_a_row_without_room_for_a_word_is_refused(word_pieces):
    with pytest.raises(InputError, match="max_length is 2: beside 2 special pieces no piece of a text fits; take 3"):
        encode_words([example("state")], word_pieces, reader(word_pieces), max_length=2)
    assert encode_words([example("state")], word_pieces, reader(word_pieces), max_length=3).lengths.tolist() == [3]


WORD = st.text(st.characters(categories=["L", "N", "P", "S", "Cc"]), min_size=1, max_size=6)
WORDS = st.lists(WORD, min_size=1, max_size=8)


@given(WORDS)
def test_each_word_has_one_place_and_places_go_forward(tokenizer, word_pieces, byte_pieces, words):
    text = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    for cut in (tokenizer, word_pieces, byte_pieces):
        spans = cut.encode_with_offsets([text])[0][1]
        first, last = pieces_of_words(words, spans), pieces_of_words(words, spans, last=True)
        assert len(first) == len(last) == len(words)
        assert ((first >= 0) == (last >= 0)).all() and (first <= last).all()
        there = first[first >= 0]
        assert (np.diff(there) > 0).all()
        for word, piece in enumerate(first):
            if piece >= 0:
                assert starts[word] <= spans[piece][0] < starts[word + 1] - 1
    bytes_first = pieces_of_words(words, byte_pieces.encode_with_offsets([text])[0][1])
    assert (bytes_first >= 0).tolist() == [bool(word.strip()) for word in words]


def tagged(count, seed):
    """Two words after "the" are a thing; the same words elsewhere are none: only context tells."""
    draw, names = random.Random(seed), "river stone silver copper garden marble".split()
    examples = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(draw.randint(1, 3)):
            pair = draw.choices(names, k=2)
            marked = draw.random() < 0.5
            words += ["the" if marked else "old", *pair, "sings"]
            tags += [0, *((1, 2) if marked else (0, 0)), 0]
        examples.append(TaggedExample(tuple(words), tuple(tags)))
    return examples


@pytest.fixture(scope="module", params=["bert-tiny", "gpt2-tiny"])
def network(request, own):
    sizes = {"embed_dim": 32, "num_heads": 2, "num_layers": 1, "max_positions": 32, "initializer_range": 0.05}
    model = zoo.create(request.param, vocab_size=own.vocab_size, **sizes)
    return model, model.init(jax.random.key(0))


def test_the_loss_is_that_of_labelled_pieces_alone(network, own):
    model, params = with_task_head(*network, CONFIG, 3, NAMES, TAGGING)
    assert model.config.head == "token_classifier" and model.config.label_names == NAMES
    examples = tagged(3, seed=1)
    encoded = encode_words(examples, own, model.config, 32)
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    batch = collate(encoded, [0, 1, 2], 4)
    (sum_, weight), pairs = loss(model, params, batch, keys, train=False)
    assert float(weight) == sum(len(e.words) for e in examples)
    outputs = predict_encoded(model, params, encoded, kind=TAGGING, devices=jax.devices()[:1])
    assert [o.shape for o in outputs] == [(len(ids), 3) for ids in encoded.ids]
    expected = 0.0
    for logits, labels in zip(outputs, encoded.labels, strict=True):
        for row, label in zip(logits, labels, strict=True):
            if label >= 0:
                expected -= float(jax.nn.log_softmax(row)[label])
    assert float(sum_) == pytest.approx(expected, rel=1e-5)
    found = TAGGING.score(encoded, outputs, ("accuracy", "entity_f1"), NAMES)
    assert found.loss == pytest.approx(expected / float(weight), rel=1e-5)
    assert float(pairs["accuracy"][0] / pairs["accuracy"][1]) == pytest.approx(found.scores["accuracy"])


def test_tagging_is_learnt_from_context(network, own, one):
    tuned = finetune(*network, own, tagged(160, 0), CONFIG, 3, kind=TAGGING, label_names=NAMES, devices=one)
    encoded = encode_words(tagged(60, 7), own, tuned.model.config, 32)
    found = evaluate(tuned.model, tuned.params, encoded, TAGGING.metrics, kind=TAGGING, devices=one)
    assert found.scores["entity_f1"] > 0.9 and found.scores["accuracy"] > 0.95
    assert found.scores["unread_words"] == 0
    counts = entity_counts(encoded, found.predictions, NAMES)
    assert list(counts) == ["thing"] and total(counts).f1 == found.scores["entity_f1"]
    spread = evaluate(tuned.model, tuned.params, encoded, ("entity_f1",), kind=TAGGING, batch_size=7)
    assert spread.scores["entity_f1"] == found.scores["entity_f1"]


def test_entities_need_names_and_metrics_must_be_known(word_pieces):
    encoded = encode_words([example("state building", tags=(0, 1))], word_pieces, reader(word_pieces))
    logits = [np.zeros((4, 3), np.float32)]
    with pytest.raises(InputError, match="entities need the names of all tags; 0 are given and there is tag 1"):
        TAGGING.score(encoded, logits, ("entity_f1",))
    with pytest.raises(InputError, match='no metric "entity_f2" of tags; did you mean "entity_f1"'):
        TAGGING.score(encoded, logits, ("entity_f2",), NAMES)
    assert TAGGING.score(encoded, logits, ("accuracy",)).scores == {"accuracy": 0.5}
    counts = entity_counts(encoded, [np.array([0, 1])], NAMES)
    assert counts == {"thing": EntityCounts(1, 1, 1)}


def test_tags_must_be_of_the_task(network, own, one):
    """A tag beyond the head's outputs would be learnt from in silence."""
    sentences = [TaggedExample(("river", "stone"), (0, 3))]
    with pytest.raises(InputError, match="there is tag 3; 3 tags are 0 to 2"):
        finetune(*network, own, sentences, CONFIG, 3, kind=TAGGING, devices=one)
    with pytest.raises(InputError, match="1 sentences without a tag to learn"):
        finetune(*network, own, [TaggedExample(("",), (0,))], CONFIG, 3, kind=TAGGING, devices=one)


def test_words_and_tags_must_match(word_pieces):
    with pytest.raises(InputError, match="example 0 has 2 words and 1 tags"):
        encode_words([TaggedExample(("a", "b"), (0,))], word_pieces, reader(word_pieces))
