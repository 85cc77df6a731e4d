"""What the next token costs after n - 1 earlier ones, with a key-value cache and without one, counted and measured.

    without   the whole prefix goes through the model again:  n (projections + FFN) + scores of n queries + one read-out
    with      the last token alone does, and meets n keys:        projections + FFN  + scores of 1 query  + one read-out

So without a cache each new token pays for all earlier ones. With one it pays for them in attention's scores alone,
which for short texts is little beside the rest.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.generation.text_batch import longest_text, require_decoder
from zoo.model import Model
from zoo.summary import forward_flops

LENGTHS = (32, 64, 128, 256, 512, 1024)
REPEATS, ENOUGH_SECONDS = 9, 2.0
READ_OUT, SCORES = "read-out", "scores and value mix"


@dataclass(frozen=True)
class TokenCost:
    """The cost of a text's token n.

    Attributes:
        length: n, that token included.
        seconds_with, seconds_without: medians, with a cache and without.
        flops_with, flops_without: by formula.
        difference: between the logits of the two ways, at most.
    """

    length: int
    seconds_with: float
    seconds_without: float
    flops_with: float
    flops_without: float
    difference: float


def token_flops(config: ModelConfig, length: int) -> tuple[float, float]:
    """(with, without): forward FLOPs of token `length` with a cache and without, by zoo.summary.forward_flops."""

    def row(n: int) -> float:  # of all scores in a row of n
        return n * forward_flops(config, n)[SCORES] if n else 0.0

    parts = forward_flops(config, length)
    alone = sum(count for name, count in parts.items() if name not in (READ_OUT, SCORES))
    cached = alone + row(length) - row(length - 1) + parts[READ_OUT]
    return cached, length * alone + row(length) + parts[READ_OUT]


def measure(
    model: Model,
    params: dict[str, Any],
    lengths: Sequence[int] = LENGTHS,
    *,
    watch: Callable[[int, int], None] | None = None,
) -> list[TokenCost]:
    """The cost of a token at each length: one row, greedy, medians of up to 9 runs after one that compiles.

    Args:
        model, params: a causal language model.
        lengths: ascending, from 2 to the model's positions.
        watch: called with (lengths done, all lengths).

    Raises:
        InputError: another kind of model, or lengths that it does not have.
    """
    config = model.config
    require_decoder(config)
    check_lengths(config, lengths)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (1, max(lengths))).astype(np.int32)
    found = []
    for done, length in enumerate(lengths):
        tokens = jnp.asarray(ids[:, :length])
        held = [_read(params, tokens[:, :-1], model.init_cache(1, length), model=model)]

        def cached(tokens=tokens, held=held):
            logits, held[0] = _with(params, tokens[:, -1:], held[0], model=model)
            return logits

        ways = cached, lambda tokens=tokens: _without(params, tokens, model=model)
        (seconds_with, ours), (seconds_without, other) = (_timed(way) for way in ways)
        difference = float(jnp.abs(ours - other).max())
        found.append(TokenCost(length, seconds_with, seconds_without, *token_flops(config, length), difference))
        if watch is not None:
            watch(done + 1, len(lengths))
    return found


def check_lengths(config: ModelConfig, lengths: Sequence[int]) -> None:
    """Raises InputError unless lengths are whole numbers that ascend from 2 to the model's positions."""
    longest = longest_text(config)
    for number, length in enumerate(lengths):
        if isinstance(length, bool) or not isinstance(length, int) or not 2 <= length <= longest:
            raise InputError(f"lengths holds {length}; this model's texts have 2 to {longest} tokens")
        if number and length <= lengths[number - 1]:
            raise InputError(f"lengths holds {length} behind {lengths[number - 1]}; they must ascend")
    if not lengths:
        raise InputError("lengths are none; give some, such as 32 64 128")


def exponent(lengths: Sequence[float], costs: Sequence[float]) -> float | None:
    """The slope of log cost by log length, by least squares: cost ~ length^slope. None from one length alone."""
    if len(lengths) < 2:
        return None
    x, y = np.log(np.asarray(lengths, np.float64)), np.log(np.asarray(costs, np.float64))
    x = x - x.mean()
    return float(x @ y / (x @ x))


def _timed(way: Callable[[], jax.Array]) -> tuple[float, jax.Array]:
    result = jax.block_until_ready(way())  # compiles
    seconds: list[float] = []
    while len(seconds) < REPEATS and (len(seconds) < 3 or sum(seconds) < ENOUGH_SECONDS):
        began = time.perf_counter()
        jax.block_until_ready(way())
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)), result


@functools.partial(jax.jit, static_argnames=("model",))
def _read(params: Any, tokens: jax.Array, cache: Any, *, model: Model) -> Any:
    return model.apply(params, tokens, cache=cache, logits_at=False).cache


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("cache",))
def _with(params: Any, tokens: jax.Array, cache: Any, *, model: Model) -> tuple[jax.Array, Any]:
    """Logits, and the cache as it was, its keys and values written where they lie, as generation writes them."""
    out = model.apply(params, tokens, cache=cache)
    return out.logits[0, 0], cache.replace(keys=out.cache.keys, values=out.cache.values)


@functools.partial(jax.jit, static_argnames=("model",))
def _without(params: Any, tokens: jax.Array, *, model: Model) -> jax.Array:
    last = jnp.full((1, 1), tokens.shape[1] - 1)
    return model.apply(params, tokens, logits_at=last).logits[0, 0]
