"""Beam search against a search of everything, rows alone, and greedy."""

import itertools

import jax
import numpy as np
import pytest

import zoo
from zoo.errors import InputError
from zoo.generation import beams, decoding, text_batch
from zoo.generation.beams import beam_search

VOCABULARY, STEPS, STOP = 8, 3, 7
PROMPTS = [[1, 2, 3], [4, 5]]


@pytest.fixture(scope="module")
def made():
    model = zoo.create("llama-tiny", vocab_size=VOCABULARY, embed_dim=32, mlp_dim=64, max_positions=256)
    params = jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 1 else leaf, model.init(jax.random.key(2)))
    return model, params


def everything(model, params, prompt, penalty, stops=(STOP,)):
    """All texts of up to three tokens that stop, or have three, with their scores, best first."""
    lines = np.asarray(list(itertools.product(range(VOCABULARY), repeat=STEPS)))
    rows = np.concatenate([np.tile(prompt, (len(lines), 1)), lines], axis=1)
    log_probs = np.asarray(jax.nn.log_softmax(model.apply(params, rows).logits))[:, len(prompt) - 1 : -1]
    each = np.take_along_axis(log_probs, lines[..., None], axis=2)[..., 0]
    found = {}
    for line, values in zip(lines.tolist(), each, strict=True):
        count = next((i + 1 for i, token in enumerate(line) if token in stops), STEPS)
        found[tuple(line[:count])] = values[:count].sum() / count**penalty
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5])
def test_a_wide_beam_finds_the_best_of_all_texts(made, penalty):
    """A width of four is half of the vocabulary: the best is found unless its beginning is fifth or worse."""
    model, params = made
    out = beam_search(
        model, params, PROMPTS, max_new_tokens=STEPS, beams=4, length_penalty=penalty, stop_ids=[STOP]
    )
    for i, prompt in enumerate(PROMPTS):
        best = everything(model, params, prompt, penalty)
        text = tuple(out.tokens[i, 0, : out.lengths[i, 0]].tolist())
        assert text == best[0][0]
        np.testing.assert_allclose(out.scores[i, 0], best[0][1], atol=1e-5)
        scores = dict(best)
        for k in range(4):  # every text that is given has the score that it says, and they fall
            text = tuple(out.tokens[i, k, : out.lengths[i, k]].tolist())
            np.testing.assert_allclose(out.scores[i, k], scores[text], atol=1e-5)
        assert (np.diff(out.scores[i]) <= 0).all()


@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_many_stop_ids_leave_no_beam_without_a_way_on(made, penalty):
    """Of eight ids six end the text: among a live beam's best continuations all may end, and yet it goes on."""
    model, params = made
    out = beam_search(
        model, params, PROMPTS, max_new_tokens=STEPS, beams=4, length_penalty=penalty, stop_ids=range(2, 8)
    )
    for i, prompt in enumerate(PROMPTS):  # two ids a step go on: four beams hold all of them
        best = everything(model, params, prompt, penalty, range(2, 8))
        np.testing.assert_allclose(out.scores[i], [score for _, score in best[:4]], atol=1e-5)
        assert tuple(out.tokens[i, 0, : out.lengths[i, 0]].tolist()) == best[0][0]


def test_a_row_is_what_it_is_alone(made):
    model, params = made
    given = dict(max_new_tokens=STEPS, beams=2, stop_ids=[STOP])
    together = beam_search(model, params, PROMPTS, **given)
    alone = beam_search(model, params, PROMPTS[1:], **given)
    assert together.tokens[1].tolist() == alone.tokens[0].tolist()
    np.testing.assert_allclose(together.scores[1], alone.scores[0], atol=1e-5)


def test_a_beam_of_one_is_greedy(made):
    model, params = made
    out = beam_search(model, params, PROMPTS, max_new_tokens=STEPS, beams=1, stop_ids=())
    assert out.tokens[:, 0].tolist() == zoo.generate(model, params, PROMPTS, max_new_tokens=STEPS).tokens.tolist()


def test_programs_are_shared_by_lengths_and_the_prompt_may_come_in_chunks(made, monkeypatch):
    """Prompts and texts of other lengths compile nothing anew; chunks and a cache that grows change none."""
    model, params = made
    programs = beams._begin, beams._go_on, beams._ended, decoding.last_logits
    rows = [list(np.arange(20) % 7), [1, 2]]
    whole = beam_search(model, params, rows, max_new_tokens=8, beams=3, stop_ids=[STOP])
    before = [program._cache_size() for program in programs]
    for prompt, new in (([1], 8), ([3] * 11, 5), ([2] * 20, 1)):
        beam_search(model, params, [prompt, [4]], max_new_tokens=new, beams=3, stop_ids=[STOP])
    assert [program._cache_size() for program in programs] == before
    monkeypatch.setattr(text_batch, "CHUNK", 8)
    monkeypatch.setattr(text_batch, "SLOTS", 9)
    parts = beam_search(model, params, rows, max_new_tokens=8, beams=3, stop_ids=[STOP])
    assert parts.tokens.tolist() == whole.tokens.tolist() and parts.tokens.shape == (2, 3, 8)
    np.testing.assert_allclose(parts.scores, whole.scores, atol=1e-5)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"beams": 0}, "beams is 0; it must be from 1 to half of the vocabulary, 4"),
        ({"beams": 2.0}, "beams is 2.0; it must be a whole number"),
        ({"length_penalty": "1"}, "length_penalty is '1'; it must be a number"),
        ({"beams": 5}, "beams is 5; it must be from 1 to half of the vocabulary, 4"),
        ({"length_penalty": float("nan")}, "length_penalty is nan; it must be a number, such as 1.0"),
        ({"stop_ids": [8]}, "stop_ids holds id 8, outside the vocabulary: 0 to 7"),
        (
            {"max_new_tokens": 254},
            "a prompt of 3 tokens and 254 new ones exceed the model's 256 positions; ask for at most 253 new tokens",
        ),
    ],
)
def test_bad_input_is_one_line(made, settings, message):
    model, params = made
    with pytest.raises(InputError) as caught:
        beam_search(model, params, PROMPTS, **({"max_new_tokens": STEPS} | settings))
    assert str(caught.value) == message
