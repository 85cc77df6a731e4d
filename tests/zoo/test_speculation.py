"""Speculative decoding: the large model's texts, by their distribution and, greedy, to the token."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.zoo.drawn import check_draws, shares
from zoo.errors import InputError
from zoo.generation import text_batch
from zoo.generation.sampling import Sampling
from zoo.generation.speculation import DraftedBatch
from zoo.layer_config import RotaryScaling

VOCABULARY, NEW = 6, 12
PROMPTS = [[1, 2, 3], [4], [5, 0, 5, 2, 1]]
SIZES = dict(vocab_size=VOCABULARY, embed_dim=16, num_heads=4, mlp_dim=24, num_layers=1, max_positions=48)


@pytest.fixture(scope="module")
def made():
    """(large, its parameters, small, its parameters): of other families, and of other opinions."""
    found = []
    for name, seed, scale in (("llama-tiny", 3, 12), ("gpt-tiny", 7, 6)):
        heads = {"num_kv_heads": 2} if name == "llama-tiny" else {}
        model = zoo.create(name, **SIZES, **heads)
        found += [model, jax.tree.map(lambda x, s=scale: s * x if x.ndim > 1 else x, model.init(jax.random.key(seed)))]
    return tuple(found)


@pytest.mark.parametrize(
    "settings",
    [{}, dict(stop_ids=(2,), min_new_tokens=2, forced_ids=[3], repetition_penalty=1.3, banned_ids=[4])],
    ids=["plain", "all"],
)
def test_greedy_text_is_the_large_models(made, settings):
    """Ragged prompts, of which one has one token; rows that accept more than others, and rows that stop."""
    model, params, small, small_params = made
    given = dict(max_new_tokens=NEW) | settings
    plain = zoo.generate(model, params, PROMPTS, **given)
    drafted = zoo.generate(model, params, PROMPTS, draft=(small, small_params), draft_tokens=3, **given)
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert drafted.lengths.tolist() == plain.lengths.tolist() and drafted.stopped.tolist() == plain.stopped.tolist()
    np.testing.assert_allclose(drafted.log_probs, plain.log_probs, atol=1e-5)
    assert plain.acceptance is None and ((drafted.acceptance >= 0) & (drafted.acceptance <= 1)).all()


def test_a_draft_of_fewer_positions_and_caches_that_grow(made, monkeypatch):
    """The caches have slots for the positions of both; rows that are ahead wait where a cache is full."""
    model, params, _, _ = made
    large = zoo.create("llama-tiny", **SIZES | {"max_positions": 256}, num_kv_heads=2)
    small = zoo.create("gpt-tiny", **SIZES | {"max_positions": 64})
    draft = small, jax.tree.map(lambda x: 6 * x if x.ndim > 1 else x, small.init(jax.random.key(7)))
    asked = dict(max_new_tokens=40, key=jax.random.key(1))
    whole = zoo.generate(large, params, PROMPTS, temperature=1.2, draft=draft, draft_tokens=3, **asked)
    monkeypatch.setattr(text_batch, "SLOTS", 24)
    work = DraftedBatch(large, params, PROMPTS, [Sampling(temperature=1.2)] * 3, draft=draft, drafts=3, **asked)
    seen = {work.capacity, *(work.capacity for step in range(5, 41, 5) if not work.advance(step))}
    assert seen == {24, 48} and work.now.draft_cache.capacity == 48
    tokens, lengths, log_probs, _ = work.result()
    assert tokens.tolist() == whole.tokens.tolist() and lengths.tolist() == [40] * 3
    np.testing.assert_allclose(log_probs, whole.log_probs, atol=1e-5)


@pytest.mark.parametrize("new, drafts", [(2, 8), (NEW, 3)])
def test_only_drafts_that_could_be_part_of_the_text_are_counted(made, new, drafts):
    """A model that drafts for itself has all of them taken; one after a stop token or the last token is none."""
    model, params, _, _ = made
    asked = dict(max_new_tokens=new, draft=(model, params), draft_tokens=drafts)
    free = zoo.generate(model, params, PROMPTS, **asked)
    assert free.acceptance.tolist() == [1.0] * 3
    work = DraftedBatch(model, params, PROMPTS, [Sampling()] * 3, draft=(model, params), drafts=drafts,
                        max_new_tokens=new, stop_ids=(int(free.tokens[0, new - 1]),))  # fmt: skip
    work.advance(new)
    _, lengths, _, ended = work.result()
    assert work.now.tried.tolist() == work.now.taken.tolist()
    made_by_rounds = lengths + ended - 1  # all but the prompt's own
    assert (np.asarray(work.now.tried) <= made_by_rounds).all()
    assert (np.asarray(work.now.tried) >= made_by_rounds * drafts // (drafts + 1)).all()


def exact(model, params, prompt, settings, steps):
    """The probability of each text of so many tokens, by one pass over all of them."""
    lines = np.asarray(list(itertools.product(range(VOCABULARY), repeat=steps)))
    logits = model.apply(params, np.concatenate([np.tile(prompt, (len(lines), 1)), lines], axis=1)).logits
    logits = np.asarray(logits[:, len(prompt) - 1 : -1])
    return np.asarray(
        [
            np.prod([shares(row[i], prompt, line[:i], **settings)[line[i]] for i in range(steps)])
            for row, line in zip(logits, lines.tolist(), strict=True)
        ]
    )


PENALTIES = dict(temperature=1.2, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4)
PENALTIES |= dict(logit_bias={2: 0.7}, top_p=0.97)


@pytest.mark.parametrize(
    "settings, drafts",
    [
        ({"temperature": 1.5}, 2),
        (dict(temperature=0.9, top_k=4, top_p=0.9, min_p=0.1), 2),
        (PENALTIES, 5),
        (PENALTIES, None),
    ],
    ids=["plain", "filters", "penalties", "no draft"],
)
def test_texts_are_distributed_as_the_large_models(made, settings, drafts):
    """Chi-square over all texts of three tokens after two prompts; with fewer drafts, and more, than are left."""
    model, params, small, small_params = made
    draws, steps = 6000, 3
    draft = {} if drafts is None else dict(draft=(small, small_params), draft_tokens=drafts)
    asked = dict(max_new_tokens=steps, key=jax.random.key(11), samples=draws)
    out = zoo.generate(model, params, PROMPTS[:2], **asked, **draft, **settings)
    for number, prompt in enumerate(PROMPTS[:2]):
        mine = out.tokens[number * draws : (number + 1) * draws] @ (VOCABULARY ** np.arange(steps)[::-1])
        seen = np.bincount(mine, minlength=VOCABULARY**steps)
        check_draws(seen, draws * exact(model, params, prompt, settings, steps))
    if drafts:
        rate = out.acceptance.mean()
        assert 0.1 < rate < 0.9  # the models disagree, or this would show nothing


def test_a_row_draws_the_same_in_any_batch(made):
    """However many drafts its neighbours take."""
    model, params, small, small_params = made
    keys = jax.random.split(jax.random.key(2), 3)
    given = dict(max_new_tokens=NEW, temperature=1.5, draft=(small, small_params), draft_tokens=3)
    one = zoo.generate(model, params, PROMPTS, key=keys, **given)
    other = zoo.generate(model, params, [PROMPTS[2], [0], [2, 2]], key=keys[jnp.asarray([2, 0, 1])], **given)
    assert one.tokens[2].tolist() == other.tokens[0].tolist()
    assert one.tokens[0].tolist() != other.tokens[1].tolist()  # the same key after another prompt


def test_stop_texts_and_lengths_end_drafted_texts(made):
    class Digits:
        vocab_size, bos_id, eos_id, fingerprint = VOCABULARY, None, None, "a"

        def encode(self, text):
            return [int(letter) for letter in text]

        def decode(self, ids):
            return "".join(str(token) for token in ids)

    model, params, small, small_params = made
    given = dict(max_new_tokens=NEW, tokenizer=Digits())
    free = zoo.generate(model, params, PROMPTS, **given).texts
    given |= dict(stop=free[0][4:6], draft=(small, small_params, Digits()), draft_tokens=3)
    cut = zoo.generate(model, params, PROMPTS, **given)
    for text, whole in zip(cut.texts, free, strict=True):
        assert text == (whole[: whole.index(free[0][4:6])] if free[0][4:6] in whole else whole)
    assert cut.stopped[0]
    other = Digits()
    other.fingerprint = "b"
    with pytest.raises(InputError, match="the draft's tokenizer is another than the model's"):
        zoo.generate(model, params, ["123"], **given | {"draft": (small, small_params, other)})


def test_what_does_not_go_together_is_one_line(made):
    model, params, small, small_params = made
    other = zoo.create("gpt-tiny", **SIZES | {"vocab_size": 7})
    scaling = RotaryScaling("dynamic", 2.0, original_max_positions=8)
    by_length = zoo.create("llama-tiny", **SIZES, rotary_scaling=scaling)
    encoder = zoo.create("bert-tiny", vocab_size=VOCABULARY)
    for draft, more, said in (
        ((other, {}), {}, "the draft's vocabulary has 7 ids and the model's 6; they must be the same"),
        ((small,), {}, "draft must be (model, params) or (model, params, tokenizer)"),
        (small, {}, "draft must be (model, params) or (model, params, tokenizer)"),
        ((small, {}), {"draft_tokens": 0}, "draft_tokens is 0; it must be from 1 to 16"),
        (
            (by_length, {}),
            {},
            'drafts do not go with "dynamic" rotary scaling, whose angles go by the length',
        ),
        (
            (encoder, {}),
            {},
            'generation needs a causal language model; this one has visibility "full" and head "lm"',
        ),
        (
            (small, small_params),
            {"max_new_tokens": 44},
            "a prompt of 1 tokens and 44 new ones with 4 drafts exceed the model's 48 positions; ask for at most 43 "
            "new tokens",
        ),
    ):
        with pytest.raises(InputError) as caught:
            zoo.generate(model, params, [[1]], **dict(max_new_tokens=4, draft=draft) | more)
        assert str(caught.value) == said
