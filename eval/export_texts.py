"""`python -m eval export-texts`: the unlabelled training texts of tasks, as documents for `python -m train prepare`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from eval import tasks
from eval.sources.splits import normalise
from eval.tasks import Splits
from zoo.atomic_file import write_atomically
from zoo.errors import InputError
from zoo.output_folder import require_folder


def export_texts(
    names: tuple[str, ...],
    /,
    *,
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(required)")] = None,
) -> None:
    """Write the training texts of tasks without their labels, for pre-training: a .jsonl file a task, a text a line.

    No text of the test or validation set of any of the tasks is among them: where one task trains on what another
    tests on, the text is left out.

    Args:
        names: tasks by name.
        out: the folder to write into.

    Examples:
        python -m eval export-texts reuters-r8 20newsgroups --out data/tasks
        python -m train prepare data/tasks encyclopedia --out data/mixture
    """
    if out is None:
        raise InputError('missing --out for "eval export-texts": the folder to write into, such as --out data/tasks')
    if not names:
        raise InputError(f"which tasks? One or more of {', '.join(tasks.TASKS)}")
    for name in names:
        tasks.get(name)
    require_folder(out)
    loaded = [tasks.load(name) for name in dict.fromkeys(names)]
    for splits, texts in zip(loaded, training_texts(loaded), strict=True):
        lines = [json.dumps({"text": text}, ensure_ascii=False, allow_nan=False) + "\n" for text in texts]
        write_atomically(out / f"{splits.task.name}.jsonl", "".join(lines))
        left = len(tasks.texts(splits)) - len(texts)
        said = f"; {left:,} that another task tests on are left out" if left else ""
        print(f"{out / splits.task.name}.jsonl: {len(texts):,} texts ({splits.task.licence}){said}")


def training_texts(several: Sequence[Splits]) -> list[tuple[str, ...]]:
    """The texts of each task's training split that no test or validation set of any of the tasks holds.

    Texts are compared by their words in lower case (`eval.sources.splits.normalise`).

    Args:
        several: tasks.

    Returns:
        One tuple of texts a task, in the order of its training split; pairs give both texts.
    """
    held = {
        normalise(text)
        for splits in several
        for example in (*splits.validation, *splits.test)
        for text in (example.text_a, example.text_b)
        if text
    }
    return [tuple(text for text in tasks.texts(splits) if normalise(text) not in held) for splits in several]
