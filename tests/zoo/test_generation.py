"""Generation: cached equals uncached, ragged batches equal rows alone, stops, limits, seeds by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.errors import InputError
from zoo.generation import WANTED
from zoo.layer_config import RotaryScaling

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]
NEW = 5
NAMES = ["gpt-tiny", "gpt1-tiny", "llama-tiny"]


@pytest.fixture(scope="module", params=NAMES)
def made(request):
    model = zoo.create(request.param, vocab_size=48, embed_dim=32, mlp_dim=64, max_positions=32)
    # Larger weights than at initialisation, so that the likeliest token depends on the context.
    params = jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 1 else leaf, model.init(jax.random.key(1)))
    return model, params


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
        (
            np.asarray([[1, 2]]),
            {"padding_mask": np.asarray([[0.0, -1e9]])},
            "padding_mask must be of 1 (real tokens) and 0, of the prompts' shape (1, 2)",
        ),
        (["hello"], {}, "prompts are texts but no tokenizer is given; pass tokenizer=zoo.load_tokenizer(path)"),
    ],
)
def test_bad_input_is_one_line(made, prompts, settings, message):
    model, params = made
    with pytest.raises(InputError) as caught:
        zoo.generate(model, params, prompts, max_new_tokens=NEW, **settings)
    assert str(caught.value) == message


def test_encoders_are_refused():
    model = zoo.create("bert-tiny", vocab_size=48)
    with pytest.raises(InputError, match='generation needs a causal language model; this one has visibility "full"'):
        zoo.generate(model, {}, [[1]], max_new_tokens=1)
