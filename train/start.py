"""Beginning a run with the parameters of a checkpoint: continued pre-training, of a domain or with another head."""

from typing import Any

import jax
import numpy as np

import zoo
from train.state import TrainState
from zoo.errors import InputError
from zoo.model import HEAD_NAMES
from zoo.partition import path_string


def start_from(state: TrainState, loaded: dict[str, Any]) -> TrainState:
    """`state` with the checkpoint's parameters, placed as the state's were.

    Args:
        state: fresh, before the first step.
        loaded: from `parameters_of`.
    """

    def place(new, old):
        new = np.asarray(new.astype(old.dtype))  # every process has it whole, and gives what its devices hold
        return jax.make_array_from_callback(new.shape, old.sharding, lambda index: new[index])

    return state.replace(
        params={
            part: jax.tree.map(place, loaded[part], old) if part in loaded else old
            for part, old in state.params.items()
        }
    )


def parameters_of(checkpoint: str, model: Any) -> dict[str, Any]:
    """The parts of a checkpoint that the model takes over. Where it has another head, that part is left out.

    Args:
        checkpoint: what zoo.load reads: a folder, a run folder, the name of an embedded checkpoint.
        model: the run's.

    Raises:
        InputError: no such checkpoint, or its backbone is not the model's.
    """
    _, loaded = zoo.load(checkpoint)
    shapes = model.init_shapes()
    wanted, found = _shapes(shapes), _shapes(loaded)
    fresh = set()
    for name, shape in wanted.items():
        if found.get(name) == shape:
            continue
        part = name.split("/")[0]
        if part not in HEAD_NAMES:
            has = f"has shape {found[name]}" if name in found else "is missing"
            raise InputError(f"start_from {checkpoint}: {name} {has} there; the model needs {shape}")
        fresh.add(part)
    return {part: loaded[part] for part in shapes if part not in fresh}


def _shapes(tree):
    return {path_string(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
