"""Path patching: what one head tells another, apart from all else it does (Wang et al. 2022, arXiv:2211.00593, 3.1)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from zoo.call_checks import as_array
from zoo.errors import InputError
from zoo.forward import Output
from zoo.lens.interventions import Intervention, edits_of
from zoo.lens.patching import Patching, as_tree, checked, in_groups, number
from zoo.lens.trace import run
from zoo.model import Model
from zoo.probe import parse

SENDERS = "blocks.*.attention.mixed"


def path_patching(
    model: Model,
    params: dict[str, Any],
    clean: jax.Array,
    corrupted: jax.Array,
    metric: Callable[[Output], jax.Array],
    receiver: str,
    heads: Any = None,
    rows: int = 16,
    **call: Any,
) -> Patching:
    """How much of a clean text's answer comes back by the path from each head straight to a receiver.

    For each sending head, on the corrupted text: a pass with all heads held at what they are there, and the sender at
    what it is on the clean text, says what the receiver would read; a pass in which that alone is changed gives the
    metric. FFNs between the two are computed anew and belong to the path.

    Args:
        model, params, clean, corrupted, metric, rows, **call: as for lens.patching.
        receiver: a site of one layer that heads write to through the stream, such as "blocks.9.attention.query" (with
            "key" and "value", what that layer's heads read) or "blocks.-1.out", all that the answer is read from.
        heads: which of the receiver's, whole numbers; None for all.

    Returns:
        Patching whose maps[receiver] is [L, N], by sender; heads that stand after the receiver bring nothing.
    """
    clean, corrupted = checked(clean, corrupted, metric, rows)
    parse(model.config, receiver)
    if "*" in receiver:
        raise InputError(f'path_patching: "{receiver}" is every layer\'s; give one, such as "blocks.1.attention.query"')
    heads = None if heads is None else jnp.atleast_1d(as_array("heads", heads))
    edits_of(model.config, Intervention(receiver, 0.0, heads=heads), corrupted)  # refuses what has no such place
    call = {name: value for name, value in call.items() if value is not None}
    traces = [run(model, params, tokens, SENDERS, **call) for tokens in (clean, corrupted)]
    ends = [number(metric, trace.output) for trace in traces]
    values = [trace.values[SENDERS] for trace in traces]
    program = functools.partial(_map, model=model, receiver=receiver, rows=rows)
    return Patching({receiver: program(params, corrupted, *values, heads, as_tree(metric), call)}, *ends)


@functools.partial(jax.jit, static_argnames=("model", "receiver", "rows"))
def _map(params, corrupted, clean_heads, own_heads, heads, metric, call, *, model, receiver, rows):
    held = Intervention(SENDERS, own_heads)

    def one(pair):
        sender = Intervention(SENDERS, clean_heads, layers=pair[:1], heads=pair[1:])
        read = run(model, params, corrupted, receiver, (held, sender), **call).values[receiver]
        told = Intervention(receiver, read, heads=heads)
        return number(metric, run(model, params, corrupted, (), told, **call).output)

    return in_groups(one, model.config.num_layers, model.config.num_heads, rows)
