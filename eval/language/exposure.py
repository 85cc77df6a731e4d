"""Exposure bias: how a model fares after what it wrote itself, against how it fares after true text.

Trained on true prefixes alone, a model goes on from its own tokens when it generates. Each of R windows of true text
gives a prompt of P tokens and what truly follows, x_1 .. x_L; from the same prompt the model draws y_1 .. y_L
(temperature 1, nothing cut off; a row ends where the model ends its text). Two measures, by depth t:

Losses (Braverman et al. 2020, Calibration, Entropy Rates, and Memory in Language Models, ICML, arXiv:1906.05664):

    true(t) = mean of - log p(x_t | prompt, x_<t)       own(t) = mean of - log p(y_t | prompt, y_<t)

own(t) estimates the entropy of the model's distribution after t tokens of its own. A model that generates what it was
trained on is as surprised by true text as by its own, at every depth; own - true that grows with t is its text drifting
into what it never saw, and one that falls is text becoming repetitive. No other model is needed.

Errors against a reference o of the same vocabulary, a better model (Arora et al. 2022, Why Exposure Bias Matters, ACL
Findings, arXiv:2204.01171). With KL(prefix) = sum_w o(w | prefix) log(o(w | prefix) / p(w | prefix)), exact over w:

    error = sum over t of mean KL(prompt, x_<t)         regret = sum over t of mean KL(prompt, y_<t)
    excess accumulated error = (regret - error) / error

It is 0 where errors do not feed on errors. Intervals are Student's over windows, which are paired by their prompts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.experiment.statistics import Interval, mean_interval
from eval.language.likelihood import beginning, require_causal
from eval.language.token_scores import Query, by_chunks, real_logits, token_scores
from train.objectives import default_chunk_bytes
from zoo.errors import InputError
from zoo.generation.generate import generate
from zoo.model import Model
from zoo.tokenizer import Tokenizer

BATCH = 16


@dataclass(frozen=True, eq=False)
class Exposure:
    """Losses by window and depth; NaN where the model had ended its text.

    Attributes:
        prompt: P, tokens before depth 1 (BOS not counted).
        true, own: float64 [R, L], nats: see the head of this file.
        true_error, own_error: float64 [R, L], KL from the reference; None without one.
        tokens: int32 [R, L], what the model wrote.
    """

    prompt: int
    true: np.ndarray
    own: np.ndarray
    tokens: np.ndarray
    true_error: np.ndarray | None = None
    own_error: np.ndarray | None = None

    def drift(self, depths: slice = slice(None)) -> Interval:
        """own - true at these depths: mean over windows with its interval."""
        rows = np.isfinite(self.own[:, depths]).any(axis=1)
        if not rows.any():  # every text had ended before
            return Interval(math.nan, None, None, 0)
        own = np.nanmean(self.own[rows, depths], axis=1)
        return mean_interval(own - self.true[rows, depths].mean(axis=1))

    def excess_error(self) -> float | None:
        """(regret - error) / error; None without a reference, or where the model is the reference."""
        if self.true_error is None or self.own_error is None:
            return None
        error = self.true_error.mean(axis=0).sum()
        regret = np.nanmean(self.own_error, axis=0).sum()
        return float((regret - error) / error) if error > 1e-9 else None


def measure(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    prompt: int = 8,
    depth: int = 32,
    rows: int = 64,
    seed: int = 0,
    reference: tuple[Model, dict[str, Any]] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Exposure:
    """Losses after true and after own prefixes.

    Args:
        model, params: a causal language model.
        tokenizer: the checkpoint's own.
        texts: true text, which the model was not trained on.
        prompt: P, tokens of a window that both continuations follow.
        depth: L, tokens of each continuation.
        rows: R, most windows; they are spread evenly over the texts.
        seed: of what the model draws.
        reference: model and parameters of o, over the same vocabulary.
        devices: see eval.language.token_scores.

    Raises:
        InputError: another kind of model, texts too short for two windows, a reference of another vocabulary.
    """
    require_causal(model, tokenizer)
    heads, truths = windows(tokenizer, texts, prompt, depth, rows, model.config.max_positions)
    tokens, lengths = _written(model, params, tokenizer, heads, depth, seed)
    ends = np.minimum(lengths + 1, depth)  # what ends a text is of it
    counts = np.arange(depth) < ends[:, None]
    true = _losses(model, params, tokenizer, heads, truths, devices)
    own = np.where(counts, _losses(model, params, tokenizer, heads, tokens, devices), np.nan)
    if reference is None:
        return Exposure(prompt, true, own, tokens)
    _check_reference(model, reference[0])
    both = (model, params, *reference, tokenizer.vocab_size)
    true_error = divergences(*both, heads, truths)
    return Exposure(
        prompt, true, own, tokens, true_error, np.where(counts, divergences(*both, heads, tokens), np.nan)
    )


def _written(model, params, tokenizer, heads, depth, seed) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [R, L] that the model draws after each prompt, and how many before it ended; each row by its own key."""
    count = len(heads)
    heads = [*heads, *[heads[-1]] * (-count % BATCH)]  # full batches: one program
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(seed), row))(jnp.arange(len(heads)))
    options = {"max_new_tokens": depth, "tokenizer": tokenizer, "temperature": 1.0}
    parts = [
        generate(model, params, heads[i : i + BATCH], key=keys[i : i + BATCH], **options)
        for i in range(0, len(heads), BATCH)
    ]
    tokens, lengths = (np.concatenate([getattr(part, name) for part in parts]) for name in ("tokens", "lengths"))
    return tokens[:count], lengths[:count]


def windows(
    tokenizer: Tokenizer, texts: Sequence[str], prompt: int, depth: int, rows: int, most: int
) -> tuple[list[list[int]], np.ndarray]:
    """(prompts with what texts begin with, what truly follows [R, L]), spread evenly over the texts."""
    if prompt < 1 or depth < 1 or rows < 2:
        raise InputError(f"prompt {prompt}, depth {depth}, rows {rows}: 1, 1 and 2 are the least")
    head = beginning(tokenizer, bare=False)
    if len(head) + prompt + depth > most:
        raise InputError(f"prompt {prompt} and depth {depth} exceed the model's {most} positions")
    size = prompt + depth
    found = [
        ids[start : start + size]
        for ids in tokenizer.encode_batch(texts)
        for start in range(0, len(ids) - size + 1, size)
    ]
    if len(found) < 2:
        raise InputError(f"the texts hold {len(found)} windows of {size} tokens; two or more are needed")
    chosen = [found[i] for i in np.unique(np.linspace(0, len(found) - 1, min(rows, len(found))).round().astype(int))]
    return [[*head, *row[:prompt]] for row in chosen], np.array([row[prompt:] for row in chosen], np.int32)


def divergences(
    model: Model,
    params: dict[str, Any],
    reference: Model,
    reference_params: dict[str, Any],
    vocab_size: int,
    heads: Sequence[Sequence[int]],
    following: np.ndarray,
) -> np.ndarray:
    """KL(o || p) of the next token before each of `following` [R, L]: float64 [R, L]."""
    depth, start = following.shape[1], len(heads[0]) - 1
    size = default_chunk_bytes() // (8 * BATCH * model.config.vocab_size)

    @jax.jit
    def one_batch(params, reference_params, tokens):
        hidden = [
            network.apply(values, tokens, logits_at=False).hidden[:, start : start + depth]
            for network, values in ((model, params), (reference, reference_params))
        ]

        def one(chunk):
            p, o = (
                jax.nn.log_softmax(real_logits(network.unembed(values, states), vocab_size)[..., :vocab_size])
                for network, values, states in zip(
                    (model, reference), (params, reference_params), chunk, strict=True
                )
            )
            likely = o > -jnp.inf
            return (jnp.sum(jnp.where(likely, jnp.exp(o) * (jnp.where(likely, o, 0.0) - p), 0.0), axis=-1),)

        return by_chunks(one, tuple(hidden), size)[0]

    whole = np.concatenate([np.array(heads, np.int32), following], axis=1)
    padded = np.concatenate([whole, np.repeat(whole[-1:], -len(whole) % BATCH, axis=0)])
    parts = [one_batch(params, reference_params, padded[i : i + BATCH]) for i in range(0, len(padded), BATCH)]
    return np.concatenate([np.asarray(part, np.float64) for part in parts])[: len(whole)]


def _losses(model, params, tokenizer, heads, following, devices) -> np.ndarray:
    depth = following.shape[1]
    queries = []
    for head, row in zip(heads, following.tolist(), strict=True):
        ids = [*head, *row]
        queries.append(Query(ids[:-1], tuple(range(len(head) - 1, len(head) - 1 + depth)), tuple(row)))
    scores = token_scores(model, params, queries, vocab_size=tokenizer.vocab_size, devices=devices)
    return -np.stack([score.log_probs for score in scores])


def _check_reference(model: Model, reference: Model) -> None:
    if reference.config.vocab_size != model.config.vocab_size:
        raise InputError(
            f"the reference has {reference.config.vocab_size} ids and the model {model.config.vocab_size}; "
            "a reference shares the model's vocabulary"
        )
    if reference.config.visibility == "full" or reference.config.head != "lm":
        raise InputError("the reference is no causal language model")
