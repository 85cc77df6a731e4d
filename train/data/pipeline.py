"""Batches: a pure function of (seed, step), on any number of hosts, resumed by one integer.

Row positions run on without end: position p belongs to epoch p // rows, which visits every row once in an order of its
own, and batch `step` takes positions step * batch_size to (step + 1) * batch_size. No epoch drops its last rows.
"""

import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from train.data.pairs import PairRows
from train.data.rows import Framing, PackedRows, Style, load_or_build
from train.data.shards import Shards
from zoo.errors import InputError
from zoo.tokenizer import Tokenizer

# What a stream of random words is for; kept apart in Philox's counter.
ORDER, DRAWS, VALID_DRAWS = 0, 1, 2
Batch = dict[str, np.ndarray]


class Batches:
    """Rows served by step.

    A batch is a dict: tokens [b, T] and segment_ids [b, T] int32 (segment 0 is padding), row_ids [b] int32 (place in
    the global batch), and for pairs token_types [b, T] and next_sentence [b] int32; b is this host's share of
    batch_size.

    Args:
        rows: what to serve.
        batch_size: rows a step over all hosts.
        seed: of the order of rows and of what pairs draw.
        process_index, process_count: this host and how many there are; each serves its own run of every batch.
        places: [b] ascending, where in each batch the rows are that this host serves, in place of the two before: hosts
            may share rows, as those of a mesh with tensor parallelism do.

    Raises:
        InputError: more hosts than rows in a batch, or a seed out of range; from `batch` and `iterate`, a batch larger
            than the number of rows.
    """

    def __init__(
        self,
        rows: PackedRows | PairRows,
        batch_size: int,
        *,
        seed: int = 0,
        process_index: int = 0,
        process_count: int = 1,
        places: np.ndarray | None = None,
    ):
        if batch_size < 1:
            raise InputError(f"batch_size {batch_size} is below 1")
        if not 0 <= process_index < process_count:
            raise InputError(f"process_index {process_index} is outside 0 to {process_count - 1}")
        if process_count > batch_size:
            raise InputError(f"batch_size {batch_size} leaves some of {process_count} hosts without a row; raise it")
        if not 0 <= seed < 2**64:
            raise InputError(f"seed {seed} is outside 0 to 2**64 - 1")
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        if places is None:
            first, last = (batch_size * index // process_count for index in (process_index, process_index + 1))
            places = np.arange(first, last)
        elif not len(places) or places[0] < 0 or places[-1] >= batch_size or (np.diff(places) <= 0).any():
            raise InputError(f"places must be some of 0 to {batch_size - 1}, ascending")
        self.places = np.asarray(places, np.int64)
        self._order = functools.lru_cache(maxsize=2)(self._make_order)

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.rows)

    @property
    def row_length(self) -> int:
        return self.rows.row_length

    @property
    def steps_per_epoch(self) -> float:
        """Steps that visit every row once."""
        return len(self.rows) / self.batch_size

    def rows_at(self, step: int, *, everywhere: bool = False) -> np.ndarray:
        """[b] int64: row numbers in the index that this host serves at `step`, or all hosts do ([batch_size])."""
        if step < 0:
            raise InputError(f"step {step} is negative; steps count from 0")
        self.require_full_batch()
        positions = step * self.batch_size + (np.arange(self.batch_size) if everywhere else self.places)
        epochs, places = np.divmod(positions, len(self.rows))
        chosen = np.empty(len(positions), np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            chosen[here] = self._order(epoch)[places[here]]
        return chosen

    def require_full_batch(self) -> None:
        """Raises InputError where one batch would show a row twice; `all_rows` serves such a split all the same."""
        rows = self.rows
        if self.batch_size > len(rows):
            raise InputError(
                f"batch_size {self.batch_size} is more than the {len(rows)} rows of {rows.row_length} ids in "
                f"{rows.split.name}; take at most {len(rows)}, or more text"
            )

    def batch(self, step: int) -> Batch:
        """This host's share of batch `step`; the same at every call, in every process, after every resume."""
        return self._serve(self.rows_at(step), DRAWS, step)

    def iterate(
        self, start_step: int = 0, steps: int | None = None, *, threads: int = 1, ahead: int = 4
    ) -> Iterator[Batch]:
        """`batch(start_step)`, `batch(start_step + 1)` and so on, made ahead of use by Grain.

        The iterator has `close()`, which ends its threads.

        Args:
            start_step: first step; the state of a run is the next step alone.
            steps: how many; None never ends.
            threads: that make batches; 0 makes each when asked for.
            ahead: batches kept ready.
        """
        import grain

        if start_step < 0:
            raise InputError(f"start_step {start_step} is negative; steps count from 0")
        self.require_full_batch()
        last = start_step + steps if steps is not None else sys.maxsize
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(ahead, threads) if threads else 0)
        iterator = iter(grain.MapDataset.source(_Steps(self, last)).to_iter_dataset(options))
        iterator.set_state({"next_index": start_step})
        return iterator

    def all_rows(self) -> Iterator[Batch]:
        """Every row once, in the order of the index.

        The last batch is filled up with empty rows: pad ids, segment_ids 0, next_sentence -1.
        """
        for number, begin in enumerate(range(0, len(self.rows), self.batch_size)):
            places = begin + self.places
            real = places < len(self.rows)
            batch = self._serve(np.where(real, places, 0), VALID_DRAWS, number)
            if not real.all():
                empty = {"tokens": self.rows.framing.pad, "segment_ids": 0, "token_types": 0, "next_sentence": -1}
                for name in batch.keys() & empty.keys():
                    batch[name][~real] = empty[name]
            yield batch

    def shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and number type of the arrays of a batch, with the rows of all hosts."""
        made = self._serve(np.zeros(len(self.places), np.int64), DRAWS, 0)
        return {name: ((self.batch_size, *x.shape[1:]), x.dtype) for name, x in made.items()}

    def _serve(self, chosen: np.ndarray, purpose: int, step: int) -> Batch:
        draws = None
        if self.rows.draws:
            words = random_words(self.seed, purpose, step, self.batch_size * self.rows.draws)
            draws = words.reshape(self.batch_size, self.rows.draws)[self.places]
        batch = self.rows.assemble(chosen, draws)
        batch["row_ids"] = self.places.astype(np.int32)
        return batch

    def _make_order(self, epoch: int) -> np.ndarray:
        # Sorting random words, for NumPy keeps the stream of a bit generator but not the way of Generator.permutation.
        order = np.argsort(random_words(self.seed, ORDER, epoch, len(self.rows)), kind="stable")
        return order.astype(np.uint32) if len(order) < 2**32 else order


def random_words(seed: int, purpose: int, number: int, count: int) -> np.ndarray:
    """[count] uint64 words that (seed, purpose, number) decide (Philox: Salmon et al. 2011)."""
    key, counter = np.array([seed, number], np.uint64), np.array([0, 0, 0, purpose], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def open_batches(
    shards: Shards,
    tokenizer: Tokenizer,
    *,
    style: Style,
    row_length: int,
    batch_size: int,
    split: str = "train",
    seed: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    places: np.ndarray | None = None,
) -> Batches:
    """Batches of one split of a shard folder; the row index is kept in the folder.

    Args:
        shards: from `open_shards`.
        tokenizer: whose ids the shards hold.
        style: "bert" (masked LM), "gpt" (next token) or "pairs" (masked LM with next-sentence prediction).
        row_length: T, ids a row: for "gpt" one more than the positions a model sees.
        batch_size, seed, process_index, process_count, places: see Batches.
        split: "train" or "valid".

    Raises:
        InputError: another tokenizer's shards, a style that the vocabulary cannot frame, too few rows.
    """
    if tokenizer.fingerprint != shards.fingerprint:
        raise InputError(
            f"the shards in {shards.folder} belong to another tokenizer; use {shards.folder / 'tokenizer'}"
        )
    framing = Framing.of(tokenizer, style)
    documents = shards.split(split)
    index = load_or_build(documents, framing, row_length, shards.folder)
    kind: Any = PairRows if style == "pairs" else PackedRows
    rows = kind(documents, index, framing)
    hosts = {"process_index": process_index, "process_count": process_count, "places": places}
    batches = Batches(rows, batch_size, seed=seed, **hosts)
    if split == "train":
        batches.require_full_batch()
    return batches


class _Steps:
    """Grain's view: an element a step."""

    def __init__(self, batches: Batches, last: int):
        self._batches, self._last = batches, last

    def __len__(self) -> int:
        return self._last

    def __getitem__(self, step: int) -> Batch:
        return self._batches.batch(int(step))
