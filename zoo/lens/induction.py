"""Which heads continue what they have seen before (Olsson et al. 2022, arXiv:2209.11895)."""

from typing import Any

import jax
import jax.numpy as jnp

from zoo.call_checks import require_key
from zoo.errors import InputError
from zoo.lens.trace import run
from zoo.model import Model


def induction_scores(
    model: Model, params: dict[str, Any], key: jax.Array, length: int = 32, rows: int = 4, first: int | None = None
) -> jax.Array:
    """How much each head attends, in a text of random tokens said twice, to the token after the earlier copy.

    In [A B C ... A B C ...] an induction head at the second A looks at the first B, which it will predict. Near 1 for
    such a head; about 1 over the number of visible tokens for one that looks everywhere alike.

    Args:
        key: draws the tokens, none twice in a text where the vocabulary has enough.
        length: of each copy.
        rows: texts.
        first: an id to begin each text with, such as BOS, or None.

    Returns:
        float32 [L, N], means over rows and the second copy.

    Raises:
        InputError: a model of images, a length below 2, a text beyond the model's positions.
    """
    require_key("key", key)
    if model.config.image_size:
        raise InputError("induction_scores repeats tokens; this model reads images")
    for name, value, low in (("length", length, 2), ("rows", rows, 1)):
        if not isinstance(value, int) or value < low:
            raise InputError(f"induction_scores: {name} is {value!r}; it must be a whole number from {low}")
    vocab = model.config.vocab_size
    draw = lambda k: jax.random.choice(k, vocab, (length,), replace=vocab < length)  # noqa: E731
    once = jax.vmap(draw)(jax.random.split(key, rows)).astype(jnp.int32)
    begin = jnp.zeros((rows, 0), jnp.int32) if first is None else jnp.full((rows, 1), first, jnp.int32)
    tokens = jnp.concatenate([begin, once, once], axis=1)
    site = "blocks.*.attention.weights"
    weights = run(model, params, tokens, site, logits_at=False).values[site]
    keys = begin.shape[1] + 1 + jnp.arange(length)
    return weights[..., keys + length - 1, keys].mean(axis=(1, 3))
