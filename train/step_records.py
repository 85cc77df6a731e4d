"""The records beside a step's arrays, read and checked: JSON that cannot be used is damage, whichever way it came.

    meta/metadata     format, config, position in the data, open sums; "valid", "rows" and "owed" came later
    metrics/metrics   valid_loss, by which the best are kept
"""

import json
from pathlib import Path
from typing import Any

from zoo.checkpoints.run_folder import step_folders
from zoo.checkpoints.unreadable import Damaged, read_table, unreadable
from zoo.errors import InputError

FORMAT = "oneblock-run-1"
# What the run reads of a step's meta: kind, and whether every version wrote it.
FIELDS = {
    "config": (dict, True), "data": (str, True), "step": (int, True), "ledger": (dict, True), "valid": (str, False),
    "rows": (str, False), "owed": (bool, False),
}  # fmt: skip


def remedy(step: Path) -> str:
    """What to do where this step's folder is damaged: its run goes on from the newest of the others, if any."""
    others = [entry.name for entry in step_folders(step.parent) if entry.name != step.name]
    then = f"goes on from step {others[-1]}" if others else "begins anew"
    return f"move {step} elsewhere, and the run {then}"


def read_meta(step: Path) -> dict[str, Any]:
    """The meta of a step.

    Raises:
        InputError: it cannot be read, lacks what every version wrote, or is of another format.
    """
    try:
        meta = read_table(step / "meta" / "metadata")
        found = meta.get("format")
        if isinstance(found, str) and found != FORMAT:
            raise InputError(
                f'{step} is of the format "{found[:40]}", and this version reads "{FORMAT}" alone; go on with the '
                "version that began the run"
            )
        if found != FORMAT:
            raise Damaged(f'"format" in meta/metadata is {_shown(found)}')
        for name, (kind, needed) in FIELDS.items():
            if name not in meta and needed:
                raise Damaged(f'meta/metadata has no "{name}"')
            if name in meta and type(meta[name]) is not kind:
                raise Damaged(f'"{name}" in meta/metadata is {_shown(meta[name])}')
        if meta["step"] != int(step.name):
            raise Damaged(f"meta/metadata is that of step {meta['step']}")
        _require_sums(meta["ledger"])
    except InputError:
        raise
    except Exception as error:
        raise unreadable(step, error, remedy(step)) from error
    return meta


def require_records(step: Path) -> None:
    """Sees that Orbax can use what it reads of every step, at the start and not at the first save.

    Raises:
        InputError: the step's record of metrics, or of its items, is there and cannot be used.
    """
    try:
        record = step / "metrics" / "metrics"
        if record.exists():
            values = read_table(record)
            if type(values.get("valid_loss")) not in (int, float):
                raise Damaged(f'"valid_loss" in metrics/metrics is {_shown(values.get("valid_loss"))}')
        items = step / "_CHECKPOINT_METADATA"
        if items.exists() and not isinstance(_json(items), dict):
            read_table(items)
    except Exception as error:
        raise unreadable(step, error, remedy(step)) from error


def _json(path: Path) -> Any:
    """What a file holds; {} of one that is no JSON, which Orbax makes do without."""
    try:
        return json.loads(path.read_bytes().decode())
    except (RecursionError, ValueError):
        return {}


def _require_sums(ledger: dict[str, Any]) -> None:
    sums, numbers = ledger.get("sums"), (int, float)
    if type(ledger.get("tokens")) is not int or not isinstance(sums, dict):
        raise Damaged('"ledger" in meta/metadata lacks its tokens or sums')
    for name, pair in sums.items():
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(number) in numbers for number in pair)):
            raise Damaged(f'the sum "{name[:40]}" in meta/metadata is {_shown(pair)}')


def _shown(value: Any) -> str:
    return repr(value)[:40]
