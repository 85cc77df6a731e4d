"""The one hook of the network: named sites, at which a call reads or changes what passes.

A module says `x = look("mid", x)`. Where nobody asks for that site the line is x itself and adds nothing to the
program. What is asked for comes back as a block's result, so that a scanned stack gives it stacked over layers; what
is changed comes in as arrays with a leading layers axis, of which each layer takes its own. Nothing is stored
anywhere, and gradients pass through both. People reach it through zoo.lens or the argument `want` of Model.apply.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from zoo.config import ModelConfig
from zoo.errors import InputError, nearest

# Axes: B rows, T queries, S keys, D stream, N heads, K key-value heads, H head, F FFN, X experts, V vocabulary.
BLOCK_SITES = {
    "in": "BTD",  # the stream before the layer
    "attention.in": "BTD",  # what attention reads: normalised where the norm stands before it
    "attention.query": "BTNH",  # after qk-norm and rotary, as they are scored
    "attention.key": "BTKH",
    "attention.value": "BTKH",
    "attention.scores": "BNTS",  # float32; scaled, capped, biased, not yet masked
    "attention.weights": "BNTS",  # float32; what multiplies the values
    "attention.mixed": "BTNH",  # each head's weights times values, before the out projection
    "attention.heads": "BTND",  # each head's share of the out projection; with its bias they sum to attention.out
    "attention.out": "BTD",  # what attention gives
    "attention.update": "BTD",  # what is added to the stream: after norm, layer scale and dropout, where there are any
    "mid": "BTD",  # the stream between attention and FFN
    "mlp.in": "BTD",  # what the FFN reads
    "mlp.router": "BTX",  # weights of the experts
    "mlp.act": "BTF",  # what the down projection reads
    "mlp.out": "BTD",
    "mlp.update": "BTD",
    "out": "BTD",  # the stream after the layer
}
STEM_SITES = {
    "embed": "BTD",  # the stream that enters the first layer
    "final_norm": "BTD",  # the final stream, after the final norm
    "logits": "BTV",
}


WANTS = ("hidden_states", "attentions")  # what Model.apply's `want` names beside sites


@struct.dataclass
class Edit:
    """A change at a site, as arrays: x becomes `value` where `mask` holds ("set"), or x + value there ("add").

    Attributes:
        site: a key of BLOCK_SITES or STEM_SITES.
        mask: bool; its first axis is L (each layer its own) or 1, the others broadcast to the site's array.
        value: number, likewise.
        how: "set" or "add".
    """

    mask: jax.Array
    value: jax.Array
    site: str = struct.field(pytree_node=False)
    how: str = struct.field(pytree_node=False, default="set")

    def apply(self, x: jax.Array, layer: jax.Array | None) -> jax.Array:
        mask, value = (
            leaf[0] if leaf.shape[0] == 1 else jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False)
            for leaf in (self.mask, self.value)
        )
        value = value.astype(x.dtype)
        return jnp.where(mask, value, x) if self.how == "set" else x + jnp.where(mask, value, 0)


@struct.dataclass
class Probe:
    """What a call reads and changes on its way.

    Attributes:
        asked: pairs of a layer (None before and after the blocks) and a site.
        edits: changes, applied in this order.
    """

    asked: tuple[tuple[int | None, str], ...] = struct.field(pytree_node=False, default=())
    edits: tuple[Edit, ...] = ()

    def on(self, *layers: int | None) -> "Probe":
        """The same, asking of these layers alone."""
        return self.replace(asked=tuple(pair for pair in self.asked if pair[0] in layers))


class Look:
    """A Probe in one block, or in what is around them; `values` gathers the arrays asked for, by site."""

    def __init__(self, probe: Probe, layer: jax.Array | None = None):
        self.edits, self.layer = probe.edits, layer
        self.names = {site for _, site in probe.asked}
        self.values: dict[str, jax.Array] = {}

    def __call__(self, site: str, x: jax.Array) -> jax.Array:
        for edit in self.edits:
            if edit.site == site:
                x = edit.apply(x, self.layer)
        if site in self.names:
            self.values[site] = x
        return x

    def changes(self, site: str) -> bool:
        return any(edit.site == site for edit in self.edits)

    def touches(self, *sites: str) -> bool:
        """Whether any of these is asked for or changed."""
        return any(site in self.names or self.changes(site) for site in sites)

    def inside(self, *sites: str) -> Callable[[str, jax.Array], jax.Array] | None:
        """This look for a function that knows only the last part of those sites' names; None if nobody touches them."""
        if not self.touches(*sites):
            return None
        return lambda last, x: self(next(site for site in sites if site.endswith(f".{last}")), x)


NOTHING = Look(Probe())


@struct.dataclass
class Found:
    """What the blocks gave back, however they were run.

    Attributes:
        stacks: for each slot of a scanned layer pattern its sites' arrays, stacked over the repeats.
        singles: for each layer after those its sites' arrays.
    """

    stacks: tuple[dict[str, jax.Array], ...]
    singles: tuple[dict[str, jax.Array], ...]
    whole: int = struct.field(pytree_node=False)

    def one(self, layer: int, site: str) -> jax.Array:
        if layer >= self.whole:
            return self.singles[layer - self.whole][site]
        repeat, slot = divmod(layer, len(self.stacks))
        return self.stacks[slot][site][repeat]

    def every(self, site: str) -> jax.Array:
        """[L, ...]."""
        if len(self.stacks) == 1 and not self.singles:
            return self.stacks[0][site]
        return jnp.stack([self.one(layer, site) for layer in range(self.whole + len(self.singles))])


def site_names(config: ModelConfig) -> tuple[str, ...]:
    """The sites that a model has, in the order of computation, `*` standing for a layer's number."""
    missing = {"mid"} if config.parallel_block else set()
    missing |= {"mlp.act"} if config.num_experts else {"mlp.router"}
    ends = ["final_norm"] if config.final_norm else []
    ends += ["logits"] if config.head != "none" else []
    return ("embed", *(f"blocks.*.{site}" for site in BLOCK_SITES if site not in missing), *ends)


def parse(config: ModelConfig, name: str) -> tuple[tuple[int, ...] | None, str]:
    """Layers and site of a name such as "blocks.*.attention.out", "blocks.3.mid", "blocks.-1.out" or "embed".

    Returns:
        the layers (None for sites around the blocks), and the site's key in BLOCK_SITES or STEM_SITES.

    Raises:
        InputError: a site that this model lacks, a layer beyond its own.
    """
    names = site_names(config)
    if not isinstance(name, str):
        raise InputError(f'a site is {name!r:.40}; it must be a name such as "blocks.*.out"')
    if name in STEM_SITES and name in names:
        return None, name
    head, _, rest = name.partition(".")
    layer, _, site = rest.partition(".")
    if head != "blocks" or f"blocks.*.{site}" not in names:
        known = tuple(other.replace("*", layer) if head == "blocks" and layer else other for other in names)
        raise InputError(f'site "{name}" is unknown{_why(config, site or name)}{nearest(name, known, shown=30)}')
    if layer == "*":
        return tuple(range(config.num_layers)), site
    try:
        number = int(layer)
    except ValueError:
        raise InputError(f'site "{name}": "{layer}" is no layer; give a number, or * for all') from None
    if not -config.num_layers <= number < config.num_layers:
        raise InputError(f'site "{name}": layers of this model are 0 to {config.num_layers - 1}')
    return (number % config.num_layers,), site


def check_wants(config: ModelConfig, want: tuple[str, ...]) -> None:
    """Raises InputError for a name that is neither in WANTS nor a site of this model."""
    for name in want:
        if name not in WANTS and name not in STEM_SITES and "." not in name:
            raise InputError(f'want names "{name}"{nearest(name, (*WANTS, *site_names(config)), shown=30)}')
        if name not in WANTS:
            parse(config, name)


def _why(config: ModelConfig, site: str) -> str:
    reasons = {
        "mid": " to parallel blocks, whose attention and FFN are added at once",
        "mlp.act": " to an FFN of experts",
        "mlp.router": " to an FFN without experts",
        "final_norm": " to a model without a final norm",
        "logits": " to a model without a head",
    }
    return reasons.get(site, "")


def probe_of(config: ModelConfig, want: tuple[str, ...], edits: tuple[Edit, ...]) -> Probe:
    """The Probe of a call: "hidden_states" and "attentions" are sites too."""
    asked: list[tuple[int | None, str]] = []
    for name in want:
        if name == "hidden_states":
            asked += [(None, "embed"), *((layer, "out") for layer in range(config.num_layers))]
        elif name == "attentions":
            asked += [(layer, "attention.weights") for layer in range(config.num_layers)]
        else:
            layers, site = parse(config, name)
            asked += [(layer, site) for layer in ((None,) if layers is None else layers)]
    return Probe(asked=tuple(dict.fromkeys(asked)), edits=tuple(edits))


def gather(config: ModelConfig, names: tuple[str, ...], stem: Look, found: Found) -> dict[str, Any]:
    """The arrays of these sites under the names by which they were asked for."""
    values = {}
    for name in names:
        layers, site = parse(config, name)
        if layers is None:
            values[name] = stem.values[site]
        elif name.split(".")[1] == "*":
            values[name] = found.every(site)
        else:
            values[name] = found.one(layers[0], site)
    return values
