"""zoo.fill_mask: probabilities are the model's own at each gap; what has no gap, or no read-out, is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from zoo.errors import InputError
from zoo.masked_texts import GAPS, _likeliest

MODEL, PARAMS = zoo.load("oneblock/bert-tiny")
TOKENIZER = zoo.load_tokenizer("oneblock/bert-tiny")


def fill(texts, **options):
    return zoo.fill_mask(MODEL, PARAMS, texts, tokenizer=TOKENIZER, **options)


def test_probabilities_are_those_of_a_direct_pass():
    texts = ["The price of [MASK] rose.", "The [MASK] of England cut its [MASK].", "[MASK]"]
    found = fill(texts, top=4096, batch_size=2)
    assert [len(gaps) for gaps in found] == [1, 2, 1]
    for text, gaps in zip(texts, found, strict=True):
        ids: list[int] = []
        for number, part in enumerate(text.split("[MASK]")):
            ids += ([TOKENIZER.mask_id] if number else []) + (TOKENIZER.encode(part) if part else [])
        row = [TOKENIZER.cls_id, *ids, TOKENIZER.sep_id]
        logits = MODEL.apply(PARAMS, np.array([row], np.int32)).logits[0]
        places = [at for at, token in enumerate(row) if token == TOKENIZER.mask_id]
        for at, guesses in zip(places, gaps, strict=True):
            shares = np.zeros(4096)
            for guess in guesses:
                shares[guess.token] = guess.probability
            np.testing.assert_allclose(shares, jax.nn.softmax(logits[at]), rtol=0, atol=1e-5)  # padded otherwise
            assert [g.probability for g in guesses] == sorted((g.probability for g in guesses), reverse=True)
            assert abs(sum(g.probability for g in guesses) - 1) < 1e-5


def test_what_a_guess_says():
    (gaps,) = fill("the price of [MASK] rose.", top=3)
    assert len(gaps) == 1 and len(gaps[0]) == 3
    best = gaps[0][0]
    assert best.piece == TOKENIZER.piece(best.token) and best.text == TOKENIZER.decode([best.token]).strip()


def test_logits_of_many_gaps_do_not_exist_at_once():
    """What XLA reserves for 16,384 gaps: a part's logits, and not those of all, 1.3 GB."""
    model = zoo.create("bert-tiny", vocab_size=20_000, embed_dim=8, num_heads=1, num_layers=1, head="masked_lm")
    at = jax.ShapeDtypeStruct((32, 512), jnp.int32)
    lowered = _likeliest.lower(model.init_shapes(), at, at, at, model=model, top=5, limit=20_000)
    attention = 3 * 4 * 32 * 512 * 512
    assert lowered.compile().memory_analysis().temp_size_in_bytes < attention + 8 * 4 * GAPS * 20_000


def test_every_spelling_of_a_gap_is_one():
    assert fill("oil [MASK] rose") == fill("oil <mask> rose")


def test_ids_beyond_the_tokenizer_have_no_probability():
    wide = zoo.create(MODEL.config.replace(vocab_size=4100))
    params = wide.init(jax.random.key(1))
    found = zoo.fill_mask(wide, params, ["a [MASK] b"], tokenizer=TOKENIZER, top=4096)[0][0]
    assert sorted(guess.token for guess in found) == list(range(4096))
    assert abs(sum(guess.probability for guess in found) - 1) < 1e-5


@pytest.mark.parametrize(
    ("texts", "options", "said"),
    [
        ([], {}, "there are no texts"),
        (["a [MASK]", "none here"], {}, "text 1 of 2 has no gap; write [MASK] where one is: 'none here'"),
        ([""], {}, "text 0 of 1 has no gap"),
        ([[5]], {}, "text 0 of 1 is a list and not a str"),
        (["[MASK]"], {"top": 0}, "top is 0; it must be from 1 to the vocabulary's 4096"),
        (["[MASK]"], {"top": 4097}, "top is 4097"),
        (["[MASK]"], {"top": True}, "top is True"),
        (["oil " * 3000 + "[MASK]"], {}, "1 of 1 texts are longer than the model's "),
    ],
)
def test_refusals(texts, options, said):
    with pytest.raises(InputError) as error:
        fill(texts, **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_models_without_a_masked_read_out_are_refused_by_name():
    decoder = zoo.create("gpt-tiny")
    with pytest.raises(InputError, match='has visibility "causal" and head "lm": oneblock/bert-tiny has what it takes'):
        zoo.fill_mask(decoder, {}, ["[MASK]"], tokenizer=TOKENIZER)
    bare = zoo.create("bert-tiny", head="none")
    with pytest.raises(InputError, match='head "none"'):
        zoo.fill_mask(bare, {}, ["[MASK]"], tokenizer=TOKENIZER)


def test_a_vocabulary_without_a_mask_is_refused(tmp_path):
    from tests import made_up

    tokenizer = zoo.load_tokenizer(made_up.json_tokenizer(tmp_path))
    with pytest.raises(InputError, match="this tokenizer has no mask piece"):
        zoo.fill_mask(MODEL, PARAMS, ["[MASK]"], tokenizer=tokenizer)


def test_weights_that_are_not_sound_are_said():
    broken = jax.tree.map(lambda leaf: leaf * np.nan, PARAMS)
    with pytest.raises(InputError, match="probabilities are not finite"):
        zoo.fill_mask(MODEL, broken, ["oil [MASK] rose"], tokenizer=TOKENIZER)
