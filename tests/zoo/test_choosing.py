"""Choice among strings: the sums of log-probabilities that one pass over each whole text gives."""

import re

import jax
import numpy as np
import pytest

import zoo
from zoo.errors import InputError
from zoo.generation import choosing
from zoo.generation.choosing import choose
from zoo.layer_config import LayerConfig

PROMPTS = ["the river runs to", "a", "it was a long winter and the old men sat by the fire and told of"]
CHOICES = [" the sea", " nothing at all", " yes", "th"]


@pytest.fixture(scope="module")
def made():
    tokenizer = zoo.load_tokenizer("oneblock/gpt-tiny")
    sizes = dict(vocab_size=tokenizer.vocab_size, embed_dim=16, num_heads=4, num_kv_heads=2, mlp_dim=24, num_layers=1)
    model = zoo.create("llama-tiny", **sizes, max_positions=48, layer_pattern=(LayerConfig(window=5),))
    return model, jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, model.init(jax.random.key(4))), tokenizer


def by_hand(model, params, tokenizer, prompt, choice):
    before, whole = tokenizer.encode(prompt), tokenizer.encode(prompt + choice)
    shared = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
    row = np.zeros((1, 48), np.int32)  # causal: what follows does not matter
    ids = [tokenizer.bos_id, *whole]
    row[0, : len(ids)] = ids
    logits = model.apply(params, row).logits[0, : len(ids) - 1]
    each = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids) - 1), ids[1:]]
    return each[shared:].sum(), len(whole) - shared


@pytest.mark.parametrize("rows", [16, 3])
def test_sums_are_those_of_whole_texts(made, rows, monkeypatch):
    """Several prompts of other lengths, in one pass and in passes that part a prompt's choices."""
    monkeypatch.setattr(choosing, "ROWS", rows)
    model, params, tokenizer = made
    found = choose(model, params, PROMPTS, CHOICES, tokenizer=tokenizer)
    for i, prompt in enumerate(PROMPTS):
        pairs = [by_hand(model, params, tokenizer, prompt, choice) for choice in CHOICES]
        np.testing.assert_allclose(found.log_probs[i], [value for value, _ in pairs], atol=2e-5)
        assert found.tokens[i].tolist() == [count for _, count in pairs]
        assert found.index[i] == int(np.argmax([value for value, _ in pairs]))


def test_long_choices_are_scored_a_part_at_a_time(made, monkeypatch):
    """Logits of two places at a time, one row a pass: the same sums; of no program is an array larger."""
    model, params, tokenizer = made
    whole = choose(model, params, PROMPTS, CHOICES, tokenizer=tokenizer)
    longest = max(int(tokens.max()) for tokens in whole.tokens)
    monkeypatch.setattr(choosing, "PLACES", 2)
    monkeypatch.setattr(choosing, "TOKENS", 32)
    choosing._score.clear_cache()
    parts = choose(model, params, PROMPTS, CHOICES, tokenizer=tokenizer)
    for one, other in zip(parts.log_probs, whole.log_probs, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    width, rows = -(-longest // 2) * 2, 3
    given = [np.zeros(shape, np.int32) for shape in ((rows, 16), (rows, 16), (rows, width), (rows, width))]
    lowered = choosing._score.lower(params, *given, None, model=model, limit=tokenizer.vocab_size).as_text()
    shapes = re.findall(r"tensor<([0-9x]+)xf32>", lowered)
    sizes = [int(np.prod([int(n) for n in shape.split("x")])) for shape in shapes]
    assert width > 2 and rows * 2 * 4096 in sizes and rows * width * 4096 not in sizes
    choosing._score.clear_cache()


def test_lengths_are_taken_out_where_asked(made):
    model, params, tokenizer = made
    plain = choose(model, params, PROMPTS[0], CHOICES, tokenizer=tokenizer)
    for way, sizes in (("tokens", plain.tokens[0]), ("bytes", [len(c.encode()) for c in CHOICES])):
        found = choose(model, params, PROMPTS[0], CHOICES, tokenizer=tokenizer, normalise=way)
        np.testing.assert_allclose(found.scores[0], plain.log_probs[0] / sizes, rtol=1e-6)
        assert found.index[0] == int(np.argmax(plain.log_probs[0] / sizes))
    own = choose(model, params, PROMPTS[:2], [CHOICES[:1], CHOICES[1:3]], tokenizer=tokenizer)
    assert [len(x) for x in own.scores] == [1, 2]
    np.testing.assert_allclose(own.log_probs[0], plain.log_probs[0][:1], atol=2e-5)


def test_bad_input_is_one_line(made):
    model, params, tokenizer = made
    how = 'normalise is "byte"; did you mean "bytes"?'
    for prompts, choices, more, said in (
        ([], CHOICES, {}, "there are no prompts"),
        (["a", ""], CHOICES, {}, "prompt 1 is empty: there is nothing to continue"),
        ([[1, 2]], CHOICES, {}, "prompt 0 is [1, 2]; choices follow texts"),
        (PROMPTS, [CHOICES], {}, "1 lists of choices for 3 prompts; give one each, or one for all"),
        (["a"], [[]], {}, "the choices of prompt 0 must be texts, one at least, and none of them empty"),
        (["a"], [], {}, "the choices of prompt 0 must be texts, one at least, and none of them empty"),
        (["a"], ["x", ""], {}, "the choices of prompt 0 must be texts, one at least, and none of them empty"),
        (["a"], ["x"], {"normalise": "byte"}, how),
    ):
        with pytest.raises(InputError) as caught:
            choose(model, params, prompts, choices, tokenizer=tokenizer, **more)
        assert str(caught.value) == said
    with pytest.raises(InputError, match="tokens leaves no room in the model's 48 positions; shorten it by"):
        choose(model, params, " the river" * 60, ["x"], tokenizer=tokenizer)
    small = zoo.create("gpt-tiny", vocab_size=100)
    with pytest.raises(InputError, match="the tokenizer has 4096 pieces but the model's vocabulary 100"):
        choose(small, {}, "a", ["x"], tokenizer=tokenizer)
