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
from eval.sources import squad, tagged
from eval.task import Task
from zoo.errors import InputError, nearest


def load_tagged(path: str | Path, test: str | Path | None = None) -> Splits:
    """Tagging from CoNLL's columns; entity F1 where tags begin with B- or I-, else accuracy.

    Args:
        path: the file: a word first and its tag last on a line, an empty line between sentences.
        test: another such file to test on.

    Raises:
        InputError: what eval.sources.tagged.read refuses, or one tag only.
    """
    files = [Path(file) for file in (path, test) if file is not None]
    names = tuple(dict.fromkeys(name for file in files for name in tagged.tag_names(file)))
    if len(names) < 2:
        raise InputError(f'{path}: every word has the tag "{names[0]}"; two tags or more are needed')
    entities = any(name[:2] in ("B-", "I-") for name in names)
    metrics = tagging.METRICS if entities else ("accuracy", "unread_words")
    return _load("tagging", files, "conll", ("words",), "tags", metrics, labels=names)


def load_spans(path: str | Path, test: str | Path | None = None) -> Splits:
    """Span question answering from SQuAD's JSON, v1.1 or v2.0.

    Args:
        path: the file.
        test: another such file to test on.

    Returns:
        Splits, which warn of answers that do not stand where their file says.

    Raises:
        InputError: what eval.sources.squad.read refuses.
    """
    files = [Path(file) for file in (path, test) if file is not None]
    splits = _load("spans", files, "squad", ("context", "question"), "answers", spans.METRICS[:2])
    nullable = any(example.nullable for example in (*splits.train, *splits.test))
    task = replace(splits.task, metrics=spans.METRICS if nullable else spans.METRICS[:2])
    astray = squad.misplaced([*splits.train, *splits.validation, *splits.test])
    line = f'{astray:,} answers do not stand at their "answer_start": no place is learnt from them'
    return replace(splits, task=task, warnings=(*splits.warnings, line) if astray else splits.warnings)


def load_choices(path: str | Path, test: str | Path | None = None) -> Splits:
    """Multiple choice from the files of SWAG, HellaSwag and ARC, or plain ones (eval.sources.choices).

    Args:
        path: the file.
        test: another such file to test on.

    Raises:
        InputError: what eval.sources.choices.read refuses.
    """
    files = [Path(file) for file in (path, test) if file is not None]
    return _load("choice", files, "choices", ("context", "options"), "label", choice.METRICS)


LOADERS: dict[str, Callable[..., Splits]] = {"tagging": load_tagged, "spans": load_spans, "choice": load_choices}


def load_own(path: str | Path, kind: str, test: str | Path | None = None) -> Splits:
    """A file of one of these kinds; InputError with the nearest one otherwise."""
    if kind not in LOADERS:
        raise InputError(f'a file of one\'s own holds no task of kind "{kind}"{nearest(kind, LOADERS)}')
    return LOADERS[kind](path, test)


def _load(
    kind: str,
    files: list[Path],
    reader: str,
    text_fields: tuple[str, ...],
    label_field: str,
    metrics: tuple[str, ...],
    labels: tuple[str, ...] = (),
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
    )
    return tasks.load(task, files[0].parent)
