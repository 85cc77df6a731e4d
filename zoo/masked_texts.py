"""What a masked language model would put in a gap: the likeliest pieces for each [MASK] of a text.

p(piece at a gap | the rest of the text), each gap by itself: two gaps of one text are not chosen together
(Devlin et al. 2018, 3.1).
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.generation.text_batch import longest_text
from zoo.model import Model
from zoo.text_rows import batches, framed, in_blocks, texts_given
from zoo.tokenizer import Tokenizer

# How people write a gap, whatever the vocabulary calls it.
SPELLINGS = ("[MASK]", "<mask>")
# Gaps whose logits exist at a time.
GAPS = 64


@dataclass(frozen=True)
class Guess:
    """One way to fill a gap.

    Attributes:
        token: its id.
        piece: as the vocabulary writes it.
        text: as it reads.
        probability: under the model.
    """

    token: int
    piece: str
    text: str
    probability: float


def fill_mask(
    model: Model,
    params: dict[str, Any],
    texts: Sequence[str] | str,
    *,
    tokenizer: Tokenizer,
    top: int = 5,
    batch_size: int = 32,
) -> list[list[list[Guess]]]:
    """The likeliest pieces for each gap of each text.

    Args:
        model, params: with a read-out over the vocabulary that sees both ways (head "masked_lm", or BERT's "lm").
        texts: E texts, each with one gap or more, written as the vocabulary's own mask piece, [MASK] or <mask>; a
            single text is one of one.
        tokenizer: the model's; ids beyond its vocabulary have no probability.
        top: how many for a gap.
        batch_size: rows at a time, at most: of long texts fewer, so that memory stays bounded.

    Returns:
        for each text, for each of its gaps in order, `top` Guesses, the likeliest first.

    Raises:
        InputError: a model without such a read-out, a text without a gap or longer than the model's positions, a
            vocabulary without a mask, a `top` that is not from 1 to its size.
    """
    require_masked_lm(model.config)
    given = texts_given(texts)
    limit = min(tokenizer.vocab_size, model.config.vocab_size)
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= limit:
        raise InputError(f"top is {top}; it must be from 1 to the vocabulary's {limit}")
    mask_id = tokenizer.mask_id
    if mask_id is None:
        raise InputError("this tokenizer has no mask piece, so that no text can have a gap")
    encoded = [_ids(text, number, len(given), tokenizer) for number, text in enumerate(given)]
    rows, cut = framed(encoded, tokenizer, model.config)
    if cut:
        raise InputError(f"{cut} of {len(rows)} texts are longer than the model's {longest_text(model.config)} tokens")
    found: list[list[list[Guess]]] = [[] for _ in rows]
    for batch in batches(rows, batch_size, longest_text(model.config), tokenizer.pad_id, model.config):
        gaps = [np.flatnonzero(row == mask_id) for row in batch.tokens[: len(batch.order)]]
        most = max(map(len, gaps))
        at = np.zeros((len(batch.tokens), 1 << (most - 1).bit_length()), np.int32)
        for row, places in zip(at, gaps, strict=False):
            row[: len(places)] = places
        blocks = Model(in_blocks(model.config, batch.tokens.shape[1]))
        chosen = _likeliest(params, batch.tokens, batch.mask, at, model=blocks, top=top, limit=limit)
        shares, tokens = (np.asarray(x) for x in chosen)
        for place, (number, own) in enumerate(zip(batch.order, gaps, strict=True)):
            pairs = zip(tokens[place, : len(own)].tolist(), shares[place, : len(own)].tolist(), strict=True)
            found[number] = [[_guess(tokenizer, *pair) for pair in zip(*gap, strict=True)] for gap in pairs]
    if not all(np.isfinite(guess.probability) for text in found for gap in text for guess in gap):
        raise InputError("the model's probabilities are not finite: its weights are not sound")
    return found


def require_masked_lm(config: ModelConfig) -> None:
    """Raises InputError unless the model reads out a vocabulary and sees both ways."""
    if config.visibility == "full" and config.head in ("lm", "masked_lm") and not config.image_size:
        return
    raise InputError(
        f'filling a gap needs a masked language model; this one has visibility "{config.visibility}" and head '
        f'"{config.head}": oneblock/bert-tiny has what it takes, as do rxnmapper and folders of ...ForMaskedLM'
    )


def _ids(text: Any, number: int, count: int, tokenizer: Tokenizer) -> list[int]:
    where = f"text {number} of {count}"
    if not isinstance(text, str):
        raise InputError(f"{where} is a {type(text).__name__} and not a str")
    own = tokenizer.piece(tokenizer.mask_id)
    ids = tokenizer.encode_marked(re.sub("|".join(map(re.escape, SPELLINGS)), lambda _: own, text), [tokenizer.mask_id])
    if tokenizer.mask_id not in ids:
        raise InputError(f"{where} has no gap; write {own} where one is: {text!r:.60}")
    return ids


def _guess(tokenizer: Tokenizer, token: int, probability: float) -> Guess:
    piece = tokenizer.piece(token)
    return Guess(token, piece, tokenizer.decode([token]).strip() or piece, probability)


@functools.partial(jax.jit, static_argnames=("model", "top", "limit"))
def _likeliest(
    params: Any, tokens: jax.Array, mask: jax.Array, at: jax.Array, *, model: Model, top: int, limit: int
) -> tuple[jax.Array, jax.Array]:
    hidden = model.apply(params, tokens, padding_mask=mask, logits_at=False).hidden
    hidden = jnp.take_along_axis(hidden, at[..., None], axis=1)

    def one(state: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = model.unembed(params, state).astype(jnp.float32)
        logits = jnp.where(jnp.arange(logits.shape[-1]) < limit, logits, -jnp.inf)
        return jax.lax.top_k(jax.nn.softmax(logits), top)

    found = jax.lax.map(one, hidden.reshape(-1, hidden.shape[-1]), batch_size=GAPS)
    return jax.tree.map(lambda x: x.reshape(*at.shape, -1), found)
