"""What a run works with, opened from its config before anything is written: all that can be wrong is said here.

Several processes open alike: what one cannot read, none begins with, and what differs among them is named.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

import zoo
from train.config import RunConfig, TrainConfig
from train.data.pipeline import Batches, open_batches
from train.data.shards import Shards, open_shards
from train.distributed import compare, first_then_others, together
from train.matmul import trained
from train.mesh import Driver, PmapDriver, make_driver
from train.mesh_axes import check_sequence
from train.objectives import make_objective
from train.optimizer import make_optimizer
from train.state import TrainState, initial_state
from train.step import make_train_step
from zoo.errors import InputError
from zoo.summary import summarise


@dataclass(frozen=True)
class Opened:
    """The parts of a run.

    Attributes:
        model, shards, tokenizer, driver, objective, optimizer: as the config says.
        make: makes the state before the first step, for the driver to trace.
        step: the compiled training step; traced and lowered, so that whatever it refuses was said.
        lowered: the step's program, which `compile_ahead` compiles.
        batches, valid: of the train and of the valid split, this process's rows.
        watched: of the text to watch; () where there is none.
    """

    model: zoo.Model
    shards: Shards
    tokenizer: zoo.Tokenizer
    driver: Driver
    objective: Any
    optimizer: optax.GradientTransformation
    make: Callable[[], TrainState]
    step: Callable[..., Any]
    lowered: Any
    batches: Batches
    valid: Batches
    watched: Batches | tuple[()]


def open_run(config: RunConfig) -> Opened:
    """Opens data, vocabulary and devices, and traces the step: what its mesh, its micro-batches or a kernel refuse is
    said before anything is written. Nothing is traced twice: the first step compiles what is lowered here.

    Of several processes all call it; settings and data are compared, and the first makes the index of rows, which the
    others find where they share the shards.

    Raises:
        InputError: what cannot be trained, in every process.
    """
    train = config.train
    require_same_settings(config)
    model, shards, watched, tokenizer, driver, objective, optimizer = together(lambda: _parts(config))
    require_same_data(shards, watched, tokenizer)
    places = driver.rows(train.batch_size) if jax.process_count() > 1 else None

    def rows():
        split = open_splits(config, shards, tokenizer, places)
        return *split, (open_watched(config, watched, tokenizer, places) if watched else ())

    batches, valid, watched = first_then_others(rows)
    make = initial_state(model.init, optimizer, train.seed)
    step = driver.compile(make_train_step(model, objective, optimizer, train))
    batch = {name: jax.ShapeDtypeStruct(*told) for name, told in batches.shapes().items()}
    lowered = together(lambda: step.lower(driver.abstract(make), driver.shapes(batch)))
    return Opened(model, shards, tokenizer, driver, objective, optimizer, make, step, lowered, batches, valid, watched)


def compile_ahead(run: Opened) -> Callable[[], None]:
    """Has the step compiled in a thread beside this one; what it returns waits until that is done.

    The first step then finds its program. Several processes compile at that step, where each is watched by the others.
    """
    if jax.process_count() > 1 or isinstance(run.driver, PmapDriver):
        return lambda: None

    def work() -> None:
        with contextlib.suppress(Exception):  # the step will say what is wrong, where it is waited for
            run.lowered.compile()

    thread = threading.Thread(target=work)
    thread.start()
    return thread.join


def _parts(config: RunConfig) -> tuple[Any, ...]:
    """What each process opens for itself, and what it can refuse of it."""
    train, model = config.train, zoo.create(trained(config))
    if jax.process_count() > 1 and train.driver == "jit":
        raise InputError('driver "jit" runs on one device; use driver "mesh" with several processes')
    shards = open_shards(train.data)
    watched = open_shards(train.watch) if train.watch else None
    tokenizer = zoo.load_tokenizer(shards.folder)
    driver = make_driver(train.driver, train.mesh)
    check_sequence(driver.sizes, train.seq_len)
    driver.rows(train.batch_size)  # refuses a batch that its devices cannot share
    objective = make_objective(train, model, tokenizer, driver.row_shards)
    return model, shards, watched, tokenizer, driver, objective, make_optimizer(train)


def require_same_settings(config: RunConfig) -> None:
    """Refuses processes with other settings or other numbers of devices than the first; paths may differ.

    Raises:
        InputError: naming what differs, in every process.
    """
    settings = {
        f"{part}.{name}": value
        for part, table in config.to_dict().items()
        for name, value in table.items()
        if name not in ("data", "watch", "start_from")
    }
    compare(settings | {"devices a process": jax.local_device_count()})


def require_same_data(shards: Shards, watched: Shards | None, tokenizer: zoo.Tokenizer) -> None:
    """Refuses processes with other data than the first.

    Raises:
        InputError: naming what differs, in every process.
    """
    compare(
        {"the text to watch": watched.valid.digest if watched else ""}
        | {"the data": shards.train.digest + shards.valid.digest, "the tokenizer": tokenizer.fingerprint}
    )


def open_splits(
    config: RunConfig, shards: Shards, tokenizer: zoo.Tokenizer, places: np.ndarray | None = None
) -> tuple[Batches, Batches]:
    """Batches of the train and of the valid split, in the rows that the objective reads; places: see Batches."""
    rows = _rows(config.train)
    opened = [open_batches(shards, tokenizer, split=split, places=places, **rows) for split in ("train", "valid")]
    return opened[0], opened[1]


def open_watched(
    config: RunConfig, shards: Shards, tokenizer: zoo.Tokenizer, places: np.ndarray | None = None
) -> Batches:
    """Batches of the text to watch: the valid split of its shards."""
    if not len(shards.valid):
        raise InputError(f"the shards to watch, {shards.folder}, hold no validation documents")
    return open_batches(shards, tokenizer, split="valid", places=places, **_rows(config.train))


def flops_per_token(config: RunConfig) -> float:
    """Training FLOPs a token, without recomputation; masked LM computes the read-out at chosen positions alone."""
    summary = summarise(config.model, config.train.seq_len)
    share = config.train.mask_rate if config.train.objective == "masked_lm" else 1.0
    return 3 * (summary.flops_per_token - (1 - share) * summary.forward_flops["read-out"])


def _rows(train: TrainConfig) -> dict[str, Any]:
    """How documents become rows and batches."""
    style = "gpt" if train.objective == "next_token" else "pairs" if train.next_sentence else "bert"
    return {"style": style, "row_length": train.row_length, "batch_size": train.batch_size, "seed": train.seed}
