"""Which columns of a table hold the text and the label, where the table leaves one choice."""

import re
from collections.abc import Callable, Sequence

from eval.sources.readers import Table
from zoo.errors import InputError

TEXT_NAMES = {"text", "sentence", "review", "document", "content", "body", "comment", "message", "headline", "tweet"}
LABEL_NAMES = {"label", "labels", "y", "class", "category", "target", "sentiment", "topic", "stars", "rating", "intent"}
NUMBER_NAMES = {"score", "rating", "stars", "similarity", "value", "grade", "target", "label", "y"}
MOST_CLASSES = 50
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def find(
    table: Table, text: str = "", label: str = "", text_b: str | None = None, *, numbers: bool = False
) -> tuple[str, str]:
    """The names of the text and the label column.

    A column that is not given is the one with a usual name, or else the one whose values look the part: few values that
    repeat (or, where numbers are predicted, numbers) are labels, values of several words are texts. The text may also
    be the one column that is left.

    Args:
        table: the rows.
        text, label: names that are given; "" looks for one.
        text_b: the column of a second text, which is neither.
        numbers: whether the label is a number to predict.

    Raises:
        InputError: a given column that is not there, or that is given twice; none or several that could be it, with
            the columns that are there.
    """
    given = [column for column in (text, label, text_b) if column]
    twice = next((column for column in given if given.count(column) > 1), None)
    if twice:
        raise InputError(f'{table.path}: "{twice}" is named twice; texts and label are columns of their own')
    for column in given:
        table.require(column)
    names, looks = (NUMBER_NAMES, _holds_numbers) if numbers else (LABEL_NAMES, _holds_labels)
    label = label or _only(table, "label", names, looks, [text, text_b])
    return text or _only(table, "text", TEXT_NAMES, _holds_texts, [label, text_b], last=True), label


def _only(
    table: Table,
    kind: str,
    names: set[str],
    looks: Callable[[list[str]], bool],
    taken: Sequence[str | None],
    last: bool = False,
) -> str:
    if len(table.columns) == 1:
        raise InputError(
            f'{table.path}: one column alone, "{table.columns[0][:60]}", where text and label are two; is the file '
            "separated otherwise? A .tsv has tabs, a .csv commas or semicolons"
        )
    free = [column for column in table.columns if column not in taken]
    named = [column for column in free if column.strip().lower() in names]
    values = {column: [row[column].strip() for row in table.rows if row.get(column, "").strip()] for column in free}
    alike = [column for column in free if looks(values[column])]
    for found in (named, alike, free if last else []):
        if len(found) == 1:
            return found[0]
    raise InputError(
        f"{table.path}: which column holds the {kind}? Say --{kind} NAME; its columns are {', '.join(table.columns)}"
    )


def _holds_labels(values: list[str]) -> bool:
    distinct = len(set(values))
    return 1 < distinct <= MOST_CLASSES and 2 * distinct <= len(values) and not _holds_texts(values)


def _holds_numbers(values: list[str]) -> bool:
    return len(set(values)) > 1 and all(NUMBER.fullmatch(value) for value in values)


def _holds_texts(values: list[str]) -> bool:
    return bool(values) and sum(len(value.split()) for value in values) >= 3 * len(values)
