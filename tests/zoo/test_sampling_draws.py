"""Every sampler draws from what it says: chi-square against probabilities worked out by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.zoo.drawn import check_draws, shares
from zoo.generation.sampling import Memory, Sampling, choose, empty_memory, for_rows, probabilities

ROWS, VOCAB = 8192, 10
LOGITS = np.asarray([1.2, -0.3, 0.0, 2.1, -1.5, 0.7, 1.2, -0.8, 0.4, 1.9], np.float32)  # 0 and 6 are equal
PROMPT, GENERATED = [3, 4, 4], [9, 9, 5, 7, 9]

CASES = {
    "temperature": dict(temperature=0.6),
    "top_k": dict(top_k=4),
    "top_k at equals": dict(top_k=3, temperature=1.5),
    "top_p": dict(top_p=0.7),
    "top_p of top_k": dict(top_k=6, top_p=0.8, temperature=1.3),
    "min_p": dict(min_p=0.25),
    "all filters": dict(top_k=8, top_p=0.95, min_p=0.2, temperature=1.7),
    "repetition": dict(repetition_penalty=1.7),
    "repetition below one": dict(repetition_penalty=0.6),
    "presence": dict(presence_penalty=0.9),
    "frequency": dict(frequency_penalty=0.5),
    "a frequency that invites": dict(frequency_penalty=-0.3, presence_penalty=0.2),
    "bias": dict(logit_bias={4: 3.0, 3: -1.0, 9: -float("inf")}),
    "bans": dict(banned=(3, 6), temperature=1.2),
    "everything": dict(
        temperature=1.1,
        top_k=8,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={1: 1.5},
        banned=(0,),
    ),
}


def drawn(settings: dict, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of ROWS draws, and the probabilities that the program itself gives."""
    sampling = Sampling(**{"temperature": 1.0} | settings)
    parts, data = for_rows([sampling], VOCAB)
    memory = empty_memory(parts, jnp.asarray([PROMPT]), jnp.ones((1, len(PROMPT))), VOCAB)
    for token in GENERATED:
        memory = memory.add(jnp.asarray([token]))
    own = probabilities(jnp.asarray(LOGITS[None]), parts, data, memory)[0]

    def rows(x):
        return None if x is None else jnp.broadcast_to(x, (ROWS, *x.shape[1:]))

    tokens = choose(
        jnp.tile(LOGITS, (ROWS, 1)),
        jax.random.split(jax.random.key(key), ROWS),
        parts,
        jax.tree.map(rows, data),
        Memory(rows(memory.seen), rows(memory.counts)),
    )
    return np.bincount(np.asarray(tokens), minlength=VOCAB), np.asarray(own)


@pytest.mark.parametrize("name", CASES)
def test_draws_are_distributed_as_is_said(name):
    settings = CASES[name]
    expected = shares(LOGITS, PROMPT, GENERATED, **settings)
    seen, own = drawn(settings, list(CASES).index(name))
    np.testing.assert_allclose(own, expected, atol=1e-6)
    check_draws(seen, ROWS * expected)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("temperature", "top_k at equals")])
def test_the_test_tells_a_sampler_from_none(name):
    """Draws that the setting leaves alone are found out."""
    plain = {key: CASES[name][key] for key in ("temperature",) if key in CASES[name]}
    seen, _ = drawn(plain, 99)
    with pytest.raises(AssertionError):
        check_draws(seen, ROWS * shares(LOGITS, PROMPT, GENERATED, **CASES[name]))
