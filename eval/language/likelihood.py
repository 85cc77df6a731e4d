"""Log-likelihood of continuations given contexts, under a causal language model.

    found = log_likelihoods(model, params, tokenizer, [("The capital of France is", " Paris")])
    found[0].log_prob                        # sum over the continuation's tokens of log p(token | all before), in nats

Where context ends and continuation begins, in tokens, says zoo.generation.pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from eval.language.token_scores import Query, Scores, Watch, token_scores
from zoo.errors import InputError
from zoo.generation.pairs import Ids, Pair, encode_pairs, shared_length
from zoo.generation.pairs import beginning as beginning
from zoo.model import Model
from zoo.tokenizer import Tokenizer

# Rows fewer, or prefixes shorter, than these are computed whole.
FEW_ROWS, SHORT_PREFIX = 4, 32


@dataclass(frozen=True)
class Likelihood:
    """A continuation's.

    Attributes:
        log_prob: natural logarithm, 0 for a continuation of no token.
        tokens: how many were scored.
        bytes: of the continuation in UTF-8.
        greedy: whether each of its tokens is the likeliest one where it stands.
        lost: tokens that its context lost from the beginning, for the model's positions.
    """

    log_prob: float
    tokens: int
    bytes: int
    greedy: bool
    lost: int = 0

    @property
    def per_token(self) -> float:
        """log_prob / tokens; -inf for no token, which any other answer beats."""
        return self.log_prob / self.tokens if self.tokens else -np.inf

    @property
    def per_byte(self) -> float:
        """log_prob / bytes; -inf for no byte."""
        return self.log_prob / self.bytes if self.bytes else -np.inf


def log_likelihoods(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    watch: Watch | None = None,
) -> list[Likelihood]:
    """log p(continuation | context) of each pair, in order.

    Args:
        model, params: a causal language model.
        tokenizer: the checkpoint's own.
        pairs: (context, continuation) texts; see the head of this file.
        max_length: most tokens that go in; None for the model's positions. A context that is too long loses its
            beginning (not its BOS) and is counted in `lost`.
        batch_tokens, devices, watch: see eval.language.token_scores.

    Raises:
        InputError: no causal language model, or a continuation longer than the model's positions.
    """
    require_causal(model, tokenizer)
    encoded = encode_pairs(tokenizer, pairs)
    limit = row_limit(model, max_length)
    queries, lost = to_queries(encoded, limit, keep_first=tokenizer.adds_bos)
    scores = score_causal(
        model, params, queries, vocab_size=tokenizer.vocab_size, batch_tokens=batch_tokens, devices=devices, watch=watch
    )
    return [
        Likelihood(float(s.log_probs.sum()), len(s.log_probs), len(text.encode()), bool(s.top.all()), gone)
        for s, (_, text), gone in zip(scores, pairs, lost, strict=True)
    ]


def row_limit(model: Model, max_length: int | None) -> int:
    """The most tokens that go in."""
    most = model.config.max_positions
    if max_length is not None and not 2 <= max_length <= most:
        raise InputError(f"max_length is {max_length}; this model reads 2 to {most} tokens")
    return max_length or most


def to_queries(encoded: Sequence[Ids], limit: int, keep_first: bool) -> tuple[list[Query], list[int]]:
    """Rows of at most `limit` tokens, the last token of each being predicted only; and how many each context lost.

    Args:
        encoded: (context ids, continuation ids); contexts hold one id at least.
        limit: most tokens that go in.
        keep_first: the first id is BOS and stays when others go.
    """
    queries, lost = [], []
    for number, (context, continuation) in enumerate(encoded):
        room = limit + 1 - len(continuation)
        if room < 1:
            raise InputError(
                f"continuation {number} has {len(continuation)} tokens; the model reads {limit} at a time: measure "
                "long texts by their perplexity"
            )
        gone = max(0, len(context) - room)
        if gone:
            kept = context[len(context) - room :]
            context = [context[0], *kept[1:]] if keep_first else kept
        ids = [*context, *continuation]
        places = range(len(context) - 1, len(ids) - 1)
        queries.append(Query(ids[:-1] if continuation else ids, tuple(places), tuple(continuation)))
        lost.append(gone)
    return queries, lost


def score_causal(model: Model, params: dict[str, Any], queries: Sequence[Query], **options: Any) -> list[Scores]:
    """`token_scores` of a causal model's rows, in which a row that begins another one is read from that one.

    What comes later does not change a causal model's earlier places, so that options of one context share a row
    wherever their tokens allow it: labels of one token each need a single row together. And what all rows begin with
    (the examples of a few-shot prompt) goes through the model once.
    """
    merged, homes = merge_prefixes(model, queries)
    prefix, merged = shared_prefix(model, merged)
    found = token_scores(model, params, merged, prefix=prefix, **options)
    scores = []
    for query, (row, start) in zip(queries, homes, strict=True):
        part = slice(start, start + len(query.places))
        scores.append(Scores(found[row].log_probs[part], found[row].top[part]))
    return scores


def shared_prefix(model: Model, rows: Sequence[Query]) -> tuple[Sequence[int], list[Query]]:
    """What all rows begin with, up to the first place that one asks at, and the rows without it.

    () where it is too short, or the rows too few, to pay for a program more; and for models whose early places depend
    on the row's length.
    """
    asking = [row for row in rows if row.places]
    scaling = model.config.rotary_scaling
    if len(asking) < FEW_ROWS or (scaling is not None and scaling.by_length):
        return (), list(rows)
    first, last = (tuple(end(asking, key=lambda row: tuple(row.inputs)).inputs) for end in (min, max))
    count = min(shared_length(first, last), *(min(row.places) for row in asking))
    if count < SHORT_PREFIX:
        return (), list(rows)
    return first[:count], [
        Query(row.inputs[count:], tuple(place - count for place in row.places), row.labels) if row.places else row
        for row in rows
    ]


def merge_prefixes(model: Model, queries: Sequence[Query]) -> tuple[list[Query], list[tuple[int, int]]]:
    """Fewer rows that ask the same, and where each query's answers begin: (row, index into its places)."""
    scaling = model.config.rotary_scaling
    if scaling is not None and scaling.by_length:  # such a model's early places depend on the row's length
        return list(queries), [(i, 0) for i in range(len(queries))]
    order = sorted(range(len(queries)), key=lambda i: tuple(queries[i].inputs), reverse=True)
    rows: list[tuple[tuple[int, ...], list[int], list[int]]] = []
    homes = [(0, 0)] * len(queries)
    for i in order:  # in this order all that begin with a row's ids stand right before it
        query = queries[i]
        inputs = tuple(query.inputs)
        if not rows or rows[-1][0][: len(inputs)] != inputs:
            rows.append((inputs, [], []))
        homes[i] = (len(rows) - 1, len(rows[-1][1]))
        rows[-1][1].extend(query.places)
        rows[-1][2].extend(query.labels)
    return [Query(*row) for row in rows], homes


def require_causal(model: Model, tokenizer: Tokenizer) -> None:
    """Raises InputError unless this is a causal language model with room for the tokenizer's ids."""
    config = model.config
    if config.visibility == "full" or config.head != "lm":
        seen = "sees both ways" if config.visibility == "full" else f'has head "{config.head}"'
        raise InputError(f"likelihoods need a causal language model, and this one {seen}")
    require_fitting(model, tokenizer)


def require_fitting(model: Model, tokenizer: Tokenizer) -> None:
    """Raises InputError where the tokenizer has more pieces than the model."""
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} pieces but the model's vocabulary {model.config.vocab_size}: "
            "they do not belong together"
        )
