"""The whole network as one Linen module, and its pure, compiled forward pass.

The module only declares parameters and wires rooms together; what a call of the model means (defaults, checks,
cache) is in zoo.model.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.extend.core import Var, jaxpr_as_fun

from zoo.block import Call
from zoo.cache import Cache, late_padding, write
from zoo.config import ModelConfig
from zoo.dense import Dense
from zoo.dropout import at_site, row_seeds
from zoo.embedding import Embed
from zoo.heads import Linear, LMHead, MaskedLMHead, Pooler, classify, pool, pool_segments
from zoo.masks import Mask
from zoo.norms import Norm
from zoo.partition import constrain_stream
from zoo.patches import EmbedImages
from zoo.positions import count_real_tokens, known_lengths, model_rotary, restarted
from zoo.probe import WANTS, Edit, Look, gather, probe_of
from zoo.remat import policy
from zoo.stack import run_layers


@struct.dataclass
class Output:
    """What a call of a model gives; None for whatever the family lacks or the call did not ask for.

    Attributes:
        hidden: [B, T, D], the final stream (after the final norm where there is one, and after the projection to
            [B, T, E] where embed_projection is "tokens").
        logits: float32 [B, T, V]; [B, K, V] at chosen positions; [B, C] of a classifier, [B, S, C] of packed texts;
            [B, T, C] of a token classifier; [B, T, 2] of a span head: each token as start and as end of the answer
            (padding included: mask it out); [B, T] of a replaced-token head.
        pooled: [B, D], the pooler's, of the first real token.
        next_sentence: float32 [B, 2], BERT's (0: B follows A, 1: it does not), ALBERT's (1: A and B are swapped).
        cache: the cache that went in, with this call's tokens added.
        hidden_states: L + 1 streams [B, T, D]: the embedding, then after each block, before any final norm.
        attentions: L weights float32 [B, N, T, S].
        sites: the arrays of the sites that `want` names, by those names (zoo.lens).
    """

    hidden: jax.Array
    logits: jax.Array | None = None
    pooled: jax.Array | None = None
    next_sentence: jax.Array | None = None
    cache: Cache | None = None
    hidden_states: tuple[jax.Array, ...] | None = None
    attentions: tuple[jax.Array, ...] | None = None
    sites: dict[str, jax.Array] | None = None


@struct.dataclass
class Inputs:
    """The arrays of one call, as zoo.model.Model.apply documents them."""

    inputs: jax.Array
    padding_mask: jax.Array | None = None
    segment_ids: jax.Array | None = None
    positions: jax.Array | None = None
    token_types: jax.Array | None = None
    prefix_mask: jax.Array | None = None
    cache: Cache | None = None
    logits_at: jax.Array | None = None
    dropout_key: jax.Array | None = None
    memory: jax.Array | None = None
    edits: tuple[Edit, ...] = ()
    segments: int = struct.field(pytree_node=False, default=0)
    want_logits: bool = struct.field(pytree_node=False, default=True)
    want: tuple[str, ...] = struct.field(pytree_node=False, default=())


class Transformer(nn.Module):
    """Embed -> blocks -> final norm -> heads."""

    config: ModelConfig

    @nn.compact
    def __call__(self, given: Inputs) -> Output:
        config = self.config
        batch, length = stream_shape(config, given.inputs)
        order, cache, mask = _orders_and_mask(config, given)
        positions = order if given.positions is None else given.positions
        seeds = None if given.dropout_key is None else row_seeds(given.dropout_key, batch)
        key_order = order if cache is None else cache.order
        if config.image_size:
            stream, table, bias = EmbedImages(config, name="embed")(given.inputs, seeds), None, None
        else:
            stream, table, bias = Embed(config, name="embed")(
                given.inputs, positions, given.token_types, seeds, (order, key_order)
            )
        # What zoo.model refuses where it can see values is poisoned here, where it could not.
        wrong = jnp.zeros((batch,), bool)
        if cache is not None:
            wrong = wrong | (given.cache.length + length > cache.capacity)
            by_length = config.rotary_scaling is not None and config.rotary_scaling.by_length
            if given.padding_mask is not None and given.cache.ring:
                wrong = wrong | late_padding(given.cache, given.padding_mask)
            elif given.padding_mask is not None and by_length:
                wrong = wrong | ((given.cache.length > 0) & late_padding(given.cache, given.padding_mask))
        if given.positions is not None and given.segment_ids is None:
            wrong = wrong | restarted(given.positions, None if given.padding_mask is None else given.padding_mask != 0)
        if cache is not None or given.positions is not None:
            stream = jnp.where(wrong[:, None, None], jnp.asarray(jnp.nan, stream.dtype), stream)
        call = Call(
            mask=mask,
            rotary=model_rotary(config, positions, _rotary_lengths(config, given, positions, cache)),
            bias=bias,
            memory=given.memory,
            memory_mask=None if given.memory is None else Mask(),
            dropout_seeds=seeds,
            cache_start=None if cache is None else given.cache.length,
            probe=probe_of(config, given.want, given.edits),
        )
        look = Look(call.probe.on(None))
        stream = look("embed", constrain_stream(stream))
        buffers = None if cache is None else (cache.keys, cache.values)
        hidden, buffers, found = run_layers(config, stream, buffers, call)
        if config.final_norm:
            hidden = look("final_norm", Norm(config, name="final_norm")(hidden))
        if config.embed_projection == "tokens":
            back = Dense(
                config.hidden_width,
                "final_projection",
                config.dtype,
                config.initializer_range,
                use_bias=False,
                factors=config.matmul_dtype,
                name="final_projection",
            )
            hidden = back(hidden)
        if cache is not None:
            cache = cache.replace(keys=buffers[0], values=buffers[1], length=given.cache.length + length)
        pooler = Pooler(config, name="pooler") if config.pooler else None
        pooled = pooler(pool(hidden, given.padding_mask, "cls")) if pooler else None
        logits = self._logits(given, hidden, table, pooled, pooler, seeds)
        logits = logits if logits is None else look("logits", logits)
        layers, sites = range(config.num_layers), tuple(name for name in given.want if name not in WANTS)
        return Output(
            hidden=hidden,
            logits=logits,
            pooled=pooled,
            next_sentence=Linear(config, 2, name="next_sentence")(pooled) if config.next_sentence else None,
            cache=cache,
            hidden_states=(
                (stream, *(found.one(layer, "out") for layer in layers)) if "hidden_states" in given.want else None
            ),
            attentions=(
                tuple(found.one(layer, "attention.weights") for layer in layers) if "attentions" in given.want else None
            ),
            sites=gather(config, sites, look, found) if sites else None,
        )

    def _logits(self, given, hidden, table, pooled, pooler, seeds):
        config = self.config
        if config.head == "none":
            return None
        if config.head not in ("lm", "masked_lm"):
            packed = None
            if given.segments:
                packed = pool_segments(hidden, given.segment_ids, config.pooling, given.segments)
                if pooler is not None and config.pooling == "cls" and config.classifier_hidden == "none":
                    packed = pooler(packed)
            dropout = at_site(seeds, config.head_dropout, 0, "head")
            return classify(config, hidden, pooled, given.padding_mask, dropout, packed)
        if not given.want_logits and not self.is_initializing():
            return None
        if given.logits_at is not None:
            at = jnp.where(given.logits_at < 0, hidden.shape[1], given.logits_at)  # -1 is no place, not the last one
            hidden = jnp.take_along_axis(hidden, at[..., None], axis=1, mode="fill", fill_value=jnp.nan)
        return read_out_module(config)(hidden, table)


def stream_shape(config: ModelConfig, inputs: jax.Array) -> tuple[int, int]:
    """(B, T): rows of the stream and its tokens, those before an image's patches included."""
    if config.image_size:
        return inputs.shape[0], config.num_patches + config.num_prefix
    return inputs.shape[:2]


def read_out_module(config: ModelConfig) -> nn.Module:
    """The module that turns hidden [..., D] and the token table into vocabulary logits; its name is its parameters'."""
    if config.head == "masked_lm":
        return MaskedLMHead(config, name="masked_lm")
    return LMHead(config, name="lm_head")


def _orders_and_mask(config: ModelConfig, given: Inputs) -> tuple[jax.Array, Cache | None, Mask]:
    """Counts of real tokens [B, T], the cache with this call's tokens noted, and the mask of the call."""
    batch, length = stream_shape(config, given.inputs)
    causal = config.visibility != "full"
    real = None if given.padding_mask is None else given.padding_mask != 0
    segments = given.segment_ids
    order = count_real_tokens(batch, length, real, segments)
    prefix = None if given.prefix_mask is None else given.prefix_mask != 0
    if given.cache is None:
        ordered = order if any(layer.window for layer in config.layer_pattern) and (
            real is not None or segments is not None
        ) else None
        return order, None, Mask(
            causal=causal,
            key_valid=real,
            query_segments=segments,
            key_segments=segments,
            query_order=ordered,
            key_order=ordered,
            prefix_keys=prefix,
        )
    old, start = given.cache, given.cache.length
    real = jnp.ones((batch, length), bool) if real is None else real
    own_segments = jnp.zeros((batch, length), jnp.int32) if segments is None else segments
    asked = own_segments[:, :1] if segments is None else own_segments
    order = order + jnp.sum(old.valid[:, None] & (old.segments[:, None] == asked[:, :, None]), axis=2)
    cache = old.replace(
        valid=write(old.valid, real, start),
        order=write(old.order, order, start),
        segments=write(old.segments, own_segments, start),
    )
    return order, cache, Mask(
        causal=causal,
        query_start=start,
        key_valid=cache.valid,
        query_segments=own_segments,
        key_segments=cache.segments,
        query_order=order,
        key_order=cache.order,
        prefix_keys=None if prefix is None else write(jnp.zeros_like(cache.valid), prefix, start),
    )


def _rotary_lengths(config: ModelConfig, given: Inputs, positions: jax.Array, cache: Cache | None) -> jax.Array | None:
    """The length [B, T] or [B, 1] that a rotary scaling depends on; None where it depends on none."""
    if config.rotary_scaling is None or not config.rotary_scaling.by_length:
        return None
    if cache is None:
        real = None if given.padding_mask is None else given.padding_mask != 0
        return known_lengths(positions, real, given.segment_ids)
    padding = cache.length + positions.shape[1] - cache.valid.sum(axis=1, keepdims=True)
    return cache.capacity - padding


@functools.partial(jax.jit, static_argnames=("config",))
def forward(params: Any, given: Inputs, *, config: ModelConfig) -> Output:
    """One compiled pass; inside another jit it is inlined."""
    return Transformer(config).apply({"params": params}, given)


def initialise(key: jax.Array, *, config: ModelConfig) -> dict[str, Any]:
    """Fresh float32 parameters as a plain nested dict, a pure function of the key.

    Called outside of compiled functions, arrays are drawn one by one. A program of the whole would have the drawing of
    each array compiled anew, layer by layer: for BERT-base, ten times as long as everything here.
    """
    if config.scan or isinstance(key, jax.core.Tracer):
        return _initialised(key, config=config)
    draw, tree = _one_by_one(config, jax.ShapeDtypeStruct(key.shape, key.dtype))
    return jax.tree.unflatten(tree, draw(key))


@functools.lru_cache(maxsize=256)
def _one_by_one(config: ModelConfig, key: jax.ShapeDtypeStruct) -> tuple[Callable[..., list[jax.Array]], Any]:
    """A function from a key to the parameters' arrays that runs what they need, an operation at a time; their tree."""
    traced, shapes = jax.make_jaxpr(functools.partial(_fresh, config=config), return_shape=True)(key)
    needed, kept = set(traced.jaxpr.outvars), []
    for step in reversed(traced.jaxpr.eqns):  # the forward pass, which a module's init runs too, gives none of them
        if not needed.isdisjoint(step.outvars):
            kept.append(step)
            needed.update(name for name in step.invars if isinstance(name, Var))
    pruned = traced.replace(jaxpr=traced.jaxpr.replace(eqns=kept[::-1]))
    return jaxpr_as_fun(pruned), jax.tree.structure(shapes)


@functools.partial(jax.jit, static_argnames=("config",))
def _initialised(key: jax.Array, *, config: ModelConfig) -> dict[str, Any]:
    return _fresh(key, config)


def _fresh(key: jax.Array, config: ModelConfig) -> dict[str, Any]:
    tokens = jnp.zeros((1, 2), jnp.int32)
    if config.image_size:
        tokens = jnp.zeros((1, config.image_size, config.image_size, config.channels), jnp.float32)
    memory = jnp.zeros((1, 2, config.embed_dim), config.dtype) if config.cross_attention else None
    if config.remat != "none":
        policy(config)  # which refuses what this machine cannot do
    # Parameters do not depend on these, and two tokens are too few for some kernels.
    config = config.replace(attention_kernel="auto", remat="none")
    return Transformer(config).init(key, Inputs(inputs=tokens, memory=memory))["params"]
