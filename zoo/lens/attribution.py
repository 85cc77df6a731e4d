"""A logit as the sum of what each head and each FFN wrote: direct logit attribution (Elhage et al. 2021).

Where norms do not stand on the stream itself, the last stream is the embedding plus all updates. With the statistics of
the final norm (and of norms after an update) held at their true values these norms are linear, and so is the read-out:

    logit = sum over components c of  norm(c) . w   +  final norm's bias . w  +  read-out's bias

It is exact, and it is about direct paths alone: what a head does through later layers counts as theirs.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from zoo.call_checks import as_array
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.int8 import require_float
from zoo.lens.logits import places
from zoo.lens.trace import run
from zoo.model import Model

SITES = ("embed", "blocks.*.attention.mixed", "blocks.*.attention.out", "blocks.*.mlp.update", "blocks.-1.out")


@struct.dataclass
class Attribution:
    """The parts of a logit; float32.

    Attributes:
        embed: [B], the embedding's.
        heads: [L, B, N].
        attention_bias: [L, B], of the out projection and of a norm behind it.
        mlp: [L, B], the FFNs with their biases.
        bias: [B], the final norm's and the read-out's.
        logit: [B], what they sum to, from the model itself; before the soft cap where there is one.
    """

    embed: jax.Array
    heads: jax.Array
    attention_bias: jax.Array
    mlp: jax.Array
    bias: jax.Array
    logit: jax.Array

    def total(self) -> jax.Array:
        """[B], the sum of the parts."""
        return self.embed + self.heads.sum((0, 2)) + self.attention_bias.sum(0) + self.mlp.sum(0) + self.bias

    def rows(self, row: int = 0) -> dict[str, float]:
        """The parts of one row by name: "embed", "head 0.3" (layer, head), "attention bias 0", "mlp 0", "bias"."""
        parts = {"embed": float(self.embed[row])}
        for layer, heads in enumerate(self.heads[:, row]):
            parts |= {f"head {layer}.{head}": float(part) for head, part in enumerate(heads)}
            parts[f"attention bias {layer}"] = float(self.attention_bias[layer, row])
            parts[f"mlp {layer}"] = float(self.mlp[layer, row])
        return parts | {"bias": float(self.bias[row])}


def attribution(
    model: Model,
    params: dict[str, Any],
    inputs: jax.Array,
    target: Any,
    at: Any = None,
    against: Any = None,
    interventions: Any = (),
    **call: Any,
) -> Attribution:
    """What each component wrote of the logit of `target`, or of its difference to the logit of `against`.

    Args:
        model: with head "lm" and norms before, around or after updates, never on the stream (post-norm).
        params, inputs: as for Model.apply.
        target, against: ids, one or [B].
        at: position, one or [B]; None for each row's last real token.
        interventions, **call: as for lens.run, without dropout_key.

    Raises:
        InputError: a post-norm model, another head, an id beyond the vocabulary, a position outside.
    """
    config = model.config
    if config.norm_placement == "post":
        raise InputError(
            "attribution: in a post-norm model every layer normalises the stream, which is no sum of components; use "
            "lens.ablate or lens.patching"
        )
    if config.head != "lm":
        raise InputError(f'attribution needs head "lm", a linear read-out of the vocabulary, not "{config.head}"')
    if call.get("dropout_key") is not None:
        raise InputError("attribution is of a model in evaluation: leave out dropout_key")
    trace = run(model, params, inputs, SITES, interventions, **call | {"logits_at": False})
    batch, length = trace.output.hidden.shape[:2]
    if at is None:
        real = jnp.ones((batch, length), bool) if trace.real is None else trace.real
        at = length - 1 - jnp.argmax(real[:, ::-1], axis=1)
    else:
        at = as_array("at", at)
        at = jnp.broadcast_to(places(config, at[:, None] if at.ndim == 1 else at, inputs)[:, 0], (batch,))
    target = _ids(config, "target", target, batch)
    against = None if against is None else _ids(config, "against", against, batch)
    return _attribute(params, trace.values, trace.output.hidden, at, target, against, config=config)


@functools.partial(jax.jit, static_argnames=("config",))
def _attribute(params, values, hidden, at, target, against, *, config: ModelConfig) -> Attribution:
    rows = jnp.arange(len(at))
    here = {name: value[..., rows, at, :] if value.ndim < 5 else value[:, rows, at] for name, value in values.items()}
    here = {name: value.astype(jnp.float32) for name, value in here.items()}
    dot = functools.partial(jnp.einsum, precision="highest")

    require_float(config, "attribution")

    def read_out(ids):
        tied = params["embed"]["token"]["embedding"] if config.tie_embeddings else params["lm_head"]["kernel"].T
        bias = params["lm_head"]["bias"][ids] if config.lm_bias else jnp.zeros(len(rows))
        return tied[ids], bias

    weight, constant = read_out(target)
    if against is not None:
        other = read_out(against)
        weight, constant = weight - other[0], constant - other[1]
    logit = dot("be,be->b", hidden[rows, at].astype(jnp.float32), weight) + constant
    if config.embed_projection == "tokens":
        weight = dot("de,be->bd", params["final_projection"]["kernel"], weight)
    last, last_bias = lambda x: x, 0.0
    if config.final_norm:
        last, last_bias = frozen_norm(config, params["final_norm"], here["blocks.-1.out"])

    def share(x):
        """[..., B, D] -> [..., B]."""
        return dot("...bd,bd->...b", last(x), weight)

    kernel = stacked(config, params, "attention", "out", "kernel")
    heads = dot("lbnh,lnhd->nlbd", here["blocks.*.attention.mixed"], kernel)
    bias = jnp.zeros(heads.shape[1:])
    if config.attention_out_bias:
        bias = bias + stacked(config, params, "attention", "out", "bias")[:, None]
    if config.norm_placement in ("both", "after"):
        names = ("scale", "bias") if config.norm == "layernorm" and config.norm_bias else ("scale",)
        own = {name: stacked(config, params, "attention_post_norm", name)[:, None] for name in names}
        through, added = frozen_norm(config, own, here["blocks.*.attention.out"])
        heads, bias = through(heads), through(bias) + added
    if config.layer_scale is not None:
        scale = stacked(config, params, "attention_scale", "scale")[:, None]
        heads, bias = heads * scale, bias * scale
    return Attribution(
        embed=share(here["embed"]),
        heads=jnp.moveaxis(share(heads), 0, -1),
        attention_bias=share(bias),
        mlp=share(here["blocks.*.mlp.update"]),
        bias=dot("bd,bd->b", jnp.zeros_like(weight) + last_bias, weight) + constant,
        logit=logit,
    )


def frozen_norm(config: ModelConfig, params: Any, at: jax.Array) -> tuple[Callable[[jax.Array], jax.Array], Any]:
    """The config's norm with its statistics held at those of `at` [..., D]: a linear map, and what it adds.

    Map and addition together give at `at` what the norm gives.
    """
    scale = params["scale"] + 1.0 if config.norm_unit_offset else params["scale"]
    centred = config.norm == "layernorm"

    def centre(x):
        return x - x.mean(axis=-1, keepdims=True) if centred else x

    factor = jax.lax.rsqrt(jnp.square(centre(at)).mean(axis=-1, keepdims=True) + config.norm_eps) * scale
    return lambda x: centre(x) * factor, params.get("bias", 0.0)


def stacked(config: ModelConfig, params: dict[str, Any], *path: str) -> jax.Array:
    """One parameter of all layers, [L, ...], of a looped or scanned stack."""

    def leaf(tree):
        return functools.reduce(lambda node, name: node[name], path, tree)

    blocks, slots = params["blocks"], len(config.layer_pattern)
    if config.shared_layers:
        return jnp.broadcast_to(leaf(blocks["shared"]), (config.num_layers, *leaf(blocks["shared"]).shape))
    if not config.scan:
        return jnp.stack([leaf(blocks[f"layer_{layer}"]) for layer in range(config.num_layers)])
    if slots == 1:
        return leaf(blocks)
    whole = jnp.stack([leaf(blocks[f"pattern_{slot}"]) for slot in range(slots)], axis=1)
    whole = whole.reshape(-1, *whole.shape[2:])
    tail = [leaf(tree) for _, tree in sorted(params.get("tail", {}).items(), key=lambda item: int(item[0][6:]))]
    return jnp.concatenate([whole, jnp.stack(tail)]) if tail else whole


def _ids(config: ModelConfig, name: str, ids: Any, batch: int) -> jax.Array:
    ids = as_array(name, ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer) or ids.shape not in ((), (batch,)):
        raise InputError(f"{name} has shape {ids.shape} of {ids.dtype}; give one id, or one a row: ({batch},)")
    if not isinstance(ids, jax.core.Tracer) and ((ids < 0) | (ids >= config.vocab_size)).any():
        raise InputError(f"{name}: an id is outside the vocabulary of {config.vocab_size}")
    return jnp.broadcast_to(ids, (batch,))
