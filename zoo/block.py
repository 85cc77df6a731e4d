"""The Block: attention and feed-forward around one residual stream. Every family is this block, set differently.

    pre    x = x + A(norm x);        x = x + F(norm x)          GPT-2, LLaMA
    post   x = norm(x + A x);        x = norm(x + F x)          the 2017 Transformer, GPT-1, BERT
    both   x = x + norm(A(norm x));  x = x + norm(F(norm x))
    after  x = x + norm(A x);        x = x + norm(F x)          OLMo 2
    parallel (pre)  x = x + A(norm x) + F(norm x)

With cross-attention a third update stands between the two. In all but post the last stream is the embedding plus the
sum of all updates.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from zoo.attention import attend
from zoo.cache import remember
from zoo.config import ModelConfig
from zoo.dense import Dense
from zoo.dropout import at_site, drop
from zoo.errors import InputError
from zoo.feed_forward import Experts, FeedForward, residual_stddev
from zoo.int8 import require_float
from zoo.layer_config import LayerConfig
from zoo.masks import Mask
from zoo.norms import HeadsNorm, Norm
from zoo.partition import constrain_stream
from zoo.positions import rotate
from zoo.probe import NOTHING, Look, Probe
from zoo.remat import mark
from zoo.sharded_product import fanned


@struct.dataclass
class Call:
    """What one call of the model brings to every block.

    Attributes:
        mask: visibility; each layer adds its own window.
        rotary: (cos, sin) for each entry of the layer pattern (None for one that turns nothing), or ().
        bias: relative-position bias [B or 1, N, T, S], or None.
        memory, memory_mask: encoder output [B, S', D] and its visibility, for cross-attention.
        dropout_seeds: uint32 [B, 2], or None in evaluation.
        cache_start: slot at which new keys are written, or None without a cache.
        probe: what is read and changed on the way (zoo.probe).
    """

    mask: Mask
    rotary: tuple[Any, ...] = ()
    bias: jax.Array | None = None
    memory: jax.Array | None = None
    memory_mask: Mask | None = None
    dropout_seeds: jax.Array | None = None
    cache_start: jax.Array | None = None
    probe: Probe = Probe()

    def on(self, *layers: int) -> "Call":
        """The call as these layers get it."""
        return self.replace(probe=self.probe.on(*layers))


class Attention(nn.Module):
    """Projections around attend(): query, key, value, out; one entry of the layer pattern."""

    config: ModelConfig
    layer: LayerConfig
    slot: int = 0
    cross: bool = False

    @nn.compact
    def __call__(self, x, source, call: Call, index: jax.Array, cache: Any = None, look: Look = NOTHING):
        """x [B, T, D] asks, source [B, S, D] answers: the heads' sum [B, T, D], and new (keys, values) or None."""
        config = self.config
        x, source = (fanned(x),) * 2 if x is source else (x, fanned(source))
        query = self._heads(config.num_heads, "query")(x)
        key = self._heads(config.num_kv_heads, "key")(source)
        value = self._heads(config.num_kv_heads, "value")(source)
        if config.qk_norm:
            query, key = HeadsNorm(config, name="query_norm")(query), HeadsNorm(config, name="key_norm")(key)
        tables = call.rotary[self.slot] if call.rotary and not self.cross else None
        if tables is not None:
            query, key = rotate(query, tables), rotate(key, tables)
        query, key, value = look("attention.query", query), look("attention.key", key), look("attention.value", value)
        mask = call.memory_mask if self.cross else call.mask.replace(window=self.layer.window)
        if cache is not None:
            cache, key, value, mask = remember(cache, key, value, call.cache_start, mask)
        query, key, value = mark(query, "query"), mark(key, "key"), mark(value, "value")
        see = look.inside("attention.scores", "attention.weights")
        mixed, _ = attend(
            query,
            key,
            value,
            mask=mask,
            bias=None if self.cross else call.bias,
            scale=config.score_scale,
            soft_cap=config.attention_soft_cap,
            dropout=at_site(
                call.dropout_seeds,
                config.attention_dropout,
                index,
                "cross_weights" if self.cross else "attention_weights",
            ),
            kernel=config.attention_kernel if see is None else "auto",
            see=see,
        )
        mixed = look("attention.mixed", mixed)
        update = Dense(
            config.embed_dim,
            "attention/out",
            config.dtype,
            residual_stddev(config),
            contracted=2,
            use_bias=config.attention_out_bias,
            outliers=config.int8 and config.int8.out[0],
            factors=config.matmul_dtype,
            name="out",
        )(mixed)
        if look.touches("attention.heads"):
            require_float(config, 'site "attention.heads"')
            kernel = self.get_variable("params", "out")["kernel"].astype(mixed.dtype)
            heads = jnp.einsum("btnh,nhd->btnd", mixed, kernel)
            changed = look("attention.heads", heads)
            update = update + (changed - heads).sum(axis=2) if look.changes("attention.heads") else update
        return mark(update, "attention_update"), cache

    def _heads(self, heads: int, name: str) -> Dense:
        config = self.config
        return Dense(
            (heads, config.head_dim),
            f"attention/{name}",
            config.dtype,
            config.initializer_range,
            use_bias=config.attention_bias,
            outliers=config.int8 and config.int8.attention[0],
            factors=config.matmul_dtype,
            name=name,
        )


class LayerScale(nn.Module):
    """A learned multiple of each feature; parameter scale [D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, y: jax.Array) -> jax.Array:
        start = nn.initializers.constant(self.config.layer_scale)
        scale = self.param("scale", start, (self.config.embed_dim,), jnp.float32)
        return (y.astype(jnp.float32) * scale).astype(y.dtype)


class Block(nn.Module):
    """One layer; see the module's text. Signature fit for lax.scan: (stream, per-layer input, call)."""

    config: ModelConfig
    slot: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, layer_input: Any, call: Call):
        """
        Args:
            x: the stream [B, T, D].
            layer_input: (layer index, (keys, values) of its cache or None).
            call: what every block gets.

        Returns:
            the stream after this block, and (new cache or None, the arrays that call.probe asks for, by site).
        """
        config = self.config
        index, cache = layer_input
        layer = config.layer_pattern[self.slot]
        attention = Attention(config, layer, self.slot, name="attention")
        feed_forward = (Experts if config.num_experts else FeedForward)(config, name="mlp")
        pre, post = config.norm_placement in ("pre", "both"), config.norm_placement == "post"
        both = config.norm_placement in ("both", "after")
        look = Look(call.probe, index)

        def normed(y, name, here=True):
            return Norm(config, name=name)(y) if here else y

        def update(y, site):
            y = normed(look(f"{site}.out", y), f"{site}_post_norm", both)
            if config.layer_scale is not None:
                y = LayerScale(config, name=f"{site}_scale")(y)
            return look(f"{site}.update", drop(y, at_site(call.dropout_seeds, config.dropout, index, site)))

        x = look("in", x)
        read = look("attention.in", normed(x, "attention_norm", pre and layer.attention_norm))
        y, cache = attention(read, read, call, index, cache, look)
        y = update(y, "attention")
        if config.parallel_block:
            read = look("mlp.in", normed(x, "mlp_norm") if config.parallel_mlp_norm else read)
            x = look("out", x + y + update(mark(feed_forward(read, look), "mlp_update"), "mlp"))
            return constrain_stream(x), (cache, look.values)
        x = look("mid", normed(x + y, "attention_norm", post))
        if config.cross_attention:
            if call.memory is None:
                raise InputError("cross_attention: this model reads an encoder's output and the call brought none")
            cross = Attention(config, LayerConfig(), self.slot, cross=True, name="cross")
            y, _ = cross(normed(x, "cross_norm", pre), call.memory, call, index)
            x = x + update(y, "cross")
            x = normed(x, "cross_norm", post)
        y = mark(feed_forward(look("mlp.in", normed(x, "mlp_norm", pre)), look), "mlp_update")
        x = look("out", normed(x + update(y, "mlp"), "mlp_norm", post))
        return constrain_stream(x), (cache, look.values)
