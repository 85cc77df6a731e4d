"""Work on the device that takes turns: a batch of texts, or embeddings. A turn is a bounded piece of it.

Batches of texts have few shapes: rows 1, 4, 16 ..., prompts and room rounded up (zoo.generation.text_batch). Rows share
a batch where these and the parts of their sampling are equal; each keeps its own settings, key, stops and length, and
its text is the one it would have alone.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import grow
from zoo.generation import decoding
from zoo.generation.sampling import Parts, Sampling
from zoo.generation.text_batch import CHUNK, TextBatch, rows_of, sizes
from zoo.serve.jobs import Row, Said
from zoo.serve.meters import Meters
from zoo.serve.scoring import NotFinite, Scoring, asks_for_scores, by_length, scores
from zoo.serve.served import Served
from zoo.serve.speech import Speech
from zoo.text_vectors import vectors_program

# Tokens of a text in one turn; tokens of prompts, all rows together, in one turn.
TOKENS, READ = 4, 1024
# Likeliest that are sorted out at each step: all of the vocabulary, or so many where top_k is no larger.
HEAD = 64
# Kinds of programs that are kept. Beyond these all are forgotten: requests cannot fill the memory with them.
KINDS = 128
PROGRAMS = (decoding.read, decoding.begin, decoding.advance, grow, rows_of, scores, vectors_program)


class Kind(NamedTuple):
    """What rows of one batch have in common."""

    width: int
    room: int
    parts: Parts


class Programs:
    """Counts the kinds of programs that were made."""

    def __init__(self):
        self._met: set[Any] = set()

    def meet(self, kind: Any) -> None:
        """Before the programs of a kind are called."""
        self._met.add(kind)
        if len(self._met) > KINDS:
            for program in PROGRAMS:
                program.clear_cache()
            self._met = {kind}


class Desk(NamedTuple):
    """What every lane works with."""

    served: Served
    meters: Meters
    programs: Programs


def parts_of(sampling: Sampling, vocab_size: int) -> Parts:
    """What the programs of a text are compiled for: eight kinds, whatever a client asks for.

    All that changes logits goes together, and what a request leaves out changes nothing as data.
    """
    draws = sampling.temperature > 0
    changes = bool(
        sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or (draws and sampling.min_p > 0)
    )
    head = 0
    if draws and (0 < sampling.top_k < vocab_size or sampling.top_p < 1):
        head = min(HEAD, vocab_size) if 0 < sampling.top_k <= HEAD else vocab_size
    padded = (sampling.vocab_limit or vocab_size) < vocab_size
    return Parts(draws, head, changes and draws, changes, changes, changes or padded)


def kind_of(served: Served, row: Row) -> Kind:
    """The kind of batch that a row goes into. Its room is all that a text may have: the cache grows as it is filled."""
    config, longest = served.model.config, served.longest
    room, width = sizes(config, len(row.ids), row.most, whole=True, longest=longest)
    if not by_length(config):  # there the room decides on the angles
        room = longest - width
    return Kind(width, room, parts_of(row.job.asked.sampling, config.vocab_size))


def height(rows: int, most: int) -> int:
    """Rows of the batch that holds so many: 1, 4, 16 ..., at most the most there are."""
    return min(1 if rows == 1 else 4 ** -(-(rows - 1).bit_length() // 2), most)


class _Place:
    """A row in its batch: its text so far, and what was said of it where that is told once, at the end."""

    def __init__(self, row: Row, tokenizer: Any):
        self.row, self.speech = row, Speech(tokenizer, row.ids, row.job.asked.stop)
        self.kept: list[Said] = []
        self.first: float | None = None  # when its first token came


class TextLane:
    """A batch of texts: their prompts are read, they are made, and, where asked for, read again for their scores.

    Args:
        desk: the model.
        rows: of one kind.
        kind: theirs.
    """

    def __init__(self, desk: Desk, rows: Sequence[Row], kind: Kind):
        self._desk, self._kind, self._coming = desk, kind, list(rows)
        self._most = desk.served.limits.concurrency
        self._held = height(len(rows), self._most)
        self._live: dict[int, _Place] = {}  # at work, by row of the batch
        self._work: TextBatch | None = None
        self._scoring: deque[Scoring] = deque()

    @property
    def size(self) -> int:
        """Texts at work."""
        return len(self._coming) + len(self._live) + len(self._scoring)

    @property
    def held(self) -> int:
        """Rows of keys and values that are kept, or will be in the next turn."""
        return self._held if self._coming or self._live else int(bool(self._scoring))

    @property
    def finished(self) -> bool:
        return not self.size

    def turn(self) -> None:
        """Goes on by a chunk of the prompts, by a few tokens, or by a chunk of what is read again."""
        if self._coming:
            self._begin()
        self._forget_who_left()
        if self._work is not None:
            if self._work.now is None:
                self._read()
            else:
                self._make()
        elif self._scoring:
            self._score()

    def tell(self, event: Any) -> None:
        """To all that are at work here: the last that they hear."""
        rows = [*self._coming, *(place.row for place in self._live.values()), *(one.row for one in self._scoring)]
        for job in {row.job for row in rows}:
            job.tell(event)
        self._coming, self._live, self._work = [], {}, None
        self._scoring.clear()

    def _begin(self) -> None:
        served, kind = self._desk.served, self._kind
        rows = [row for row in self._coming if not row.job.cancelled]
        places = {number: _Place(row, served.tokenizer) for number, row in enumerate(rows)}
        self._coming = []  # before they are at work: nobody sees them twice
        self._live = places
        self._held = height(len(rows), self._most) if rows else 0
        if not any(row.most for row in rows):
            return self._look(None)
        spare = self._held - len(rows)  # of one token, ended at once
        keys = [_key(row) for row in rows]
        self._work = TextBatch(
            served.model,
            served.params,
            [row.ids for row in rows] + [rows[0].ids[:1]] * spare,
            [row.job.asked.sampling for row in rows] + [rows[0].job.asked.sampling] * spare,
            max_new_tokens=kind.room,
            key=jnp.stack(keys + keys[:1] * spare),
            stop_ids=tuple(served.tokenizer.stop_ids),
            cache_dtype=served.cache_dtype,
            longest=served.longest,
            parts=kind.parts,
            chunk=min(CHUNK, 1 << max(READ // self._held, 16).bit_length() - 1),
            in_turns=True,
        )

    def _read(self) -> None:
        self._desk.programs.meet(("begin", self._held, self._kind))
        self._work.read()
        if self._work.now is not None:
            self._leave_off(())
            self._look(self._work.now)

    def _make(self) -> None:
        """Tokens one by one where somebody reads along."""
        self._desk.programs.meet(("advance", self._held, self._kind.parts, self._work.capacity))
        reads = any(place.row.job.asked.stream for place in self._live.values())
        for _ in range(TOKENS if reads else 1):
            self._work.advance(self._work.step + (1 if reads else TOKENS))
            self._look(self._work.now)
            if self._work is None:
                return

    def _score(self) -> None:
        """The rows that are to be read again, one after the other: what the batch held is free by now."""
        one = self._scoring[0]
        self._desk.programs.meet(one.program)
        said = one.turn()
        if said is not None:
            self._scoring.popleft()
            one.row.job.tell(said)

    def _forget_who_left(self) -> None:
        gone = [number for number, place in self._live.items() if place.row.job.cancelled]
        for number in gone:
            self._desk.meters.generated.inc(self._live[number].speech.count)
        if gone:
            self._leave_off(gone)
        self._scoring = deque(one for one in self._scoring if not one.row.job.cancelled)

    def _leave_off(self, gone: Sequence[int]) -> None:
        """These rows end, and what was never a text; what a smaller batch holds is kept, and no more."""
        for number in gone:
            del self._live[number]
        held, live = self._held, list(self._live)
        self._held = height(len(live), self._most) if live else 0
        if not live:
            self._work = None
        if self._work is None:
            return
        if self._work.now is not None:
            self._work.end([number not in self._live for number in range(held)])
        if self._held < held:
            idle = [number for number in range(held) if number not in self._live]
            self._work.keep(live + idle[: self._held - len(live)])
            self._live = dict(enumerate(self._live.values()))

    def _look(self, now: decoding.Progress | None) -> None:
        """Hands out what is new; rows that have finished, or whose reader has gone, end."""
        over, found = [], []
        if now is not None:
            latest = _latest(now.step, now.tokens, now.log_probs, now.lengths, now.done)
            first, tokens, log_probs, lengths, done = (np.asarray(x) for x in latest)
        for number, place in self._live.items():
            row, speech = place.row, place.speech
            finish, given = "length", ((), ())
            if row.most:
                length = min(int(lengths[number]), row.most)
                finish = "length" if length == row.most else "stop" if done[number] else ""
                new = slice(speech.count - first, max(length - first, 0))
                given = tokens[number, new], log_probs[number, new]
                if np.isnan(given[1]).any():
                    raise NotFinite
            said = speech.read(row.number, *given, finish)
            found.append((place, said))
            self._measure(place, said)
            if said.finish:
                over.append(number)
        if over:  # before they are told: who has the answer finds the place free
            self._leave_off(over)
        for place, said in found:
            self._tell(place, said)

    def _tell(self, place: _Place, said: Said) -> None:
        row = place.row
        if not row.job.asked.stream:
            place.kept.append(said)
            if not said.finish:
                return
            said = joined(place.kept)
        if said.finish and asks_for_scores(row):
            self._scoring.append(Scoring(self._desk.served, row, said))
        elif said.finish or said.text or (said.tokens and row.job.asked.top is not None):
            row.job.tell(said)

    def _measure(self, place: _Place, said: Said) -> None:
        now = time.perf_counter()
        # A text that ends with its first token, the end itself, has had one too.
        if place.first is None and place.row.most and (said.count or said.finish):
            place.first = now
            self._desk.meters.first_token.observe(now - place.row.job.began)
        if said.finish:
            self._desk.meters.generated.inc(said.count)
            passed = 0 if place.first is None else now - place.first
            if said.count > 1 and passed > 0:
                self._desk.meters.speed.observe((said.count - 1) / passed)


@jax.jit
def _latest(step: jax.Array, tokens: jax.Array, log_probs: jax.Array, *rest: jax.Array) -> tuple[jax.Array, ...]:
    """The columns that a turn may have filled, after the first of them: the others, maybe many, stay where they are."""
    size = min(TOKENS, tokens.shape[1])
    first = jnp.maximum(step - size, 0)
    return first, *(jax.lax.dynamic_slice_in_dim(x, first, size, axis=1) for x in (tokens, log_probs)), *rest


def joined(pieces: Sequence[Said]) -> Said:
    """A row's pieces as one."""
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    last = pieces[-1]
    return Said(last.row, "".join(piece.text for piece in pieces), tokens, last.count, last.finish)


def _key(row: Row) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(row.job.seed), row.prompt)
    return key if row.sample is None else jax.random.fold_in(key, row.sample)
