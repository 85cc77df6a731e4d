"""A profiler's trace of chosen steps, for XProf (TensorBoard's profile page) or Perfetto."""

import contextlib
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

from zoo.errors import InputError


def parse_steps(text: str, total: int) -> tuple[int, int] | None:
    """(first, last) of "10:13", both traced, or of "10"; None of "".

    Args:
        text: as given.
        total: steps of the run.

    Raises:
        InputError: no such steps.
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,12})(?::(\d{1,12}))?", text.strip())
    if not found:
        raise InputError(f'profile "{text}" is not of the form first:last, such as 10:13')
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last:
        raise InputError(f'profile "{text}" must count up from 1 or more, such as 10:13')
    if last > total:
        raise InputError(f'profile "{text}" goes past the run\'s {total:,} steps; take steps up to {total}')
    return first, last


class Trace:
    """Traces the steps from `first` to `last`; without steps it does nothing and costs nothing.

    Of several processes each keeps step with the others, and the first alone traces.

    Args:
        folder: where to; plugins/profile/<time>/ in it is what XProf reads.
        steps: from `parse_steps`.
    """

    def __init__(self, folder: Path, steps: tuple[int, int] | None):
        self.folder = folder
        self._steps = steps if jax.process_index() == 0 else None
        self._open = False

    def step(self, number: int) -> AbstractContextManager[Any]:
        """Around the call that starts step `number`: opens the trace at the first one, and names the step in it."""
        if self._steps is None or not self._steps[0] <= number <= self._steps[1]:
            return contextlib.nullcontext()
        if not self._open:
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self._open = True
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    def after(self, number: int, result: Any) -> bool:
        """Ends the trace after its last step, when `result` is computed. Gives whether it has just ended."""
        if not self._open or number < self._steps[1]:
            return False
        jax.block_until_ready(result)
        self.close()
        return True

    def close(self) -> None:
        """Writes what was traced."""
        if self._open:
            self._open = False
            jax.profiler.stop_trace()
