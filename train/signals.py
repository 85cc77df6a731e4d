"""SIGTERM and Ctrl-C as a request to finish the step at work and save; several processes agree on the step."""

import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


class Signals:
    """Attributes:
    received: number of the signal that came, or 0. A second one ends the program at once.
    """

    def __init__(self):
        self.received = 0
        self._before = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number, frame):
        del frame
        self.received = number
        self._restore()

    def _restore(self):
        while self._before:
            signal.signal(*self._before.popitem())

    def __exit__(self, *_) -> None:
        self._restore()


class Vote:
    """Whether to stop, as all processes agree: a signal that came to one counts for all, at the same step.

    With each step every process casts what it has received; the largest is computed beside the step and looked at with
    the step's numbers, so that nobody waits for it. Alone, the signal counts at once.

    Args:
        signals: this process's.
    """

    def __init__(self, signals: Signals):
        self._signals, self._agreed = signals, 0
        self._alone = jax.process_count() == 1
        if not self._alone:
            mesh = Mesh(np.array(jax.devices()), ("device",), axis_types=(AxisType.Auto,))
            self._each = NamedSharding(mesh, PartitionSpec("device"))
            self._most = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    @property
    def stop(self) -> int:
        """Number of the signal for which to stop, or 0."""
        return self._signals.received if self._alone else self._agreed

    def cast(self) -> Any:
        """This process's vote; to be counted once the step is looked at."""
        if self._alone:
            return 0
        mine = np.full((1,), self._signals.received, np.int32)
        count = len(self._each.mesh.devices)
        return self._most(jax.make_array_from_callback((count,), self._each, lambda _: mine))

    def count(self, cast: Any) -> None:
        """Takes what `cast` gave; every process counts the same votes at the same step."""
        self._agreed = self._agreed or int(cast)
