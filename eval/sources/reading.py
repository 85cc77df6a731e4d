"""From files to splits: which function reads a task's files, and which example falls into which split."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval.examples import Splits, text_of
from eval.sources.choices import identical, identical_words
from eval.sources.rows import read_examples
from eval.sources.splits import fraction, group_keys, normalise
from eval.task import Task
from zoo.errors import InputError

# Characters of all texts up to which near copies are looked for when a test set is made.
NEAR_LIMIT = 5_000_000
# Task.reader -> "module:function" of (task, path) -> (examples, families or None, {why left out: how many}), for files
# that are not rows of texts. Examples are of any class with `texts` (eval.examples).
READERS: dict[str, str] = {
    "conll": "eval.sources.tagged:read",
    "squad": "eval.sources.squad:read",
    "choices": "eval.sources.choices:read",
}


def read(task: Task, path: Path, part: str = "train") -> tuple[list[Any], list[str] | None, dict[str, int]]:
    """(examples, the family of each or None, what was left out) of one file, part "train" or "test"."""
    if task.reader in READERS:
        module, _, function = READERS[task.reader].partition(":")
        reader: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return reader(task, path)
    return read_examples(task, path, part)


def split(
    task: Task, pool: list[Any], families: list[str] | None, dropped: dict[str, int], tests: dict[str, list[Any]]
) -> Splits:
    """The splits of a task, by the rules of `eval.tasks`.

    Args:
        task: whose they are.
        pool: examples to train on, and to test on where `tests` is empty.
        families: what each is of: no family is split.
        dropped: what was left out while reading.
        tests: name -> examples of the published test sets.

    Raises:
        InputError: a split without an example, training examples with nothing to tell apart.
    """
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
        # By family, or by the first text alone: pairs that share a premise fall on one side.
        keys = families or [normalise(example.texts[0]) for example in pool]
        rest = [(e, key) for e, key, name in zip(pool, keys, names, strict=True) if name not in both]
        dropped = dropped | {"training texts that are in the test set": len(pool) - len(rest)}
    train = [e for e, key in rest if fraction(key, "validation") >= task.validation_fraction]
    validation = [e for e, key in rest if fraction(key, "validation") < task.validation_fraction]
    for split, examples in (("training", train), ("test", test)):
        if not examples:
            apart = len(set(keys))
            why = f": near copies stay on one side (groups of texts: {apart})" if 2 * apart <= len(pool) else ""
            rows = f"{task.train_file}: {len(pool)} rows"
            raise InputError(f"{rows} leave none for the {split} set{why}; more are needed")
    _require_choice(task, train)
    extra = {name: tuple(examples) for name, examples in tests.items() if name != task.test_name}
    warnings = ()
    if task.kind == "choice":
        alike = identical([*train, *validation, *(e for examples in (tests or {"": test}).values() for e in examples)])
        warnings = tuple(filter(None, [identical_words(alike)]))
    return Splits(task, tuple(train), tuple(validation), tuple(test), dropped, extra, warnings)


def _require_choice(task: Task, train: list[Any]) -> None:
    if task.kind == "classification" and len(classes := {e.label for e in train}) < 2:
        only = task.labels[classes.pop()]
        raise InputError(f'{task.train_file}: the training rows hold one class only ("{only}"); two or more are needed')
    if task.kind == "regression" and len(ratings := {e.label for e in train}) < 2:
        raise InputError(f"{task.train_file}: every training row has the rating {ratings.pop():g}; they must differ")
