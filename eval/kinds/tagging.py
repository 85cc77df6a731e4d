"""A tag for each word: part of speech, named entities.

    words     Empire      State     Building
    pieces    [CLS] Em ##pire  State  Building [SEP]
    labels    -1  B-fac -1     I-fac  I-fac    -1

    loss = sum over labelled pieces of -log p(tag) / number of labelled pieces

Words are joined with one space and cut by the checkpoint's own tokenizer; offsets say which pieces belong to which
word: WordPiece, byte-level BPE (whose pieces carry the space before them) and SentencePiece are aligned alike. A word
is read at the first piece that holds one of its characters (Devlin et al. 2018, section 5.3), or in a decoder at the
last one: its first has seen no more of the word than that. All other pieces are -1. A word without a piece (a control
character), or beyond max_length, is predicted to be outside ("O", or the first tag where there is none) and scored like
any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.encode import Encoded, buckets, check, first_place, frame_style, require_room
from eval.kinds.classification import log_losses
from eval.kinds.kind import Evaluation, Kind, mean_loss, read
from eval.scores.entities import OUTSIDE, EntityCounts, count_entities, total
from eval.sources.tagged import TaggedExample
from train.cross_entropy import cross_entropy
from train.metrics import Pair
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.tokenizer import Tokenizer

UNLABELLED = -1
METRICS = ("entity_f1", "entity_precision", "entity_recall", "accuracy", "unread_words")


@dataclass(frozen=True, eq=False)
class Words:
    """What scoring needs of a sentence.

    Attributes:
        places: [W] int32, in the row, of the piece that each word is read at; -1 for none.
        tags: [W] int32, the right ones.
    """

    places: np.ndarray
    tags: np.ndarray


def encode_words(
    examples: Sequence[TaggedExample], tokenizer: Tokenizer, config: ModelConfig, max_length: int = 128
) -> Encoded:
    """Frames each sentence as [CLS] pieces [SEP] (<s> pieces </s>), with a label for each id.

    Args, Raises: see eval.encode.encode.

    Returns:
        Encoded with a tuple of labels, a `Words` a sentence in `notes`, and in `truncated` the number of sentences that
        lost pieces.
    """
    check(examples, tokenizer, config, max_length)
    style, head = frame_style(config), first_place(tokenizer, config)
    ends = len(tokenizer.frame([], style=style)[0])
    require_room(max_length, ends)
    ids, token_types, labels, notes, truncated = [], [], [], [], 0
    cut = tokenizer.encode_with_offsets(" ".join(example.words) for example in examples)
    for number, (example, (pieces, spans)) in enumerate(zip(examples, cut, strict=True)):
        if len(example.words) != len(example.tags):
            raise InputError(f"example {number} has {len(example.words)} words and {len(example.tags)} tags")
        framed, types = tokenizer.frame(pieces, style=style, max_length=max_length)
        kept = len(framed) - ends
        truncated += kept < len(pieces)
        places = pieces_of_words(example.words, spans, last=style == "gpt")
        places = np.where((places >= 0) & (places < kept), places + head, -1).astype(np.int32)
        tags = np.array(example.tags, np.int32)
        own = np.full(len(framed), UNLABELLED, np.int32)
        own[places[places >= 0]] = tags[places >= 0]
        ids.append(np.array(framed, np.int32))
        token_types.append(np.array(types, np.int32))
        labels.append(own)
        notes.append(Words(places, tags))
    return Encoded(
        ids=tuple(ids),
        token_types=tuple(token_types) if config.token_types > 1 else None,
        labels=tuple(labels),
        lengths=np.array([len(row) for row in ids], np.int64),
        buckets=buckets(max_length),
        pad_id=tokenizer.pad_id or 0,
        truncated=truncated,
        notes=tuple(notes),
    )


def pieces_of_words(words: Sequence[str], spans: Sequence[tuple[int, int]], last: bool = False) -> np.ndarray:
    """The piece that each word is read at.

    Args:
        words: W words, which stood with one space between.
        spans: the characters of each piece (`Tokenizer.encode_with_offsets`).
        last: the last piece that begins in a word, not the first.

    Returns:
        [W] int64 indexes of pieces, -1 for a word in which none begins.
    """
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    found = np.full(len(words), -1, np.int64)
    for piece, (start, end) in enumerate(spans):
        if start < end:
            word = int(np.searchsorted(starts, start, side="right")) - 1
            if last or found[word] < 0:
                found[word] = piece
    return found


def loss(
    model: Any, params: Any, batch: Mapping[str, jax.Array], keys: jax.Array, *, train: bool = True
) -> tuple[Pair, dict[str, Pair]]:
    """The objective: (sum of -log p(tag) over labelled pieces, their number); arguments as in kinds.classification.

    Returns:
        ((loss sum, weight), {"accuracy": pair over labelled pieces}).
    """
    logits = read(model, params, batch, keys if train else None)
    labels = batch["labels"]
    scored = (labels >= 0).astype(jnp.float32)
    importance = scored * batch["label_weights"][:, None] if "label_weights" in batch else scored
    losses = jnp.where(scored > 0, cross_entropy(logits, jnp.maximum(labels, 0)), 0.0)
    right = jnp.where(scored > 0, jnp.argmax(logits, axis=-1) == labels, False).astype(jnp.float32)
    return (jnp.sum(losses * importance), jnp.sum(importance)), {"accuracy": (jnp.sum(right), jnp.sum(scored))}


def score(
    encoded: Encoded, outputs: Sequence[np.ndarray], names: Sequence[str], label_names: Sequence[str] = ()
) -> Evaluation:
    """The tag of the largest logit for each word, and entities against the right ones.

    Returns:
        Evaluation whose predictions are E arrays of W tags, and whose loss is that of a labelled piece.
    """
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise InputError(f'no metric "{unknown[0]}" of tags{nearest(unknown[0], METRICS)}')
    outside = label_names.index(OUTSIDE) if OUTSIDE in label_names else 0
    predictions, losses = [], []
    for words, logits, labels in zip(encoded.notes, outputs, encoded.labels, strict=True):
        tags = np.full(len(words.places), outside, np.int32)
        tags[words.places >= 0] = logits.argmax(axis=1)[words.places[words.places >= 0]]
        predictions.append(tags)
        losses.append(log_losses(logits[labels >= 0], labels[labels >= 0]))
    nats = np.concatenate(losses)
    found = {}
    if any(name.startswith("entity_") for name in names):
        counts = total(entity_counts(encoded, predictions, label_names))
        found = {"entity_f1": counts.f1, "entity_precision": counts.precision, "entity_recall": counts.recall}
    if "accuracy" in names:
        right = np.concatenate([words.tags for words in encoded.notes])
        found["accuracy"] = float(np.mean(np.concatenate(predictions) == right))
    found["unread_words"] = unread_words(encoded)
    return Evaluation(tuple(outputs), predictions, mean_loss(nats) if len(nats) else 0.0, {n: found[n] for n in names})


def entity_counts(
    encoded: Encoded, predictions: Sequence[np.ndarray], label_names: Sequence[str]
) -> dict[str, EntityCounts]:
    """Counts by type of entity, which `eval.scores.entities.table` prints.

    Raises:
        InputError: the names of the tags are not given, so that nobody knows where entities begin.
    """
    highest = max((int(tags.max(initial=-1)) for tags in (*predictions, *(w.tags for w in encoded.notes))), default=-1)
    if highest >= len(label_names):
        raise InputError(
            f"entities need the names of all tags; {len(label_names)} are given and there is tag {highest}"
        )
    names = np.array(label_names, object)
    return count_entities([names[words.tags] for words in encoded.notes], [names[tags] for tags in predictions])


def unread_words(encoded: Encoded) -> int:
    """Words without a piece of their own or beyond max_length, which are predicted to be outside."""
    return sum(int(np.sum(words.places < 0)) for words in encoded.notes)


TAGGING = Kind(
    name="tagging",
    head="token_classifier",
    per_token=True,
    width=int,
    encode=encode_words,
    loss=loss,
    outputs=read,
    score=score,
    metrics=METRICS,
)
