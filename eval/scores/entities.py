"""Entities out of word tags, and how many of them a tagger finds: precision, recall and F1 over whole entities.

    B-person I-person O B-company      ->  (person, 0, 2), (company, 3, 4)

A tag is a letter and a type: B-person; a bare B has the type "_", and a hyphen may be missing (Bper is B-per). Tags are
BIO or BIOES, read with the leniency of the CoNLL-2000 and 2003 evaluation: an entity begins at every B and S, at an I
or E after O, E (or S), and wherever the type changes. Scores equal seqeval's in its default mode, whatever the tags:

- BILOU's L-x and U-x have no rule of their own, so they go on with an entity of their type and begin one only after
  another type: two U-x side by side are one entity, and B-x L-x just before another B-x is lost. Bare L and U are no
  sound tags in that mode, and are refused by `eval.sources.own_tasks`.
- Types alone (PER, LOC ...) are not tags: their first letter is read as one. `are_entities` says which tags are.

    precision = found / predicted,    recall = found / true,    F1 = 2 precision recall / (precision + recall)

An entity is found when type, first and last word are right. Whatever is divided by nothing is 0.

References: Tjong Kim Sang and De Meulder 2003, CoNLL-2003 shared task; Ramshaw and Marcus 1995 (BIO).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zoo.errors import InputError

OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")
NOWHERE = (OUTSIDE, ".")  # letters that are in no entity


@dataclass(frozen=True)
class EntityCounts:
    """Counts that add over sentences, and their scores.

    Attributes:
        found: entities predicted exactly.
        predicted: entities predicted.
        true: entities that there are.
    """

    found: int = 0
    predicted: int = 0
    true: int = 0

    def __add__(self, other: "EntityCounts") -> "EntityCounts":
        return EntityCounts(self.found + other.found, self.predicted + other.predicted, self.true + other.true)

    @property
    def precision(self) -> float:
        """found / predicted."""
        return self.found / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """found / true."""
        return self.found / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, 2 found / (predicted + true)."""
        return 2 * self.found / (self.predicted + self.true) if self.predicted + self.true else 0.0


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, word after the last) of each entity of a sentence, in order."""
    found: list[tuple[str, int, int]] = []
    letter_before, kind_before, start = OUTSIDE, "", 0
    for at, tag in enumerate([*tags, OUTSIDE]):
        letter, kind = _parts(tag)
        changes = kind != kind_before
        ends = letter_before in ("E", "S") or (letter_before in ("B", "I") and letter in ("B", "S", OUTSIDE))
        if ends or (changes and letter_before not in NOWHERE):
            found.append((kind_before, start, at))
        begins = letter in ("B", "S") or (letter in ("I", "E") and letter_before in ("E", "S", OUTSIDE))
        if begins or (changes and letter not in NOWHERE):
            start = at
        letter_before, kind_before = letter, kind
    return found


def are_entities(tags: Iterable[str]) -> bool:
    """Whether a task's tags are those of entities: B-x or I-x among them, or bare B and I with O and nothing else."""
    tags = set(tags)
    bare = tags <= {OUTSIDE, *PREFIXES} and bool(tags & {"B", "I"})
    return bare or any(tag[:2] in ("B-", "I-") for tag in tags)


def count_entities(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, EntityCounts]:
    """Counts by entity type, in alphabetical order.

    Args:
        true: tags of each sentence.
        predicted: the same number of tags for each of the same sentences.

    Raises:
        InputError: another number of sentences or of tags.
    """
    if len(true) != len(predicted):
        raise InputError(f"{len(predicted):,} tagged sentences for {len(true):,}")
    counts: dict[str, list[int]] = {}
    for number, (right, guess) in enumerate(zip(true, predicted, strict=True)):
        if len(right) != len(guess):
            raise InputError(f"sentence {number} has {len(right)} words and {len(guess)} predicted tags")
        there, said = set(entities(right)), set(entities(guess))
        for place, group in enumerate((there & said, said, there)):
            for kind, _, _ in group:
                counts.setdefault(kind, [0, 0, 0])[place] += 1
    return {kind: EntityCounts(*counts[kind]) for kind in sorted(counts)}


def total(counts: dict[str, EntityCounts]) -> EntityCounts:
    """All types together: what "entity F1" is computed from."""
    return sum(counts.values(), EntityCounts())


def table(counts: dict[str, EntityCounts]) -> str:
    """Lines of type, precision, recall, F1 and number of true entities; all of them last."""
    rows = [("type", "precision", "recall", "F1", "entities")]
    for name, count in [*counts.items(), ("all", total(counts))]:
        scores = (f"{value:.4f}" for value in (count.precision, count.recall, count.f1))
        rows.append((name, *scores, f"{count.true:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def _parts(tag: str) -> tuple[str, str]:
    """Letter and type; what stands before the first hyphen behind the letter is not read."""
    return tag[:1] or OUTSIDE, tag[1:].split("-", 1)[-1] or "_"
