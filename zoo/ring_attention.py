"""Attention over a mesh: rows over (slice, data, fsdp), heads over tensor, tokens over sequence, under jax.shard_map.

Each device holds T / n queries of its rows and heads. It meets all keys in one of two ways:

    ring        keys and values pass round the ring of n devices a part at a time while the running maximum and sum of
                zoo.blockwise go on; in the backward pass their gradients travel with them. No device ever holds more
                than two parts. (Liu et al. 2023, Ring Attention, arXiv:2310.01889)
    gathered    every device gathers all keys and values of its rows and heads, again in the backward pass, where
                gradients are summed and scattered. One collective; memory S K H (Korthikanti et al. 2022)

A causal device with early tokens would be done long before one with late tokens, so causal calls deal the row out as
half-parts i and 2n - 1 - i to device i and take the result back: equal work for all at each step of the ring, for one
more step's worth of traffic (Brandon et al. 2023, Striped Attention, is the same thought). Slots of tokens go with
them, so masks, biases and dropout are those of the whole row, bit for bit.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from zoo.blockwise import (
    BLOCK,
    Context,
    Part,
    Scoring,
    as_gradients,
    backward_part,
    finish,
    forward_part,
    inner_product,
    no_gradient,
    nothing_seen,
)
from zoo.dropout import Dropout
from zoo.errors import InputError
from zoo.masks import Mask
from zoo.partition import auto_mesh, row_axes
from zoo.remat import mark

HEADS, TOKENS = "tensor", "sequence"


@dataclass(frozen=True)
class Layout:
    """How one call's arrays lie on a mesh.

    Attributes:
        mesh: the abstract mesh.
        rows: axes over which B is split.
        heads: "tensor" where heads are split, or None.
        tokens: "sequence" where T and S are split, or None.
        repeat: times each key-value head is repeated, so that the tensor axis divides them.
    """

    mesh: Any
    rows: tuple[str, ...]
    heads: str | None
    tokens: str | None
    repeat: int = 1

    @property
    def ways(self) -> int:
        """Over how many devices tokens are split."""
        return self.mesh.shape[self.tokens] if self.tokens else 1

    def spec(self, *axes: str | None) -> PartitionSpec:
        """The PartitionSpec of an array with dimensions "rows", "heads", "tokens" or None."""
        return PartitionSpec(*(None if axis is None else getattr(self, axis) or None for axis in axes))


def whole_layout() -> Layout:
    """The layout of one device."""
    return Layout(None, (), None, None)


def layout_of(query: jax.Array, key: jax.Array, mesh: Any) -> tuple[Layout, str]:
    """The layout of a call on a mesh, and one line on what keeps tokens or heads from being split ("" for nothing).

    Axes that cannot be split are left whole, as zoo.partition does with parameters.
    """
    batch, length, heads, _ = query.shape
    key_length, kv_heads = key.shape[1:3]
    rows = row_axes(mesh)
    if batch % math.prod(mesh.shape[axis] for axis in rows):
        rows = ()
    trouble = ""
    ways = mesh.shape.get(HEADS, 1)
    repeat = ways // kv_heads if kv_heads < ways and ways % kv_heads == 0 else 1
    splits_heads = heads % ways == 0 and (kv_heads * repeat) % ways == 0
    if not splits_heads:
        trouble = f"{heads} heads over {kv_heads} key-value heads cannot be split over tensor={ways}"
    ways = mesh.shape.get(TOKENS, 1)
    splits_tokens = length % ways == 0 and key_length % ways == 0
    if not splits_tokens:
        shown = f"{length} tokens" if length == key_length else f"{length} queries and {key_length} keys"
        trouble = f"{shown} cannot be split over sequence={ways}"
    return Layout(
        mesh,
        rows,
        HEADS if HEADS in mesh.shape and splits_heads else None,
        TOKENS if TOKENS in mesh.shape and splits_tokens else None,
        repeat if splits_heads else 1,
    ), trouble


def splits_tokens(query: jax.Array, key: jax.Array) -> bool:
    """Whether "auto" takes one of this module's ways: a mesh with a sequence axis that the call fits."""
    mesh = auto_mesh()
    return mesh is not None and mesh.shape.get(TOKENS, 1) > 1 and not layout_of(query, key, mesh)[1]


def better_way(query: jax.Array, key: jax.Array) -> str:
    """ "gathered" where all keys and values take no more than the device's own queries (grouped heads), else "ring"."""
    ways = auto_mesh().shape[TOKENS]
    return "gathered" if 2 * key.shape[1] * key.shape[2] <= query.shape[1] // ways * query.shape[2] else "ring"


def split_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    bias: jax.Array | None,
    scale: float,
    soft_cap: float | None,
    dropout: Dropout | None,
    *,
    way: str,
    block: int = BLOCK,
) -> jax.Array:
    """The out of zoo.attention.attend, from the same arguments, computed on all devices of the mesh: [B, T, N, H].

    Args:
        way: "ring" or "gathered"; or "blockwise", which is gathered and leaves whole what does not divide.
        block: queries and keys at a time within a device.

    Raises:
        InputError: no mesh with a sequence axis; tokens or heads that it does not divide.
    """
    mesh = auto_mesh()
    if mesh is None or (way != "blockwise" and TOKENS not in mesh.shape):
        raise InputError(
            f'attention kernel "{way}" splits tokens over the mesh axis "sequence", and no such mesh is set; '
            'use --mesh sequence=N, or kernel "blockwise"'
        )
    layout, trouble = layout_of(query, key, mesh)
    if trouble and way != "blockwise":
        raise InputError(f'attention kernel "{way}": {trouble}; choose sizes that divide')
    heads, length, key_length = query.shape[2], query.shape[1], key.shape[1]
    if layout.repeat > 1:
        key, value = jnp.repeat(key, layout.repeat, axis=2), jnp.repeat(value, layout.repeat, axis=2)
    if bias is not None:
        bias = jnp.broadcast_to(bias, (bias.shape[0], heads, length, key_length))
    scoring = Scoring(scale, soft_cap, (heads, length, key_length), block)
    scoring.check(dropout)
    balanced = mask.causal and mask.window is None and mask.query_start is None and bias is None
    balanced = balanced and layout.ways > 1 and length == key_length and length % (2 * layout.ways) == 0
    mask = jax.tree.map(jnp.asarray, mask)
    plan = Plan(layout, scoring, way == "ring" and layout.ways > 1, balanced)
    return _split(plan, query, key, value, bias, mask, dropout)


@dataclass(frozen=True)
class Plan:
    """All that is fixed while tracing, and what devices do with each other.

    Attributes:
        layout, scoring: see there.
        ring: keys pass round; else they are gathered.
        balanced: queries (and keys, in a ring) are dealt out as half-parts.
    """

    layout: Layout
    scoring: Scoring
    ring: bool
    balanced: bool

    def over_devices(self, function: Any, given: dict[str, Any], out: Any) -> Any:
        """`function(given)` on each device's part of `given`, whose names say how they are split."""
        layout = self.layout
        heads_tokens, stream = layout.spec("rows", "heads", "tokens"), layout.spec("rows", "tokens", "heads", None)
        bias = given.get("bias")
        specs = {
            "stream": stream,
            "heads_tokens": heads_tokens,
            "whole": layout.spec("rows"),
            "bias": layout.spec("rows" if bias is not None and bias.shape[0] > 1 else None, "heads", "tokens", None),
        }
        return jax.shard_map(
            function,
            mesh=layout.mesh,
            in_specs=({name: self._fitted(specs[name], part) for name, part in given.items()},),
            out_specs=jax.tree.map(lambda name: specs[name], out),
            check_vma=False,
        )(given)

    def _fitted(self, spec, tree):
        # A start slot is one number, and orders may be given once for all rows.
        return jax.tree.map(
            lambda x: PartitionSpec(*(spec if x.shape[:1] > (1,) else (None, *spec[1:])[: x.ndim])), tree
        )

    def place(self) -> tuple[Any, Any]:
        """This device's number along the sequence, and its first query head."""
        me = jax.lax.axis_index(self.layout.tokens) if self.layout.tokens else 0
        if self.layout.heads is None:
            return me, 0
        ways = self.layout.mesh.shape[self.layout.heads]
        return me, jax.lax.axis_index(self.layout.heads) * (self.scoring.whole[0] // ways)

    def slots(self, owner: Any, whole: int) -> jax.Array:
        """The slots of the part that device `owner` deals with, of a row of `whole`."""
        size = whole // self.layout.ways
        if not self.balanced:
            return owner * size + jnp.arange(size)
        half, far = size // 2, 2 * self.layout.ways - 1 - owner
        even = owner % 2 == 0
        first, second = jnp.where(even, owner, far), jnp.where(even, far, owner)
        return jnp.concatenate([first * half + jnp.arange(half), second * half + jnp.arange(half)])

    def deal(self, x: jax.Array, axis: int = 1, back: bool = False) -> jax.Array:
        """x [.., t, ..] as the balanced device holds it, from consecutive slots; or the way back."""
        if not self.balanced:
            return x
        ways = self.layout.ways
        halves = jnp.split(x, 2, axis=axis)
        for half in (0, 1):
            pairs = [(i, min(2 * i + half, 2 * ways - 1 - 2 * i - half)) for i in range(ways)]
            pairs = [pair[::-1] for pair in pairs] if back else pairs
            halves[half] = jax.lax.ppermute(halves[half], self.layout.tokens, pairs)
        return jnp.concatenate(halves, axis=axis)

    def all_keys(self, x: jax.Array) -> jax.Array:
        """[B, S / n, ..] of every device put together."""
        return jax.lax.all_gather(x, self.layout.tokens, axis=1, tiled=True) if self.layout.ways > 1 else x

    def own_keys(self, x: jax.Array) -> jax.Array:
        """The sum over devices of [B, S, ..], each keeping its own part."""
        if self.layout.ways == 1:
            return x
        return jax.lax.psum_scatter(x, self.layout.tokens, scatter_dimension=1, tiled=True)

    def passed_on(self, tree: Any) -> Any:
        """Every device's arrays handed to the next along the ring."""
        ways = self.layout.ways
        return jax.lax.ppermute(tree, self.layout.tokens, [(i, (i + 1) % ways) for i in range(ways)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _split(plan, query, key, value, bias, mask, dropout):
    return _split_forward(plan, query, key, value, bias, mask, dropout)[0]


def _split_forward(plan, query, key, value, bias, mask, dropout):
    given = {"stream": (query, key, value), "bias": bias, "whole": (mask, dropout)}

    def on_device(given):
        query, key, value = given["stream"]
        context = Context(given["whole"][0], given["bias"], given["whole"][1])
        me, first_head = plan.place()
        query = plan.deal(query)
        own = plan.slots(me, plan.scoring.whole[1])
        state = nothing_seen(query, value)
        if plan.ring:
            key, value = plan.deal(key), plan.deal(value)

            def step(i, carry):
                key, value, state = carry
                following = plan.passed_on((key, value))  # on its way while this part is computed
                slots = plan.slots((me - i) % plan.layout.ways, plan.scoring.whole[2])
                part = Part(own, slots, first_head)
                return *following, forward_part(plan.scoring, query, key, value, state, part, context)

            state = jax.lax.fori_loop(0, plan.layout.ways, step, (key, value, state))[2]
        else:
            key, value = (plan.all_keys(x) for x in (key, value))
            part = Part(own, jnp.arange(plan.scoring.whole[2]), first_head)
            state = forward_part(plan.scoring, query, key, value, state, part, context)
        out, log_sum = finish(state, value.dtype)
        return plan.deal(out, back=True), plan.deal(log_sum, 2, back=True)

    out, log_sum = plan.over_devices(on_device, given, ("stream", "heads_tokens"))
    out, log_sum = mark(out, "attention_result"), mark(log_sum, "attention_result")
    return out, (query, key, value, bias, mask, dropout, out, log_sum)


def _split_backward(plan, kept, gradient):
    query, key, value, bias, mask, dropout, out, log_sum = kept
    given = {
        "stream": (query, key, value, gradient, out),
        "heads_tokens": log_sum,
        "bias": bias,
        "whole": (mask, dropout),
    }

    def on_device(given):
        query, key, value, gradient, out = given["stream"]
        context = Context(given["whole"][0], given["bias"], given["whole"][1])
        me, first_head = plan.place()
        inner = plan.deal(inner_product(gradient, out), 2)
        query, gradient, log_sum = plan.deal(query), plan.deal(gradient), plan.deal(given["heads_tokens"], 2)
        own = plan.slots(me, plan.scoring.whole[1])

        def add(sums, key, value, slots):
            part = Part(own, slots, first_head)
            return backward_part(plan.scoring, query, key, value, gradient, log_sum, inner, sums, part, context)

        if plan.ring:
            key, value = plan.deal(key), plan.deal(value)

            def step(i, carry):
                key, value, sums = carry
                following = plan.passed_on((key, value))
                sums = add(sums, key, value, plan.slots((me - i) % plan.layout.ways, plan.scoring.whole[2]))
                # The gradients of keys and values travel with them and are home after the last step.
                return *following, (sums[0], *plan.passed_on(sums[1:3]), sums[3])

            carry = (key, value, no_gradient(query, key, value, context.bias))
            sums = jax.lax.fori_loop(0, plan.layout.ways, step, carry)[2]
            of_keys = tuple(plan.deal(x, back=True) for x in sums[1:3])
        else:
            all_keys, all_values = plan.all_keys(key), plan.all_keys(value)
            sums = no_gradient(query, all_keys, all_values, context.bias)
            sums = add(sums, all_keys, all_values, jnp.arange(plan.scoring.whole[2]))
            of_keys = tuple(plan.own_keys(x) for x in sums[1:3])
        of_bias = sums[3]
        if of_bias is not None and plan.layout.rows and bias.shape[0] == 1:
            of_bias = jax.lax.psum(of_bias, plan.layout.rows)
        sums = (plan.deal(sums[0], back=True), *of_keys, of_bias)
        return as_gradients(sums, *given["stream"][:3], context.bias)

    names = ("stream", "stream", "stream", None if bias is None else "bias")
    return (*plan.over_devices(on_device, given, names), None, None)


_split.defvjp(_split_forward, _split_backward)
