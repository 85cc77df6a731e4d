"""Activation patching: which places of a clean text, put into a corrupted one, bring its answer back.

Meng et al. 2022 (arXiv:2202.05262), section 2.1; Heimersheim and Nanda 2024 (arXiv:2404.15255) on how to read it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from zoo.call_checks import as_array
from zoo.errors import InputError, nearest
from zoo.forward import Output
from zoo.lens.interventions import Intervention, axes_of
from zoo.lens.trace import run
from zoo.model import Model
from zoo.probe import parse

OVER = ("positions", "heads")


@struct.dataclass
class Patching:
    """The metric after each patch.

    Attributes:
        maps: by site, float32 [L, T], or [L, N] over heads: the metric of the corrupted text with that one place clean.
        clean, corrupted: the metric of either text as it is.
    """

    maps: dict[str, jax.Array]
    clean: jax.Array
    corrupted: jax.Array

    def restored(self, site: str) -> jax.Array:
        """The share of the difference that each patch brings back: 0 as corrupted, 1 as clean; NaN without any."""
        difference = self.clean - self.corrupted
        return (self.maps[site] - self.corrupted) / jnp.where(difference == 0, jnp.nan, difference)


@struct.dataclass
class LogitDifference:
    """A metric: the logit of `right` less that of `wrong` at a position, averaged over rows.

    A pytree of its numbers: maps of other ids or positions run the program of the first.

    Raises:
        InputError: an id beyond the vocabulary, a position outside the tokens.
    """

    right: int
    wrong: int
    at: int = -1

    def __call__(self, output: Output) -> jax.Array:
        length, size = output.logits.shape[1:]
        require_inside("LogitDifference: position", self.at, -length, length)
        require_inside("LogitDifference: id", self.right, 0, size)
        require_inside("LogitDifference: id", self.wrong, 0, size)
        logits = output.logits[:, self.at]
        return (logits[:, self.right] - logits[:, self.wrong]).mean()


def require_inside(what: str, index: Any, low: int, high: int) -> None:
    """Raises InputError where a whole number is not in low..high-1; what is traced was looked at before."""
    if isinstance(index, jax.core.Tracer):
        return
    if isinstance(index, bool) or getattr(index, "shape", ()) != () or not hasattr(index, "__index__"):
        raise InputError(f"{what} is {index!r:.40}; give one whole number")
    if not low <= index < high:
        raise InputError(f"{what} {index} is outside {low} to {high - 1}")


def patching(
    model: Model,
    params: dict[str, Any],
    clean: jax.Array,
    corrupted: jax.Array,
    metric: Callable[[Output], jax.Array],
    sites: Sequence[str] | str = ("blocks.*.out",),
    over: str = "positions",
    rows: int = 16,
    **call: Any,
) -> Patching:
    """Patches every layer and place in turn from the clean text into the corrupted one.

    Each site's map is one compiled program, whatever the texts; L T passes in groups of `rows`.

    Args:
        model, params: as for Model.apply.
        clean, corrupted: tokens [B, T] of one shape, alike place by place.
        metric: of an Output to one number: LogitDifference, another pytree of numbers that is called (such as
            jax.tree_util.Partial), which compiles once for all its numbers, or a function, once an object.
        sites: names with `*`.
        over: "positions" [L, T], all heads and features at once, or "heads" [L, N], all positions at once, for sites
            such as "blocks.*.attention.mixed".
        rows: patches that are computed side by side.
        **call: of both texts, as for lens.run.

    Raises:
        InputError: texts of different shapes, a site of one layer or without heads, a metric of no number.
    """
    clean, corrupted = checked(clean, corrupted, metric, rows)
    if over not in OVER:
        raise InputError(f'patching: over is "{over}"{nearest(over, OVER)}')
    names = (sites,) if isinstance(sites, str) else tuple(sites)
    for name in names:
        parse(model.config, name)
        if "*" not in name:
            raise InputError(f'patching goes through all layers: "{name}" is one place; give a site of "blocks.*"')
        if over == "heads" and not set("NK") & set(axes_of(name)):
            raise InputError(f'site "{name}" has no heads to patch; "blocks.*.attention.mixed" has')
    call = {name: value for name, value in call.items() if value is not None}
    source = run(model, params, clean, names, **call)
    before = run(model, params, corrupted, **call)
    ends = [number(metric, output) for output in (source.output, before.output)]
    program = functools.partial(_map, model=model, over=over, rows=rows)
    metric = as_tree(metric)
    maps = {name: program(params, corrupted, source.values[name], metric, call, site=name) for name in names}
    return Patching(maps, *ends)


@functools.partial(jax.jit, static_argnames=("model", "site", "over", "rows"))
def _map(params, corrupted, value, metric, call, *, model, site, over, rows):
    axes = axes_of(site)
    size = value.shape[1 + (axes.index("T") if over == "positions" else max(axes.find("N"), axes.find("K")))]

    def one(pair):
        there = Intervention(site, value, layers=pair[:1], **{over: pair[1:]})
        return number(metric, run(model, params, corrupted, (), there, **call).output)

    return in_groups(one, value.shape[0], size, rows)


def in_groups(function: Callable[[jax.Array], jax.Array], layers: int, size: int, rows: int) -> jax.Array:
    """[layers, size]: the function of each pair [layer, place], `rows` of them at once, in one program."""
    grid = jnp.meshgrid(jnp.arange(layers), jnp.arange(size), indexing="ij")
    pairs = jnp.stack(grid, axis=-1).reshape(-1, 2)
    count, rows = len(pairs), min(rows, len(pairs))
    # The last ones once more: a smaller last group would be a second program.
    pairs = jnp.concatenate([pairs, jnp.broadcast_to(pairs[-1], (-count % rows, 2))])
    return jax.lax.map(function, pairs, batch_size=rows)[:count].reshape(layers, size)


def checked(clean: Any, corrupted: Any, metric: Any, rows: Any) -> tuple[jax.Array, jax.Array]:
    """Both texts as arrays.

    Raises:
        InputError: texts of different shapes, a metric that is no function, rows below 1.
    """
    clean, corrupted = as_array("clean", clean), as_array("corrupted", corrupted)
    if getattr(clean, "shape", None) != getattr(corrupted, "shape", ()):
        raise InputError(
            f"clean and corrupted have shapes {getattr(clean, 'shape', None)} and {getattr(corrupted, 'shape', None)}; "
            "patching needs texts that are alike place by place"
        )
    if not callable(metric):
        raise InputError(f"metric is a {type(metric).__name__}; give a function of an Output, such as LogitDifference")
    if not isinstance(rows, int) or rows < 1:
        raise InputError(f"rows is {rows!r}; it must be a whole number from 1")
    return clean, corrupted


def as_tree(metric: Callable[[Output], jax.Array]) -> Callable[[Output], jax.Array]:
    """The metric as an argument of a compiled program: a pytree as it is, a mere function as one without leaves."""
    leaves = jax.tree.leaves(metric)
    return jax.tree_util.Partial(metric) if any(leaf is metric for leaf in leaves) else metric


def number(metric: Callable[[Output], jax.Array], output: Output) -> jax.Array:
    found = jnp.asarray(metric(output))
    if found.size != 1:
        raise InputError(f"metric gave an array of shape {found.shape}; it must give one number, such as a mean")
    return found.reshape(()).astype(jnp.float32)
