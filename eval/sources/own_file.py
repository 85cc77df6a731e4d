"""A task of one's own from one file, with nothing else to write.

| kind | file |
|---|---|
| classification, regression | .tsv, .csv, .jsonl: a text and its label (a number) in columns |
| tagging, spans, choice | files of a layout of their own: `eval.sources.own_tasks` |
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eval.examples import Splits, text_of
from eval.metrics import METRICS as COUNT_METRICS
from eval.scores.rating_metrics import RATING_METRICS
from eval.sources import columns, leakage, readers
from eval.sources.reading import split
from eval.sources.rows import read_examples
from eval.sources.splits import normalise
from eval.task import Task
from zoo.errors import InputError, nearest

METRICS = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman", "mean_absolute_error"),
}
LAID_OUT = ("tagging", "spans", "choice")


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
    """A task of one's own.

    Args:
        path: the file; of classes and ratings one labelled text a row.
        text, label: names of its columns; "" takes the one that can be it (`eval.sources.columns`).
        text_b: the column of the second text, for pairs.
        labels: label names in order; () takes those of the file, in numerical order if all are whole numbers and in
            alphabetical order otherwise.
        test: a file of the same columns as the test set; None holds out a quarter of `path`.
        kind: what is predicted: one of the table above.
        main_metric: what reports compare; "" takes accuracy, or Pearson's correlation for numbers.
        encoding: of the files.

    Returns:
        Splits, whose task is named after the file.

    Raises:
        InputError: what `load` refuses; a text column that is the label's; texts that are their own labels.
    """
    path = Path(path)
    if kind not in (*METRICS, *LAID_OUT):
        raise InputError(f'no kind of task "{kind}"{nearest(kind, (*METRICS, *LAID_OUT))}')
    if labels and kind != "classification":
        raise InputError(f"{path}: names of labels are for classes, and this is a task of kind {kind}")
    if kind in LAID_OUT:
        if text or label or text_b:
            raise InputError(f"{path}: columns are named in tables, and a file of kind {kind} has a layout of its own")
        from eval.sources.own_tasks import load_own  # which reads through this module

        return load_own(path, kind, test, encoding)
    main = main_metric or METRICS[kind][0]
    known = RATING_METRICS if kind == "regression" else COUNT_METRICS
    if main not in known:
        raise InputError(f'no metric "{main}" of {kind}{nearest(main, known)}')
    task = Task(
        name=path.stem,
        title=path.name,
        labels=tuple(labels),
        text_fields=(),
        label_field="",
        train_file=str(path),
        test_file=None if test is None else str(test),
        label_rule="number" if kind == "regression" else "name",
        metrics=METRICS[kind] if main in METRICS[kind] else (main, *METRICS[kind]),
        main_metric=main,
        encoding=encoding,
        kind=kind,
    )
    task, header = _with_columns(task, path, text, label, text_b)
    if main == "f1" and task.num_labels != 2:
        raise InputError(f"{path}: f1 is of the second of two classes, and these are {task.num_labels}; take macro_f1")
    train, families, dropped = read_examples(task, path)
    warning = leakage.label_in_text(task, train)
    tests = {}
    if test is not None:
        other = replace(task, reader=readers.format_of(Path(test)))
        tests["test"], _, left = read_examples(other, Path(test), "test")
        dropped = dict(Counter(dropped) + Counter(left))
    splits = split(task, train, families, dropped, tests)
    return replace(splits, warnings=tuple(filter(None, [header, warning, *_doubts(splits)])))


def _doubts(splits: Splits) -> list[str]:
    """Lines about texts that stand with two labels, and about classes that cannot be learnt."""
    if splits.task.kind != "classification":
        return []
    labels: dict[str, set[int | float]] = defaultdict(set)
    for example in (*splits.train, *splits.validation, *splits.test):
        labels[normalise(text_of(example))].add(example.label)
    torn = sum(len(found) > 1 for found in labels.values())
    learnt = {example.label for example in splits.train}
    unlearnt = [name for i, name in enumerate(splits.task.labels) if i not in learnt]
    return [
        f"texts that stand in the file with more than one label: {torn:,}" if torn else "",
        f"no training text has the label {', '.join(unlearnt)}" if unlearnt else "",
    ]


def _with_columns(task: Task, path: Path, text: str, label: str, text_b: str | None) -> tuple[Task, str]:
    """The task with its columns, its format and, for classes, its label names as the table has them; and a warning."""
    numbers, format = task.kind == "regression", readers.format_of(path)
    table = readers.read_table(path, format, encoding=task.encoding)
    text, label = columns.find(table, text, label, text_b, numbers=numbers)
    fields = (text,) if text_b is None else (text, text_b)
    task = replace(task, text_fields=fields, label_field=label, reader=format)
    names = {row[label].strip() for row in table.rows if row.get(label, "").strip()}
    warning = ""
    if format in ("tsv", "csv") and (label in names or columns.NUMBER.fullmatch(label)):
        warning = f'the first line looks like data and is read as the names of columns ("{label}"): add a header'
    if task.labels or numbers:
        return task, warning
    if len(names) > 50 and 2 * len(names) > len(table.rows):
        raise InputError(
            f'{path}: column "{label}" holds {len(names)} values in {len(table.rows)} rows: numbers or names of '
            "rows, not classes (to predict a number, say that the kind is regression)"
        )
    whole = all(re.fullmatch(r"-?[0-9]+", name) for name in names)
    return replace(task, labels=tuple(sorted(names, key=int) if whole else sorted(names))), warning
