"""Log-probabilities in a finished text, and the likeliest tokens in each place: read again, a chunk a turn.

The cache is of the dtype and the reach of the one that the text was made with, so that the numbers are the same; its
memory and that of a chunk do not grow with the square of the length.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import Cache
from zoo.config import ModelConfig
from zoo.generation.prompts import left_padded
from zoo.generation.text_batch import longest_text
from zoo.model import Model
from zoo.serve.asked import MAX_TOP
from zoo.serve.jobs import Row, Said
from zoo.serve.served import Served
from zoo.serve.speech import in_places, spelled
from zoo.text_rows import LARGEST


class NotFinite(ArithmeticError):
    """The model's numbers are none: its weights are not sound."""

    def __init__(self):
        super().__init__("the model's log-probabilities are not numbers: its weights are not sound")


# Places that are read in one turn, at most, and those of them whose logits exist at a time.
CHUNK, PART = 256, 64


@functools.partial(jax.jit, static_argnames=("model", "count"), donate_argnames=("cache",))
def scores(
    params: Any,
    tokens: jax.Array,
    mask: jax.Array,
    following: jax.Array,
    limit: jax.Array,
    cache: Cache,
    *,
    model: Model,
    count: int,
) -> tuple[jax.Array, jax.Array, jax.Array, Cache]:
    """After each of tokens [1, C]: log p of the `following` [C], and the `count` likeliest, values and ids."""
    out = model.apply(params, tokens, padding_mask=mask, cache=cache, logits_at=False)

    def one(given):
        state, after = given
        log_probs = jax.nn.log_softmax(model.unembed(params, state).astype(jnp.float32))
        shown = jnp.where(jnp.arange(log_probs.shape[-1]) < limit, log_probs, -jnp.inf)
        return log_probs[after], *jax.lax.top_k(shown, count)

    return *jax.lax.map(one, (out.hidden[0], following), batch_size=PART), out.cache


def by_length(config: ModelConfig) -> bool:
    """Whether the angles of a text go by how long it can become."""
    return config.rotary_scaling is not None and config.rotary_scaling.by_length


def chunk_of(config: ModelConfig, capacity: int) -> int:
    """Places of a turn, 2^n: fewer where attention scores over so many slots would pass LARGEST numbers."""
    fit = LARGEST // (config.num_heads * capacity)
    return min(CHUNK, 1 << max(fit.bit_length() - 1, 4))


def width_of(config: ModelConfig, length: int) -> int:
    """Columns for a text of `length`: few values, so that texts of like length share programs."""
    if by_length(config):
        return length  # the cache's length is what the angles go by
    step = PART if length <= CHUNK else CHUNK if length <= 4 * CHUNK else 2 * CHUNK
    width = -(-length // step) * step
    return min(width, longest_text(config)) if config.positions == "learned" else width


class Scoring:
    """A finished row that is read again.

    Args:
        served: the model.
        row: whose text it is; its request says what is asked for.
        said: the whole text, with the log-probabilities of the run that made it: these stay.
    """

    def __init__(self, served: Served, row: Row, said: Said):
        self.row, self._said, self._served = row, said, served
        self._prompt = spelled(served.tokenizer, row.ids) if row.job.asked.echo else []
        self._tokens = [*self._prompt, *said.tokens]
        self._ids = row.ids + [token.id for token in said.tokens]
        config = served.model.config
        self._width = width_of(config, len(self._ids))
        self._padding = self._width - len(self._ids)
        self._reach = len(row.ids) + row.most if by_length(config) else self._width
        self._chunk, self._at = chunk_of(config, self._reach), 0
        self._cache: Cache | None = None
        self._columns = left_padded([self._ids], self._width)

    @property
    def program(self) -> Any:
        """What its programs are made for."""
        return "scoring", self._reach, self._chunk, self._width % self._chunk

    def turn(self) -> Said | None:
        """Reads a chunk; the whole text at the end."""
        if not self._tokens:
            return self._whole()
        model, params = self._served.model, self._served.params
        if self._cache is None:
            self._cache = model.init_cache(1, self._reach, self._served.cache_dtype, ring=True)
        part = slice(self._at, min(self._at + self._chunk, self._width))
        (tokens, mask), limit = self._columns, self._served.limit
        following = np.append(tokens[0, 1:], 0)[part]
        *found, self._cache = scores(
            params,
            tokens[:, part],
            mask[:, part],
            following,
            np.int32(limit),
            self._cache,
            model=model,
            count=min(MAX_TOP, limit),
        )
        self._fill(part.start - self._padding, *(np.array(x) for x in found))
        self._at = part.stop
        return self._whole() if self._at == self._width else None

    def _fill(self, start: int, log_probs: np.ndarray, values: np.ndarray, places: np.ndarray) -> None:
        """Tokens that follow the places from `start` on; before 0 is padding."""
        if np.isnan(log_probs[max(-start, 0) :]).any():
            raise NotFinite
        first = len(self._ids) - len(self._tokens)
        for number in range(max(start + 1, first, 1), min(start + 1 + len(log_probs), len(self._ids))):
            token, at = self._tokens[number - first], number - 1 - start
            if number < len(self.row.ids):
                token.log_prob = float(log_probs[at])
            top = self.row.job.asked.top
            if not top:
                continue
            texts = in_places(self._served.tokenizer, self._ids[:number], places[at, :top].tolist())
            known = {token.id: token.log_prob}
            pairs = zip(places[at, :top].tolist(), values[at, :top].tolist(), strict=True)
            token.top = list(zip(texts, (known.get(*pair) for pair in pairs), strict=True))

    def _whole(self) -> Said:
        if self._tokens and len(self._tokens) == len(self._ids):
            self._tokens[0].log_prob = None  # nothing comes before it
        said = self._said
        return Said(said.row, said.text, said.tokens, said.count, said.finish, tuple(self._prompt))


def asks_for_scores(row: Row) -> bool:
    """Whether a row's request shows the likeliest tokens, or its prompt's own."""
    asked = row.job.asked
    return asked.top is not None and bool(asked.top or asked.echo)
