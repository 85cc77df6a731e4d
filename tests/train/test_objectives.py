"""make_objective: what it refuses, a padded vocabulary, and dropout in training alone."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import zoo
from tests import made_up
from train.config import TrainConfig
from train.objectives import fit_model, make_objective
from zoo.errors import InputError
from zoo.layer_config import Int8

GPT = zoo.ModelConfig(vocab_size=400, embed_dim=16, num_layers=1, num_heads=2, max_positions=32, dropout=0.5)
BERT = GPT.replace(visibility="full", head="masked_lm")
NEXT, MASKED = TrainConfig(seq_len=16), TrainConfig(seq_len=16, objective="masked_lm")
NO_MASK = SimpleNamespace(vocab_size=360, mask_id=None, special_ids=(0,), starts_word=np.ones(360, bool))


@pytest.mark.parametrize(
    "train,model,tokenizer,message",
    [
        (NEXT, BERT, None, 'objective "next_token" needs a model with visibility "causal"'),
        (MASKED, GPT, None, 'did you mean objective "next_token"'),
        (NEXT, GPT.replace(head="none"), None, 'needs head "lm", not "none"'),
        (MASKED, BERT, NO_MASK, "masked_lm needs a tokenizer with a mask token"),
        (MASKED.replace(next_sentence=True), BERT, None, "needs a model with a pooler and a next-sentence head"),
        (NEXT, GPT.replace(vocab_size=300), None, "the tokenizer has 360 ids but the model's vocab_size is 300"),
        (NEXT, GPT.replace(int8=Int8()), None, "^training needs float weights, and these are int8"),
        (NEXT.replace(seq_len=33), GPT, None, "seq_len is 33 but the model's position table ends at 32"),
    ],
)
def test_refusals(train, model, tokenizer, message):
    with pytest.raises(InputError, match=message):
        make_objective(train, zoo.create(model), tokenizer or made_up.tokenizer())


@pytest.mark.parametrize("train,model", [(NEXT, GPT), (MASKED, BERT)], ids=["next_token", "masked_lm"])
def test_training_draws_dropout_evaluation_does_not_and_padded_ids_have_no_probability(train, model):
    tokenizer = made_up.tokenizer()
    model = zoo.create(model)
    objective = make_objective(train, model, tokenizer)
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(7, 360, (4, train.row_length), dtype=np.int32),
        "segment_ids": np.ones((4, train.row_length), np.int32),
    }
    params = model.init(jax.random.key(0))
    key_sets = [jax.random.split(jax.random.key(seed), 4) for seed in (1, 1, 2)]

    def losses(train):
        return [float(objective(model, params, batch, keys, train=train)[0][0]) for keys in key_sets]

    trained = losses(True)
    assert trained[0] == trained[1] != trained[2]
    evaluated = losses(False)
    assert evaluated[0] == evaluated[1] != trained[0]
    if train.objective == "next_token":
        assert evaluated[0] == evaluated[2]  # keys are for dropout alone there
    # 40 ids past the tokenizer's: raising their bias or embeddings changes nothing.
    lifted = jax.tree.map(lambda x: x, params)
    table = params["embed"]["token"]["embedding"]
    lifted["embed"]["token"]["embedding"] = table.at[360:].set(50.0)
    assert float(objective(model, lifted, batch, key_sets[0], train=False)[0][0]) == evaluated[0]


def test_presets_are_made_ready_for_an_objective():
    preset = zoo.create("bert-tiny").config
    plain = fit_model(preset, MASKED, 360)
    assert (plain.vocab_size, plain.head, plain.pooler, plain.next_sentence) == (360, "masked_lm", False, False)
    pairs = fit_model(preset, MASKED.replace(next_sentence=True), 360)
    assert (pairs.pooler, pairs.next_sentence) == (True, True)
    assert fit_model(zoo.create("llama-tiny").config, NEXT, 360).head == "lm"
