"""Multiple choice: a context, several ways to go on or to answer, one of them right; and the files that hold such.

| file | fields | context | options |
|---|---|---|---|
| SWAG, .csv | sent1, sent2, ending0..3, label | sent1 sent2 | the endings |
| HellaSwag, .jsonl | activity_label, ctx (or ctx_a, ctx_b), endings, label | activity_label: ctx | the endings |
| ARC, .jsonl | question.stem, question.choices[].text and .label, answerKey | the stem | the texts, 3 to 5 |
| plain, .jsonl | context, options, label (an index from 0) | context | options |

SWAG's split is before the ending, so that likelihoods compare what differs. HellaSwag's instructions come from
WikiHow with marks in brackets: " [title]" becomes ". ", every other [mark] is taken out, as is usual.

References: Zellers et al. 2018 (SWAG), Zellers et al. 2019 (HellaSwag), Clark et al. 2018 (ARC).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.sources import strict_json
from eval.sources.readers import Table, format_of, read_table
from eval.task import Task
from zoo.errors import InputError

TITLE, MARK = re.compile(r" \[title\]"), re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Choice:
    """One question of multiple choice.

    Attributes:
        context: what is asked, or to be gone on with.
        options: 2 or more texts.
        label: index of the right one.
    """

    context: str
    options: tuple[str, ...]
    label: int

    @property
    def texts(self) -> tuple[str, ...]:
        """The context and the options."""
        return (self.context, *self.options)


def read(task: Task, path: Path) -> tuple[list[Choice], list[str], dict[str, int]]:
    """The questions of a file in one of the layouts above, told apart by its fields.

    Returns:
        (questions, the context of each, what was left out -> how many): published test sets come without labels.

    Raises:
        InputError: fields of no layout; a label that names no option; fewer than two options, or an empty one.
    """
    table = read_table(path, format_of(path), encoding=task.encoding)
    row_of = _layout(table)
    examples, unlabelled = [], 0
    for line, row in zip(table.lines, table.rows, strict=True):
        where = f"{path}: line {line}"
        try:
            context, options, label = row_of(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            shown = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{where}: not as the other rows are: {shown}") from None
        if label is None:
            unlabelled += 1
            continue
        if len(options) < 2 or not all(options):
            raise InputError(f"{where}: {len(options)} options, some of them empty; two or more texts are needed")
        if not 0 <= label < len(options):
            raise InputError(f"{where}: the label names none of {len(options)} options")
        examples.append(Choice(context, tuple(options), label))
    if not examples:
        raise InputError(f"{path}: {unlabelled:,} questions without a label, as in a published test set; take another")
    return examples, [example.context for example in examples], {"without a label": unlabelled}


def identical(examples: Sequence[Choice]) -> int:
    """Questions of which two options are the same text, so that no reader tells them apart."""
    return sum(len(set(example.options)) < len(example.options) for example in examples)


def identical_words(count: int) -> str:
    """The warning of `identical`, "" for none."""
    return f"questions with two options of the same text, of which the first counts as chosen: {count:,}" * (count > 0)


def clean_hellaswag(text: str) -> str:
    """The text without WikiHow's marks."""
    return " ".join(MARK.sub("", TITLE.sub(". ", text)).split())


Row = tuple[str, list[str], int | None]


def _layout(table: Table) -> Callable[[dict[str, str]], Row]:
    layouts = [
        (("sent1", "sent2", "ending0", "ending1"), _swag),
        (("ctx", "endings", "label"), _hellaswag),
        (("ctx_a", "ctx_b", "endings", "label"), _hellaswag),
        (("question", "answerKey"), _arc),
        (("context", "options", "label"), _plain),
    ]
    for needed, row_of in layouts:
        if all(name in table.columns for name in needed):
            return row_of
    known = "; ".join(", ".join(needed) for needed, _ in layouts)
    raise InputError(f"{table.path}: the fields are {', '.join(table.columns)}; those of multiple choice are {known}")


def _swag(row: dict[str, str]) -> Row:
    options = [row[name].strip() for name in sorted(row) if re.fullmatch(r"ending[0-9]", name)]
    return " ".join(f"{row['sent1']} {row['sent2']}".split()), options, _index(row.get("label", ""))


def _hellaswag(row: dict[str, str]) -> Row:
    context = row["ctx"] if row.get("ctx") else f"{row['ctx_a']} {row['ctx_b']}"
    activity = row.get("activity_label", "")
    context = clean_hellaswag(f"{activity}: {context}" if activity else context)
    return context, [clean_hellaswag(ending) for ending in _list(row["endings"])], _index(row["label"])


def _arc(row: dict[str, str]) -> Row:
    question = strict_json.parse(row["question"], "question")
    options = [option["text"].strip() for option in question["choices"]]
    labels = [str(option["label"]) for option in question["choices"]]
    key = row["answerKey"].strip()
    if not key:
        return question["stem"].strip(), options, None
    return question["stem"].strip(), options, labels.index(key) if key in labels else -1


def _plain(row: dict[str, str]) -> Row:
    options = [str(option).strip() for option in _list(row["options"])]
    return row["context"].strip(), options, _index(row["label"])


def _list(text: str) -> list[Any]:
    found = strict_json.parse(text, "options")
    if not isinstance(found, list):
        raise ValueError("the options are no list")
    return found


def _index(text: str) -> int | None:
    if not text.strip():
        return None
    if not text.strip().isdigit():
        raise ValueError(f'label "{text}" is no whole number from 0')
    return int(text)
