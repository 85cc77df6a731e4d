"""Run folders: what training writes, read without importing training.

    run/config.json                  {"model": ModelConfig.to_dict(), "train": ...}
    run/checkpoints/<step>/params    Orbax, one item of a composite checkpoint
    run/tokenizer/                   read by zoo.load_tokenizer

A step counts once Orbax has finished it: renamed to its number on a disk, marked on an object store.
"""

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import jax
from etils import epath

from zoo.checkpoints.keys import report
from zoo.checkpoints.orbax_quiet import held_signals, is_full, quiet_logs, quiet_restore
from zoo.checkpoints.placing import Placing, flatten
from zoo.checkpoints.unreadable import ELSEWHERE, Damaged, read_table, unreadable
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.int8 import require_float
from zoo.model import Model
from zoo.partition import path_string

CHECKPOINTS = "checkpoints"


def is_folder(path: epath.Path) -> bool:
    """Whether `path` is a run folder, or one step of its checkpoints."""
    return (path / CHECKPOINTS).is_dir() or (path.name.isdigit() and path.parent.name == CHECKPOINTS)


def load(path: epath.Path, placing: Placing) -> tuple[Model, dict[str, Any]]:
    """Model and parameters of the last complete checkpoint of a run, or of the step whose folder is named.

    Args:
        path: run folder or run/checkpoints/<step>; local or a URL that epath opens (gs://...).
        placing: number type and devices of the parameters.

    Raises:
        InputError: no config, no complete checkpoint, or parameters that are not those of the config, all named.
    """
    import orbax.checkpoint as ocp

    run, step = (path, last_step(path)) if (path / CHECKPOINTS).is_dir() else (path.parent.parent, int(path.name))
    model = Model(placing.config(read_config(run)))
    where = run / CHECKPOINTS / str(step) / "params"
    if not where.is_dir():
        raise InputError(f"{where}: no such folder; this checkpoint holds no parameters")
    if not ocp.utils.is_checkpoint_finalized(where):
        raise InputError(f"{where}: its writing has not ended; name another step's folder")
    quiet_logs()
    abstract = model.init_shapes()
    check_shapes(where, abstract, f"the model of {run / 'config.json'}")
    shardings = placing.shardings(abstract)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree_util.tree_map_with_path(
        lambda name, leaf: jax.ShapeDtypeStruct(
            leaf.shape, placing.number_type, sharding=shardings[path_string(name)] or here
        ),
        abstract,
    )
    try:
        with quiet_restore():
            return model, restore_arrays(where, target)
    except Exception as error:  # Orbax and its array store raise many kinds
        raise unreadable(where, error) from error


def restore_arrays(where: epath.PathLike, target: Any) -> Any:
    """Reads a tree of arrays, each process the parts that its devices hold, and none waits for another.

    Orbax's own checkpointer ends in a barrier, at which the others would stand where one process cannot read.

    Args:
        where: the folder of one item of a checkpoint.
        target: ShapeDtypeStructs with shardings.
    """
    import orbax.checkpoint as ocp

    return ocp.StandardCheckpointHandler().restore(epath.Path(where), args=ocp.args.StandardRestore(target))


def check_shapes(where: epath.Path, params: dict[str, Any], what: str, remedy: str = ELSEWHERE) -> None:
    """Compares what lies in a `params` folder with arrays (or their shapes); no weights are read.

    Raises:
        InputError: no record of shapes that can be read, or parameters that are missing, left over or mis-shaped, all
            named; `what` says what they should have been, `remedy` what to do about damage.
    """
    found = stored_shapes(where, remedy)
    wanted = {name: leaf.shape for name, leaf in flatten(params).items()}
    faults = {
        "missing": sorted(set(wanted) - set(found)),
        "unexpected": sorted(set(found) - set(wanted)),
        "wrong shape": [
            f"{name} {list(found[name])} for {list(shape)}"
            for name, shape in wanted.items()
            if name in found and found[name] != shape
        ],
    }
    report(faults, str(where), what)


def stored_shapes(where: epath.PathLike, remedy: str = ELSEWHERE) -> dict[str, tuple[int, ...]]:
    """path -> shape of the arrays in the folder of one item of a checkpoint; no weights are read.

    Raises:
        InputError: the record of shapes is not there or cannot be read; `remedy` says what to do about damage.
    """
    import orbax.checkpoint as ocp

    where = epath.Path(where)
    try:
        arrays = read_table(where / "_METADATA")["tree_metadata"]
        if not isinstance(arrays, dict) or not all(isinstance(array, dict) for array in arrays.values()):
            raise Damaged("_METADATA is no record of arrays")
        with quiet_restore():
            # Of the handler itself: its checkpointer gives None for whatever went wrong.
            stored = ocp.StandardCheckpointHandler().metadata(where)
        return {name: tuple(getattr(leaf, "shape", ())) for name, leaf in flatten(stored.tree).items()}
    except Exception as error:  # Orbax and its array store raise many kinds
        raise unreadable(where, error, remedy) from error


def no_step(name: str) -> str:
    """The line for run/checkpoints/<step> that is not there, "" where `name` is no such path in a run."""
    path = epath.Path(os.path.abspath(os.path.expanduser(name)))
    if not path.name.isdigit() or path.parent.name != CHECKPOINTS or not path.parent.is_dir():
        return ""
    steps = [int(folder.name) for folder in step_folders(path.parent)]
    has = f"it has those of {', '.join(map(str, steps))}" if steps else "it has none yet"
    return f"{path.parent.parent} has no checkpoint of step {path.name}; {has}"


def load_config(path: epath.Path) -> ModelConfig:
    """The ModelConfig of a run folder, or of the run that a step belongs to."""
    return read_config(path if (path / CHECKPOINTS).is_dir() else path.parent.parent)


def steps_of(run: epath.PathLike) -> list[int]:
    """The numbers of the complete checkpoints of a run, ascending."""
    folders = step_folders(epath.Path(run) / CHECKPOINTS)
    if not folders:
        return []
    import orbax.checkpoint as ocp

    return [int(folder.name) for folder in folders if ocp.utils.is_checkpoint_finalized(folder)]


def step_folders(folder: epath.Path) -> list[epath.Path]:
    """The folders of steps in one of checkpoints, complete or not, ascending: those whose whole name is a number."""
    if not folder.is_dir():
        return []
    found = [entry for entry in folder.iterdir() if re.fullmatch("[0-9]+", entry.name) and entry.is_dir()]
    return sorted(found, key=lambda entry: int(entry.name))


def last_step(run: epath.Path) -> int:
    """The number of the newest complete checkpoint.

    Raises:
        InputError: there is none.
    """
    steps = steps_of(run)
    if not steps:
        raise InputError(f"{run / CHECKPOINTS}: holds no complete checkpoint yet")
    return steps[-1]


def read_config(run: epath.Path) -> ModelConfig:
    """The ModelConfig in a run's config.json."""
    where = run / "config.json"
    try:
        values = json.loads(where.read_text())
        plain = values["model"]
        if not isinstance(plain, dict):
            raise TypeError
    except FileNotFoundError:
        raise InputError(f"{where}: no such file; a run folder needs it") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError(f'{where}: is no JSON object with a "model" in it') from None
    try:
        return ModelConfig.from_dict(plain)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def save(model: Model, params: dict[str, Any], folder: Path, tokenizer: Any = None) -> None:
    """Fills an empty local `folder` as a run of step 0, from which training can start. A full disk is an OSError."""
    import orbax.checkpoint as ocp

    quiet_logs()
    require_float(model.config, "a folder")
    settings = json.dumps({"model": model.config.to_dict()}, indent=2)
    (folder / "config.json").write_text(settings + "\n", encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(folder / "tokenizer")
    try:
        with held_signals(), quiet_restore(), ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((folder / CHECKPOINTS / "0" / "params").absolute(), params)
    except Exception as error:
        if is_full(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from None
        raise

