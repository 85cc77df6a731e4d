"""The token table cut to the rows that a run's texts read, and put together again.

A row that no example reads has gradient 0 at every update. Its moments stay 0 and nothing decays it (kernels alone
decay), so it comes out with the bits it went in with, whether the optimizer goes over it or not: what is left out is
reading and writing it, its moments and its gradient at each update, and their memory.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from eval.encode import Encoded
from zoo.config import ModelConfig

Tree = dict[str, Any]

# A table is cut where this saves the passes over so many numbers in a run: the cut has a program of its own to compile.
WORTH = 2**29
# Tables are cut to n / 16 of their rows, so that runs of like vocabulary share programs.
PARTS = 16


def rows_read(encoded: Encoded, config: ModelConfig, trained: Tree, steps: int) -> np.ndarray | None:
    """int [R], ascending: the rows that a run's table keeps, those of its ids and some more to a round number.

    None for all: the table is not trained, or the cut saves too little.
    """
    if "token" not in trained.get("embed", {}):
        return None
    table = trained["embed"]["token"]["embedding"]
    read = np.zeros(table.shape[0], bool)
    read[np.concatenate([*encoded.ids, [encoded.pad_id]])] = True
    part = -(-table.shape[0] // PARTS)
    count = -(-int(read.sum()) // part) * part
    if steps * (table.shape[0] - count) * table.shape[1] < WORTH:
        return None
    more = np.flatnonzero(~read)[: count - int(read.sum())]
    return np.sort(np.concatenate([np.flatnonzero(read), more]))


def cut(trained: Tree, rows: np.ndarray) -> Tree:
    """The tree with these rows of the token table alone."""
    return _with_table(trained, jnp.take(trained["embed"]["token"]["embedding"], jnp.asarray(rows), axis=0))


def whole(trained: Tree, table: Any, rows: np.ndarray) -> Tree:
    """The tree with all rows: these are the trained ones, the others are those of `table`."""
    return _with_table(trained, jnp.asarray(table).at[jnp.asarray(rows)].set(trained["embed"]["token"]["embedding"]))


def renumbered(encoded: Encoded, rows: np.ndarray) -> Encoded:
    """The examples with ids that count among `rows`."""
    ids = tuple(np.searchsorted(rows, text).astype(np.int32) for text in encoded.ids)
    return dataclasses.replace(encoded, ids=ids, pad_id=int(np.searchsorted(rows, encoded.pad_id)))


def _with_table(trained: Tree, table: Any) -> Tree:
    return {**trained, "embed": {**trained["embed"], "token": {"embedding": table}}}
