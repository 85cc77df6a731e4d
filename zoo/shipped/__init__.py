"""The small pre-trained models that come with the package: "oneblock/bert-tiny", "oneblock/gpt-tiny" and so on.

A folder each, as `python -m train ship` makes it (see zoo.checkpoints.plain_folder): weights in half precision,
tokenizer, README.md (the model card) and metrics.json. Nothing is fetched.
"""

from pathlib import Path

from zoo.errors import InputError, nearest

PREFIX = "oneblock/"
HERE = Path(__file__).resolve().parent


def names() -> tuple[str, ...]:
    """The models' names, with the prefix."""
    return tuple(f"{PREFIX}{path.parent.name}" for path in sorted(HERE.glob("*/config.json")))


def is_name(name: str) -> bool:
    """Whether `name` speaks of a shipped model, one that there is or a misspelt one."""
    return name.startswith(PREFIX)


def folder_of(name: str) -> Path:
    """The folder of a shipped model.

    Raises:
        InputError: there is none of this name, with the nearest one.
    """
    if name not in names():
        raise InputError(f'no model "{name}" comes with the package{nearest(name, names())}')
    return HERE / name.removeprefix(PREFIX)
