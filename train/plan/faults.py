"""What a sharded step should not do: hold whole what could be split, or gather at once what is used layer by layer."""

import math
import re

import jax

from train.plan.collectives import Collective, collectives
from train.plan.compile import Compiled
from train.plan.job import Job

_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


def faults(job: Job, compiled: Compiled) -> tuple[str, ...]:
    """One line for each; none for a step as it should be.

    - A parameter that the table of zoo.partition splits, of which a chip holds more than 1 / fsdp.
    - Moments that are not split as the parameters are.
    - A gather over fsdp of more than one layer's parameters, or than all that stands outside the layers; or a sum over
      fsdp of as many of which no chip takes its part alone. Gathers and scatters that a TPU prints as sums are told
      from these by what goes in and who reads (train.plan.collectives).
    """
    ways = job.mesh_shape.get("fsdp", 1)
    found = []
    share, path = compiled.widest
    if share > 1.01 / ways:
        found.append(f"a chip holds 1/{1 / share:.0f} of {path}, where fsdp could split it {ways} ways")
    if job.train.optimizer == "adamw" and compiled.moments > 2.01 * compiled.parameters:
        times = compiled.moments / (2 * compiled.parameters)
        found.append(f"a chip holds {times:.1f} times the moments of its parameters: they are not split alike")
    return (*found, *large_gathers(job, compiled))


def large_gathers(job: Job, compiled: Compiled) -> list[str]:
    """The third fault of `faults`."""
    most = largest_gather(job)
    verbs = {"all-gather": "gathers", "all-reduce": "sums"}
    return [
        f"{one.name} {verbs[one.kind]} {elements(one):,} numbers over {'+'.join(one.axes)} at once; a layer: {most:,}"
        for one in collectives(compiled.text, job.mesh_shape, compiled.compiler)
        if one.kind in verbs and "fsdp" in one.axes and elements(one) > most
    ]


def largest_gather(job: Job) -> int:
    """Most numbers that one gather of parameters has reason to bring together."""
    import zoo

    shapes = zoo.create(job.model).init_shapes()
    layers = sum(leaf.size for leaf in jax.tree.leaves(shapes["blocks"]))
    outside = sum(leaf.size for leaf in jax.tree.leaves(shapes)) - layers
    return max(math.ceil(layers / job.model.num_repeats), outside)


def elements(one: Collective) -> int:
    """Numbers in the payload of a gather or a sum."""
    sizes = (math.prod(int(n) for n in found[1].split(",") if n) for found in map(_SHAPE.match, one.shapes) if found)
    return (one.group if one.kind == "all-gather" else 1) * sum(sizes)
