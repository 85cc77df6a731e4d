"""Log-probabilities of given tokens at given places, for many rows, in few programs and without [B, T, V].

    scores = token_scores(model, params, [Query([5, 9, 2], places=[1, 2], labels=[2, 7])])
    scores[0].log_probs            # [log p(2 | stream at place 1), log p(7 | stream at place 2)]

Rows are sorted into lengths 16, 24, 32, 48, 64, 96 ... (two an octave, so that a third of a row at most is padding);
each length has one batch shape and one number of places, hence one program. The read-out sees the chosen places alone,
in chunks of bounded size.
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
from zoo.errors import InputError
from zoo.model import Model

SHORTEST = 16
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
        vocab_size: the tokenizer's; ids from here on have probability 0 (a table padded beyond its tokenizer).
        batch_tokens: tokens of a batch; decides speed and memory. None for 4,096 on a CPU and 65,536 elsewhere.
        chunk_bytes: most bytes of float32 logits at a time; None for the training loss's.
        devices: rows are spread over them; None takes all.
        watch: told (tokens done, tokens in all) after each batch.

    Raises:
        InputError: another head, an id outside the vocabulary, a place outside its row, a row beyond the positions.
    """
    check(model, queries, vocab_size)
    driver = data_parallel(devices)
    groups = grouped(model, queries, driver, batch_tokens)
    run = _compiled(model, driver, vocab_size, chunk_bytes or default_chunk_bytes())
    params = place(params, driver) if groups else params
    found: list[Scores | None] = [None] * len(queries)
    total, done = sum(group.tokens for group in groups), 0
    for group in groups:
        waiting: list[tuple[np.ndarray, Any]] = []
        for start in range(0, len(group.rows), group.size):
            rows = group.rows[start : start + group.size]
            waiting.append((rows, run(params, _batch(queries, rows, group))))
            if len(waiting) > 1:  # the next batch is prepared while this one is computed
                _store(found, queries, *waiting.pop(0))
            done += group.size * group.length
            if watch is not None:
                watch(done, total)
        for rows, answers in waiting:
            _store(found, queries, rows, answers)
    nothing = Scores(np.zeros(0), np.zeros(0, bool))
    return [nothing if scores is None else scores for scores in found]


def check(model: Model, queries: Sequence[Query], vocab_size: int | None = None) -> None:
    """Raises InputError where `token_scores` would; JAX clamps in silence."""
    config = model.config
    if config.head not in ("lm", "masked_lm"):
        raise InputError(f'probabilities of tokens need head "lm" or "masked_lm", and this model has "{config.head}"')
    real = min(config.vocab_size, vocab_size or config.vocab_size)
    for number, query in enumerate(queries):
        if not query.places:
            continue
        if not 1 <= len(query.inputs) <= config.max_positions:
            raise InputError(f"row {number} has {len(query.inputs)} tokens; this model reads 1 to {config.max_positions}")
        if len(query.places) != len(query.labels):
            raise InputError(f"row {number} asks for {len(query.labels)} labels at {len(query.places)} places")
        if not (min(query.places) >= 0 and max(query.places) < len(query.inputs)):
            raise InputError(f"row {number} of {len(query.inputs)} tokens asks at place {max(query.places)}")
        for ids, bound in ((query.inputs, config.vocab_size), (query.labels, real)):
            if not (min(ids) >= 0 and max(ids) < bound):
                raise InputError(f"row {number} holds an id outside the vocabulary: 0 to {bound - 1}")


def grouped(
    model: Model, queries: Sequence[Query], driver: Driver, batch_tokens: int | None = None
) -> list[Group]:
    """The batches that queries make, longest first; those that ask for nothing are left out."""
    budget = batch_tokens or (4096 if jax.default_backend() == "cpu" else 65536)
    asked = np.array([i for i, query in enumerate(queries) if len(query.places)], np.int64)
    longest = np.array([len(queries[i].inputs) for i in asked])
    lengths = np.array([row_length(n, model.config.max_positions) for n in longest], np.int64)
    groups = []
    for length in sorted(set(lengths.tolist()), reverse=True):
        rows = asked[lengths == length]
        size = min(max(1, budget // length), 1 << (len(rows) - 1).bit_length())
        most = max(len(queries[i].places) for i in rows)
        places = 1 << (most - 1).bit_length()
        groups.append(Group(rows, whole_rows(size, driver), length, places))
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
    vocab_size: int | None = None,
    batch_tokens: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> tuple[float, int]:
    """How fast these queries would go: (tokens a second of one batch of the largest group, tokens in all).

    Compiles that group's program, which a later call of `token_scores` finds ready.
    """
    check(model, queries, vocab_size)
    driver = data_parallel(devices)
    groups = grouped(model, queries, driver, batch_tokens)
    if not groups:
        return float("inf"), 0
    group = max(groups, key=lambda group: group.tokens)
    run, params = _compiled(model, driver, vocab_size, default_chunk_bytes()), place(params, driver)
    batch = _batch(queries, group.rows[: group.size], group)
    jax.block_until_ready(run(params, batch))
    started = time.perf_counter()
    jax.block_until_ready(run(params, batch))
    return group.size * group.length / (time.perf_counter() - started), sum(group.tokens for group in groups)


@functools.lru_cache(maxsize=16)
def _compiled(model: Model, driver: Driver, vocab_size: int | None, chunk_bytes: int) -> Any:
    def scores(params, batch):
        hidden = model.apply(params, batch["tokens"], padding_mask=batch["mask"], logits_at=False).hidden
        chosen = jnp.take_along_axis(hidden, batch["places"][..., None], axis=1)
        rows, count, _ = chosen.shape
        size = min(count, max(1, chunk_bytes // (4 * rows * model.config.vocab_size)))
        chunks = -(-count // size)

        def cut(x):
            x = jnp.pad(x, [(0, 0), (0, chunks * size - count)] + [(0, 0)] * (x.ndim - 2))
            return x.reshape(rows, chunks, size, *x.shape[2:]).swapaxes(0, 1)

        def one(chunk):
            states, labels = chunk
            logits = model.unembed(params, states)
            if vocab_size is not None and vocab_size < logits.shape[-1]:
                logits = jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, -jnp.inf)
            return -cross_entropy(logits, labels), jnp.argmax(logits, axis=-1) == labels

        log_probs, top = jax.lax.map(one, (cut(chosen), cut(batch["labels"])))
        return tuple(x.swapaxes(0, 1).reshape(rows, -1)[:, :count] for x in (log_probs, top))

    return driver.compile_eval(scores)


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
