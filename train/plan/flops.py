"""FLOPs of a program, counted in its jaxpr: what the hardware does, recomputation included.

    product [m, k] x [k, n]     2 m n k
    convolution                 2 (outputs) (taps that fall on inputs, not on holes) (channels in a group)
    element-wise                1 an element written; a reduction 1 an element read; moving data 0

A compiler's own cost analysis counts a loop's body once; here a scan counts length times, and equations whose results
nobody reads (such as the last product of a rematerialised block) count nothing, as the compiler drops them.
"""

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from jax.extend import core

PALLAS_NOTE = "a Pallas kernel without a cost estimate is counted cell by cell, skipped cells included"
_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general")
_READS = ("reduce_", "arg", "cum", "sort", "top_k")
_MOVES = frozenset(
    "broadcast_in_dim reshape transpose slice dynamic_slice dynamic_update_slice gather concatenate pad squeeze rev "
    "convert_element_type bitcast_convert_type iota copy copy_p split device_put sharding_constraint "
    "optimization_barrier stop_gradient expand_dims reduce_precision random_wrap random_unwrap get swap axis_index "
    "program_id num_programs mesh_cast reshard pvary all_gather all_gather_invariant all_to_all ppermute "
    "layout_constraint empty debug_callback name squeeze create_token".split()
)


@dataclass(frozen=True)
class Flops:
    """Operations of one call, over all devices.

    Attributes:
        matmul: of products and convolutions.
        elementwise: of everything else.
        by_primitive: {jax primitive: operations}; products inside a Pallas kernel stand under "pallas_call".
        notes: what could not be counted exactly, in words; empty when all was.
    """

    matmul: float
    elementwise: float
    by_primitive: dict[str, float]
    notes: tuple[str, ...] = ()


def count_flops(jaxpr: Any) -> Flops:
    """Counts a whole program.

    Loops: a scan counts its length; a while loop whose bound is written in it counts its trips, any other counts one
    and leaves a note. Of a cond the branch with most products counts. Inside shard_map, shapes are one device's and
    count once a device. A Pallas kernel counts what its author's cost estimate says, else its body once a
    grid cell, with a note (cells that it skips count too).

    Args:
        jaxpr: a ClosedJaxpr: jax.make_jaxpr(step)(state, batch), or jax.jit(step).trace(state, batch).jaxpr.
    """
    inner = _open(jaxpr)
    notes: dict[str, None] = {}
    found, _ = _walk(inner, [True] * len(inner.outvars), notes)
    matmul = sum(found[name] for name in _PRODUCTS) + found["pallas_call"]
    return Flops(matmul, sum(found.values()) - matmul, {k: v for k, v in found.items() if v}, tuple(notes))


def _open(jaxpr):
    return getattr(jaxpr, "jaxpr", jaxpr)


def _walk(jaxpr, needed, notes):
    """Operations that the needed outputs cost, and which inputs they read."""
    found: Counter = Counter()
    live = {v for v, wanted in zip(jaxpr.outvars, needed, strict=True) if wanted and not isinstance(v, core.Literal)}
    for equation in reversed(jaxpr.eqns):
        outputs = [v in live for v in equation.outvars]
        if not any(outputs) and not equation.effects:
            continue
        counts, inputs = _equation(equation, outputs, notes)
        found.update(counts)
        live.update(
            v for v, read in zip(equation.invars, inputs, strict=True) if read and not isinstance(v, core.Literal)
        )
    return found, [v in live for v in jaxpr.invars]


def _equation(equation, outputs, notes):
    name, params = equation.primitive.name, equation.params
    everything = [True] * len(equation.invars)
    if name == "scan":
        return _scan(params, outputs, notes)
    if name == "while":
        return _while(equation, notes), everything
    if name == "cond":
        branches = [_walk(_open(branch), outputs, notes) for branch in params["branches"]]
        counts = max((counts for counts, _ in branches), key=_size)
        return counts, [True, *(any(read) for read in zip(*(inputs for _, inputs in branches), strict=True))]
    if name == "pallas_call":
        return _pallas(params, notes), everything
    bodies = _bodies(params)
    if bodies:
        if len(bodies) > 1:
            notes[f"{name} runs one of several programs; the largest is counted"] = None
        counts, inputs = max((_walk_all(body, outputs, notes) for body in bodies), key=lambda pair: _size(pair[0]))
        times = _devices(name, params)
        return _scaled(counts, times), inputs if len(inputs) == len(everything) else everything
    return Counter({name: _operations(name, equation)}), everything


def _walk_all(body, outputs, notes):
    inner = _open(body)
    return _walk(inner, outputs if len(outputs) == len(inner.outvars) else [True] * len(inner.outvars), notes)


def _bodies(params):
    """Programs that an equation runs; rules of differentiation are functions or stand under other names."""
    named = [params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if hasattr(_open(params.get(key)), "eqns")]
    if named:
        return named[:1]
    return [value for key, value in params.items() if hasattr(_open(value), "eqns") and not key.startswith("jvp")]


def _devices(name, params):
    return prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"]) if name == "shard_map" else 1


def _scan(params, outputs, notes):
    body = _open(params["jaxpr"])
    # jax 0.12 keeps the three kinds of input as a tree, earlier ones two numbers.
    kinds = params["ft_in"].unpack() if "ft_in" in params else None
    consts = len(kinds[0]) if kinds else params["num_consts"]
    carried = len(kinds[1]) if kinds else params["num_carry"]
    carry = list(outputs[:carried])
    while True:
        counts, inputs = _walk(body, [*carry, *outputs[carried:]], notes)
        wider = [a or b for a, b in zip(carry, inputs[consts : consts + carried], strict=True)]
        if wider == carry:
            break
        carry = wider
    # Initial values are read where their carry is.
    return _scaled(counts, params["length"]), [*inputs[:consts], *carry, *inputs[consts + carried :]]


def _while(equation, notes):
    params = equation.params
    trips = _trips(equation)
    if trips is None:
        notes["a while loop of unknown length is counted once"] = None
        trips = 1
    counts: Counter = Counter()
    for key in ("cond_jaxpr", "body_jaxpr"):
        inner = _open(params[key])
        counts.update(_walk(inner, [True] * len(inner.outvars), notes)[0])
    return _scaled(counts, trips)


def _trips(equation):
    """Of `while i < n: i += 1` with i's start and n written as numbers, else None."""
    params = equation.params
    condition = _open(params["cond_jaxpr"])
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
        return None
    consts, first = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    outer = [*equation.invars[:consts], *equation.invars[first:]]

    def number(v):
        if not isinstance(v, core.Literal) and v in condition.invars:
            v = outer[condition.invars.index(v)]
        return int(v.val) if isinstance(v, core.Literal) else None

    counter, bound = condition.eqns[0].invars
    if counter not in condition.invars[consts:]:
        return None
    place = condition.invars.index(counter) - consts
    body = _open(params["body_jaxpr"])
    result = body.outvars[place]
    steps = [
        e for e in body.eqns if e.primitive.name == "add" and e.outvars[0] is result and _is_one(e.invars[1])
        and e.invars[0] is body.invars[params["body_nconsts"] + place]
    ]  # fmt: skip
    start, end = number(counter), number(bound)
    return max(0, end - start) if steps and start is not None and end is not None else None


def _is_one(v):
    return isinstance(v, core.Literal) and int(v.val) == 1


def _pallas(params, notes):
    estimate = params.get("cost_estimate")
    if estimate is not None:
        return Counter({"pallas_call": float(estimate.flops)})
    notes[PALLAS_NOTE] = None
    inner = _open(params["jaxpr"])
    counts, _ = _walk(inner, [True] * len(inner.outvars), notes)
    counts["pallas_call"] += sum(counts.pop(name, 0.0) for name in _PRODUCTS)
    return _scaled(counts, prod(size for size in params["grid_mapping"].grid if isinstance(size, int)))


def _operations(name, equation):
    out = sum(prod(v.aval.shape) for v in equation.outvars if hasattr(v.aval, "shape"))
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * out * prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * out * prod(kernel) / features / prod(equation.params["lhs_dilation"])
    if name.startswith("ragged_dot"):
        return 2.0 * out * equation.invars[0].aval.shape[-1]
    if name in _MOVES:
        return 0.0
    if name.startswith("scatter"):
        return float(prod(equation.invars[2].aval.shape)) if name != "scatter" else 0.0
    if name.startswith(_READS):
        return float(sum(prod(v.aval.shape) for v in equation.invars if hasattr(v.aval, "shape")))
    return float(out)


def _scaled(counts, times):
    return Counter({name: count * times for name, count in counts.items()})


def _size(counts):
    return sum(counts[name] for name in _PRODUCTS), sum(counts.values())
