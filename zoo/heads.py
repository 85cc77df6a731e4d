"""From the stream to answers: language-model read-outs, classifiers, BERT's pooler, pooling."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo import int8
from zoo.config import ModelConfig
from zoo.dense import Dense, add_bias
from zoo.dropout import Dropout, drop
from zoo.feed_forward import ACTIVATIONS
from zoo.initializers import normal
from zoo.mixed_product import mixed_product
from zoo.norms import Norm
from zoo.sharded_product import product
from zoo.tiles import Tiles

CLASSIFIER_ACTIVATIONS = {**ACTIVATIONS, "tanh": jnp.tanh}


# Rows of a step of generation, at most: so few are multiplied as table times rows.
FEW_ROWS = 64


def read_out(
    hidden: jax.Array,
    matrix: jax.Array,
    soft_cap: float | None = None,
    *,
    by_rows: bool = False,
    factors: str = "",
) -> jax.Array:
    """Logits over the vocabulary, summed in float32, soft-capped: hidden [..., D] -> [..., V].

    Args:
        hidden: [..., D].
        matrix: [D, V]; [V, D] where `by_rows`, as a token table lies. Its transpose is never formed: a CPU would write
            it out anew for every token. Or Tiles (zoo.tiles); in int8 (zoo.int8) an Int8Rows, or the four parts of a
            kernel.
        soft_cap: c tanh(logit / c).
        by_rows: how the matrix lies.
        factors: the 16-bit dtype of both factors where hidden is float32 (zoo.mixed_product); "" for that of hidden.
    """
    whole = {"preferred_element_type": jnp.float32}
    if isinstance(matrix, int8.Int8Rows):
        return capped(matrix.read_out(hidden), soft_cap)
    if isinstance(matrix, Tiles):
        return capped(matrix.times(hidden, jnp.float32), soft_cap)
    if isinstance(matrix, tuple):
        return capped(int8.product(hidden, *matrix), soft_cap)
    factors = factors if hidden.dtype == jnp.float32 else hidden.dtype.name
    few = math.prod(hidden.shape[:-1]) <= FEW_ROWS
    if factors and not few:
        return capped(mixed_product(factors, "float32", 1, by_rows, hidden, matrix), soft_cap)
    matrix = matrix.astype(hidden.dtype)
    if not by_rows:
        logits = jnp.matmul(hidden, matrix, **whole)
    elif few:
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = jax.lax.dot_general(matrix, rows, (((1,), (1,)), ((), ())), **whole).T
        logits = logits.reshape(*hidden.shape[:-1], -1)
    else:
        logits = jax.lax.dot_general(hidden, matrix, (((hidden.ndim - 1,), (1,)), ((), ())), **whole)
    return capped(logits, soft_cap)


def capped(logits: jax.Array, soft_cap: float | None) -> jax.Array:
    """c tanh(logits / c), or the logits where there is no cap."""
    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)


class LMHead(nn.Module):
    """hidden E^T, or hidden W where embeddings are not tied; parameters kernel [D, V] (untied), bias [V] (lm_bias)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        config = self.config
        matrix, outliers = table, config.int8 and config.int8.table
        if not config.tie_embeddings:
            shape, stddev = (config.hidden_width, config.vocab_size), config.initializer_range
            if isinstance(self.get_variable("params", "kernel"), Tiles):
                matrix = self.get_variable("params", "kernel")
            elif outliers is None:
                matrix = self.param("kernel", normal(stddev), shape, jnp.float32)
            else:
                matrix = int8.parameters(self, shape[:1], shape[1:], outliers, stddev)
        logits = read_out(
            hidden, matrix, config.logit_soft_cap, by_rows=config.tie_embeddings, factors=config.matmul_dtype
        )
        if config.lm_bias:
            logits = logits + self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,), jnp.float32)
        return logits


class MaskedLMHead(nn.Module):
    """BERT's read-out: norm(act(hidden W + b)) E^T + bias (Devlin et al. 2018, released code).

    W is [D, D], or [D, E] where the token table has a width E of its own.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        config = self.config
        init = normal(config.initializer_range)
        stddev, use_bias = config.initializer_range, config.head_bias
        given = {"use_bias": use_bias, "factors": config.matmul_dtype, "name": "dense"}
        dense = Dense(config.embed_width, None, config.dtype, stddev, **given)
        hidden = Norm(config, name="norm")(ACTIVATIONS[config.masked_lm_activation or config.activation](dense(hidden)))
        matrix = table
        if not config.tie_embeddings:
            matrix = self.param("kernel", init, (config.embed_width, config.vocab_size), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,), jnp.float32)
        logits = read_out(
            hidden, matrix, config.logit_soft_cap, by_rows=config.tie_embeddings, factors=config.matmul_dtype
        )
        return logits + bias


class Pooler(nn.Module):
    """tanh(first W + b): the first token's [B, D] (Devlin et al. 2018)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, first: jax.Array) -> jax.Array:
        kernel = self.param(
            "kernel",
            normal(self.config.initializer_range),
            (self.config.embed_dim, self.config.embed_dim),
            jnp.float32,
        )
        bias = self.param("bias", nn.initializers.zeros_init(), (self.config.embed_dim,), jnp.float32)
        return jnp.tanh(add_bias(product("pooler/kernel", first, kernel), bias))


def linear(module: nn.Module, x: jax.Array, features: int, use_bias: bool) -> jax.Array:
    """x W + b in float32, out of the parameters kernel and bias of `module`."""
    init = normal(module.config.initializer_range)
    product = x.astype(jnp.float32) @ module.param("kernel", init, (x.shape[-1], features), jnp.float32)
    if not use_bias:
        return product
    return product + module.param("bias", nn.initializers.zeros_init(), (features,), jnp.float32)


class Linear(nn.Module):
    """x W + b in float32; parameters kernel [D, features], bias [features] unless use_bias is False."""

    config: ModelConfig
    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linear(self, x, self.features, self.use_bias)


class Classifier(nn.Module):
    """dropout(x) W + b in float32, with x = norm(act(features W' + b')) where the config gives it a hidden layer.

    Parameters kernel [D or 2 D, C], bias [C]; dense/{kernel [D, D], bias [D]} and norm of the hidden layer.
    """

    config: ModelConfig
    features: int
    hidden: bool
    activation: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array, dropout: Dropout | None = None) -> jax.Array:
        config = self.config
        if self.hidden:
            stddev, use_bias = config.initializer_range, config.head_bias
            given = {"use_bias": use_bias, "factors": config.matmul_dtype, "name": "dense"}
            dense = Dense(config.embed_dim, "classifier/dense", config.dtype, stddev, **given)
            x = CLASSIFIER_ACTIVATIONS[self.activation or config.classifier_activation](dense(x))
            x = Norm(config, name="norm")(x) if config.classifier_norm else x
        return linear(self, drop(x, dropout), self.features, config.classifier_bias)


def pool(hidden: jax.Array, padding_mask: jax.Array | None, how: str, prefix: int = 0) -> jax.Array:
    """One vector a row: its first real token ("cls"), the mean of real tokens ("mean") or its last real one ("last").

    Args:
        hidden: [B, T, D].
        padding_mask: [B, T], non-zero on real tokens; None for all real.
        how: one of these, or "cls_mean" for the first and the mean side by side.
        prefix: tokens at the start that the mean leaves out (those before an image's patches).

    Returns:
        [B, D] ([B, 2 D] for "cls_mean"); zeros for the mean of a row without real tokens.
    """
    if how == "cls_mean":
        return jnp.concatenate([pool(hidden, padding_mask, part, prefix) for part in ("cls", "mean")], axis=-1)
    batch, length = hidden.shape[:2]
    real = jnp.ones((batch, length), bool) if padding_mask is None else padding_mask != 0
    if how == "mean":
        hidden, real = hidden[:, prefix:], real[:, prefix:]
        total = jnp.sum(jnp.where(real[..., None], hidden, 0).astype(jnp.float32), axis=1)
        count = jnp.maximum(real.sum(axis=1, keepdims=True), 1)
        return (total / count).astype(hidden.dtype)
    first = jnp.argmax(real, axis=1)
    last = length - 1 - jnp.argmax(real[:, ::-1], axis=1)
    index = first if how == "cls" else last
    return jnp.take_along_axis(hidden, index[:, None, None], axis=1)[:, 0]


def pool_segments(hidden: jax.Array, segment_ids: jax.Array, how: str, segments: int) -> jax.Array:
    """One vector for each packed text: what `pool` gives for a row that holds this text alone.

    Args:
        hidden: [B, T, D].
        segment_ids: [B, T]: 1, 2, ... for the texts of a row, each in one piece, 0 for padding.
        how: "cls", "mean", "last" or "cls_mean".
        segments: S, most texts of a row.

    Returns:
        [B, S, D] ([B, S, 2 D] for "cls_mean"); zeros where a row has fewer texts.
    """
    if how == "cls_mean":
        return jnp.concatenate([pool_segments(hidden, segment_ids, part, segments) for part in ("cls", "mean")], -1)
    own = segment_ids[:, None, :] == jnp.arange(1, segments + 1)[:, None]  # [B, S, T]
    if how == "mean":
        share = own / jnp.maximum(own.sum(axis=-1, keepdims=True), 1)
        precision = jax.lax.Precision.HIGHEST
        return jnp.einsum("bst,btd->bsd", share, hidden.astype(jnp.float32), precision=precision).astype(hidden.dtype)
    last = hidden.shape[1] - 1 - jnp.argmax(own[..., ::-1], axis=-1)
    index = jnp.argmax(own, axis=-1) if how == "cls" else last
    found = jnp.take_along_axis(hidden, index[..., None], axis=1)
    return jnp.where(own.any(axis=-1)[..., None], found, 0)


def classify(
    config: ModelConfig,
    hidden: jax.Array,
    pooled: jax.Array | None,
    padding_mask: jax.Array | None,
    dropout: Dropout | None,
    packed: jax.Array | None = None,
) -> jax.Array:
    """Logits of the classifier heads, inside the caller's compact method.

    Args:
        hidden: the final stream [B, T, D].
        pooled: the pooler's [B, D], or None.
        padding_mask: [B, T] or None.
        dropout: before the last product.
        packed: [B, S, D] of `pool_segments`, or the pooler's of them: an answer for each packed text; None for one a
            row.

    Returns:
        float32 [B, C] ("classifier"; [B, S, C] where texts are packed), [B, T, C] ("token_classifier"), [B, T, 2]
        ("span") or [B, T] ("replaced_token").
    """
    if config.head == "replaced_token":
        return Classifier(config, 1, True, config.activation, name="replaced_token")(hidden)[..., 0]
    every = config.classifier_hidden == "every"
    if config.head == "span":
        return Classifier(config, 2, every, name="span")(hidden, dropout)
    if config.head == "token_classifier":
        return Classifier(config, config.num_labels, every, name="token_classifier")(hidden, dropout)
    deep = config.classifier_hidden != "none"
    if packed is not None:
        return Classifier(config, config.num_labels, deep, name="classifier")(packed, dropout)
    if deep or config.pooling != "cls" or pooled is None:
        pooled = pool(hidden, padding_mask, config.pooling, config.num_prefix)
    logits = Classifier(config, config.num_labels, deep, name="classifier")(pooled, dropout)
    if config.distillation_head:
        other = Classifier(config, config.num_labels, deep, name="distillation_classifier")(hidden[:, 1], dropout)
        logits = (logits + other) / 2
    return logits
