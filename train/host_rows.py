"""Which rows of a batch this process holds, told by the sharding, and how they become parts of one global array.

With tensor or sequence axes across processes, several of them hold the same rows and must feed the same ones; with an
order of devices of its own, a process may hold rows that do not follow each other. Both come out of the sharding.
"""

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from zoo.errors import InputError


@lru_cache(maxsize=8)
def rows_here(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """[b] int64, ascending: the rows of a global batch that the devices of this process hold.

    Args:
        sharding: of the batch's arrays; its first entry is that of the rows.
        batch_size: rows over all processes.

    Raises:
        InputError: the rows cannot be split evenly.
    """
    entry = sharding.spec[0] if len(sharding.spec) else None
    by_row = NamedSharding(sharding.mesh, PartitionSpec(entry))
    try:
        parts = by_row.addressable_devices_indices_map((batch_size,)).values()
    except ValueError:
        axes = (entry,) if isinstance(entry, str) else entry or ()
        ways = int(np.prod([sharding.mesh.shape[axis] for axis in axes]))
        raise InputError(
            f"{batch_size} rows a batch cannot be split over {ways} devices; make batch_size a multiple of {ways}"
        ) from None
    found = np.unique(np.concatenate([np.arange(*part[0].indices(batch_size)) for part in parts]))
    found.flags.writeable = False
    return found


def place(sharding: NamedSharding, rows: np.ndarray, batch_size: int, local: np.ndarray) -> jax.Array:
    """One array over all processes, of which this one gives its rows.

    Args:
        sharding: of the result.
        rows: [b] the rows that `local` holds, ascending; from `rows_here`, or more.
        batch_size: rows of the result.
        local: [b, ...]; other axes are whole.
    """
    local = np.asarray(local)

    def part(index: tuple[slice, ...]) -> Any:
        start, stop, _ = index[0].indices(batch_size)
        first = int(np.searchsorted(rows, start))
        return local[(slice(first, first + stop - start), *index[1:])]

    return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, part)
