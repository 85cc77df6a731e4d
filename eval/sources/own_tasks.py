"""Tasks of one's own from files that are not one text a row: tagged words, questions on a text, multiple choice.

    splits = load_tagged("ner.conll")                  # a word and its tag a line
    splits = load_spans("train-v2.0.json", test="dev-v2.0.json")
    splits = load_choices("swag/train.csv", test="swag/val.csv")
    splits = load_own("dev-v1.1.json", "spans")        # by the name of the kind

Without a test file a quarter is held out: whole sentences, articles (or contexts), questions, by the rules of
eval.tasks.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from eval import tasks
from eval.examples import Splits
from eval.kinds import choice, spans, tagging
from eval.scores.entities import are_entities
from eval.sources import squad, tagged
from eval.task import Task
from zoo.errors import InputError, nearest


def load_tagged(path: str | Path, test: str | Path | None = None, encoding: str = "utf-8") -> Splits:
    """Tagging from CoNLL's columns; entity F1 where tags begin with B- or I- (or are B, I and O), else accuracy.

    Args:
        path: the file: a word first and its tag last on a line, an empty line between sentences.
        test: another such file to test on.
        encoding: of the files.

    Raises:
        InputError: what eval.sources.tagged.read refuses, one tag only, or bare L and U beside B and I.
    """
    files = [Path(file) for file in (path, test) if file is not None]
    names = tuple(dict.fromkeys(name for file in files for name in tagged.tag_names(file, encoding)))
    if len(names) < 2:
        raise InputError(f'{path}: every word has the tag "{names[0]}"; two tags or more are needed')
    if {"L", "U"} & set(names) and set(names) <= {"O", "B", "I", "L", "U"}:
        raise InputError(f"{path}: bare tags L and U have no agreed reading; write E for L and S for U")
    metrics = tagging.METRICS if are_entities(names) else ("accuracy", "unread_words")
    splits = _load("tagging", files, "conll", ("words",), "tags", metrics, labels=names, encoding=encoding)
    if not any(name[:2] in ("L-", "U-") for name in names):
        return splits
    line = "tags L-x and U-x are read as seqeval reads them, by their type alone: neighbours of one type run together"
    return replace(splits, warnings=(*splits.warnings, f"{line}; write E- for L- and S- for U- to tell them apart"))


def load_spans(path: str | Path, test: str | Path | None = None, encoding: str = "utf-8") -> Splits:
    """Span question answering from SQuAD's JSON, v1.1 or v2.0.

    Args:
        path: the file.
        test: another such file to test on.
        encoding: of the files.

    Returns:
        Splits, which warn of answers that do not stand where their file says.

    Raises:
        InputError: what eval.sources.squad.read refuses.
    """
    files = [Path(file) for file in (path, test) if file is not None]
    splits = _load("spans", files, "squad", ("context", "question"), "answers", spans.METRICS[:2], encoding=encoding)
    nullable = any(example.nullable for example in (*splits.train, *splits.test))
    task = replace(splits.task, metrics=spans.METRICS if nullable else spans.METRICS[:2])
    astray = squad.misplaced([*splits.train, *splits.validation, *splits.test])
    line = f'{astray:,} answers do not stand at their "answer_start": no place is learnt from them'
    return replace(splits, task=task, warnings=(*splits.warnings, line) if astray else splits.warnings)


def load_choices(path: str | Path, test: str | Path | None = None, encoding: str = "utf-8") -> Splits:
    """Multiple choice from the files of SWAG, HellaSwag and ARC, or plain ones (eval.sources.choices).

    Args:
        path: the file.
        test: another such file to test on.
        encoding: of the files.

    Raises:
        InputError: what eval.sources.choices.read refuses.
    """
    files = [Path(file) for file in (path, test) if file is not None]
    return _load("choice", files, "choices", ("context", "options"), "label", choice.METRICS, encoding=encoding)


LOADERS: dict[str, Callable[..., Splits]] = {"tagging": load_tagged, "spans": load_spans, "choice": load_choices}


def load_own(path: str | Path, kind: str, test: str | Path | None = None, encoding: str = "utf-8") -> Splits:
    """A file of one of these kinds; InputError with the nearest one otherwise."""
    if kind not in LOADERS:
        raise InputError(f'a file of one\'s own holds no task of kind "{kind}"{nearest(kind, LOADERS)}')
    return LOADERS[kind](path, test, encoding)


def _load(
    kind: str,
    files: list[Path],
    reader: str,
    text_fields: tuple[str, ...],
    label_field: str,
    metrics: tuple[str, ...],
    labels: tuple[str, ...] = (),
    encoding: str = "utf-8",
) -> Splits:
    paths = [str(file.absolute()) for file in files]
    task = Task(
        name=files[0].stem,
        title=files[0].name,
        labels=labels,
        text_fields=text_fields,
        label_field=label_field,
        train_file=paths[0],
        test_file=paths[1] if len(paths) > 1 else None,
        metrics=metrics,
        main_metric=metrics[0],
        reader=reader,
        kind=kind,
        encoding=encoding,
    )
    return tasks.load(task, files[0].parent)
