"""The very train step of a run, compiled for chips that are not here: abstract arrays in, an executable to read out."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import NamedSharding

import zoo
from train.config import TrainConfig
from train.mesh import MeshDriver, make_mesh
from train.objectives import make_objective
from train.optimizer import make_optimizer
from train.plan.job import Job
from train.plan.slices import tpu_devices, virtual_devices
from train.state import TrainState, initial_state
from train.step import make_train_step
from zoo import partition
from zoo.errors import InputError
from zoo.tpu_machine import has_library

ACCELERATOR_CHUNK_BYTES = 1 << 29  # train.objectives.default_chunk_bytes of an accelerator; here it would see a CPU
_USED = re.compile(r"(?:[Uu]sed |HLO temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds available HBM)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class OutOfMemory(InputError):
    """The compiler says that the step needs more memory than a chip has.

    Attributes:
        used: bytes a chip that it would need, 0 where the compiler does not say.
    """

    def __init__(self, message: str, used: float):
        super().__init__(message)
        self.used = used


@dataclass(frozen=True)
class Compiled:
    """A compiled step, as far as a plan reads it; bytes are those of one chip.

    Attributes:
        compiler: "tpu", or "cpu" for XLA's CPU compiler over virtual devices.
        jaxpr: of the whole step, unpartitioned.
        lowered_text: StableHLO, before the partitioner.
        text: HLO of one chip's program, partitioned and optimised.
        parameters, moments, batch: by their shardings, without the compiler's padding.
        arguments, outputs, aliased, temporaries, code: by the compiler.
        whole: bytes of the parameters that fsdp does not split by the table of zoo.partition: what it does not divide.
        widest: (share, path), among the others, of that of which one chip holds the largest share.
        lower_seconds, compile_seconds: what it took.
    """

    compiler: Literal["tpu", "cpu"]
    jaxpr: Any
    lowered_text: str
    text: str
    parameters: int
    moments: int
    batch: int
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    whole: int
    widest: tuple[float, str]
    lower_seconds: float
    compile_seconds: float

    @property
    def total(self) -> int:
        """Most bytes in use at a time: what comes in, what goes out elsewhere, temporaries, and the program."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(frozen=True)
class _AnyTokenizer:
    """What an objective asks of a tokenizer, for any that fills the model's vocabulary."""

    vocab_size: int

    @property
    def special_ids(self) -> tuple[int, ...]:
        return tuple(range(min(7, self.vocab_size - 1)))

    @property
    def mask_id(self) -> int:
        return len(self.special_ids) - 1

    @property
    def starts_word(self) -> np.ndarray:
        return np.arange(self.vocab_size) % 4 != 0


def abstract_batch(train: TrainConfig, sharding: Any = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the batch that train.data.pipeline gives for this run."""

    def ids(*shape):
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=sharding)

    rows, length = train.batch_size, train.row_length
    batch = {"tokens": ids(rows, length), "segment_ids": ids(rows, length), "row_ids": ids(rows)}
    if train.next_sentence:
        batch |= {"token_types": ids(rows, length), "next_sentence": ids(rows)}
    return batch


def compile_step(
    job: Job, compiler: Literal["auto", "tpu", "cpu"] = "auto", say: Callable[[str], None] = lambda line: None
) -> Compiled:
    """Compiles the step of `job` for its slice; no parameter is ever allocated.

    Args:
        job: what is planned.
        compiler: "tpu" for libtpu's, "cpu" for XLA's over virtual devices, "auto" for the first where it is installed.
        say: told what is at work.

    Raises:
        InputError: no compiler for the slice.
        OutOfMemory: the step needs more memory than the chip has.
    """
    if compiler == "auto":
        compiler = "tpu" if job.slice.chip.torus and has_library() else "cpu"
    devices = tpu_devices(job.slice) if compiler == "tpu" else virtual_devices(job.slice)
    return compile_on(job, MeshDriver(make_mesh(job.mesh_shape, devices)), compiler, say)


def compile_on(
    job: Job, driver: MeshDriver, compiler: Literal["tpu", "cpu"] = "cpu", say: Callable[[str], None] = lambda _: None
) -> Compiled:
    """As compile_step, with a driver at hand."""
    say("tracing")
    began = time.monotonic()
    traced, state, batch = traced_step(job, driver)
    with jax.set_mesh(driver.mesh):
        lowered = traced.lower()
        lowered_at = time.monotonic()
        say("compiling")
        compiled = _compile(lowered, job)
    ended = time.monotonic()
    memory = compiled.memory_analysis()
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    return Compiled(
        compiler=compiler,
        jaxpr=traced.jaxpr,
        lowered_text=lowered.as_text(),
        text=compiled.as_text(),
        parameters=bytes_a_chip(state.params),
        moments=bytes_a_chip(moments),
        batch=bytes_a_chip(batch),
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=_temporaries(memory, compiler),
        code=memory.generated_code_size_in_bytes,
        whole=bytes_a_chip(_named(state.params, job.mesh_shape, split=False)),
        widest=widest_share(state.params, job.mesh_shape),
        lower_seconds=lowered_at - began,
        compile_seconds=ended - lowered_at,
    )


def _temporaries(memory: Any, compiler: Literal["tpu", "cpu"]) -> int:
    """Bytes in use beside what comes in and goes out, at the worst moment.

    The TPU's temp_size_in_bytes adds up more than is in use at a time: a LLaMA-65B step of which 17.6 GiB would be in
    use by it is compiled for a chip of 16 GiB, and its peak is 13.2 GiB.
    """
    peak = getattr(memory, "peak_memory_in_bytes", 0) if compiler == "tpu" else 0
    if not peak:
        return memory.temp_size_in_bytes
    return max(0, peak - memory.argument_size_in_bytes - memory.output_size_in_bytes + memory.alias_size_in_bytes)


def traced_step(job: Job, driver: MeshDriver) -> tuple[Any, TrainState, dict[str, Any]]:
    """The step of a run, traced as its driver compiles it, and the abstract state and batch, with where they live."""
    train = job.train
    if not train.loss_chunk_bytes:
        train = train.replace(loss_chunk_bytes=ACCELERATOR_CHUNK_BYTES)
    model, optimizer = zoo.create(job.model), make_optimizer(train)
    objective = make_objective(train, model, _AnyTokenizer(job.model.vocab_size), driver.row_shards)
    state = driver.abstract(initial_state(model.init, optimizer, train.seed))
    rows = NamedSharding(driver.mesh, partition.batch_spec(driver.mesh))
    batch = abstract_batch(train, rows)
    return driver.trace(make_train_step(model, objective, optimizer, train), state, batch), state, batch


def bytes_a_chip(tree: Any) -> int:
    """Bytes of the part of each array that one chip holds, summed."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )


def widest_share(params: Any, sizes: Mapping[str, int]) -> tuple[float, str]:
    """(share, path) of the parameter of which one chip holds the largest share, among those that fsdp may split.

    Args:
        params: arrays or ShapeDtypeStructs with shardings.
        sizes: {axis: size} of the mesh.
    """
    shares = [
        (np.prod(leaf.sharding.shard_shape(leaf.shape)) / leaf.size, leaf.size, path)
        for path, leaf in _named(params, sizes, split=True).items()
    ]
    share, _, path = max(shares)
    return float(share), path


def _named(params, sizes, split):
    """{path: leaf} of the parameters that fsdp splits by the table of zoo.partition, or of those that it leaves whole.

    On a mesh without fsdp: of those that it might split.
    """

    def splits(path, shape):
        given = sizes.get("fsdp", 1) > 1
        entries = partition.leaf_spec(path, shape, sizes) if given else partition.matching_rules(path)[0]
        return any("fsdp" in partition.axes_of(entry) for entry in entries)

    named = {partition.path_string(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    return {path: leaf for path, leaf in named.items() if splits(path, leaf.shape) == split}


@contextlib.contextmanager
def _ended_at_once() -> Iterator[None]:
    """SIGTERM and Ctrl-C end the process: Python would hear them when the compiler is done, and there is nothing to
    save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def used_of(text: str) -> float:
    """Bytes that the compiler's error says the step needs, 0 where it does not say."""
    found = _USED.search(text)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _compile(lowered: Any, job: Job) -> Any:
    try:
        with _ended_at_once():
            return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if "RESOURCE_EXHAUSTED" not in text and "Ran out of memory" not in text:
            raise
        used = used_of(text)
        needs = f"{used / 2**30:.1f} GiB" if used else "more memory"
        raise OutOfMemory(
            f"{job.name} does not fit: one chip of {job.slice} has {job.slice.chip.hbm_bytes / 2**30:.0f} GiB and the "
            f"step needs {needs}",
            used,
        ) from None
