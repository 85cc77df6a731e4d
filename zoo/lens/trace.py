"""run: a model's pass with the arrays of chosen sites as part of its result."""

from collections.abc import Sequence
from typing import Any

import jax
from flax import struct

from zoo.call_checks import as_array
from zoo.errors import InputError, nearest
from zoo.forward import Output
from zoo.lens.interventions import edits_of
from zoo.model import Model
from zoo.probe import parse, site_names

CALL = ("padding_mask", "segment_ids", "positions", "token_types", "prefix_mask", "logits_at", "dropout_key")


@struct.dataclass
class Trace:
    """What a traced pass gave.

    Attributes:
        values: by the names asked for: of "blocks.*.mid" [L, ...] over layers, of "blocks.3.mid" that layer's array.
        output: what Model.apply returns.
        real: bool [B, T], the padding mask that went in, or None.
    """

    values: dict[str, jax.Array]
    output: Output
    real: jax.Array | None = None


def sites(model: Model) -> tuple[str, ...]:
    """The sites of a model in the order of computation, `*` standing for a layer's number; zoo.probe tells each."""
    return site_names(model.config)


def run(
    model: Model,
    params: dict[str, Any],
    inputs: jax.Array,
    sites: Sequence[str] | str = (),
    interventions: Any = (),
    **call: Any,
) -> Trace:
    """One pass: what was asked for at each site, after the interventions there.

    Only that is computed and returned; attention keeps its fused kernel where neither scores nor weights are asked for
    or changed (in a scanned stack the layers are one program: asking one layer's makes all of them form theirs). A call
    with other layers, heads, positions or values of the same shapes compiles nothing anew. Gradients pass through
    values and interventions; jit, grad and vmap apply.

    Args:
        model, params, inputs: as for Model.apply.
        sites: names such as "blocks.*.out", "blocks.-1.attention.weights", "embed".
        interventions: Intervention objects in any nesting of tuples and lists; of several at one site the later one
            acts on what the earlier ones left.
        **call: padding_mask, segment_ids, positions, token_types, prefix_mask, logits_at, dropout_key of Model.apply.

    Raises:
        InputError: a site that the model lacks; an intervention that does not fit; whatever Model.apply refuses.
    """
    for name in call:
        if name not in CALL:
            raise InputError(f'lens.run takes no "{name}"{nearest(name, CALL)}')
    names = (sites,) if isinstance(sites, str) else tuple(sites)
    for name in names:
        parse(model.config, name)
    inputs = as_array("inputs", inputs)
    # Inputs of another rank have no rows and positions to choose among; Model.apply refuses them.
    edits = edits_of(model.config, interventions, inputs) if getattr(inputs, "ndim", 0) > 1 else ()
    output = model.apply(params, inputs, want=names, edits=edits, **call)
    mask = call.get("padding_mask")
    real = None if mask is None else as_array("padding_mask", mask) != 0
    return Trace(values=output.sites or {}, output=output.replace(sites=None), real=real)
