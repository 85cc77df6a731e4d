"""What the pictures show: tokens as texts, and every number of a view against one computed in another way."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

import zoo
from tests import made_up
from tests.zoo.lens_models import made
from zoo import lens
from zoo.errors import InputError
from zoo.lens import views
from zoo.lens.token_texts import passage_texts, piece_texts, short, visible

IDS, OTHER = (3, 1, 4, 1, 5, 9), (3, 1, 7, 1, 5, 9)
OWL = "\U0001f989"


@pytest.fixture(scope="module")
def llama():
    model, params, _, _ = made("llama")
    return model, params


def log_probs(model, params, ids=IDS):
    return np.asarray(jax.nn.log_softmax(model.apply(params, jnp.array([ids])).logits[0], axis=-1))


def without_head(params, layer, head):
    """The parameters with the rows of the out projection that read this head set to zero."""
    kernel = params["blocks"]["attention"]["out"]["kernel"].at[layer, head].set(0)
    attention = params["blocks"]["attention"] | {"out": {"kernel": kernel}}
    return params | {"blocks": params["blocks"] | {"attention": attention}}


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """GPT-2's layout with the 256 bytes and two merges."""
    folder = tmp_path_factory.mktemp("bytes")
    pieces = [*sorted(ByteLevel.alphabet()), "ab", "\u0120c", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n\u0120 c\n")
    return zoo.load_tokenizer(folder)


def test_spaces_and_controls_are_seen():
    assert visible(" a\n\tb") == "␣a⏎⇥b"
    assert visible("\x00\u202e\u00a0\u2028$<b>é本") == "\\x00\\u202e\\xa0\\u2028$<b>é本"
    assert short("abcdef", 6) == "abcdef" and short("abcdefg", 6) == "abcde…"


@pytest.mark.parametrize("layout", ["own", "bytes"])
def test_characters_of_several_pieces_are_whole(layout, byte_level):
    tokenizer = made_up.tokenizer() if layout == "own" else byte_level
    ids = [tokenizer.eos_id, *tokenizer.encode(f"a{OWL}"), tokenizer.eos_id]
    shown = passage_texts(tokenizer, ids)
    assert len(shown) == len(ids)
    end = tokenizer.piece(tokenizer.eos_id)
    assert shown[0] == shown[-1] == end
    assert shown[-5:-1] == tuple(f"{OWL} ({n}/4)" for n in (1, 2, 3, 4))
    cut = {"own": "<0xF0><0x9F><0xA6>", "bytes": "\\xf0\\x9f\\xa6"}[layout]  # the passage ends inside the character
    assert passage_texts(tokenizer, ids[:-2])[-3:] == tuple(f"{cut} ({n}/3)" for n in (1, 2, 3))
    assert passage_texts(None, [7, 8]) == ("7", "8")


def test_pieces_by_themselves(byte_level):
    wanted = byte_level.encode(f"ab c{OWL}")
    texts = piece_texts(byte_level, [*wanted, byte_level.vocab_size + 3])
    assert [texts[i] for i in wanted[:2]] == ["ab", "␣c"]
    assert [texts[i] for i in wanted[2:]] == ["\\xf0", "\\x9f", "\\xa6", "\\x89"]
    assert texts[byte_level.vocab_size + 3] == f"id {byte_level.vocab_size + 3}"
    own = made_up.tokenizer()
    assert piece_texts(own, [own.eos_id])[own.eos_id] == own.piece(own.eos_id)
    assert piece_texts(None, [7, 7]) == {7: "7"}


def test_the_table_holds_the_likeliest_pieces_of_each_layer(llama):
    table = views.logit_lens_table(*llama, IDS, top=3)
    assert table.tokens == ("3", "1", "4", "1", "5", "9")
    assert table.layers == ("embedding", "layer 0", "layer 1")
    assert table.ids.shape == table.probabilities.shape == (3, 6, 3)
    found = np.asarray(jax.nn.softmax(lens.logit_lens(*llama, jnp.array([IDS]))[:, 0], axis=-1))
    best = np.argsort(-found, axis=-1)[:, :, :3]
    np.testing.assert_array_equal(table.ids, best)
    np.testing.assert_allclose(table.probabilities, np.take_along_axis(found, best, axis=-1), atol=1e-6)
    own = np.exp(log_probs(*llama))  # the last row is the model
    np.testing.assert_array_equal(table.ids[-1, :, 0], own.argmax(axis=-1))
    np.testing.assert_allclose(table.probabilities[-1, :, 0], own.max(axis=-1), atol=1e-6)
    assert table.texts == {i: str(i) for i in set(table.ids.ravel().tolist())}
    assert views.logit_lens_table(*llama, IDS, top=99).ids.shape == (3, 6, 17)


def test_a_target_is_given_or_the_likeliest(llama):
    own = log_probs(*llama)
    likeliest = views.find_target(*llama, IDS)
    assert (likeliest.id, likeliest.at, likeliest.text) == (own[-1].argmax(), 5, str(own[-1].argmax()))
    assert likeliest.log_prob == pytest.approx(own[-1].max(), abs=1e-6)
    chosen = views.find_target(*llama, IDS, target=4, at=2)
    assert (chosen.id, chosen.at) == (4, 2) and chosen.log_prob == pytest.approx(own[2, 4], abs=1e-6)


def test_attention_maps_and_what_zeroing_each_head_changes(llama):
    model, params = llama
    target = views.find_target(model, params, IDS, target=4)
    told = []
    maps = views.attention_maps(model, params, IDS, None, target, lambda done, of: told.append((done, of)))
    attentions = model.apply(params, jnp.array([IDS]), want=("attentions",)).attentions
    np.testing.assert_allclose(maps.weights, np.stack(attentions)[:, 0], atol=1e-6)
    np.testing.assert_allclose(maps.weights.sum(axis=-1), 1, atol=1e-6)
    before = log_probs(model, params)[-1, 4]
    for layer in range(2):
        for head in range(4):
            after = log_probs(model, without_head(params, layer, head))[-1, 4]
            assert maps.effects[layer, head] == pytest.approx(after - before, abs=1e-5)
    assert maps.strongest == np.unravel_index(np.abs(maps.effects).argmax(), (2, 4))
    assert told == [(8, 8)]
    assert maps.effect == "change of log p(4) at position 5 when the head is zeroed, in nats"


def test_models_without_a_vocabulary_are_asked_how_far_they_turn():
    model, params, _, _ = made("albert")
    maps = views.attention_maps(model, params, IDS)
    assert maps.weights.shape == (2, 4, 6, 6) and maps.effects.shape == (2, 4)
    assert np.all(maps.effects >= -1e-6) and np.all(maps.effects <= 2) and maps.effects.max() > 1e-4
    assert "turns (1 - cosine)" in maps.effect
    hidden = [
        lens.run(model, params, jnp.array([IDS]), interventions=change).output.hidden[0].mean(axis=0)
        for change in ((), lens.ablate(heads=[maps.strongest]))
    ]
    cosine = hidden[0] @ hidden[1] / (jnp.linalg.norm(hidden[0]) * jnp.linalg.norm(hidden[1]))
    assert maps.effects[maps.strongest] == pytest.approx(1 - float(cosine), abs=1e-5)


def test_norms_are_those_of_the_streams(llama):
    model, params = llama
    norms = views.stream_norms(model, params, IDS)
    assert norms.layers == ("embedding", "layer 0", "layer 1") and norms.values.shape == (3, 6)
    states = lens.run(model, params, jnp.array([IDS]), sites=("blocks.*.in",)).values["blocks.*.in"][:, 0]
    np.testing.assert_allclose(norms.values[:-1], np.sqrt(np.square(states).sum(axis=-1)), rtol=1e-6)


def test_bars_add_up_to_the_logit(llama):
    model, params = llama
    logits = np.asarray(model.apply(params, jnp.array([IDS])).logits)[0, 3]
    target, rival = (views.find_target(model, params, IDS, target=i, at=3) for i in (4, 8))
    whole = views.attribution_bars(model, params, IDS, target)
    assert set(whole.names) >= {"embed", "head 0.0", "head 1.3", "mlp 0", "mlp 1"}
    assert np.all(np.diff(np.abs(whole.values)) <= 0)
    assert [whole.values.sum(), whole.total] == pytest.approx([logits[4]] * 2, abs=1e-4)
    few = views.attribution_bars(model, params, IDS, target, rival, shown=4)
    assert len(few.names) == 4 and few.names[-1] == f"{len(whole.names) - 3} others"
    assert few.values.sum() == pytest.approx(logits[4] - logits[8], abs=1e-4)
    assert few.what == "logit of 4 less that of 8 at position 3"


@pytest.mark.parametrize("against", [None, 8])
def test_patching_restores_nothing_before_the_difference_and_all_at_the_end(llama, against):
    model, params = llama
    target = views.find_target(model, params, IDS, target=4)
    rival = None if against is None else views.find_target(model, params, IDS, target=against)
    heat = views.patching_map(model, params, IDS, OTHER, target, None, rival)
    assert heat.columns == ("3", "1", "4 | 7", "1", "5", "9") and heat.layers == ("layer 0", "layer 1")
    np.testing.assert_allclose(heat.values[:, :2], 0, atol=1e-4)
    np.testing.assert_allclose(heat.values[-1], [0, 0, 0, 0, 0, 1], atol=1e-4)
    here, there = (log_probs(model, params, ids)[-1] for ids in (IDS, OTHER))
    less = np.zeros(2) if against is None else np.array([here[8], there[8]])
    assert [heat.clean, heat.corrupted] == pytest.approx(np.array([here[4], there[4]]) - less, abs=1e-4)
    assert heat.what == ("log p(4)" if against is None else "logit of 4 less that of 8")


def test_refusals(llama):
    model, params = llama
    target = views.find_target(model, params, IDS)
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, params)
    bare = made("albert")[:2]
    cases = [
        (lambda: views.logit_lens_table(model, params, []), "there are no tokens to look at"),
        (lambda: views.logit_lens_table(model, broken, IDS), "not finite"),
        (lambda: views.find_target(model, params, IDS, at=6), "position 6 is outside the 6 tokens"),
        (lambda: views.find_target(model, params, IDS, target=17), "target 17 is outside the vocabulary of 17"),
        (lambda: views.logit_lens_table(*bare, IDS), 'no head over its vocabulary (its head is "none")'),
        (lambda: views.logit_lens_table(*made("dinov2")[:2], IDS), "reads images"),
        (lambda: views.patching_map(model, params, IDS, OTHER[:-1], target), "has 6 tokens and the corrupted one 5"),
        (lambda: views.patching_map(model, params, IDS, IDS, target), "nothing to restore"),
    ]
    for call, said in cases:
        with pytest.raises(InputError) as raised:
            call()
        assert said in str(raised.value) and "\n" not in str(raised.value)
