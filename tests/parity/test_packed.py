"""Documents packed into one row against the reference library, which reads each alone. Tolerance as in test_models."""

import jax
import numpy as np
import pytest

from tests.golden.recipe import error
from tests.parity import decoders, encoders, reference
from zoo.checkpoints import load

CASES = reference.CASES | encoders.CASES | decoders.CASES
LENGTHS = (66, 40)  # past windows and trained lengths; no position table holds the row
# One a family, and what depends on places: windows, scalings by length, position tables behind an offset.
NAMES = (
    "bert-masked-lm",
    "roberta-masked-lm",
    "distilbert-masked-lm",
    "albert-masked-lm",
    "electra-generator",
    "modernbert-masked-lm",
    "gpt1",
    "gpt2",
    "llama2-grouped",
    "llama3-factor-8",
    "dynamic",
    "longrope",
    "yarn",
    "mistral",
    "mixtral",
    "qwen2-window",
    "qwen3",
    "smollm3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3-both-ways",
    "neox",
    "opt",
    "phi3-longrope",
    "olmo2",
    "stablelm",
)


@pytest.mark.parametrize("name", NAMES)
def test_packed_documents(name, tmp_path):
    theirs = CASES[name].model()
    model, params = load(reference.save(theirs, tmp_path / "model"))
    draw = np.random.RandomState(11)
    tokens = draw.randint(1, 97, (1, sum(LENGTHS))).astype(np.int32)
    segments = np.repeat([1, 2], LENGTHS)[None].astype(np.int32)
    types = draw.randint(0, max(model.config.token_types, 1), tokens.shape).astype(np.int32)
    more = {"token_types": types} if model.config.token_types > 1 else {}
    out = model.apply(params, tokens, segment_ids=segments, want=("hidden_states",), **more)
    runs, errors = encoders if name in encoders.CASES else reference, []
    for document in (2, 1):  # the shorter first: the reference's length-dependent scalings remember the longest
        places = segments[0] == document
        count = int(places.sum())
        alone = {
            "tokens": tokens[:, places],
            "padding_mask": np.ones((1, count), np.int32),
            "positions": np.arange(count, dtype=np.int32)[None],
            "token_types": types[:, places],
        }
        expected = runs.run(theirs, alone)
        mine = jax.tree.map(lambda array, places=places: np.asarray(array)[:, places], out)
        errors += reference.stream_errors(expected, mine, model.config)
        if reference.answers(expected) is not None:
            errors.append(error(mine.logits, reference.answers(expected)))
    assert max(errors) < 1e-5, errors
