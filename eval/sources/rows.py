"""From the rows of a file to examples: which columns are texts, what their labels mean, what is left out and why."""

import math
from collections import Counter
from pathlib import Path
from typing import Literal

from eval.examples import Example
from eval.sources import readers
from eval.task import Task
from zoo.errors import InputError, nearest

UNKNOWN = -1
LARGEST = 1e15  # sums of squared errors of ratings beyond are not finite in float32


def read_examples(
    task: Task, path: Path, part: Literal["train", "test"] = "train"
) -> tuple[list[Example], list[str] | None, dict[str, int]]:
    """The labelled examples of one file.

    Args:
        task: whose texts and labels the columns are.
        path: the file.
        part: of a benchmark's test set no row is left out but those without a label: what is scored is scored whole.

    Returns:
        (examples, the family of each or None, what was left out -> how many).

    Raises:
        InputError: a missing file or column, an unknown label, a rating out of range, no example at all.
    """
    whole = bool(task.benchmark) and part == "test"
    needed = [*task.text_fields, *(name for pair in task.spans for name in pair), task.label_field]
    needed += [task.mark_field] if task.mark_field else []
    table = readers.read_table(
        path,
        task.reader,
        columns=task.columns,
        encoding=task.encoding,
        skip_torn=bool(task.benchmark) and not whole,
        keep={*needed, task.family_field},
    )
    for column in needed:
        table.require(column)
    examples, families, dropped = [], [], Counter()
    dropped["with a torn row"] = len(table.torn)
    for line, row in zip(table.lines, table.rows, strict=True):
        where = f"{path}: line {line}"
        missing = next((name for name in needed if name not in row), None)
        unlabelled = not row.get(task.label_field, "").strip() and not task.benchmark
        if missing is not None and not (unlabelled and missing == task.label_field):
            raise InputError(f'{where}: no "{missing}"')
        texts = _texts(task, row, where)
        if not all(texts) and not whole:
            dropped["with empty text"] += 1
            continue
        if unlabelled:
            dropped["without a label"] += 1
            continue
        value = row[task.label_field].strip()
        if value in task.no_label:
            dropped["without a label that annotators agreed on"] += 1
            continue
        label = _label(task, value, where)
        if label is None:
            dropped["with zero rating"] += 1
            continue
        examples.append(Example(texts[0], texts[1] if len(texts) > 1 else None, label))
        if task.family_field:
            families.append(row[task.family_field].rpartition("_")[0] or row[task.family_field])
    why = {reason: count for reason, count in dropped.items() if count}
    if not examples:
        raise InputError(f"{path}: no row with a text and a label ({', '.join(f'{n} {w}' for w, n in why.items())})")
    return examples, families or None, why


def read_hidden(task: Task, path: Path) -> tuple[tuple[str, ...], tuple[Example, ...]]:
    """The examples of a test set without labels, every row of it, each with the label -1, and their index numbers."""
    columns = task.columns if task.hidden_reader == "tsv-bare" else ()
    table = readers.read_table(path, task.hidden_reader, columns=columns, encoding=task.encoding)
    for column in task.text_fields:
        table.require(column)
    examples, indices = [], []
    for number, (line, row) in enumerate(zip(table.lines, table.rows, strict=True)):
        texts = _texts(task, row, f"{path}: line {line}")
        examples.append(Example(texts[0], texts[1] if len(texts) > 1 else None, UNKNOWN))
        indices.append(row.get(task.index_field, "").strip() or str(number))
    if len(set(indices)) < len(indices):
        twice = Counter(indices).most_common(1)[0][0]
        raise InputError(f'{path}: {task.index_field} "{twice}" stands twice')
    return tuple(indices), tuple(examples)


def _texts(task: Task, row: dict[str, str], where: str) -> list[str]:
    texts = [row.get(name, "") for name in task.text_fields]
    if task.spans:
        texts = [_marked(t, row, pair, where) for t, pair in zip(texts, task.spans, strict=True)]
    if task.mark_field:
        texts[0] = f"{row.get(task.mark_field, '')}: {texts[0]}"
    return [text.strip() for text in texts]


def _marked(text: str, row: dict[str, str], pair: tuple[str, str], where: str) -> str:
    """The text with a star before and after the characters of a span."""
    try:
        start, end = (int(row[name]) for name in pair)
    except (KeyError, ValueError):
        raise InputError(f"{where}: whole numbers are needed in {pair[0]} and {pair[1]}") from None
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"{where}: {pair[0]} {start} to {pair[1]} {end} is no part of a text of {len(text)} characters"
        )
    return f"{text[:start]}* {text[start:end]} *{text[end:]}"


def _label(task: Task, value: str, where: str) -> int | float | None:
    if not value:
        raise InputError(f'{where}: "{task.label_field}" is empty; every row needs a label')
    if task.label_rule == "name":
        if value not in task.spellings:
            raise InputError(f'{where}: no label "{value}" in {task.name}{nearest(value, task.spellings)}')
        return task.spellings.index(value)
    try:
        rating = float(value)
    except ValueError:
        rating = math.nan
    if not math.isfinite(rating):
        raise InputError(f'{where}: "{value}" in "{task.label_field}" is no rating; a number is needed')
    if abs(rating) > LARGEST:
        raise InputError(f"{where}: the rating {value} is too large to learn: its square overflows; divide the column")
    if task.label_range is not None and not task.label_range[0] <= rating <= task.label_range[1]:
        raise InputError(
            f"{where}: {value} is no rating from {task.label_range[0]:g} to {task.label_range[1]:g} of {task.name}"
        )
    if task.label_rule == "number":
        return rating
    return None if rating == 0 else int(rating > 0)
