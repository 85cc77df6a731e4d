"""Log-probabilities of given tokens at given places, for many rows, in few programs and without [B, T, V].

    scores = token_scores(model, params, [Query([5, 9, 2], places=[1, 2], labels=[2, 7])])
    scores[0].log_probs            # [log p(2 | stream at place 1), log p(7 | stream at place 2)]

Rows are sorted into lengths 16, 24, 32, 48, 64, 96 ... (two an octave, so that a third of a row at most is padding);
each length has one batch shape and one number of places, hence one program. The read-out sees the chosen places alone,
in chunks of bounded size. What stands before every row of a causal model can be given as `prefix`: it goes through the
model once, into a key-value cache that all rows continue.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.predict import data_parallel, place, whole_rows
from train.cross_entropy import cross_entropy
from train.mesh import Driver
from train.objectives import default_chunk_bytes
from zoo.cache import Cache
from zoo.errors import InputError
from zoo.model import Model

SHORTEST = 16
# Tokens of all rows' caches in one batch, as a multiple of the batch's own.
CACHED = 4
Watch = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Query:
    """One row: what goes in, and which tokens are asked for where.

    Attributes:
        inputs: ids, one at least.
        places: indices into `inputs`, in any order, repeated or not; empty asks for nothing.
        labels: as many ids: place j is asked for the probability of label j. A causal model's place t speaks of the
            token after inputs[t], a masked one's of inputs[t] itself.
    """

    inputs: Sequence[int]
    places: Sequence[int]
    labels: Sequence[int]


@dataclass(frozen=True, eq=False)
class Scores:
    """Answers to one Query.

    Attributes:
        log_probs: float64 [k], natural logarithms.
        top: bool [k], whether the label is the likeliest token (of equals the smallest id counts).
    """

    log_probs: np.ndarray
    top: np.ndarray


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of one program: `size` rows of `length` tokens and `places` places a batch; `rows` number the queries."""

    rows: np.ndarray
    size: int
    length: int
    places: int

    @property
    def tokens(self) -> int:
        """Tokens that go through the model, padding and filler rows included."""
        return -(-len(self.rows) // self.size) * self.size * self.length


def token_scores(
    model: Model,
    params: dict[str, Any],
    queries: Sequence[Query],
    *,
    prefix: Sequence[int] = (),
    vocab_size: int | None = None,
    batch_tokens: int | None = None,
    chunk_bytes: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    watch: Watch | None = None,
) -> list[Scores]:
    """Scores of each query, in order, the same whatever the batches.

    Args:
        model, params: with head "lm" or "masked_lm".
        queries: any number.
        prefix: ids that stand before each query's inputs, for causal models; places do not count them.
        vocab_size: the tokenizer's; ids from here on have probability 0 (a table padded beyond its tokenizer).
        batch_tokens: tokens of a batch; decides speed and memory. None for 4,096 on a CPU and 65,536 elsewhere.
        chunk_bytes: most bytes of float32 logits at a time; None for the training loss's.
        devices: rows are spread over them; None takes all.
        watch: told (tokens done, tokens in all) after each batch.

    Raises:
        InputError: another head, an id outside the vocabulary, a place outside its row, a row beyond the positions.
    """
    check(model, queries, vocab_size, prefix)
    driver = data_parallel(devices)
    groups = grouped(model, queries, driver, batch_tokens, len(prefix))
    run = _compiled(model, driver, vocab_size, chunk_bytes or default_chunk_bytes())
    given = _with_prefix(model, place(params, driver), prefix, driver) if groups else None
    found: list[Scores | None] = [None] * len(queries)
    total, done = sum(group.tokens for group in groups), 0
    for group in groups:
        waiting: list[tuple[np.ndarray, Any]] = []
        for start in range(0, len(group.rows), group.size):
            rows = group.rows[start : start + group.size]
            waiting.append((rows, run(given, _batch(queries, rows, group))))
            if len(waiting) > 1:  # the next batch is prepared while this one is computed
                _store(found, queries, *waiting.pop(0))
            done += group.size * group.length
            if watch is not None:
                watch(done, total)
        for rows, answers in waiting:
            _store(found, queries, rows, answers)
    nothing = Scores(np.zeros(0), np.zeros(0, bool))
    return [nothing if scores is None else scores for scores in found]


def check(
    model: Model, queries: Sequence[Query], vocab_size: int | None = None, prefix: Sequence[int] = ()
) -> None:
    """Raises InputError where `token_scores` would; JAX clamps in silence."""
    config = model.config
    if config.head not in ("lm", "masked_lm"):
        raise InputError(f'probabilities of tokens need head "lm" or "masked_lm", and this model has "{config.head}"')
    real = min(config.vocab_size, vocab_size or config.vocab_size)
    for number, query in enumerate(queries):
        if not query.places:
            continue
        if not 1 <= len(query.inputs) <= config.max_positions - len(prefix):
            count = len(prefix) + len(query.inputs)
            raise InputError(f"row {number} has {count} tokens; this model reads 1 to {config.max_positions}")
        if len(query.places) != len(query.labels):
            raise InputError(f"row {number} asks for {len(query.labels)} labels at {len(query.places)} places")
        if not (min(query.places) >= 0 and max(query.places) < len(query.inputs)):
            raise InputError(f"row {number} of {len(query.inputs)} tokens asks at place {max(query.places)}")
        for ids, bound in ((query.inputs, config.vocab_size), (query.labels, real), ((0, *prefix), config.vocab_size)):
            if not (min(ids) >= 0 and max(ids) < bound):
                raise InputError(f"row {number} holds an id outside the vocabulary: 0 to {bound - 1}")


def grouped(
    model: Model, queries: Sequence[Query], driver: Driver, batch_tokens: int | None = None, cached: int = 0
) -> list[Group]:
    """The batches that queries make after a prefix of `cached` tokens, longest first; what asks nothing is left out."""
    budget = batch_tokens or (4096 if jax.default_backend() == "cpu" else 65536)
    asked = np.array([i for i, query in enumerate(queries) if len(query.places)], np.int64)
    longest = np.array([len(queries[i].inputs) for i in asked])
    lengths = np.array([row_length(n, model.config.max_positions) for n in longest], np.int64)
    groups = []
    for length in sorted(set(lengths.tolist()), reverse=True):
        rows = asked[lengths == length]
        size = min(budget // length, CACHED * budget // (cached + length), 1 << (len(rows) - 1).bit_length())
        most = max(len(queries[i].places) for i in rows)
        places = 1 << (most - 1).bit_length()
        groups.append(Group(rows, whole_rows(max(1, size), driver), length, places))
    return groups


def row_length(tokens: int, most: int) -> int:
    """The smallest of 16, 24, 32, 48, 64, 96 ... that holds `tokens`, `most` where that is smaller."""
    length = SHORTEST
    while length < tokens:
        length = length * 3 // 2 if length & (length - 1) == 0 else length // 3 * 4
    return min(length, most)


def tokens_per_second(
    model: Model,
    params: dict[str, Any],
    queries: Sequence[Query],
    *,
    prefix: Sequence[int] = (),
    vocab_size: int | None = None,
    batch_tokens: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> tuple[float, int]:
    """How fast these queries would go: (tokens a second of one batch of the largest group, tokens in all).

    Compiles that group's program, which a later call of `token_scores` finds ready.
    """
    check(model, queries, vocab_size, prefix)
    driver = data_parallel(devices)
    groups = grouped(model, queries, driver, batch_tokens, len(prefix))
    if not groups:
        return float("inf"), 0
    group = max(groups, key=lambda group: group.tokens)
    run = _compiled(model, driver, vocab_size, default_chunk_bytes())
    given = _with_prefix(model, place(params, driver), prefix, driver)
    batch = _batch(queries, group.rows[: group.size], group)
    jax.block_until_ready(run(given, batch))
    started = time.perf_counter()
    jax.block_until_ready(run(given, batch))
    return group.size * group.length / (time.perf_counter() - started), sum(group.tokens for group in groups)


@functools.lru_cache(maxsize=16)
def _compiled(model: Model, driver: Driver, vocab_size: int | None, chunk_bytes: int) -> Any:
    def scores(given, batch):
        params, cache = given
        cache = None if cache is None else _for_rows(cache, *batch["tokens"].shape)
        hidden = model.apply(params, batch["tokens"], padding_mask=batch["mask"], cache=cache, logits_at=False).hidden
        chosen = jnp.take_along_axis(hidden, batch["places"][..., None], axis=1)
        rows, _, _ = chosen.shape

        def one(chunk):
            states, labels = chunk
            logits = real_logits(model.unembed(params, states), vocab_size)
            return -cross_entropy(logits, labels), jnp.argmax(logits, axis=-1) == labels

        return by_chunks(one, (chosen, batch["labels"]), chunk_bytes // (4 * rows * model.config.vocab_size))

    return driver.compile_eval(scores)


def _with_prefix(model: Model, params: Any, prefix: Sequence[int], driver: Driver) -> tuple[Any, Cache | None]:
    """Parameters, and the cache of one row that holds the prefix."""
    if not prefix:
        return params, None
    rows, length = whole_rows(1, driver), row_length(len(prefix), model.config.max_positions)
    tokens, mask = (np.zeros((rows, length), np.int32) for _ in range(2))
    tokens[:, length - len(prefix) :], mask[:, length - len(prefix) :] = prefix, 1  # on the left: rows go on from here
    return params, _prefilled(model, driver)(params, {"tokens": tokens, "mask": mask})


@functools.lru_cache(maxsize=16)
def _prefilled(model: Model, driver: Driver) -> Any:
    def fill(params, batch):
        rows, length = batch["tokens"].shape
        cache = model.init_cache(rows, length)
        cache = model.apply(params, batch["tokens"], padding_mask=batch["mask"], cache=cache, logits_at=False).cache
        return jax.tree.map(lambda x: x if x.ndim == 0 else jax.lax.slice_in_dim(x, 0, 1, axis=_row_axis(x)), cache)

    return driver.compile_eval(fill)


def _for_rows(cache: Cache, rows: int, more: int) -> Cache:
    """A cache of one row for many, with room for `more` tokens."""

    def widened(x):
        if x.ndim == 0:
            return x
        axis = _row_axis(x)
        slots = max(1, x.ndim - 2)
        x = jnp.pad(x, [(0, more if at == slots else 0) for at in range(x.ndim)])
        return jnp.broadcast_to(x, (*x.shape[:axis], rows, *x.shape[axis + 1 :]))

    return jax.tree.map(widened, cache)


def _row_axis(x: jax.Array) -> int:
    """Keys and values of a scanned stack [L', B, K, S, H] have their layers first; all else begins with rows."""
    return 1 if x.ndim == 5 else 0


def real_logits(logits: jax.Array, vocab_size: int | None) -> jax.Array:
    """Logits [..., V] with -inf from id `vocab_size` on."""
    if vocab_size is None or vocab_size >= logits.shape[-1]:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, -jnp.inf)


def by_chunks(function: Callable[[Any], Any], arrays: tuple[jax.Array, ...], size: int) -> tuple[jax.Array, ...]:
    """`function` of arrays [B, K, ...], `size` places at a time: its results [B, size] are put together to [B, K]."""
    rows, count = arrays[0].shape[:2]
    size = min(count, max(1, size))
    chunks = -(-count // size)

    def cut(x):
        x = jnp.pad(x, [(0, 0), (0, chunks * size - count)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(rows, chunks, size, *x.shape[2:]).swapaxes(0, 1)

    found = jax.lax.map(function, tuple(cut(array) for array in arrays))
    return tuple(x.swapaxes(0, 1).reshape(rows, -1)[:, :count] for x in found)


def _batch(queries: Sequence[Query], rows: np.ndarray, group: Group) -> dict[str, np.ndarray]:
    tokens, mask = (np.zeros((group.size, group.length), np.int32) for _ in range(2))
    places, labels = (np.zeros((group.size, group.places), np.int32) for _ in range(2))
    for at, row in enumerate(rows):
        query = queries[row]
        tokens[at, : len(query.inputs)] = query.inputs
        mask[at, : len(query.inputs)] = 1
        places[at, : len(query.places)] = query.places
        labels[at, : len(query.labels)] = query.labels
    return {"tokens": tokens, "mask": mask, "places": places, "labels": labels}


def _store(found: list[Any], queries: Sequence[Query], rows: np.ndarray, answers: Any) -> None:
    log_probs, top = (np.asarray(answer) for answer in answers)
    for at, row in enumerate(rows):
        count = len(queries[row].places)
        found[row] = Scores(log_probs[at, :count].astype(np.float64), top[at, :count].copy())
