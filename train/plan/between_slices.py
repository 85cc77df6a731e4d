"""Collectives between the slices of a multi-slice job, which a TPU's program hands to its host.

A sum over the mesh axis `slice` is compiled into a send to the host and a receive from it; the hosts sum over the
data-centre network. What is sent is each chip's own part, summed and scattered within its slice before.
"""

import re

from train.plan.collectives import KINDS, Collective, wire_bytes
from train.plan.hlo import array_bytes, array_shapes, execution_counts, parse_hlo

_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


def between_slices(hlo_text: str, slices: int) -> list[Collective]:
    """All of a compiled program; none in a program for one slice.

    Args:
        hlo_text: compiled.as_text().
        slices: how many slices take part in each.
    """
    if slices == 1:
        return []
    computations = parse_hlo(hlo_text)
    counts, _ = execution_counts(computations)
    found = []
    for computation in computations.values():
        for one in computation.instructions.values():
            transfer = _TRANSFER.search(one.attributes) if one.opcode == "send" else None
            if transfer is None or not counts.get(computation.name):
                continue
            kind = transfer[1].lower().replace("_", "-")
            kind = kind if kind in KINDS else "collective-permute"
            sent = array_shapes(computation.instructions[one.operands[0]].type)
            payload = sum(array_bytes(*array) for array in sent) * (slices if kind == "all-gather" else 1)
            wire, shapes = wire_bytes(kind, slices, payload), tuple(f"{d}[{','.join(map(str, s))}]" for d, s in sent)
            times = counts[computation.name]
            found.append(Collective(kind, ("slice",), slices, times, payload, wire, name=one.name, shapes=shapes))
    return found
