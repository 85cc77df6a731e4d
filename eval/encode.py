"""From labelled texts to padded batches of few shapes.

    encoded = encode(examples, tokenizer, model.config, max_length=128)
    for rows in training_order(encoded, batch_size=16, seed=0, epoch=0):
        batch = collate(encoded, rows, size=16)

A batch is a dict of int32 arrays: tokens [B, T], segment_ids [B, T] (1 on real tokens, 0 on padding), token_types
[B, T] where the model has segment embeddings, labels [B], row_ids [B]; and weights float32 [B], 0 on rows that only
fill the batch up. T is one of at most four lengths, so a program is compiled at most four times, whatever the texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from eval.tasks import Example
from train.data.pipeline import random_words
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.tokenizer import Tokenizer

Batch = dict[str, np.ndarray]

SHORTEST, LENGTHS = 16, 4
# Batches whose rows are sorted by length together: wide enough to save padding, narrow enough to keep the order random.
WINDOW = 8
# Batches for packed rows differ by so many ids at most, after so many swaps a batch at most.
LEVEL, SWAPS = 8, 4
# What a stream of random words is for; train.data.pipeline has the others.
FINE_TUNING = 16


@dataclass(frozen=True, eq=False)
class Encoded:
    """Framed ids of E examples.

    Attributes:
        ids: E arrays of int32.
        token_types: E arrays of int32, or None for a model without segment embeddings.
        labels: of E examples: [E] int32 classes, [E] float32 ratings, [E, 2] int32 places, or a tuple of E int32 arrays
            with a label for each id, -1 where there is none to learn.
        lengths: [E] int64, ids of each (of the longest of its rows).
        buckets: the row lengths T that batches may have, ascending.
        pad_id: what fills rows up.
        truncated: how many texts lost ids from their end.
        group: rows of one example: row r of `ids` belongs to example r // group. 1 but where options are compared.
        notes: what the kind of task remembers of each example to score it: its text, its words; () for nothing.
        label_weights: [E] float32 what each example counts in the loss; None for 1.
    """

    ids: tuple[np.ndarray, ...]
    token_types: tuple[np.ndarray, ...] | None
    labels: np.ndarray | tuple[np.ndarray, ...]
    lengths: np.ndarray
    buckets: tuple[int, ...]
    pad_id: int
    truncated: int
    group: int = 1
    notes: tuple[Any, ...] = ()
    label_weights: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lengths)


def encode(examples: Sequence[Example], tokenizer: Tokenizer, config: ModelConfig, max_length: int = 128) -> Encoded:
    """Frames each text (or pair) as its model does: [CLS] a [SEP] (b [SEP]) where it sees both ways, else <s> a </s>.

    A text without a character keeps its special pieces, so every row has a token to read.

    Args:
        examples: E of them.
        tokenizer: the checkpoint's own.
        config: says the framing, the longest row and the vocabulary.
        max_length: most ids a row, special pieces included; what is longer loses its end and is counted.

    Raises:
        InputError: no example, a length that the model or the special pieces do not allow, a tokenizer of more pieces
            than the model has, or one without the special pieces that the framing needs.
    """
    check(examples, tokenizer, config, max_length)
    first = tokenizer.encode_batch([example.text_a for example in examples])
    second: list[list[int] | None] = [None] * len(examples)
    pairs = [i for i, example in enumerate(examples) if example.text_b is not None]
    for i, ids in zip(pairs, tokenizer.encode_batch([examples[i].text_b or "" for i in pairs]), strict=True):
        second[i] = ids
    style = frame_style(config)
    framed, truncated = [], 0
    for a, b in zip(first, second, strict=True):
        whole = len(tokenizer.frame(a, b, style=style)[0])
        require_room(max_length, whole - len(a) - len(b or ()), 1 if b is None else 2)
        framed.append(tokenizer.frame(a, b, style=style, max_length=max_length))
        truncated += whole > max_length
    return Encoded(
        ids=tuple(np.array(ids, np.int32) for ids, _ in framed),
        token_types=tuple(np.array(types, np.int32) for _, types in framed) if config.token_types > 1 else None,
        labels=np.array([example.label for example in examples], np.int32),
        lengths=np.array([len(ids) for ids, _ in framed], np.int64),
        buckets=buckets(max_length),
        pad_id=tokenizer.pad_id or 0,
        truncated=truncated,
    )


def check(examples: Sequence[Any], tokenizer: Tokenizer, config: ModelConfig, max_length: int) -> None:
    """Raises InputError where examples cannot become rows of this model, of any kind; see `encode`."""
    if not examples:
        raise InputError("there is no example to encode")
    if config.image_size:
        raise InputError("examples are texts, and this model reads images")
    if not 1 <= max_length <= config.max_positions:
        raise InputError(f"max_length is {max_length}; this model reads 1 to {config.max_positions} tokens")
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} pieces but the model's vocabulary {config.vocab_size}: "
            "they do not belong together"
        )


def require_room(max_length: int, specials: int, texts: int = 1) -> None:
    """Raises InputError where no piece of a text (of each of two) fits beside the special pieces."""
    if max_length < specials + texts:
        raise InputError(
            f"max_length is {max_length}: beside {specials} special pieces no piece of a text fits; take "
            f"{specials + texts} or more"
        )


def frame_style(config: ModelConfig) -> Literal["bert", "gpt"]:
    """How `Tokenizer.frame` writes for this model."""
    return "bert" if config.visibility == "full" else "gpt"


def first_place(tokenizer: Tokenizer, config: ModelConfig) -> int:
    """Where a text's own ids begin in its frame: after [CLS] or <s>, or at 0 where there is neither."""
    return int(frame_style(config) == "bert" or tokenizer.bos_id is not None)


def buckets(max_length: int) -> tuple[int, ...]:
    """max_length, its half, quarter and eighth, none below 16 unless max_length is: 128 gives (16, 32, 64, 128)."""
    lengths = {max_length} | {-(-max_length // 2**k) for k in range(1, LENGTHS)}
    return tuple(sorted(length for length in lengths if length >= min(SHORTEST, max_length)))


def collate(encoded: Encoded, rows: Sequence[int] | np.ndarray, size: int) -> Batch:
    """The examples with these numbers as one batch of `size` rows, padded to the shortest bucket that holds them all.

    Args:
        encoded: from `encode`.
        rows: numbers of at most `size` examples.
        size: B; examples beyond these are padding with weight 0.

    Returns:
        tokens, segment_ids, token_types (if any) [B * group, T]; row_ids [B * group]; labels [B, ...]; weights [B] and,
        where examples weigh differently, label_weights [B].
    """
    rows = np.asarray(rows, np.int64)
    if not 1 <= len(rows) <= size:
        raise InputError(f"{len(rows)} examples cannot make a batch of {size} rows")
    length = next(b for b in encoded.buckets if b >= encoded.lengths[rows].max())
    group = encoded.group
    tokens = np.full((size * group, length), encoded.pad_id, np.int32)
    segment_ids, token_types = np.zeros_like(tokens), np.zeros_like(tokens)
    for place, row in enumerate((rows[:, None] * group + np.arange(group)).ravel()):
        end = len(encoded.ids[row])
        tokens[place, :end] = encoded.ids[row]
        segment_ids[place, :end] = 1
        if encoded.token_types is not None:
            token_types[place, :end] = encoded.token_types[row]
    batch = {
        "tokens": tokens,
        "segment_ids": segment_ids,
        "labels": _labels(encoded, rows, size, length),
        "weights": _filled(np.ones(len(rows), np.float32), size),
        "row_ids": np.arange(size * group, dtype=np.int32),
    }
    if encoded.label_weights is not None:
        batch["label_weights"] = _filled(encoded.label_weights[rows], size)
    return batch if encoded.token_types is None else batch | {"token_types": token_types}


def _labels(encoded: Encoded, rows: np.ndarray, size: int, length: int) -> np.ndarray:
    """[size, ...] the labels of these examples: [size, length] with -1 beyond each text where every id has one."""
    if not isinstance(encoded.labels, tuple):
        return _filled(encoded.labels[rows], size)
    labels = np.full((size, length), -1, np.int32)
    for place, row in enumerate(rows):
        labels[place, : len(encoded.labels[row])] = encoded.labels[row]
    return labels


def _filled(array: np.ndarray, size: int) -> np.ndarray:
    """`array` with zeros up to `size` along its first axis."""
    return np.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1))


def training_order(
    encoded: Encoded, batch_size: int, seed: int, epoch: int, *, by_length: bool = True
) -> list[np.ndarray]:
    """The batches of one epoch as arrays of example numbers: every example once, decided by (seed, epoch).

    Examples are shuffled and dealt into ceil(E / batch_size) batches whose sizes differ by one at most (no runt at the
    end). With `by_length` they are then sorted by length within each run of 8 batches, so that a batch needs little
    padding, and the batches are shuffled again. Without, for packed rows, batches of many ids change single examples
    with batches of few, until all have nearly as many: then all have as many rows.
    """
    count = -(-len(encoded) // batch_size)
    words = random_words(seed, FINE_TUNING, epoch, len(encoded) + count)
    dealt = np.array_split(np.argsort(words[: len(encoded)], kind="stable"), count)
    if not by_length:
        return _levelled(dealt, encoded.lengths)
    batches = []
    for start in range(0, count, WINDOW):
        window = dealt[start : start + WINDOW]
        together = np.concatenate(window)
        together = together[np.argsort(encoded.lengths[together], kind="stable")]
        batches += np.split(together, np.cumsum([len(batch) for batch in window])[:-1])
    return [batches[i] for i in np.argsort(words[len(encoded) :], kind="stable")]


def _levelled(batches: list[np.ndarray], lengths: np.ndarray) -> list[np.ndarray]:
    """Swaps examples between the fullest and the emptiest batch until they differ by LEVEL ids, or no swap helps."""
    batches = [batch.copy() for batch in batches]
    totals = np.array([lengths[batch].sum() for batch in batches])
    for _ in range(SWAPS * len(batches)):
        full, empty = int(totals.argmax()), int(totals.argmin())
        gap = totals[full] - totals[empty]
        if gap <= LEVEL:
            break
        moved = lengths[batches[full]][:, None] - lengths[batches[empty]]
        one, other = np.unravel_index(np.abs(2 * moved - gap).argmin(), moved.shape)
        change = moved[one, other]
        if not 0 < change < gap:
            break
        batches[full][one], batches[empty][other] = batches[empty][other], batches[full][one]
        totals[full] -= change
        totals[empty] += change
    return batches


def prediction_order(encoded: Encoded, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of example numbers, each example once, each batch from one bucket; the last of a bucket may be short."""
    bucket = np.searchsorted(encoded.buckets, encoded.lengths)
    for number in range(len(encoded.buckets)):
        rows = np.flatnonzero(bucket == number)
        for start in range(0, len(rows), batch_size):
            yield rows[start : start + batch_size]
