"""Work on the device that takes turns: a batch of texts, or embeddings. A turn is a bounded piece of it.

Batches of texts have few shapes: rows 1, 4, 16 ..., prompts and room rounded up (zoo.generation.text_batch). Rows share
a batch where these and the parts of their sampling are equal; each keeps its own settings, key, stops and length, and
its text is the one it would have alone.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zoo.generation import decoding
from zoo.generation.sampling import Parts, for_rows
from zoo.generation.text_batch import TextBatch, sizes
from zoo.model import Model
from zoo.serve.asked import MAX_TOP
from zoo.serve.jobs import Row, Said, VectorJob, Vectors
from zoo.serve.meters import Meters
from zoo.serve.scoring import score
from zoo.serve.speech import Speech, spelled
from zoo.text_vectors import embed

# Tokens of a text in one turn, texts of an embedding in one turn.
TOKENS, TEXTS = 4, 16
# Kinds of batches whose programs are kept. Beyond these all are forgotten: requests cannot fill the memory with them.
KINDS = 128


class Kind(NamedTuple):
    """What rows of one batch have in common."""

    width: int
    room: int
    parts: Parts


class Desk(NamedTuple):
    """What every lane works with."""

    model: Model
    params: Any
    tokenizer: Any
    meters: Meters
    cache_dtype: str | None = None


def kind_of(model: Model, row: Row) -> Kind:
    """The kind of batch that a row goes into."""
    parts, _ = for_rows([row.job.asked.sampling], model.config.vocab_size)
    room, width = sizes(model.config, len(row.ids), row.most, whole=True)
    return Kind(width, room, parts)


def height(rows: int, most: int) -> int:
    """Rows of the batch that holds so many: 1, 4, 16 ..., at most the most there are."""
    return min(1 if rows == 1 else 4 ** -(-(rows - 1).bit_length() // 2), most)


class TextLane:
    """A batch of texts.

    Args:
        desk: the model.
        rows: of one kind.
        kind: theirs.
        most_rows: the largest batch.
    """

    def __init__(self, desk: Desk, rows: Sequence[Row], kind: Kind, most_rows: int):
        self._desk, self._live = desk, {number: row for number, row in enumerate(rows)}
        self._speeches = [Speech(desk.tokenizer, row.ids, row.job.asked.stop) for row in rows]
        self._kept: list[list[Said]] = [[] for _ in rows]  # of rows that are told once, at their end
        self._first: dict[int, float] = {}
        self._looked = False  # at the token that the prompts' pass gave
        self._work: TextBatch | None = None
        if any(row.most for row in rows):
            self._work = self._begun(rows, kind, most_rows)

    def _begun(self, rows: Sequence[Row], kind: Kind, most_rows: int) -> TextBatch:
        spare = height(len(rows), most_rows) - len(rows)  # of one token, ended at once
        keys = [_key(row) for row in rows]
        work = TextBatch(
            self._desk.model,
            self._desk.params,
            [row.ids for row in rows] + [rows[0].ids[:1]] * spare,
            [row.job.asked.sampling for row in rows] + [rows[0].job.asked.sampling] * spare,
            max_new_tokens=kind.room,
            key=jnp.stack(keys + keys[:1] * spare),
            stop_ids=tuple(self._desk.tokenizer.stop_ids),
            cache_dtype=self._desk.cache_dtype,
        )
        if spare:
            work.end([False] * len(rows) + [True] * spare)
        return work

    @property
    def size(self) -> int:
        """Texts at work."""
        return len(self._live)

    @property
    def finished(self) -> bool:
        return not self._live

    def turn(self) -> None:
        """Goes on by a few tokens; one by one where somebody reads along."""
        reads = any(row.job.asked.stream for row in self._live.values())
        for _ in range(TOKENS if reads else 1):
            if self._looked:
                self._work.advance(self._work.step + (1 if reads else TOKENS))
            self._looked = True
            self._look(None if self._work is None else self._work.now)
            if self.finished:
                return

    def tell(self, event: Any) -> None:
        """To all that are at work here: the last that they hear."""
        for job in {row.job for row in self._live.values()}:
            job.tell(event)
        self._live.clear()

    def _look(self, now: decoding.Progress | None) -> None:
        """Hands out what is new; rows that have finished, or whose reader has gone, end."""
        before = len(self._live)
        if now is not None:
            tokens, log_probs, lengths, done = (np.array(x) for x in (now.tokens, now.log_probs, now.lengths, now.done))
        for number, row in list(self._live.items()):
            if row.job.cancelled:
                self._desk.meters.generated.inc(self._speeches[number].count)
                del self._live[number]
                continue
            speech, finish, new = self._speeches[number], "length", slice(0)
            if row.most:
                length = min(int(lengths[number]), row.most)
                new = slice(speech.count, length)
                finish = "length" if length == row.most else "stop" if done[number] else ""
            if now is None:
                said = speech.read(row.number, (), (), finish)
            else:
                said = speech.read(row.number, tokens[number, new], log_probs[number, new], finish)
            self._measure(number, said)
            if not row.job.asked.stream:
                self._kept[number].append(said)
                if not said.finish:
                    continue
                said = self._scored(row, joined(self._kept[number]))
            elif not (said.finish or said.text or (said.tokens and row.job.asked.top is not None)):
                continue
            if said.finish:  # before it is told: who has the answer finds the place free
                del self._live[number]
            row.job.tell(said)
        if self._live and len(self._live) < before:
            size = self._work.now.done.shape[0]
            self._work.end([number not in self._live for number in range(size)])

    def _measure(self, number: int, said: Said) -> None:
        now, row = time.perf_counter(), self._live[number]
        if said.count and number not in self._first:
            self._first[number] = now
            self._desk.meters.first_token.observe(now - row.job.began)
        if said.finish:
            self._desk.meters.generated.inc(said.count)
            passed = now - self._first.get(number, now)
            if said.count > 1 and passed > 0:
                self._desk.meters.speed.observe((said.count - 1) / passed)

    def _scored(self, row: Row, said: Said) -> Said:
        """With the likeliest tokens and the prompt's own, where these are asked for."""
        asked = row.job.asked
        if asked.top is None or not (asked.top or asked.echo):
            return said
        prompt = spelled(self._desk.tokenizer, row.ids) if asked.echo else []
        tokens = [*prompt, *said.tokens]
        if tokens:
            ids = row.ids + [token.id for token in said.tokens]
            model, params, tokenizer = self._desk.model, self._desk.params, self._desk.tokenizer
            score(model, params, tokenizer, ids, tokens, asked.top, MAX_TOP)
        return Said(said.row, said.text, said.tokens, said.count, said.finish, tuple(prompt))


class VectorLane:
    """Embeddings of one request."""

    def __init__(self, desk: Desk, job: VectorJob):
        self._desk, self._job, self._done = desk, job, []
        self.finished = False

    @property
    def size(self) -> int:
        """It counts as one text."""
        return int(not self.finished)

    def turn(self) -> None:
        """A few texts more."""
        start = TEXTS * len(self._done)
        rows = self._job.rows[start : start + TEXTS]
        model, params, tokenizer = self._desk[:3]
        more = [min(rows, key=len)] * (height(len(rows), TEXTS) - len(rows))  # batches of 1, 4, 16
        self._done.append(embed(model, params, rows + more, tokenizer=tokenizer, batch_size=TEXTS)[: len(rows)])
        if start + TEXTS >= len(self._job.rows):
            self.finished = True
            self._job.tell(Vectors(np.concatenate(self._done)))
        self.finished = self.finished or self._job.cancelled

    def tell(self, event: Any) -> None:
        """The last that the request hears."""
        self.finished = True
        self._job.tell(event)


def joined(pieces: Sequence[Said]) -> Said:
    """A row's pieces as one."""
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    last = pieces[-1]
    return Said(last.row, "".join(piece.text for piece in pieces), tokens, last.count, last.finish)


class Programs:
    """Counts the kinds of batches that programs were made for."""

    def __init__(self):
        self._met: set[Any] = set()

    def meet(self, kind: Any) -> None:
        self._met.add(kind)
        if len(self._met) > KINDS:
            for program in (decoding.read, decoding.begin, decoding.advance):
                program.clear_cache()
            self._met = {kind}


def _key(row: Row) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(row.job.seed), row.prompt)
    return key if row.sample is None else jax.random.fold_in(key, row.sample)
