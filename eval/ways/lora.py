"""LoRA: low-rank updates of frozen kernels (Hu et al. 2021, arXiv:2106.09685).

    W' = W + (alpha / r) A B        A [in, r] ~ N(0, 1 / in), B [r, out] = 0 at the start, so that W' is W there

A kernel [D, N, H] (or [N, H, D]) counts as the matrix of its inputs by its outputs; a stack of layers has a pair for
each layer. Adapters are a tree beside the parameters, .../query/{lora_a, lora_b}, and W' is made inside the step:
a merged kernel is the only way in which adapters are ever used, so training and the merged model cannot differ. The
step computes the gradient of W' on its way to those of A and B; only these have moments.
"""

import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo import partition
from zoo.errors import InputError, nearest

NAME = "lora"
A, B = "lora_a", "lora_b"
Tree = dict[str, Any]


def targeted(params: Tree, words: Sequence[str]) -> list[str]:
    """Paths of the kernels that get adapters: those of the blocks that one of `words` names.

    Args:
        params: of the model; arrays or their shapes.
        words: a name (query, key, value, out, up, gate, down), a pattern on paths (fnmatch), or "all".

    Raises:
        InputError: a word that names no kernel.
    """
    found = [partition.path_string(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    kernels = [path for path in found if path.split("/")[0] in ("blocks", "tail") and path.endswith("/kernel")]
    kernels = [path for path in kernels if path.split("/")[-2] != "router"]
    chosen = set()
    for word in words:
        hits = [path for path in kernels if word in ("all", path.split("/")[-2]) or fnmatchcase(path, word)]
        if not hits:
            names = sorted({path.split("/")[-2] for path in kernels})
            raise InputError(f'lora_targets: no kernel of the blocks is named "{word}"{nearest(word, [*names, "all"])}')
        chosen.update(hits)
    return [path for path in kernels if path in chosen]


def create(params: Tree, words: Sequence[str], rank: int, key: jax.Array) -> Tree:
    """Fresh adapters: A from the key and its own path, B zero.

    Args:
        params: of the model.
        words: see `targeted`.
        rank: r.
        key: a jax key.

    Raises:
        InputError: a word that names no kernel, or a rank that no longer is low.
    """
    adapters: Tree = {}
    for path in targeted(params, words):
        *names, _ = path.split("/")
        kernel = _at(params, [*names, "kernel"])
        lead, inner, outer = _sizes(path, kernel.shape)
        fan_in, fan_out = int(np.prod(inner)), int(np.prod(outer))
        if rank > min(fan_in, fan_out):
            at_most = f"take at most {min(fan_in, fan_out)}"
            raise InputError(f"lora_rank is {rank}; {path} is a matrix of {fan_in} x {fan_out}: {at_most}")
        own = jax.random.fold_in(key, zlib.crc32(path.encode()))
        node = adapters
        for name in names:
            node = node.setdefault(name, {})
        node[A] = jax.random.normal(own, (*lead, *inner, rank), jnp.float32) / np.sqrt(fan_in)
        node[B] = jnp.zeros((*lead, rank, *outer), jnp.float32)
    return adapters


def merge(params: Tree, adapters: Tree, scale: float) -> Tree:
    """The same parameters with scale A B added to every adapted kernel; `unmerge` takes it away again.

    Each of the two is one addition in float32: W comes back within the rounding of W + scale A B.

    Raises:
        InputError: adapters of another model.
    """
    return _added(params, adapters, scale, "")


def unmerge(params: Tree, adapters: Tree, scale: float) -> Tree:
    """The inverse of `merge`, to float32 rounding."""
    return _added(params, adapters, -scale, "")


def _added(params: Tree, adapters: Tree, scale: float, where: str) -> Tree:
    changed = dict(params)
    for name, below in adapters.items():
        path = f"{where}{name}/"
        if not isinstance(params.get(name), dict):
            raise InputError(f"the adapters are of another model: this one has no {path}")
        if A in below:
            changed[name] = {**params[name], "kernel": _sum(params[name]["kernel"], below, scale, f"{path}kernel")}
        else:
            changed[name] = _added(params[name], below, scale, path)
    return changed


def _sum(kernel: jax.Array, pair: Tree, scale: float, path: str) -> jax.Array:
    lead, inner, outer = _sizes(path, kernel.shape)
    rank = pair[A].shape[-1]
    if pair[A].shape != (*lead, *inner, rank) or pair[B].shape != (*lead, rank, *outer):
        raise InputError(f"the adapters are of another model: {path} has shape {list(kernel.shape)} here")
    a = pair[A].reshape(*lead, int(np.prod(inner)), rank)
    b = pair[B].reshape(*lead, rank, int(np.prod(outer)))
    return (kernel + scale * (a @ b).reshape(kernel.shape)).astype(kernel.dtype)


def _sizes(path: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Axes of stacked layers, of inputs and of outputs of a kernel."""
    own = len(partition.matching_rules(path)[0])
    lead = len(shape) - own
    inputs = 2 if own == 3 and path.split("/")[-2] == "out" else 1
    return shape[:lead], shape[lead : lead + inputs], shape[lead + inputs :]


def _at(tree: Tree, names: list[str]) -> Any:
    for name in names:
        tree = tree[name]
    return tree
