"""Examples and splits: what tasks are read into.

An example of any kind has `texts`, the texts that it is about: what hashes, splits, draws and overlap checks look at.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from eval.sources.splits import normalise
from eval.task import Task


class HasTexts(Protocol):
    """An example of any kind."""

    @property
    def texts(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair of texts, and its label: the index of a class, or a rating (a float). -1 is not known."""

    text_a: str
    text_b: str | None
    label: int | float

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both."""
        return (self.text_a,) if self.text_b is None else (self.text_a, self.text_b)


@dataclass(frozen=True)
class Splits:
    """A task's examples, in the order of their files.

    Attributes:
        task: what they are of.
        train, validation, test: examples of the task's kind.
        dropped: why others were left out -> how many.
        extra_tests: name -> examples of further test sets (MNLI: mismatched), each reported by itself.
        warnings: a line for each thing about the data that may fool people.
    """

    task: Task
    train: tuple[Any, ...]
    validation: tuple[Any, ...]
    test: tuple[Any, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    extra_tests: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @functools.cached_property
    def near(self) -> int | None:
        """Test texts that a training text nearly repeats; None where the texts are too many to look.

        Looked for once, at first use. Equal texts are counted in `dropped`, since they were left out.
        """
        from eval.sources.leakage import near_copies

        train = [normalise(text_of(example)) for example in (*self.train, *self.validation)]
        scored = [normalise(text_of(example)) for examples in self.tests.values() for example in examples]
        return near_copies(train, scored)

    @property
    def tests(self) -> dict[str, tuple[Any, ...]]:
        """Every labelled test set by name, the main one first."""
        return {self.task.test_name: self.test, **self.extra_tests}

    def counts(self) -> dict[str, dict[str, int]]:
        """Split -> label name -> number of examples (of words, for tags); "examples" where there are no classes."""
        return {split: self._count(getattr(self, split)) for split in ("train", "validation", "test")}

    def describe(self) -> str:
        """One line of sizes and of what was left out, and one for each warning."""
        sizes = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in ("train", "validation"))
        sizes += "".join(f", {len(examples):,} {name}" for name, examples in self.tests.items())
        left = "".join(f"; left out: {count:,} {why}" for why, count in self.dropped.items() if count)
        published = self.task.test_file is not None  # one's own splits keep near copies together
        near = f"; {self.near:,} test texts have a near copy in training" if published and self.near else ""
        return "\n".join([f"{self.task.name}: {sizes}{left}{near}", *(f"warning: {line}" for line in self.warnings)])

    def _count(self, examples: Sequence[Any]) -> dict[str, int]:
        if self.task.kind == "tagging":
            found = Counter(tag for example in examples for tag in example.tags)
        elif self.task.labels and self.task.kind == "classification":
            found = Counter(example.label for example in examples)
        else:
            return {"examples": len(examples)}
        return {name: found[i] for i, name in enumerate(self.task.labels)}


def text_of(example: HasTexts) -> str:
    """All of an example's texts as one."""
    return " \t ".join(example.texts)


def key_of(example: HasTexts) -> str:
    """What tells examples apart in draws: their texts, with a mark between."""
    first, *others = example.texts
    return f"{first}\0" + "\0".join(others)
