"""From tokens to the stream: token, position and segment embeddings, their norm and dropout."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from zoo.config import ModelConfig
from zoo.dense import Dense
from zoo.dropout import at_site, drop
from zoo.initializers import normal
from zoo.int8 import Int8Rows
from zoo.int8 import table as int8_table
from zoo.norms import Norm
from zoo.partition import looked_up
from zoo.positions import relative_buckets, sinusoidal
from zoo.tiles import Tiles


def look_up(table: jax.Array | Int8Rows | Tiles, ids: jax.Array) -> jax.Array:
    """table[ids], equal to one_hot(ids) @ table; ids outside 0..V-1 give NaN, never a clamped neighbour.

    Args:
        table: [V, D].
        ids: int [B, T], of any integer type.

    Returns:
        [B, T, D].
    """
    ids = ids.astype(jnp.int32)
    if isinstance(table, Int8Rows | Tiles):
        return table.look_up(ids)
    rows = jnp.where(ids < 0, table.shape[0], ids)
    return jnp.take(table, rows, axis=0, mode="fill", fill_value=jnp.nan)


class Table(nn.Module):
    """An embedding table: one parameter `embedding` [rows, dim]; Int8Rows where `outliers` is not None."""

    rows: int
    dim: int
    stddev: float
    outliers: int | None = None

    @nn.compact
    def __call__(self) -> jax.Array | Int8Rows | Tiles:
        if self.outliers is not None:
            return int8_table(self, self.rows, self.dim, self.outliers, self.stddev)
        if isinstance(self.get_variable("params", "embedding"), Tiles):
            return self.get_variable("params", "embedding")
        table = self.param("embedding", normal(self.stddev), (self.rows, self.dim), jnp.float32)
        return looked_up(f"embed/{self.name}/embedding", table)


class Embed(nn.Module):
    """Token (+ position) (+ segment) embedding, normalised where the config says so (BERT), then dropped out."""

    config: ModelConfig

    @nn.compact
    def __call__(self, inputs, positions, token_types, dropout_seeds, orders):
        """
        Args:
            inputs: tokens int [B, T], or embeddings float [B, T, D or E] that take the token table's place.
            positions: int [B, T].
            token_types: int [B, T] or None for zeros.
            dropout_seeds: uint32 [B, 2] or None.
            orders: (int [B, T] of queries, int [B, S] of keys), read by relative positions alone.

        Returns:
            the stream [B, T, D] in the compute dtype; the token table [V, D or E]; the score bias float32 [B, N, T, S]
            of relative positions, one table for all layers (Raffel et al. 2020, 2.1), or None.
        """
        config = self.config
        stddev = config.initializer_range
        tokens_alone = config.embed_projection == "tokens"
        width = config.embed_dim if tokens_alone else config.embed_width
        outliers = config.int8 and config.int8.table
        table = Table(config.vocab_size, config.embed_width, stddev, outliers, name="token")()
        x = look_up(table, inputs) if inputs.ndim == 2 else inputs.astype(jnp.float32)
        if config.embed_scale is not None:
            x = x * jnp.asarray(config.embed_scale, config.dtype).astype(x.dtype)
        if tokens_alone:
            x = self._projected(x)
        if config.positions == "learned":
            rows = config.max_positions + config.position_offset
            places = jnp.where(positions < 0, -1, positions + config.position_offset)
            x = x + look_up(Table(rows, width, stddev, name="position")(), places)
        if config.positions == "sinusoidal":
            x = x + sinusoidal(positions, width)
        if config.token_types:
            types = jnp.zeros(x.shape[:2], jnp.int32) if token_types is None else token_types
            x = x + look_up(Table(config.token_types, width, stddev, name="segment")(), types)
        if config.embed_norm:
            x = Norm(config, name="norm")(x)
        x = drop(x, at_site(dropout_seeds, config.embed_dropout, 0, "embed"))
        if config.embed_rank is not None and not tokens_alone:
            x = self._projected(x)
        bias = None
        if config.positions == "relative":
            query_order, key_order = orders
            buckets = relative_buckets(
                key_order[:, None, :] - query_order[:, :, None],
                both_ways=config.visibility != "causal",
                buckets=config.relative_buckets,
                max_distance=config.relative_max_distance,
            )
            by_head = Table(config.relative_buckets, config.num_heads, stddev, name="relative")()
            bias = jnp.moveaxis(by_head[buckets], -1, 1)
        return x.astype(config.dtype), table, bias

    def _projected(self, x: jax.Array) -> jax.Array:
        """[B, T, E] -> [B, T, D]."""
        config = self.config
        use_bias, stddev = config.embed_projection == "sum", config.initializer_range
        rule = "embed/projection"
        given = {"use_bias": use_bias, "factors": config.matmul_dtype, "name": "projection"}
        return Dense(config.embed_dim, rule, config.dtype, stddev, **given)(x)
