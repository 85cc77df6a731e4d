"""Meshes, and three drivers with one face that run the same pure step.

    jit     one device
    mesh    jit over a mesh with NamedShardings: the recommended road; XLA places the collectives
    pmap    data parallel over all local devices. JAX keeps pmap in maintenance mode: new work belongs on "mesh"

A driver's face: row_shards; init(make) -> state placed where it lives; abstract(make) -> shapes with shardings, for
restoring; put(batch) -> device arrays; compile(step) -> callable(state, host batch), which gives the state's buffers
away; compile_eval(step) -> callable(params, host batch).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from zoo import partition
from zoo.errors import InputError, nearest


def make_mesh(axes: Mapping[str, int] | str = "", devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh with automatic axes (jax.make_mesh now defaults to explicit ones, under which Linen's constraints fail).

    Args:
        axes: sizes by name, {"fsdp": 4, "tensor": 2} or "fsdp=4,tensor=2"; one size may be -1, for what is left. Empty
            puts all devices on "data".
        devices: all of the program's by default.

    Raises:
        InputError: an unknown axis, or sizes whose product is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = _parse(axes) if isinstance(axes, str) else dict(axes)
    sizes = sizes or {"data": len(devices)}
    for name in sizes:
        if name not in partition.MESH_AXES:
            raise InputError(f'mesh has no axis "{name}"{nearest(name, partition.MESH_AXES)}')
    known = int(np.prod([size for size in sizes.values() if size != -1]))
    sizes = {name: len(devices) // known if size == -1 else size for name, size in sizes.items()}
    if int(np.prod(list(sizes.values()))) != len(devices):
        shown = ",".join(f"{name}={size}" for name, size in sizes.items())
        raise InputError(
            f'mesh "{shown}" does not use each of the {len(devices)} devices once; the sizes must multiply to that'
        )
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices)


@dataclass(frozen=True)
class JitDriver:
    """Everything on one device."""

    device: jax.Device
    row_shards: int = 1

    @property
    def devices(self) -> list[jax.Device]:
        """The devices that take part."""
        return [self.device]

    def init(self, make: Callable[[], Any]) -> Any:
        """Runs `make` compiled, its result on the device."""
        return jax.jit(make, out_shardings=SingleDeviceSharding(self.device))()

    def abstract(self, make: Callable[[], Any]) -> Any:
        """Shapes of make()'s arrays, with where they live."""
        return _with_shardings(jax.eval_shape(make), lambda tree: _all(tree, SingleDeviceSharding(self.device)))

    def put(self, batch: Any) -> Any:
        """Starts the copy of a host batch to the device."""
        return jax.device_put(batch, self.device)

    def compile(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(state, batch) -> (state, metrics); the state given is used up."""
        return jax.jit(step, donate_argnums=0)

    def compile_eval(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(params, batch) -> sums."""
        return jax.jit(step)


@dataclass(frozen=True)
class MeshDriver:
    """jit over a mesh; zoo.partition says where parameters and moments live, rows go over (data, fsdp)."""

    mesh: Mesh

    @cached_property
    def row_shards(self) -> int:
        """Over how many devices rows are spread."""
        return int(np.prod([self.mesh.shape[axis] for axis in ("data", "fsdp") if axis in self.mesh.shape]))

    @property
    def devices(self) -> list[jax.Device]:
        """The devices that take part."""
        return list(self.mesh.devices.flat)

    def init(self, make: Callable[[], Any]) -> Any:
        """Runs `make` compiled: each device computes its own part and never holds the whole."""
        shardings = partition.shardings(self.mesh, jax.eval_shape(make))
        with jax.set_mesh(self.mesh):
            return jax.jit(make, out_shardings=shardings)()

    def abstract(self, make: Callable[[], Any]) -> Any:
        """Shapes of make()'s arrays, with where they live."""
        return _with_shardings(jax.eval_shape(make), partial(partition.shardings, self.mesh))

    def put(self, batch: Any) -> Any:
        """Starts the copy of this process's rows to its devices."""
        sharding = NamedSharding(self.mesh, partition.batch_spec(self.mesh))
        _check_rows(batch, self.row_shards // jax.process_count() or 1)
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch)

    def compile(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(state, batch) -> (state, metrics); the state given is used up, and comes out sharded as it went in."""
        compiled = {}

        def run(state, batch):
            if "step" not in compiled:
                kept = jax.tree.map(lambda x: x.sharding, state)
                compiled["step"] = jax.jit(step, donate_argnums=0, out_shardings=(kept, None))
            with jax.set_mesh(self.mesh):
                return compiled["step"](state, self._placed(batch))

        return run

    def compile_eval(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """(params, batch) -> sums."""
        compiled = jax.jit(step, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

        def run(params, batch):
            with jax.set_mesh(self.mesh):
                return compiled(params, self._placed(batch))

        return run

    def _placed(self, batch):
        return batch if all(isinstance(x, jax.Array) for x in jax.tree.leaves(batch)) else self.put(batch)


@dataclass(frozen=True)
class PmapDriver:
    """One program a device, parameters on each, gradients summed by name (axis "data")."""

    local: tuple[jax.Device, ...]
    row_shards: int = 1  # each program sees its own rows alone

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

    def put(self, batch: Any) -> Any:
        """Rows as [devices, rows a device, ...]."""
        count = len(self.local)
        _check_rows(batch, count)
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

        def run(carried, batch):
            placed = batch["row_ids"].ndim == 2
            return mapped(carried, batch if placed else self.put(batch))

        return run

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


def _parse(text):
    sizes = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, size = part.partition("=")
        if not size.lstrip("-").isdigit() or int(size) < -1 or int(size) == 0:
            raise InputError(f'mesh part "{part}" is not of the form axis=size, such as "data=8" or "fsdp=4,tensor=2"')
        sizes[name] = int(size)
    if sum(size == -1 for size in sizes.values()) > 1:
        raise InputError(f'mesh "{text}" leaves more than one size open')
    return sizes


def _all(tree, sharding):
    return jax.tree.map(lambda _: sharding, tree)


def _with_shardings(shapes, shardings_of):
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes, shardings_of(shapes)
    )


def _check_rows(batch, ways):
    rows = len(jax.tree.leaves(batch)[0])
    if rows % ways:
        raise InputError(
            f"{rows} rows a batch cannot be split over {ways} devices; make batch_size a multiple of {ways}"
        )
