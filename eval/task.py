"""What a task is: one frozen description that says all that a number on it depends on."""

from dataclasses import dataclass
from typing import Literal

from zoo.errors import InputError, nearest

TaskKind = Literal["classification", "regression", "tagging", "spans", "choice"]


@dataclass(frozen=True)
class Task:
    """A task, completely.

    Attributes:
        name, title: for command lines and for people.
        labels: C label names; an example's label is an index into them. () for ratings, spans and choices.
        text_fields: one or two columns.
        label_field: the column of the label.
        label_rule: "name": the column holds a label's spelling; "sign": it holds a rating, whose sign picks labels[0]
            (below zero) or labels[1], and a rating of zero is left out; "number": it holds the rating itself.
        metrics, main_metric: names of metrics of the kind; the main one is what a report compares.
        train_file: the file, or all there is where test_file is None.
        test_file: the published test set, or the development set where the test set has no labels.
        reader: a format of eval.sources.readers, with `columns` if the file names none, and its bytes' `encoding`; or
            one of eval.sources.reading.READERS.
        family_field: a column whose value up to the last "_" names the review or article that a sentence is from.
        test_fraction, validation_fraction: of all texts without a test set; of the training texts.
        source: embedded package that holds the files ("" for one's own), with `licence` and `reference`.
        kind: what is predicted of an example: a class, a rating, a tag for each word, a span, one of several options.
        label_values: how the files spell the labels, in the order of `labels`; () for the names themselves.
        no_label: spellings that say that nobody agreed on a label; such rows are left out and counted.
        label_range: least and greatest rating; None for any.
        test_name: what the test set is called where there are several.
        extra_tests: (name, file) of the other labelled test sets, each reported by itself.
        hidden: (submission name, file) of test sets without labels, in the format `hidden_reader`, whose rows are
            numbered in the column `index_field`.
        benchmark: "GLUE" and the like: the files are read as they were published. Training rows that are torn are left
            out and counted; a row that is scored never is.
        spans: for each text column the columns of the start and the end, in characters, of a word to point out.
        mark_field: the column of that word.
        sizes: examples of training, validation and test; of a benchmark as published: training, the labelled test sets,
            the hidden ones.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    text_fields: tuple[str, ...]
    label_field: str
    train_file: str
    test_file: str | None = None
    label_rule: Literal["name", "sign", "number"] = "name"
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    main_metric: str = "accuracy"
    reader: str = "tsv"
    columns: tuple[str, ...] = ()
    encoding: str = "utf-8"
    family_field: str | None = None
    test_fraction: float = 0.25
    validation_fraction: float = 0.1
    source: str = ""
    licence: str = ""
    reference: str = ""
    kind: TaskKind = "classification"
    label_values: tuple[str, ...] = ()
    no_label: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    test_name: str = "test"
    extra_tests: tuple[tuple[str, str], ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()
    hidden_reader: str = "tsv"
    index_field: str = "index"
    benchmark: str = ""
    spans: tuple[tuple[str, str], ...] = ()
    mark_field: str = ""
    sizes: tuple[int, ...] = ()

    def __post_init__(self):
        if self.label_field and self.label_field in (*self.text_fields, self.mark_field):
            raise InputError(f'task {self.name}: "{self.label_field}" is the label and cannot be read as text')
        if self.label_values and len(self.label_values) != len(self.labels):
            raise InputError(f"task {self.name}: {len(self.label_values)} spellings for {len(self.labels)} labels")

    @property
    def num_labels(self) -> int:
        """C."""
        return len(self.labels)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The labels as the task's files spell them."""
        return self.label_values or self.labels

    def label_index(self, name: str) -> int:
        """The index of a label name; InputError with the nearest one where the task has no such label."""
        if name not in self.labels:
            raise InputError(f'task {self.name}: no label "{name}"{nearest(name, self.labels)}')
        return self.labels.index(name)
