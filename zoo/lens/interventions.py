"""Interventions: what to put at a site, and where. Plain frozen objects (pytrees), made into arrays at the call."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from zoo.call_checks import as_array, require_key
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.forward import stream_shape
from zoo.probe import BLOCK_SITES, STEM_SITES, Edit, parse

if TYPE_CHECKING:
    from zoo.lens.trace import Trace

HOW = ("set", "add")
WAYS = ("zero", "mean", "resample")
PARTS = ("attention", "mlp")


@struct.dataclass
class Intervention:
    """At `site`, in the layers, heads and positions chosen (None: all), put `value` or add it.

    Attributes:
        site: "blocks.*.attention.mixed", "blocks.3.out", "embed" ...
        value: broadcasts to the site's array; of a site with `*` it may have a leading axis, one entry a layer.
        how: "set" or "add".
        layers: whole numbers, for a site with `*`; negative ones count from the end, here and below.
        heads: whole numbers, or pairs [(layer, head), ...] for a site with `*` (key-value heads at key and value).
        positions: whole numbers [P] for all rows, or [B, P].
    """

    site: str = struct.field(pytree_node=False)
    value: Any
    how: str = struct.field(pytree_node=False, default="set")
    layers: Any = None
    heads: Any = None
    positions: Any = None


def ablate(
    heads: Any = None,
    layers: Any = None,
    positions: Any = None,
    by: str = "zero",
    source: "Trace | None" = None,
    key: jax.Array | None = None,
    parts: Sequence[str] | str = PARTS,
) -> tuple[Intervention, ...]:
    """Takes heads, or whole attention and FFN updates, out of a model: the question "does it need them?".

    Args:
        heads: whole numbers, or pairs [(layer, head), ...]; None for the updates of `parts`.
        layers: None for all.
        positions: None for all; [P] or [B, P].
        by: "zero"; "mean" of `source` over rows and real positions, so that what remains is what the component says of
            every text; "resample": each row gets another row's of `source`, so that nothing leaves the values a model
            is used to (its own where there is one, or where no other row has a real token).
        source: Trace that holds "blocks.*.attention.mixed" for heads, "blocks.*.attention.update" and
            "blocks.*.mlp.update" for parts.
        key: for "resample".
        parts: "attention", "mlp" or both; of whole layers alone.
    """
    if by not in WAYS:
        raise InputError(f'ablate: by is "{by}"{nearest(by, WAYS)}')
    parts = (parts,) if isinstance(parts, str) else tuple(parts)
    for part in parts:
        if part not in PARTS:
            raise InputError(f'ablate: parts names "{part}"{nearest(part, PARTS)}')
    if (source is None) != (by == "zero"):
        trouble = "needs source, a Trace of lens.run" if source is None else "reads no source"
        raise InputError(f'ablate: by="{by}" {trouble}')
    if by == "resample":
        if key is None:
            raise InputError('ablate: by="resample" needs key, such as jax.random.key(0)')
        require_key("key", key)
    names = tuple(f"blocks.*.{part}.update" for part in parts) if heads is None else ("blocks.*.attention.mixed",)
    return tuple(
        Intervention(name, _stand_in(name, by, source, key), layers=layers, heads=heads, positions=positions)
        for name in names
    )


def patch(source: "Trace", site: str, layers: Any = None, heads: Any = None, positions: Any = None) -> Intervention:
    """Puts what another pass had at `site`, at the same layers, heads and positions (activation patching).

    Args:
        source: a Trace that holds the site under this name, of as many rows (or one) and positions.
        site: as the trace was asked for it.
        layers, heads, positions: where; None for everywhere.
    """
    return Intervention(site, _held(source, site), layers=layers, heads=heads, positions=positions)


def steer(vector: jax.Array, site: str, scale: float | jax.Array = 1.0, positions: Any = None) -> Intervention:
    """Adds scale * vector at `site` (Turner et al. 2023, arXiv:2308.10248).

    Args:
        vector: [D], or what the site's array has after rows and positions; [L, D] for a site with `*`.
        site: such as "blocks.6.out".
        scale: may be traced.
        positions: [P] or [B, P]; None for all.
    """
    vector = as_array("vector", vector) * scale
    axes = axes_of(site)
    if vector.ndim == len(axes) - 1 and axes.startswith("BT") and "*" in site:
        vector = vector[:, None, None]
    return Intervention(site, vector, how="add", positions=positions)


def axes_of(site: str) -> str:
    """The letters of a site's axes, "" for none that is known."""
    return STEM_SITES.get(site) or BLOCK_SITES.get(".".join(str(site).split(".")[2:]), "")


def edits_of(config: ModelConfig, interventions: Any, inputs: jax.Array) -> tuple[Edit, ...]:
    """Interventions as the arrays that the network takes; their shapes say nothing of which layers or heads.

    Raises:
        InputError: what is no intervention; a site, layer, head, position or value that the model has no place for.
    """
    batch, length = stream_shape(config, inputs)
    return tuple(_edit(config, one, batch, length) for one in _flat(interventions))


def _flat(interventions: Any) -> Iterator[Intervention]:
    if isinstance(interventions, Intervention):
        yield interventions
    elif isinstance(interventions, tuple | list):
        for one in interventions:
            yield from _flat(one)
    else:
        raise InputError(
            f"interventions hold a {type(interventions).__name__}; give what lens.ablate, patch, steer or Intervention "
            "made"
        )


def _edit(config: ModelConfig, one: Intervention, batch: int, length: int) -> Edit:
    layers, site = parse(config, one.site)
    if site == "logits":
        raise InputError("an intervention at logits would change nothing: no part of the model reads them")
    if one.how not in HOW:
        raise InputError(f'an intervention\'s how is "{one.how}"{nearest(one.how, HOW)}')
    axes = (STEM_SITES if layers is None else BLOCK_SITES)[site]
    sizes = {"B": batch, "T": length, "S": length, "D": config.embed_dim, "N": config.num_heads}
    sizes |= {"K": config.num_kv_heads, "H": config.head_dim, "F": config.mlp_dim, "X": config.num_experts}
    shape = tuple(sizes[axis] for axis in axes)
    every = layers is not None and "*" in one.site
    mask = np.ones((1,) * (len(shape) + 1), bool)

    def along(chosen, *names):
        """`chosen` with its axes where the mask has those of `names`."""
        places = ["L", *axes]
        return chosen.reshape([chosen.shape[names.index(name)] if name in names else 1 for name in places])

    if one.layers is not None and not every:
        raise InputError(f'site "{one.site}" is of one place; layers= chooses among those of "blocks.*"')
    if one.layers is not None:
        mask = mask & along(_chosen("layer", one.layers, config.num_layers).any(axis=0), "L")
    elif layers is not None and not every:
        mask = mask & along(_chosen("layer", layers, config.num_layers).any(axis=0), "L")
    if one.heads is not None:
        letter = next((letter for letter in "NK" if letter in axes), None)
        if letter is None:
            raise InputError(f'site "{one.site}" has no axis of heads; attention.mixed has')
        heads = as_array("heads", one.heads)
        if heads.ndim == 2:
            if heads.shape[1] != 2 or not every or one.layers is not None:
                raise InputError(
                    f"heads have shape {heads.shape}; pairs (layer, head) [n, 2] go with a site of all layers, without "
                    "layers="
                )
            pairs = _chosen("layer", heads[:, 0], config.num_layers)[:, :, None]
            pairs = pairs & _chosen("head", heads[:, 1], sizes[letter])[:, None]
            mask = mask & along(pairs.any(axis=0), "L", letter)
        else:
            mask = mask & along(_chosen("head", heads, sizes[letter]).any(axis=0), letter)
    if one.positions is not None:
        positions = as_array("positions", one.positions)
        if positions.ndim == 2 and positions.shape[0] != batch:
            raise InputError(f"positions have {positions.shape[0]} rows; inputs have {batch}")
        chosen = _chosen("position", positions, length).any(axis=-2)
        mask = mask & along(chosen, *("BT" if chosen.ndim == 2 else "T"))
    return Edit(jnp.asarray(mask), _value(one, shape, axes, config.num_layers if every else 1), site, one.how)


def _value(one: Intervention, shape: tuple[int, ...], axes: str, layers: int) -> jax.Array:
    value = as_array("value", one.value)
    own = value.shape
    if value.ndim == len(shape) + 1 and own[0] in (1, layers):
        own = own[1:]
    try:
        fits = np.broadcast_shapes(own, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise InputError(
            f'site "{one.site}": the value has shape {value.shape}; it must broadcast to {shape}, axes {" ".join(axes)}'
            + (f", with {layers} layers before them or without" if layers > 1 else "")
        )
    return value.reshape((1,) * (len(shape) + 1 - value.ndim) + value.shape)


def _chosen(name: str, index: Any, size: int) -> Any:
    """Which of `size` things the whole numbers [..., n] name: bool [..., n, size]; a traced one outside names none."""
    index = as_array(f"{name}s", index)
    index = index[None] if index.ndim == 0 else index
    if index.size and not jnp.issubdtype(index.dtype, jnp.integer):
        raise InputError(f"{name}s are {index.dtype}; give whole numbers")
    if index.ndim > (2 if name == "position" else 1):
        raise InputError(f"{name}s have shape {index.shape}; give a list of whole numbers")
    if isinstance(index, jax.core.Tracer):
        return jnp.where(index < 0, index + size, index)[..., None] == jnp.arange(size)
    index = np.asarray(index)
    outside = index[(index < -size) | (index >= size)]
    if outside.size:
        raise InputError(f"{name} {outside[0]} is outside: this call has {size}, 0 to {size - 1}")
    return index[..., None] % size == np.arange(size)


def _held(source: "Trace", site: str) -> jax.Array:
    values = getattr(source, "values", None)
    if not isinstance(values, dict):
        raise InputError(f"source is a {type(source).__name__}; give a Trace of lens.run")
    if site not in values:
        held = f"it holds {', '.join(values)}" if values else "it holds none"
        raise InputError(f'source has no site "{site}" ({held}); ask for it: lens.run(..., sites=("{site}",))')
    return values[site]


def _stand_in(site: str, by: str, source: "Trace", key: jax.Array | None) -> Any:
    """What ablation puts in a component's place: 0, or [L, 1, 1, ...], or [L, B, T, ...]."""
    if by == "zero":
        return 0.0
    values = _held(source, site)
    real = jnp.ones(values.shape[1:3], bool) if source.real is None else jnp.asarray(source.real, bool)
    if by == "resample":
        return values[:, _other_rows(real, key), jnp.arange(real.shape[1])]
    share = (real / jnp.maximum(real.sum(), 1)).reshape(1, *real.shape, *(1,) * (values.ndim - 3))
    return jnp.sum(values.astype(jnp.float32) * share, axis=(1, 2), keepdims=True)


def _other_rows(real: jax.Array, key: jax.Array) -> jax.Array:
    """[B, T]: for each place another row that has a real token there, one drawn for all; its own where none has."""
    rows = len(real)
    steps = (jax.random.randint(key, (), 0, max(rows - 1, 1)) + jnp.arange(max(rows - 1, 1))) % max(rows - 1, 1) + 1
    own = jnp.arange(rows)[:, None]
    others = jnp.concatenate([(own + steps) % rows, own], axis=1)
    fits = real[others].at[:, -1].set(True)
    return jnp.take_along_axis(others, jnp.argmax(fits, axis=1), axis=1)
