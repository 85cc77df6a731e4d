"""Three drivers with one face that run the same pure step.

    jit     one device
    mesh    jit over a mesh with NamedShardings: the recommended road; XLA places the collectives
    pmap    data parallel over all local devices. JAX keeps pmap in maintenance mode: new work belongs on "mesh"

A driver's face: row_shards; sizes, {axis: devices}; init(make) -> state placed where it lives; abstract(make) ->
shapes with shardings, for restoring; rows(batch_size) -> those that this process feeds; shapes(batch) -> what put
would give of it; put(batch, batch_size) -> device arrays; compile(step) -> callable(state, host batch), which gives the
state's buffers away, and whose lower(abstract state, shapes) traces it before there is a state; compile_eval(step) ->
callable(params, host batch).
What a mesh is, and its axes: train/mesh_axes.py.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from train.host_rows import place, rows_here
from train.mesh_axes import check_tensor, make_mesh
from zoo import partition
from zoo.errors import InputError


@dataclass(frozen=True)
class JitDriver:
    """Everything on one device."""

    device: jax.Device
    row_shards: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """Devices by mesh axis."""
        return {}

    @property
    def devices(self) -> list[jax.Device]:
        """The devices that take part."""
        return [self.device]

    def init(self, make: Callable[[], Any]) -> Any:
        """Runs `make`, its result on the device; compiled as a whole it would take longer (zoo.forward.initialise)."""
        with jax.default_device(self.device):
            return jax.device_put(make(), SingleDeviceSharding(self.device))

    def abstract(self, make: Callable[[], Any]) -> Any:
        """Shapes of make()'s arrays, with where they live."""
        return _with_shardings(jax.eval_shape(make), lambda tree: _all(tree, SingleDeviceSharding(self.device)))

    def rows(self, batch_size: int) -> np.ndarray:
        """[b]: the rows of a batch that this process feeds: all."""
        return np.arange(batch_size)

    def shapes(self, batch: Any) -> Any:
        """A global batch (arrays or shapes) as it is placed: shapes with shardings."""
        return _with_shardings(batch, lambda tree: _all(tree, SingleDeviceSharding(self.device)))

    def put(self, batch: Any, batch_size: int | None = None) -> Any:
        """Starts the copy of a host batch to the device."""
        del batch_size
        return jax.device_put(batch, self.device)

    def compile(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(state, batch) -> (state, metrics); the state given is used up."""
        return jax.jit(step, donate_argnums=0)

    def compile_eval(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(params, batch) -> sums."""
        return jax.jit(step)


@dataclass(frozen=True)
class MeshDriver:
    """jit over a mesh; zoo.partition says where parameters and moments live, rows go over (slice, data, fsdp).

    The mesh may be of devices that are described and not here (jax.experimental.topologies): then abstract and trace
    are all that works, and all that a plan needs.
    """

    mesh: Mesh

    @cached_property
    def row_shards(self) -> int:
        """Over how many devices rows are spread."""
        return int(np.prod([self.mesh.shape[axis] for axis in partition.row_axes(self.mesh)]))

    @property
    def sizes(self) -> dict[str, int]:
        """Devices by mesh axis."""
        return dict(self.mesh.shape)

    @property
    def devices(self) -> list[jax.Device]:
        """The devices that take part."""
        return list(self.mesh.devices.flat)

    def init(self, make: Callable[[], Any]) -> Any:
        """Runs `make` compiled: each device computes its own part and never holds the whole."""
        shardings = self._shardings(jax.eval_shape(make))
        with jax.set_mesh(self.mesh):
            return jax.jit(make, out_shardings=shardings)()

    def abstract(self, make: Callable[[], Any]) -> Any:
        """Shapes of make()'s arrays, with where they live."""
        return _with_shardings(jax.eval_shape(make), self._shardings)

    def rows(self, batch_size: int) -> np.ndarray:
        """[b]: the rows of a batch that this process feeds; processes that share rows feed the same."""
        _check_rows(batch_size, self.row_shards)
        return rows_here(self._batch_sharding(), batch_size)

    def shapes(self, batch: Any) -> Any:
        """A global batch (arrays or shapes) as it is placed: shapes with shardings."""
        _check_rows(_rows_of(batch), self.row_shards)
        return _with_shardings(batch, lambda tree: _all(tree, self._batch_sharding()))

    def put(self, batch: Any, batch_size: int | None = None) -> Any:
        """Starts the copy of rows to this process's devices.

        Args:
            batch: the rows that `rows` names; without batch_size the whole batch, the same in every process.
            batch_size: rows over all processes.
        """
        sharding = self._batch_sharding()
        if batch_size is not None:
            return jax.tree.map(partial(place, sharding, self.rows(batch_size), batch_size), batch)
        _check_rows(_rows_of(batch), self.row_shards)
        # Arrays may differ in rows: the options of a question stand below each other.
        return jax.tree.map(lambda x: place(sharding, np.arange(len(x)), len(x), x), batch)

    def _batch_sharding(self):
        return NamedSharding(self.mesh, partition.batch_spec(self.mesh))

    def compile(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(state, batch) -> (state, metrics); the state given is used up, and comes out sharded as it went in."""
        return _Compiled(self.mesh, self._placed, partial(_kept_in_place, step))

    def trace(self, step: Callable[..., Any], state: Any, batch: Any) -> Any:
        """The program that `compile` would run, traced and not compiled: `.jaxpr`, `.lower()`, `.lower().compile()`.

        Args:
            step: (state, batch) -> (state, metrics).
            state: what `abstract` gives; nothing is allocated.
            batch: shapes and dtypes of the global batch (ShapeDtypeStructs, or arrays).
        """
        batch = self.shapes(batch)
        with jax.set_mesh(self.mesh):
            return _kept_in_place(step, state).trace(state, batch)

    def compile_eval(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(params, batch) -> sums."""
        compiled = jax.jit(step, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

        def run(params, batch):
            with jax.set_mesh(self.mesh):
                return compiled(params, self._placed(batch))

        return run

    def _shardings(self, shapes):
        check_tensor(self.mesh, shapes)
        return partition.shardings(self.mesh, shapes)

    def _placed(self, batch):
        return batch if all(isinstance(x, jax.Array) for x in jax.tree.leaves(batch)) else self.put(batch)


@dataclass(frozen=True)
class PmapDriver:
    """One program a device, parameters on each, gradients summed by name (axis "data")."""

    local: tuple[jax.Device, ...]
    row_shards: int = 1  # each program sees its own rows alone

    @property
    def sizes(self) -> dict[str, int]:
        """Devices by mesh axis."""
        return {"data": len(self.local)}

    @property
    def devices(self) -> list[jax.Device]:
        """The devices that take part."""
        return list(self.local)

    def init(self, make: Callable[[], Any]) -> Any:
        """Runs `make` compiled and copies the result to every device."""
        return jax.jit(make, out_shardings=self._everywhere())()

    def abstract(self, make: Callable[[], Any]) -> Any:
        """Shapes of make()'s arrays, with where they live."""
        return _with_shardings(jax.eval_shape(make), lambda tree: _all(tree, self._everywhere()))

    def rows(self, batch_size: int) -> np.ndarray:
        """[b]: the rows of a batch that this process feeds: all."""
        _check_rows(batch_size, len(self.local))
        return np.arange(batch_size)

    def shapes(self, batch: Any) -> Any:
        """A batch (arrays or shapes) as it is placed: shapes of [devices, rows a device, ...]."""
        count = len(self.local)
        _check_rows(_rows_of(batch), count)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, x.shape[0] // count, *x.shape[1:]), x.dtype), batch)

    def put(self, batch: Any, batch_size: int | None = None) -> Any:
        """Rows as [devices, rows a device, ...]."""
        del batch_size
        count = len(self.local)
        _check_rows(_rows_of(batch), count)
        return jax.tree.map(lambda x: np.asarray(x).reshape(count, -1, *np.shape(x)[1:]), batch)

    def compile(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(state, batch) -> (state, metrics); the state given is used up."""
        return self._pmap(step, donate=(0,))

    def compile_eval(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(params, batch) -> sums."""
        return self._pmap(step, donate=())

    def _pmap(self, step, donate):
        mapped = jax.pmap(
            partial(step, axis_name="data"),
            "data",
            in_axes=(None, 0),
            out_axes=None,
            devices=self.local,
            donate_argnums=donate,
        )

        def placed(batch):
            return batch if batch["row_ids"].ndim == 2 else self.put(batch)

        return _Compiled(None, placed, lambda carried: mapped)

    def _everywhere(self):
        return NamedSharding(make_mesh({"data": len(self.local)}, list(self.local)), PartitionSpec())


Driver = JitDriver | MeshDriver | PmapDriver


def make_driver(
    name: Literal["jit", "mesh", "pmap"], mesh: str = "", devices: list[jax.Device] | None = None
) -> Driver:
    """The driver of that name.

    Args:
        name: "jit", "mesh" or "pmap".
        mesh: axes, for "mesh" alone.
        devices: all of the program's by default; "jit" takes the first.

    Raises:
        InputError: a mesh that the devices do not fill, or one given to a driver that has none.
    """
    if mesh and name != "mesh":
        raise InputError(f'mesh "{mesh}" is given but the driver is "{name}"; did you mean driver "mesh"?')
    devices = (jax.local_devices() if name == "pmap" else jax.devices()) if devices is None else devices
    if name == "jit":
        return JitDriver(devices[0])
    if name == "mesh":
        return MeshDriver(make_mesh(mesh, devices))
    if jax.process_count() > 1:
        raise InputError('driver "pmap" runs on one host; use driver "mesh" on several')
    return PmapDriver(tuple(devices))


class _Compiled:
    """A program that is made at its first call, or before it from shapes alone; the call then finds it made.

    Args:
        mesh: under which it runs, or None.
        placed: a host batch -> device arrays.
        make: the first argument, or its shapes -> the jitted function.
    """

    def __init__(self, mesh: Mesh | None, placed: Callable[[Any], Any], make: Callable[[Any], Any]):
        self._mesh, self._placed, self._make, self._function = mesh, placed, make, None

    def __call__(self, carried: Any, batch: Any) -> Any:
        with self._under():
            return self._of(carried)(carried, self._placed(batch))

    def lower(self, carried: Any, batch: Any) -> Any:
        """Traces and lowers for shapes: what a driver's `abstract` and `shapes` give."""
        with self._under():
            return self._of(carried).lower(carried, batch)

    def _of(self, carried):
        if self._function is None:
            self._function = self._make(carried)
        return self._function

    def _under(self):
        return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)


def _kept_in_place(step, state):
    kept = jax.tree.map(lambda x: x.sharding, state)
    return jax.jit(step, donate_argnums=0, out_shardings=(kept, None))


def _all(tree, sharding):
    return jax.tree.map(lambda _: sharding, tree)


def _with_shardings(shapes, shardings_of):
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes, shardings_of(shapes)
    )


def _rows_of(batch):
    return jax.tree.leaves(batch)[0].shape[0]


def _check_rows(rows, ways):
    if rows % ways:
        raise InputError(
            f"{rows} rows a batch cannot be split over {ways} devices; make batch_size a multiple of {ways}"
            + (f', such as {max(1, round(rows / ways)) * ways}, or name a mesh with more "tensor"' if ways > 1 else "")
        )
