"""`python -m eval tasks`: every task that is known by name, and what a number on it depends on."""

from pathlib import Path
from typing import Any

from eval import tasks
from eval.language.screen import show_json, show_table
from eval.metrics import spoken_name
from eval.task import Task
from zoo import packages
from zoo.errors import InputError

NOTES = (
    "Examples: train / validation / test; of GLUE and SuperGLUE as published: train / development, which is scored / "
    "hidden.",
    "Files of GLUE and SuperGLUE are read from the folder of their download: --folder glue_data.",
    "A file of your own needs no name here: python -m eval finetune CHECKPOINT --data mine.csv.",
)


def show(name: str = "", /, folder: Path | None = None, json: bool = False) -> None:
    """List the tasks; with a name, say all about one.

    Args:
        name: a task to say everything about; what its splits hold and left out is read from its files where these are
            at hand, and nothing is fetched.
        folder: where the folders of GLUE and SuperGLUE are.
        json: print JSON.

    Examples:
        python -m eval tasks
        python -m eval tasks mnli --folder glue_data
    """
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    shown = [tasks.get(name)] if name else list(tasks.TASKS.values())
    rows = [facts(task, folder, read=bool(name)) for task in shown]
    if json:
        show_json(rows[0] if name else rows)
    elif name:
        print(page(rows[0]))
    else:
        columns = ("task", "kind", "labels", "examples", "scored by", "licence", "from")
        show_table("tasks", columns, [_line(row) for row in rows], NOTES)


def facts(task: Task, folder: Path | None = None, *, read: bool = True) -> dict[str, Any]:
    """A task's description in plain types.

    Args:
        task: which.
        folder: of published files; tasks of packages are read from the cache, and nothing is fetched here.
        read: whether to look into the files, where they are at hand.

    Returns:
        name, title, kind, labels, metrics, main_metric, text_fields, label_field, reader, files, sizes (as published,
        or of the splits here for tasks of packages), splits (name -> examples, or None), dropped, near_copies, licence,
        source, reference, benchmark.
    """
    files = [task.train_file, *([task.test_file] if task.test_file else []), *(file for _, file in task.extra_tests)]
    found = {
        "name": task.name,
        "title": task.title,
        "kind": task.kind,
        "labels": list(task.labels),
        "metrics": list(task.metrics),
        "main_metric": task.main_metric,
        "text_fields": list(task.text_fields),
        "label_field": task.label_field,
        "reader": task.reader,
        "files": files + [file for _, file in task.hidden],
        "sizes": list(task.sizes),
        "splits": None,
        "dropped": {},
        "near_copies": None,
        "licence": task.licence,
        "source": task.source or (f"the folder that {task.benchmark} publishes" if task.benchmark else ""),
        "reference": task.reference,
        "benchmark": task.benchmark,
    }
    place = _at_hand(task, folder) if read else None
    if place is not None:
        splits = tasks.load(task, place)
        sizes = {split: len(getattr(splits, split)) for split in ("train", "validation")}
        found["splits"] = sizes | {name: len(examples) for name, examples in splits.tests.items()}
        found["dropped"] = {why: count for why, count in splits.dropped.items() if count}
        found["near_copies"] = splits.near if task.test_file else 0
    return found


def page(found: dict[str, Any]) -> str:
    """All about one task, a line each."""
    labels = ", ".join(found["labels"]) or ("a number" if found["kind"] == "regression" else "")
    left = ", ".join(f"{count:,} {why}" for why, count in found["dropped"].items())
    near = found["near_copies"]
    lines = {
        found["name"]: found["title"],
        "kind": found["kind"],
        "labels": labels,
        "texts": ", ".join(found["text_fields"]),
        "examples": ", ".join(f"{n:,} {name}" for name, n in (found["splits"] or {}).items()) or _sizes(found),
        "left out": left,
        "near copies": f"{near:,} test texts have one in training" if near else "",
        "scored by": ", ".join(spoken_name(metric) for metric in found["metrics"]),
        "files": ", ".join(found["files"]),
        "from": found["source"],
        "licence": found["licence"],
        "reference": found["reference"],
    }
    width = max(map(len, lines))
    return "\n".join(f"{key:<{width}}  {value}" for key, value in lines.items() if value)


def _line(found: dict[str, Any]) -> tuple[str, ...]:
    count = len(found["labels"])
    return (
        found["name"],
        found["kind"],
        f"{count}" if count else "-",
        _sizes(found),
        spoken_name(found["main_metric"]),
        found["licence"],
        found["benchmark"] or found["source"],
    )


def _sizes(found: dict[str, Any]) -> str:
    return " / ".join(f"{size:,}" for size in found["sizes"]) or "-"


def _at_hand(task: Task, folder: Path | None) -> Path | None:
    """Where the task's files are, or None where they would have to be fetched."""
    if task.source:
        from train.data.sources import PACKAGES

        cached = packages.cache_folder() / PACKAGES[task.source].folder_name
        return cached if cached.is_dir() else None
    if folder is None or not tasks.locate(folder, task.train_file).exists():
        return None
    return folder
