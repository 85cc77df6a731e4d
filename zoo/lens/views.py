"""From a model and a passage to what is drawn: logit lens, attention with ablations, norms, attribution, patching.

Each function runs the model over one passage and gives a frozen view of zoo.lens.view, which `zoo.lens.pictures` draws
as a PNG and `zoo.lens.page` as an interactive page.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from zoo import lens
from zoo.errors import InputError
from zoo.lens.patching import as_tree, require_inside
from zoo.lens.token_texts import passage_texts, piece_texts
from zoo.lens.view import AttentionMaps, Bars, HeatMap, LensTable, Norms, Target

HEADS_AT_ONCE = 8
READ_OUTS = ("lm", "masked_lm")


@struct.dataclass
class LogProb:
    """A metric: the log-probability of a piece at a position of the first row. A pytree, compiled once for all."""

    id: int
    at: int

    def __call__(self, output: Any) -> jax.Array:
        length, size = output.logits.shape[1:]
        require_inside("LogProb: position", self.at, -length, length)
        require_inside("LogProb: id", self.id, 0, size)
        return _log_probs(output.logits[0, self.at])[self.id]


@struct.dataclass
class Turn:
    """A metric: 1 - cosine of the mean of the first row's final stream and `mean`."""

    mean: jax.Array

    def __call__(self, output: Any) -> jax.Array:
        other = _mean(output)
        return 1 - other @ self.mean / (jnp.linalg.norm(other) * jnp.linalg.norm(self.mean))


def logit_lens_table(model: Any, params: Any, ids: Sequence[int], tokenizer: Any = None, top: int = 5) -> LensTable:
    """Every layer's stream read out as the last one is (final norm, unembedding): the pieces it already leans to.

    Args:
        model, params: with a head over the vocabulary.
        ids: of one passage, special ids included.
        tokenizer: of the texts; None for ids.
        top: pieces a cell.

    Raises:
        InputError: the model has no such head, no ids, or its logits are not finite.
    """
    require_read_out(model)
    tokens = _row(ids)
    found = lens.logit_lens(model, params, tokens)[:, 0]
    probabilities, best = _top(found, min(top, model.config.vocab_size))
    probabilities, best = np.asarray(probabilities), np.asarray(best)
    _require_finite(probabilities)
    names = ("embedding", *_layer_names(model))
    return LensTable(passage_texts(tokenizer, ids), names, best, probabilities, piece_texts(tokenizer, best.flat))


def find_target(
    model: Any, params: Any, ids: Sequence[int], tokenizer: Any = None, target: int | None = None, at: int = -1
) -> Target:
    """The piece that pictures ask about: `target`, or the one that the model finds likeliest at `at`.

    Args:
        model, params, ids, tokenizer: as in logit_lens_table.
        target: an id, or None.
        at: the position whose logits are read; negative ones count from the end.
    """
    require_read_out(model)
    at = at + len(ids) if at < 0 else at
    if not 0 <= at < len(ids):
        raise InputError(f"position {at} is outside the {len(ids)} tokens")
    if target is not None and not 0 <= target < model.config.vocab_size:
        raise InputError(f"target {target} is outside the vocabulary of {model.config.vocab_size}")
    log_probs = np.asarray(_log_probs(lens.run(model, params, _row(ids)).output.logits[:, at]))[0]
    _require_finite(log_probs)
    chosen = int(log_probs.argmax()) if target is None else int(target)
    return Target(chosen, at, piece_texts(tokenizer, [chosen])[chosen], float(log_probs[chosen]))


def attention_maps(
    model: Any,
    params: Any,
    ids: Sequence[int],
    tokenizer: Any = None,
    target: Target | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> AttentionMaps:
    """Attention weights of all heads, each with the effect of setting that head's output to zero.

    The effect is the change of the target's log-probability; without a target, how far the mean of the final stream
    turns (1 - cosine), which models without a head over the vocabulary have too.

    Args:
        model, params, ids, tokenizer: as in logit_lens_table, with any head.
        target: of find_target.
        progress: told how many heads are done, and of how many.
    """
    tokens = _row(ids)
    site = "blocks.*.attention.weights"
    trace = lens.run(model, params, tokens, sites=(site,))
    weights = np.asarray(trace.values[site], np.float32)[:, 0]
    _require_finite(weights)
    if target is None:
        words = "how far the mean of the final stream turns (1 - cosine) when the head is zeroed"
        metric = Turn(_mean(trace.output))
    else:
        words = f"change of log p({target.text}) at position {target.at} when the head is zeroed, in nats"
        metric = LogProb(target.id, target.at)

    effects = head_effects(model, params, tokens, metric, progress)
    effects -= 0 if target is None else target.log_prob
    return AttentionMaps(passage_texts(tokenizer, ids), weights, effects, words)


def head_effects(
    model: Any,
    params: Any,
    tokens: jax.Array,
    metric: Callable[[Any], jax.Array],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> np.ndarray:
    """metric(Output) of a run without each head in turn: [L, N].

    Args:
        model, params: any model.
        tokens: int [B, T].
        metric: from an Output to a scalar.
        progress: told how many heads are done, and of how many.
    """
    layers, heads = model.config.num_layers, model.config.num_heads
    pairs = np.stack(np.divmod(np.arange(layers * heads), heads), axis=1)

    effects = []
    for start in range(0, len(pairs), HEADS_AT_ONCE):
        some = np.resize(pairs[start : start + HEADS_AT_ONCE], (HEADS_AT_ONCE, 2))  # the last ones repeat themselves
        effects.append(np.asarray(_without(params, tokens, some, as_tree(metric), model=model), np.float32))
        progress(min(start + HEADS_AT_ONCE, len(pairs)), len(pairs))
    found = np.concatenate(effects)[: len(pairs)].reshape(layers, heads)
    _require_finite(found)
    return found


@functools.partial(jax.jit, static_argnames=("model",))
def _without(params, tokens, pairs, metric, *, model):
    def one(pair):
        return metric(lens.run(model, params, tokens, interventions=lens.ablate(heads=pair[None])).output)

    return jax.vmap(one)(pairs)


def stream_norms(model: Any, params: Any, ids: Sequence[int], tokenizer: Any = None) -> Norms:
    """The Euclidean length of the residual stream after the embedding and after each layer."""
    sites = ("embed", "blocks.*.out")
    values = lens.run(model, params, _row(ids), sites=sites).values
    streams = jnp.concatenate([values["embed"][None], values["blocks.*.out"]])[:, 0].astype(jnp.float32)
    lengths = np.asarray(jnp.linalg.norm(streams, axis=-1))
    _require_finite(lengths)
    return Norms(passage_texts(tokenizer, ids), ("embedding", *_layer_names(model)), lengths)


def attribution_bars(
    model: Any,
    params: Any,
    ids: Sequence[int],
    target: Target,
    against: Target | None = None,
    shown: int = 24,
) -> Bars:
    """A logit (or a difference of two) as the sum of what embedding, heads, FFNs and biases add to it.

    Args:
        model, params, ids: as in logit_lens_table; pre-norm models alone.
        target: whose logit.
        against: whose logit is taken off it, at the same position; None for none.
        shown: bars at most; what is smaller is one bar, so that the sum stays whole.
    """
    other = None if against is None else against.id
    found = lens.attribution(model, params, _row(ids), target.id, at=target.at, against=other)
    rows = sorted(found.rows(0).items(), key=lambda item: -abs(item[1]))
    _require_finite(np.array([value for _, value in rows]))
    rest = rows[shown - 1 :] if len(rows) > shown else []
    if rest:
        rows = [*rows[: shown - 1], (f"{len(rest)} others", sum(value for _, value in rest))]
    what = f"logit of {target.text}" + ("" if against is None else f" less that of {against.text}")
    names, values = zip(*rows, strict=True)
    return Bars(names, np.array(values), float(found.logit[0]), f"{what} at position {target.at}")


def patching_map(
    model: Any,
    params: Any,
    clean: Sequence[int],
    corrupted: Sequence[int],
    target: Target,
    tokenizer: Any = None,
    against: Target | None = None,
) -> HeatMap:
    """Runs the corrupted prompt with one place of the clean one's stream put in: each layer's output at each position.

    The metric is the target's log-probability or, with `against`, the difference of two logits. A place whose value
    carries what tells the prompts apart brings it back.

    Args:
        model, params, tokenizer: as in logit_lens_table.
        clean, corrupted: ids of two prompts of one length.
        target, against: of find_target.

    Raises:
        InputError: the lengths differ, or the prompts give the same metric.
    """
    require_read_out(model)
    if len(clean) != len(corrupted):
        raise InputError(
            f"the clean prompt has {len(clean)} tokens and the corrupted one {len(corrupted)}; patching needs as many"
        )
    metric = LogProb(target.id, target.at)
    if against is not None:
        metric = lens.LogitDifference(target.id, against.id, target.at)
    site = "blocks.*.out"
    found = lens.patching(model, params, _row(clean), _row(corrupted), metric, sites=(site,))
    if abs(float(found.clean) - float(found.corrupted)) < 1e-6:
        raise InputError("the corrupted prompt gives the same answer as the clean one: there is nothing to restore")
    values = np.asarray(found.restored(site), np.float32)
    _require_finite(values)
    pairs = zip(passage_texts(tokenizer, clean), passage_texts(tokenizer, corrupted), strict=True)
    columns = tuple(here if here == there else f"{here} | {there}" for here, there in pairs)
    what = f"log p({target.text})" if against is None else f"logit of {target.text} less that of {against.text}"
    return HeatMap(columns, _layer_names(model), values, float(found.clean), float(found.corrupted), what)


def require_read_out(model: Any) -> None:
    """Raises InputError where a model has no logits over its vocabulary, and says what can be drawn."""
    head = model.config.head
    if model.config.image_size:
        raise InputError("this model reads images; the pictures are of models of text")
    if head not in READ_OUTS:
        raise InputError(
            f'this model has no head over its vocabulary (its head is "{head}"): its attention and its norms can be '
            "drawn, a logit lens, attribution and patching cannot"
        )


def _row(ids: Sequence[int]) -> jax.Array:
    if not len(ids):
        raise InputError("there are no tokens to look at")
    return jnp.asarray([list(ids)], jnp.int32)


def _layer_names(model: Any) -> tuple[str, ...]:
    return tuple(f"layer {n}" for n in range(model.config.num_layers))


def _require_finite(values: np.ndarray) -> None:
    if not np.all(np.isfinite(values)):
        raise InputError("the model's numbers are not finite here; `python -m zoo check` says what is wrong with it")


def _mean(output: Any) -> jax.Array:
    return output.hidden[0].astype(jnp.float32).mean(axis=0)


@jax.jit
def _log_probs(logits: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)


def _top(logits: jax.Array, top: int) -> tuple[jax.Array, jax.Array]:
    return jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), top)
