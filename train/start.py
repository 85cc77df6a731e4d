"""Beginning a run with the parameters of a checkpoint: continued pre-training, of a domain or with another head."""

from typing import Any

import jax

import zoo
from train.distributed import together
from train.mesh import Driver
from train.state import TrainState
from zoo.checkpoints import load_config
from zoo.errors import InputError
from zoo.model import HEAD_NAMES, Model
from zoo.partition import path_string


def start_from(state: TrainState, loaded: dict[str, Any]) -> TrainState:
    """`state` with the checkpoint's parameters, placed as the state's were.

    Args:
        state: fresh, before the first step.
        loaded: from `parameters_of`; what lies where the state's did is taken as it is, and nothing is copied.
    """

    def place(new, old):
        return jax.device_put(new.astype(old.dtype), old.sharding)

    return state.replace(
        params={
            part: jax.tree.map(place, loaded[part], old) if part in loaded else old
            for part, old in state.params.items()
        }
    )


def parameters_of(checkpoint: str, model: Any, driver: Driver | None = None) -> dict[str, Any]:
    """The parts of a checkpoint that the model takes over. Where it has another head, that part is left out.

    Of several processes all call it, and each reads what its devices hold: over a mesh none ever has the whole.

    Args:
        checkpoint: what zoo.load reads: a folder, a run folder, the name of an embedded checkpoint.
        model: the run's.
        driver: whose mesh the parameters are split over; without one they lie on one device.

    Raises:
        InputError: no such checkpoint, or its backbone is not the model's.
    """
    shapes = model.init_shapes()
    taken = together(lambda: parts_taken(checkpoint, _shapes(shapes)))
    _, loaded = together(lambda: zoo.load(checkpoint, mesh=getattr(driver, "mesh", None)))
    return {part: loaded[part] for part in shapes if part in taken}


def parts_taken(checkpoint: str, wanted: dict[str, tuple[int, ...]]) -> set[str]:
    """Which parts of a model a checkpoint gives; no weights are read.

    Args:
        checkpoint: see `parameters_of`.
        wanted: path -> shape of the model's parameters.

    Raises:
        InputError: no such checkpoint, or its backbone is not the model's.
    """
    found = _shapes(Model(load_config(checkpoint)).init_shapes())
    fresh = set()
    for name, shape in wanted.items():
        if found.get(name) == shape:
            continue
        part = name.split("/")[0]
        if part not in HEAD_NAMES:
            has = f"has shape {found[name]}" if name in found else "is missing"
            raise InputError(f"start_from {checkpoint}: {name} {has} there; the model needs {shape}")
        fresh.add(part)
    return {name.split("/")[0] for name in wanted} - fresh


def _shapes(tree):
    return {path_string(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
