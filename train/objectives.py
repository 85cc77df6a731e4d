"""What a model is trained for: functions (model, params, batch, keys) -> (terms, metrics), all as (sum, weight) pairs.

    loss = sum over valid positions of -log p(label) / number of valid positions        over the whole global batch

`terms` is one pair, or a table of named pairs where a loss has several parts, each divided by its own weight; then the
objective also says its weights ahead (Objective.weights), so that gradients of all parts can be added in one pass.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from train.config import TrainConfig
from train.corruption import Vocabulary, corrupt
from train.cross_entropy import PLAIN, LossOptions, chunked_cross_entropy, cross_entropy
from train.metrics import Pair, accuracy
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.int8 import require_float

Batch = Mapping[str, jax.Array]
Terms = Pair | dict[str, Pair]


@dataclass(frozen=True)
class Objective:
    """A loss, and the weights of its parts where it has more than one.

    Attributes:
        loss: (model, params, batch, keys, *, train) -> (terms, metrics); `keys` [B], one a row; train=False turns
            dropout off.
        weights: (batch, keys) -> {name: weight} of the terms, without running the model; None for a single term.
    """

    loss: Callable[..., tuple[Terms, dict[str, Pair]]]
    weights: Callable[[Batch, jax.Array], dict[str, jax.Array]] | None = None

    def __call__(self, model, params, batch, keys, *, train: bool = True):
        """Runs `loss`."""
        return self.loss(model, params, batch, keys, train=train)


def next_token(
    model: Any, params: Any, batch: Batch, keys: jax.Array, *, options: LossOptions = PLAIN, train: bool = True
) -> tuple[Pair, dict[str, Pair]]:
    """Each token predicts the one after it in its document (teacher forcing: one parallel pass, nothing sampled).

    Ids [:, :-1] go in, ids [:, 1:] are the labels; a position counts where both belong to one document, so that
    document ends are learned, a document's first token never is a label, and padding carries nothing.

    Args:
        model: a zoo model with visibility "causal".
        params: its parameters.
        batch: tokens [B, T + 1] and segment_ids [B, T + 1], int32; segment 0 is padding.
        keys: [B] keys, one a row, for dropout.
        options: see LossOptions.
        train: False turns dropout, smoothing and z-loss off.

    Returns:
        ((loss sum, number of valid positions), {"accuracy": pair}).
    """
    tokens, segments = batch["tokens"], batch["segment_ids"]
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    valid = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] > 0)
    hidden = _hidden(model, params, inputs, segments[:, :-1], keys, train).hidden
    weights = valid.astype(jnp.float32)
    loss, correct = chunked_cross_entropy(model, params, hidden, labels, weights, options if train else options.plain())
    total = jnp.sum(weights)
    return (loss, total), {"accuracy": (correct, total)}


def masked_lm(
    model: Any,
    params: Any,
    batch: Batch,
    keys: jax.Array,
    *,
    vocabulary: Vocabulary,
    rate: float = 0.15,
    next_sentence: bool = False,
    options: LossOptions = PLAIN,
    train: bool = True,
) -> tuple[Terms, dict[str, Pair]]:
    """Hidden tokens are predicted from both sides (Devlin et al. 2018); logits exist at the chosen positions alone.

    Args:
        model: a zoo model with visibility "full" and head "masked_lm" (or "lm").
        params: its parameters.
        batch: tokens, segment_ids [B, T] int32; for pairs token_types [B, T] and next_sentence [B] (0 where the second
            sentence follows the first, 1 where it does not, -1 where the row does not count).
        keys: [B] keys, one a row: half for the masks, half for dropout.
        vocabulary: what corruption must know of the tokenizer.
        rate: share of ordinary tokens chosen.
        next_sentence: add BERT's second loss; the model needs its next-sentence head.
        options: see LossOptions.
        train: False turns dropout, smoothing and z-loss off; masks are drawn all the same.

    Returns:
        ((loss sum, chosen positions), metrics), or with next_sentence a table of both terms.
    """
    mask_keys, dropout_keys = _split(keys)
    tokens, positions, labels, weights = corrupt(
        batch["tokens"], batch["segment_ids"], mask_keys, vocabulary=vocabulary, rate=rate
    )
    token_types = batch.get("token_types")
    # A pair's two sentences see each other: BERT's [SEP] and token types part them, not the mask.
    segments = (batch["segment_ids"] > 0).astype(jnp.int32) if token_types is not None else batch["segment_ids"]
    out = _hidden(model, params, tokens, segments, dropout_keys, train, token_types)
    chosen = jnp.take_along_axis(out.hidden, positions[..., None], axis=1)
    loss, correct = chunked_cross_entropy(model, params, chosen, labels, weights, options if train else options.plain())
    total = jnp.sum(weights)
    metrics = {"accuracy": (correct, total)}
    if not next_sentence:
        return (loss, total), metrics
    given = batch["next_sentence"]
    counts = (given >= 0).astype(jnp.float32)
    losses = cross_entropy(out.next_sentence, jnp.maximum(given, 0))
    metrics["next_sentence_accuracy"] = accuracy(out.next_sentence, given, counts)
    return {"masked_lm": (loss, total), "next_sentence": (jnp.sum(losses * counts), jnp.sum(counts))}, metrics


def masked_lm_weights(batch: Batch, keys: jax.Array, *, vocabulary: Vocabulary, rate: float) -> dict[str, jax.Array]:
    """The weights of masked_lm's two terms, from the same draw of masks and without the model."""
    chosen = corrupt(batch["tokens"], batch["segment_ids"], _split(keys)[0], vocabulary=vocabulary, rate=rate).weights
    return {"masked_lm": jnp.sum(chosen), "next_sentence": jnp.sum((batch["next_sentence"] >= 0).astype(jnp.float32))}


def make_objective(config: TrainConfig, model: Any, tokenizer: Any, row_shards: int = 1) -> Objective:
    """The objective that `config` names.

    Args:
        config: objective and the fields of its loss.
        model: checked against the objective: its visibility, heads and vocabulary.
        tokenizer: its size bounds what can be predicted; masked_lm also reads its special ids.
        row_shards: over how many devices the rows that one program sees are spread (the mesh driver's), so that the
            chunk budget counts each device's own part.

    Returns:
        An Objective.

    Raises:
        InputError: the model cannot be trained so.
    """
    require_float(model.config, "training")
    _check(config, model.config, tokenizer)
    padded = model.config.vocab_size > tokenizer.vocab_size
    budget = (config.loss_chunk_bytes or default_chunk_bytes()) * row_shards
    options = LossOptions(config.label_smoothing, config.z_loss, budget, tokenizer.vocab_size if padded else None)
    if config.objective == "next_token":
        return Objective(partial(next_token, options=options))
    vocabulary = Vocabulary.of(tokenizer, config.whole_words)
    loss = partial(
        masked_lm, vocabulary=vocabulary, rate=config.mask_rate, next_sentence=config.next_sentence, options=options
    )
    weights = partial(masked_lm_weights, vocabulary=vocabulary, rate=config.mask_rate) if config.next_sentence else None
    return Objective(loss, weights)


def fit_model(config: ModelConfig, train: TrainConfig, vocab_size: int) -> ModelConfig:
    """A preset made ready for an objective and a vocabulary.

    masked_lm takes BERT's own head; next_sentence its pooler and two-way head, and without it there is no pooler, which
    nothing would train.

    Args:
        config: a preset of any vocabulary.
        train: objective and next_sentence are read.
        vocab_size: of the tokenizer.
    """
    if train.objective == "next_token":
        return config.replace(vocab_size=vocab_size, head="lm")
    pairs = train.next_sentence
    return config.replace(vocab_size=vocab_size, head="masked_lm", pooler=pairs, next_sentence=pairs)


def default_chunk_bytes() -> int:
    """Float32 logits alive at a time: few passes over the gradient of the table, or what fills matrix units."""
    return 1 << 26 if jax.default_backend() == "cpu" else 1 << 29


def _hidden(model, params, inputs, segment_ids, keys, train, token_types=None):
    return model.apply(
        params,
        inputs,
        padding_mask=(segment_ids > 0).astype(jnp.int32),
        segment_ids=segment_ids,
        token_types=token_types,
        logits_at=False,
        dropout_key=keys if train else None,
    )


def _split(keys):
    pairs = jax.vmap(partial(jax.random.split, num=2))(keys)
    return pairs[:, 0], pairs[:, 1]


def _check(config, model, tokenizer):
    wanted = {"next_token": ("causal", "prefix"), "masked_lm": ("full",)}[config.objective]
    other = {"next_token": "masked_lm", "masked_lm": "next_token"}[config.objective]
    if model.image_size:
        raise InputError(f'objective "{config.objective}" trains models of tokens, and this one reads images')
    if model.visibility not in wanted:
        raise InputError(
            f'objective "{config.objective}" needs a model with visibility "{wanted[0]}", and this one has '
            f'"{model.visibility}"; did you mean objective "{other}"?'
        )
    heads = ("lm",) if config.objective == "next_token" else ("masked_lm", "lm")
    if model.head not in heads:
        raise InputError(f'objective "{config.objective}" needs head "{heads[0]}", not "{model.head}"')
    if config.next_sentence and not model.next_sentence:
        raise InputError("next_sentence needs a model with a pooler and a next-sentence head; this one has none")
    if tokenizer.vocab_size > model.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} ids but the model's vocab_size is {model.vocab_size}; set it to "
            f"{tokenizer.vocab_size} or more"
        )
    if model.positions == "learned" and config.seq_len > model.max_positions:
        raise InputError(f"seq_len is {config.seq_len} but the model's position table ends at {model.max_positions}")
