"""Log-probabilities of a whole text, and the likeliest tokens in each place: one pass, after the text is made."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.generation.text_batch import longest_text
from zoo.model import Model
from zoo.serve.jobs import Token
from zoo.serve.speech import in_place

# Places whose logits exist at a time; widths are multiples of it.
PART = 64


@functools.partial(jax.jit, static_argnames=("model", "count"))
def _scores(params: Any, tokens: jax.Array, mask: jax.Array, limit: jax.Array, *, model: Model, count: int):
    """Of tokens [1, T], T a multiple of PART: log p of each next one [T], and the `count` likeliest, values and ids."""
    hidden = model.apply(params, tokens, padding_mask=mask, logits_at=False).hidden[0]

    def part(given):
        states, following = given
        log_probs = jax.nn.log_softmax(model.unembed(params, states[None])[0].astype(jnp.float32))
        shown = jnp.where(jnp.arange(log_probs.shape[-1]) < limit, log_probs, -jnp.inf)
        return jnp.take_along_axis(log_probs, following[:, None], axis=1)[:, 0], *jax.lax.top_k(shown, count)

    following = jnp.roll(tokens[0], -1)
    parts = jax.lax.map(part, (hidden.reshape(-1, PART, hidden.shape[-1]), following.reshape(-1, PART)))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), parts)


def score(model: Model, params: Any, tokenizer: Any, ids: list[int], tokens: list[Token], top: int, most: int) -> None:
    """Fills log_prob and top of `tokens`, the last of a text's `ids`.

    Args:
        ids: of the whole text; `tokens` are its last len(tokens).
        top: how many of the likeliest.
        most: the largest `top` there is: programs are made for that one.
    """
    limit = min(tokenizer.vocab_size, model.config.vocab_size)
    count = min(most, limit)
    width = min(-(-len(ids) // 128) * 128, -(-longest_text(model.config) // PART) * PART)
    row, mask = np.zeros((2, 1, width), np.int32)
    row[0, : len(ids)], mask[0, : len(ids)] = ids, 1
    scored = _scores(params, row, mask, np.int32(limit), model=model, count=count)
    log_probs, values, places = (np.array(x) for x in scored)
    for number, token in enumerate(tokens, len(ids) - len(tokens)):
        if not number:
            token.log_prob = None  # nothing comes before it
            continue
        token.log_prob = float(log_probs[number - 1])
        token.top = [
            (in_place(tokenizer, ids[:number], int(place)), float(value))
            for value, place in zip(values[number - 1, :top], places[number - 1, :top], strict=True)
        ]
