"""Generation: cached equals uncached, ragged batches equal rows alone, stops, limits, seeds by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.errors import InputError
from zoo.generation import text_batch
from zoo.generation.beams import beam_search
from zoo.generation.choosing import choose
from zoo.generation.generate import WANTED, stream
from zoo.generation.prompts import check_tokenizer
from zoo.layer_config import RotaryScaling

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]
NEW = 5
NAMES = ["gpt-tiny", "gpt1-tiny", "llama-tiny"]


def family(name):
    model = zoo.create(name, vocab_size=48, embed_dim=32, mlp_dim=64, max_positions=32)
    # Larger weights than at initialisation, so that the likeliest token depends on the context.
    return model, jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 1 else leaf, model.init(jax.random.key(1)))


@pytest.fixture(scope="module", params=NAMES)
def made(request):
    return family(request.param)


@pytest.fixture(scope="module")
def one():
    """Of one family, for what does not go by it."""
    return family(NAMES[0])


def greedy_without_cache(model, params, prompt, steps):
    apply = jax.jit(lambda tokens: model.apply(params, tokens).logits)
    row = np.zeros((1, len(prompt) + steps), np.int32)
    row[0, : len(prompt)] = prompt
    for at in range(len(prompt), row.shape[1]):
        row[0, at] = int(jnp.argmax(apply(row)[0, at - 1]))  # causal: what follows `at` does not matter
    return row[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["dynamic", "linear", "yarn"])
def test_rotary_scalings_reach_beyond_the_trained_length(kind):
    """Published folders say the trained length and a factor; the reference library goes on, and so do we."""
    trained = {} if kind == "linear" else dict(original_max_positions=8)
    small = dict(vocab_size=48, embed_dim=32, mlp_dim=64, max_positions=8)
    model = zoo.create("llama-tiny", **small, rotary_scaling=RotaryScaling(kind, 2.0, **trained))
    params = jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 1 else leaf, model.init(jax.random.key(1)))
    out = zoo.generate(model, params, PROMPTS[:1], max_new_tokens=13)
    assert out.tokens[0].tolist() == greedy_without_cache(model, params, PROMPTS[0], 13)
    with pytest.raises(InputError, match="exceed the model's 16 positions; ask for at most 13 new tokens"):
        zoo.generate(model, params, PROMPTS[:1], max_new_tokens=14)


def test_cached_greedy_equals_uncached_for_ragged_prompts(made):
    model, params = made
    out = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW)
    assert out.tokens.tolist() == [greedy_without_cache(model, params, prompt, NEW) for prompt in PROMPTS]
    assert out.lengths.tolist() == [NEW, NEW]


def test_right_and_left_padding_give_the_same_text(made):
    model, params = made
    right = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    out = zoo.generate(model, params, right, padding_mask=np.array([[1, 1, 1, 0, 0], [1] * 5]), max_new_tokens=NEW)
    assert out.tokens.tolist() == zoo.generate(model, params, PROMPTS, max_new_tokens=NEW).tokens.tolist()


def test_top_k_of_one_is_greedy_and_log_probs_are_the_models(made):
    model, params = made
    greedy = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW)
    drawn = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, temperature=1.0, top_k=1, key=jax.random.key(3))
    assert drawn.tokens.tolist() == greedy.tokens.tolist()
    row = np.array([PROMPTS[1] + greedy.tokens[1].tolist()])
    log_probs = jax.nn.log_softmax(model.apply(params, row).logits[0, 4:-1])
    expected = np.take_along_axis(np.asarray(log_probs), row[0, 5:, None], axis=1)[:, 0]
    np.testing.assert_allclose(greedy.log_probs[1], expected, atol=1e-5)


def test_a_rows_draws_do_not_depend_on_its_batch(made):
    model, params = made
    keys = jax.random.split(jax.random.key(5), 2)
    together = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, temperature=1.5, top_k=20, key=keys)
    alone = zoo.generate(model, params, PROMPTS[1:], max_new_tokens=NEW, temperature=1.5, top_k=20, key=keys[1:])
    assert together.tokens[1].tolist() == alone.tokens[0].tolist()
    assert together.tokens[0].tolist() != together.tokens[1].tolist()


def test_a_stop_token_ends_its_row_alone(made):
    model, params = made
    free = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW).tokens
    stop = int(free[0, 2])
    first = free[0].tolist().index(stop)
    out = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, stop_ids=[stop])
    assert out.lengths[0] == first
    assert out.tokens[0].tolist() == free[0, :first].tolist() + [stop] * (NEW - first)
    assert out.log_probs[0, first + 1 :].tolist() == [0.0] * (NEW - first - 1)
    if stop not in free[1]:
        assert out.tokens[1].tolist() == free[1].tolist() and out.lengths[1] == NEW


class ThreeOfVocabulary:
    """A tokenizer that knows ids 0 to 9 of a table of 48."""

    vocab_size, bos_id, eos_id = 10, 0, 9

    def encode(self, text):
        return [int(letter) for letter in text]

    def decode(self, ids):
        return "".join(str(token) for token in ids)


def test_texts_have_one_bos_and_never_an_id_past_the_tokenizer(made):
    model, params = made
    out = zoo.generate(model, params, ["123"], max_new_tokens=NEW, tokenizer=ThreeOfVocabulary())
    assert (out.tokens < 10).all()
    ids = zoo.generate(model, params, [[0, 1, 2, 3]], max_new_tokens=NEW, tokenizer=ThreeOfVocabulary())
    assert out.texts == ids.texts and out.texts[0] == "".join(str(i) for i in out.tokens[0, : out.lengths[0]])


class Letters48(ThreeOfVocabulary):
    vocab_size, adds_bos = 48, False

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]


class OneForBoth(ThreeOfVocabulary):
    """BOS is EOS, as in OPT, whose texts begin with it, and in GPT-2, whose texts do not."""

    eos_id = 0

    def __init__(self, adds_bos):
        self.adds_bos = adds_bos


@pytest.mark.parametrize("adds_bos, ids", [(True, [0, 1, 2, 3]), (False, [1, 2, 3])])
def test_a_bos_that_is_also_eos_goes_by_the_tokenizers_settings(made, adds_bos, ids):
    model, params = made
    text, same = (
        zoo.generate(model, params, [prompt], max_new_tokens=NEW, tokenizer=OneForBoth(adds_bos), stop_ids=())
        for prompt in ("123", ids)
    )
    assert text.tokens.tolist() == same.tokens.tolist()


class Spaced(ThreeOfVocabulary):
    """Words of one digit; a text has spaces between words and none before the first, as SentencePiece decodes."""

    def decode(self, ids):
        return " ".join(str(token) for token in ids)


def test_texts_keep_the_space_between_the_prompt_and_what_follows(made):
    model, params = made
    out = zoo.generate(model, params, ["123"], max_new_tokens=NEW, tokenizer=Spaced(), stop_ids=())
    assert out.texts[0] == "".join(f" {token}" for token in out.tokens[0])


@pytest.mark.parametrize(
    "prompts, settings, message",
    [
        ([[1, 2], []], {}, "prompt 1 is empty: there is nothing to continue"),
        ([], {}, "there are no prompts"),
        ([[1, 48]], {}, "prompt 0 holds id 48, outside the vocabulary: 0 to 47"),
        ([[1, -2]], {}, "prompt 0 holds id -2, outside the vocabulary: 0 to 47"),
        (
            [[1] * 30],
            {},
            "a prompt of 30 tokens and 5 new ones exceed the model's 32 positions; ask for at most 2 new tokens",
        ),
        ([[1]], {"temperature": 1.0}, "sampling above temperature 0 needs a key, such as jax.random.key(0)"),
        ([[1]], {"top_k": 49, "key": 0}, "top_k is 49; it must be from 0 (off) to the vocabulary's 48"),
        ([[1]], {"temperature": 1.0, "key": 3}, "key: 3 is no random key; give one, such as jax.random.key(0)"),
        ([1, 2], {}, f"a prompt is 1; {WANTED}"),
        (None, {}, f"prompts are a NoneType; {WANTED}"),
        (np.asarray([1, 2]), {}, f"prompts are int64 of shape (2,); {WANTED}"),
        (np.asarray([[1.5]]), {}, f"prompts are float64 of shape (1, 1); {WANTED}"),
        ([[1.5]], {}, "id 1.5 is no whole number"),
        ([[1]], {"forced_ids": {0: 7}}, "forced_ids: ids are a dict; give a list of whole numbers"),
        (
            np.asarray([[1, 2]]),
            {"padding_mask": np.asarray([[0.0, -1e9]])},
            "padding_mask must be of 1 (real tokens) and 0, of the prompts' shape (1, 2)",
        ),
        (["hello"], {}, "prompts are texts but no tokenizer is given; pass tokenizer=zoo.load_tokenizer(path)"),
        ([[1]], {"samples": 0}, "samples is 0; it must be at least 1"),
        ([[1]], {"samples": 1.5}, "samples is 1.5; it must be a whole number"),
        ([[1]], {"samples": True}, "samples is True; it must be a whole number"),
        ([[1]], {"max_new_tokens": 2.5}, "max_new_tokens is 2.5; it must be a whole number"),
        ([[1]], {"max_new_tokens": "5"}, "max_new_tokens is '5'; it must be a whole number"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ([[1]], {"min_new_tokens": 1.0}, "min_new_tokens is 1.0; it must be a whole number"),
        ([[1]], {"top_k": True}, "top_k is True; it must be a whole number"),
        ([[1]], {"top_k": 2.0}, "top_k is 2.0; it must be a whole number"),
        ([[1]], {"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ([[1]], {"top_p": None}, "top_p is None; it must be a number"),
        ([[1]], {"logit_bias": [3]}, "logit_bias is [3]; give {id: what is added to its logit}"),
        ([[1]], {"stop_ids": ["a"]}, "stop_ids: id 'a' is no whole number"),
        ([[1]], {"stop_ids": 3}, "stop_ids: ids are a int; give a list of whole numbers"),
        ([[1]], {"banned_ids": [1.5]}, "banned_ids: id 1.5 is no whole number"),
        ([[1]], {"forced_ids": [None]}, "forced_ids: id None is no whole number"),
        ([[1]], {"min_new_tokens": 6}, "min_new_tokens is 6; it must be from 0 to max_new_tokens, 5"),
        ([[1]], {"stop_ids": [48]}, "stop_ids holds id 48, outside the vocabulary: 0 to 47"),
        ([[1]], {"forced_ids": [-1]}, "forced_ids holds id -1, outside the vocabulary: 0 to 47"),
        ([[1]], {"banned_ids": [48]}, "banned names id 48; ids go from 0 to 47"),
        ([[1]], {"stop": "end"}, "stop texts need a tokenizer; give stop_ids without one"),
        (
            [[1]],
            {"banned_ids": range(47), "stop_ids": [47], "min_new_tokens": 1},
            "min_new_tokens asks for more where all but the stop ids are banned",
        ),
    ],
)
def test_bad_input_is_one_line(one, prompts, settings, message):
    model, params = one
    with pytest.raises(InputError) as caught:
        zoo.generate(model, params, prompts, **{"max_new_tokens": NEW} | settings)
    assert str(caught.value) == message


def test_whole_numbers_of_any_kind_are_taken(one):
    model, params = one
    right = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, stop_ids=[7])
    kinds = dict(max_new_tokens=np.int64(NEW), stop_ids=np.asarray([7]), temperature=np.float32(0), samples=np.int8(1))
    assert zoo.generate(model, params, PROMPTS, **kinds).tokens.tolist() == right.tokens.tolist()


def test_weights_that_are_no_numbers_are_one_line(one):
    """In whatever is made of them: texts, drafts, beams, choices, a stream."""
    model, params = one
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, params)
    asked = dict(max_new_tokens=NEW, tokenizer=Letters48())
    for call in (
        lambda: zoo.generate(model, broken, PROMPTS, **asked),
        lambda: zoo.generate(model, broken, PROMPTS, draft=(model, params), **asked),
        lambda: list(stream(model, broken, "12", **asked)),
        lambda: beam_search(model, broken, PROMPTS, beams=2, **asked),
        lambda: choose(model, broken, "12", ["3", "4"], tokenizer=Letters48()),
    ):
        with pytest.raises(InputError, match="the model gives numbers that are not finite: its weights hold such, or"):
            call()


FITS = [(48, 48), (50257, 50304), (50295, 51200), (100015, 102400), (259, 384)]
OTHERS = [(49, 48), (4096, 49152), (44000, 49152)]


@pytest.mark.parametrize("pieces, vocabulary, fits", [(*x, True) for x in FITS] + [(*x, False) for x in OTHERS])
def test_a_tokenizer_fits_tables_with_rows_to_spare_and_no_others(pieces, vocabulary, fits):
    tokenizer = ThreeOfVocabulary()
    tokenizer.vocab_size = pieces
    if fits:
        return check_tokenizer(tokenizer, vocabulary)
    with pytest.raises(InputError) as caught:
        check_tokenizer(tokenizer, vocabulary)
    assert str(caught.value) == (
        f"the tokenizer has {pieces} pieces but the model's vocabulary {vocabulary}: they do not belong together"
    )


def test_an_empty_text_is_no_prompt_though_a_bos_would_stand_there(one):
    for prompts, which in (([""], 0), (["12", ""], 1)):
        with pytest.raises(InputError, match=f"prompt {which} is empty: there is nothing to continue"):
            zoo.generate(*one, prompts, max_new_tokens=NEW, tokenizer=OneForBoth(True))
    blank = OneForBoth(True)
    blank.encode = lambda text: []
    with pytest.raises(InputError, match="prompt 0 is empty: there is nothing to continue"):
        zoo.generate(*one, [" "], max_new_tokens=NEW, tokenizer=blank)


def test_models_that_see_a_prompt_both_ways_are_refused(one):
    model, params = one
    other = zoo.Model(model.config.replace(visibility="prefix"))
    for call in (zoo.generate, beam_search):
        with pytest.raises(InputError) as caught:
            call(other, params, PROMPTS, max_new_tokens=NEW)
        assert str(caught.value) == (
            'generation reads a prompt from left to right, and this model sees a prefix both ways (visibility "prefix")'
            '; to go on so all the same, give zoo.Model(model.config.replace(visibility="causal"))'
        )
    same = zoo.Model(other.config.replace(visibility="causal"))
    assert zoo.generate(same, params, PROMPTS, max_new_tokens=2).tokens.shape == (2, 2)


def test_encoders_are_refused():
    model = zoo.create("bert-tiny", vocab_size=48)
    with pytest.raises(InputError, match='generation needs a causal language model; this one has visibility "full"'):
        zoo.generate(model, {}, [[1]], max_new_tokens=1)


def test_samples_of_a_prompt_are_its_rows_next_to_each_other(made):
    """The key of sample j of row i is fold_in(fold_in(key, i), j), so each can be drawn again by itself."""
    model, params = made
    key = jax.random.key(7)
    out = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, temperature=2.0, key=key, samples=3)
    assert out.tokens.shape == (6, NEW) and len({tuple(row) for row in out.tokens.tolist()}) > 3
    again = jax.random.fold_in(jax.random.fold_in(key, 1), 2)
    alone = zoo.generate(model, params, PROMPTS[1:], max_new_tokens=NEW, temperature=2.0, key=again[None])
    assert out.tokens[5].tolist() == alone.tokens[0].tolist()


def test_forced_and_banned_tokens_and_the_least_length(made):
    model, params = made
    free = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW).tokens
    forced = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, forced_ids=[9, 8])
    assert forced.tokens[:, :2].tolist() == [[9, 8]] * 2
    longer = [prompt + [9, 8] for prompt in PROMPTS]
    assert forced.tokens[:, 2:].tolist() == zoo.generate(model, params, longer, max_new_tokens=NEW - 2).tokens.tolist()
    gone = set(free[0].tolist())
    banned = zoo.generate(model, params, PROMPTS[:1], max_new_tokens=NEW, banned_ids=gone)
    assert not gone & set(banned.tokens[0].tolist())
    stop = int(free[0, 0])
    held = zoo.generate(model, params, PROMPTS[:1], max_new_tokens=NEW, stop_ids=[stop], min_new_tokens=3)
    assert held.lengths[0] >= 3 and stop not in held.tokens[0, :3].tolist()


def test_a_repetition_penalty_looks_back_on_the_prompt_too(made):
    """A huge one keeps every id of prompt and text from coming again, where any other id has a logit above theirs."""
    model, params = made
    out = zoo.generate(model, params, [[1, 2, 3]], max_new_tokens=20, repetition_penalty=1e6)
    ids = [1, 2, 3, *out.tokens[0].tolist()]
    assert len(set(ids)) == len(ids)
    once = zoo.generate(model, params, [[1, 2, 3]], max_new_tokens=20, presence_penalty=1e6)
    assert len(set(once.tokens[0].tolist())) == 20


def test_a_prompt_read_in_chunks_gives_the_same_text(made, monkeypatch):
    model, params = made
    rows = [list(range(1, 22)), [5, 6, 7]]
    whole = zoo.generate(model, params, rows, max_new_tokens=NEW)
    monkeypatch.setattr(text_batch, "CHUNK", 16)
    parts = zoo.generate(model, params, rows, max_new_tokens=NEW)
    assert parts.tokens.tolist() == whole.tokens.tolist()
    np.testing.assert_allclose(parts.log_probs, whole.log_probs, atol=1e-5)


def test_a_stream_is_the_text_of_generate_with_its_stops(made):
    model, params = made
    settings = dict(max_new_tokens=8, tokenizer=Spaced())
    for stop, reason in (((), "length"), ((" 9 9", " 3"), None)):
        whole = zoo.generate(model, params, ["123"], stop_ids=(), stop=stop, **settings)
        pieces = list(stream(model, params, "123", stop_ids=(), stop=stop, every=2, **settings))
        assert "".join(piece.text for piece in pieces) == whole.texts[0]
        assert [piece.finished for piece in pieces[:-1]] == [""] * (len(pieces) - 1)
        assert pieces[-1].finished == (reason or ("stop" if whole.stopped[0] else "length"))
    free = zoo.generate(model, params, ["123"], stop_ids=(), **settings)
    word = free.texts[0][4:6]
    cut = zoo.generate(model, params, ["123"], stop_ids=(), stop=word, **settings)
    assert cut.stopped[0] and cut.texts[0] == free.texts[0][: free.texts[0].index(word)]
    assert len(cut.texts[0].split()) == cut.lengths[0]


@pytest.mark.parametrize("wrong, line", [({"every": 0}, "every is 0"), ({"every": 1.5}, "every is 1.5; it must be a")])
def test_what_a_stream_refuses(one, wrong, line):
    with pytest.raises(zoo.InputError, match=line):
        next(stream(*one, "123", max_new_tokens=8, tokenizer=Spaced(), **wrong))
