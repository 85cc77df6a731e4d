"""What the pictures show, as data: a logit-lens table, attention maps with ablations, norms, attribution, patching.

Each function runs a model over one passage and gives a small frozen view, which `zoo.lens.pictures` draws as a PNG and
`zoo.lens.page` as an interactive page. Numbers are NumPy arrays, in nats where they are log-probabilities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo import lens
from zoo.errors import InputError
from zoo.lens.token_texts import passage_texts, piece_texts

CAVEAT = (
    "Attention weights are not an explanation: they say from where a head reads, not whether what it reads matters. "
    "Ablation asks that: beside each map stands what changes when the head's output is set to zero."
)
READ_OUTS = ("lm", "masked_lm")


@dataclass(frozen=True)
class Target:
    """What a picture asks about: the probability of one piece at one position.

    Attributes:
        id: of the piece.
        at: position whose logits are read, from 0.
        text: of the piece.
        log_prob: its log-probability there, in nats.
    """

    id: int
    at: int
    text: str
    log_prob: float


@dataclass(frozen=True)
class LensTable:
    """The likeliest pieces at each layer and position.

    Attributes:
        tokens: T texts.
        layers: L + 1 names, from the embedding to the last layer.
        ids: int [L + 1, T, k], the likeliest first.
        probabilities: [L + 1, T, k].
        texts: of all ids.
    """

    tokens: tuple[str, ...]
    layers: tuple[str, ...]
    ids: np.ndarray
    probabilities: np.ndarray
    texts: dict[int, str]


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of every head, and what zeroing that head changes.

    Attributes:
        tokens: T texts.
        weights: [L, N, T, T]; rows are queries, columns are keys.
        effects: [L, N].
        effect: what `effects` are, in words.
    """

    tokens: tuple[str, ...]
    weights: np.ndarray
    effects: np.ndarray
    effect: str

    @property
    def strongest(self) -> tuple[int, int]:
        """(layer, head) whose zeroing changes most."""
        layer, head = np.unravel_index(np.argmax(np.abs(self.effects)), self.effects.shape)
        return int(layer), int(head)


@dataclass(frozen=True)
class Norms:
    """The length of the residual stream, by layer and position: values [L + 1, T]."""

    tokens: tuple[str, ...]
    layers: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True)
class Bars:
    """A logit as a sum of components: the largest ones, and the rest together.

    Attributes:
        names, values: from the largest by size; the last may be "n others".
        total: the logit, which all values add up to.
        what: the logit in words.
    """

    names: tuple[str, ...]
    values: np.ndarray
    total: float
    what: str


@dataclass(frozen=True)
class HeatMap:
    """How much of the difference between two prompts comes back when one place of the clean one is patched in.

    Attributes:
        columns: T texts of the clean prompt, "clean | corrupted" where the two differ.
        layers: L names.
        values: [L, T]; 0 is the corrupted prompt's metric, 1 the clean one's.
        clean, corrupted: the metric itself.
        what: the metric in words.
    """

    columns: tuple[str, ...]
    layers: tuple[str, ...]
    values: np.ndarray
    clean: float
    corrupted: float
    what: str


View = LensTable | AttentionMaps | Norms | Bars | HeatMap


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
    probabilities, best = _top(lens.logit_lens(model, params, tokens)[:, 0], min(top, model.config.vocab_size))
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
        mean = trace.output.hidden[0].astype(jnp.float32).mean(axis=0)

        def metric(output):
            other = output.hidden.astype(jnp.float32).mean(axis=1)
            return 1 - other @ mean / (jnp.linalg.norm(other, axis=-1) * jnp.linalg.norm(mean))
    else:
        words = f"change of log p({target.text}) at position {target.at} when the head is zeroed, in nats"

        def metric(output):
            return _log_probs(output.logits[:, target.at])[:, target.id] - target.log_prob

    effects = head_effects(model, params, tokens, metric, progress)
    return AttentionMaps(passage_texts(tokenizer, ids), weights, effects, words)


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

    def metric(output):
        logits = output.logits[0, target.at].astype(jnp.float32)
        return _log_probs(logits)[target.id] if against is None else logits[target.id] - logits[against.id]

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


@jax.jit
def _log_probs(logits: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)


def _top(logits: jax.Array, top: int) -> tuple[jax.Array, jax.Array]:
    return jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), top)
