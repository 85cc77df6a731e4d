"""The options that say which task: by name, with a folder where it is not fetched, or a file of one's own."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval import tasks
from eval.tasks import Splits
from zoo.checkpoints import load_config
from zoo.errors import InputError
from zoo.packages import CHECKPOINTS

READ_OF_FILES = ("kind", "text", "label", "text_b", "test", "encoding")
KNOWN = ", ".join(tasks.TASKS)


def splits_of(settings: Mapping[str, Any]) -> Splits:
    """The task of a command line.

    Args:
        settings: "task" (a name), perhaps with its "folder"; or "data" (a file) with its columns "text", "label",
            "text_b", its "test" file and perhaps its "kind" and "encoding".

    Raises:
        InputError: both or none of them, settings that this one would not read, and what `eval.tasks` refuses.
    """
    name, data = settings["task"], settings["data"]
    if bool(name) == bool(data):
        raise InputError(f"give one of --task NAME ({KNOWN}) and --data FILE" + (", not both" if name else ""))
    kind, encoding = settings.get("kind") or "classification", settings.get("encoding") or "utf-8"
    if name:
        usual = {"kind": "classification", "encoding": "utf-8"}
        unread = [key for key in READ_OF_FILES if settings.get(key) not in (None, "", usual.get(key))]
        if unread:
            raise InputError(f"--{unread[0].replace('_', '-')} is of a --data FILE; task {name} has its own")
        return tasks.load(name, settings.get("folder") or None)
    if settings.get("folder"):
        raise InputError("--folder is where the files of a --task NAME are; --data names its file itself")
    columns = {"text": settings["text"], "label": settings["label"], "text_b": settings["text_b"]}
    return tasks.from_file(data, **columns, test=settings["test"], kind=kind, encoding=encoding)


def check_names(checkpoints: Sequence[str], names: Sequence[str | None]) -> None:
    """Refuses a checkpoint or a task that there is not, in this order, before anything is fetched or read."""
    for checkpoint in checkpoints:
        if checkpoint not in CHECKPOINTS:
            load_config(checkpoint)
    for name in filter(None, names):
        tasks.get(name)


def columns_of(splits: Splits, *, told: bool) -> dict[str, str]:
    """The columns that were read, for config.json; `told` prints them."""
    text, label = splits.task.text_fields[0], splits.task.label_field
    if told:
        print(f'text in column "{text}", label in column "{label}"')
    return {"text": text, "label": label}
