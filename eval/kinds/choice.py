"""Multiple choice: every option beside its context, each scored by one linear output, a softmax over the options.

    encoder   [CLS] context [SEP] option [SEP]           read at [CLS], or their mean
    decoder   <s> context $ option </s>                  read at the last token

    loss = sum over questions of -log softmax(s)[right option] / number of questions

The delimiter $ is the vocabulary's [SEP]; one without it takes its end-of-text piece, which then stands twice, and no
piece is added to the model. Questions with fewer options than the data set's most have rows without a token in their
place, and such an option has probability 0.

References: Devlin et al. 2018, section 4.4 (encoders); Radford et al. 2018, section 3.3 (decoders).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.encode import Encoded, encode
from eval.examples import Example
from eval.kinds.classification import log_losses, loss_of
from eval.kinds.kind import Evaluation, Kind, mean_loss, read
from eval.sources.choices import Choice
from train.metrics import Pair
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.tokenizer import Tokenizer

METRICS = ("accuracy",)
HIDDEN = -1e9


def encode_choices(
    examples: Sequence[Choice], tokenizer: Tokenizer, config: ModelConfig, max_length: int = 128
) -> Encoded:
    """C rows a question, one an option; C is the most options that any question has.

    Args, Raises: see eval.encode.encode.

    Returns:
        Encoded with group C, rows without an id for options that are not there, and in `truncated` the number of rows
        that lost ids.
    """
    if not examples:
        raise InputError("there is no example to encode")
    group = max(len(example.options) for example in examples)
    for number, example in enumerate(examples):
        if not 0 <= example.label < len(example.options):
            raise InputError(f"example {number} has label {example.label} and {len(example.options)} options")
    pairs = [Example(example.context, option, 0) for example in examples for option in example.options]
    framed = encode(pairs, tokenizer, config, max_length)
    there = np.array([n < len(example.options) for example in examples for n in range(group)])
    empty = np.zeros(0, np.int32)

    def spread(rows: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        given = iter(rows)
        return tuple(next(given) if here else empty for here in there)

    lengths = np.zeros(len(there), np.int64)
    lengths[there] = framed.lengths
    return replace(
        framed,
        ids=spread(framed.ids),
        token_types=None if framed.token_types is None else spread(framed.token_types),
        labels=np.array([example.label for example in examples], np.int32),
        lengths=lengths.reshape(-1, group).max(axis=1),
        group=group,
    )


def delimiter(tokenizer: Tokenizer) -> str:
    """The piece that stands between context and option for a decoder, as the vocabulary writes it."""
    return tokenizer.piece(tokenizer.eos_id if tokenizer.sep_id is None else tokenizer.sep_id)


def outputs(model: Any, params: Any, batch: Mapping[str, jax.Array], keys: jax.Array | None = None) -> jax.Array:
    """[B, C] scores of the options, -1e9 for those that are not there; `keys` [B C] turn dropout on."""
    options = (batch["weights"].shape[0], -1)
    scores = read(model, params, batch, keys)[:, 0].astype(jnp.float32).reshape(options)
    return jnp.where(jnp.any(batch["segment_ids"] > 0, axis=1).reshape(options), scores, HIDDEN)


def loss(
    model: Any, params: Any, batch: Mapping[str, jax.Array], keys: jax.Array, *, train: bool = True
) -> tuple[Pair, dict[str, Pair]]:
    """The objective: (sum of -log p(right option), number of questions); arguments as in eval.kinds.classification."""
    return loss_of(outputs(model, params, batch, keys if train else None), batch)


def score(encoded: Encoded, outputs: np.ndarray, names: Sequence[str], label_names: Sequence[str] = ()) -> Evaluation:
    """The option of the highest score, of equal ones the first, against the right one.

    Options of the same text have equal scores: readers count and warn of them (eval.sources.choices.identical).
    """
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise InputError(f'no metric "{unknown[0]}" of choices{nearest(unknown[0], METRICS)}')
    predictions = outputs.argmax(axis=1).astype(np.int32)
    found = dict.fromkeys(names, float(np.mean(predictions == encoded.labels)))
    return Evaluation(outputs, predictions, mean_loss(log_losses(outputs, encoded.labels)), found)


CHOICE = Kind(
    name="choice",
    head="classifier",
    per_token=False,
    width=lambda labels: 1,
    encode=encode_choices,
    loss=loss,
    outputs=outputs,
    score=score,
    metrics=METRICS,
)
