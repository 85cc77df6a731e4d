"""One pure training step; the drivers of train.mesh compile it.

    g = sum over micro-batches and devices of d(loss sum)/d(params)  /  sum over the same of weights

Gradients of sums are added in float32 over devices and over micro-batches, whatever the types of parameters and
activations, in accumulators that lie as the parameters do, and divided once by the weight of the whole global batch:
the update does not depend on how rows are spread over micro-batches and devices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from train.config import TrainConfig
from train.optimizer import learning_rate
from train.state import TrainState, row_keys
from zoo import partition
from zoo.errors import InputError

Metrics = dict[str, Any]


def make_train_step(
    model: Any,
    objective: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    config: TrainConfig | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Builds train_step(state, batch, *, axis_name=None) -> (state, metrics).

    Args:
        model: what `objective` needs.
        objective: (model, params, batch, keys) -> (terms, metrics); see train.objectives. A plain function will do
            where there is one term.
        optimizer: from train.optimizer, or any optax transformation.
        config: `accumulate` alone is read; None accumulates nothing.

    Returns:
        The step. `batch` holds arrays with a leading row axis, among them row_ids [B]. Metrics: every pair of the
        objective, "loss" as a pair; and scalars grad_norm (before clipping), learning_rate (the one applied), tokens
        (real ones), finite. A step whose loss or gradient is not finite leaves the state as it was.
    """
    micro_batches = 1 if config is None else config.accumulate
    weights_of = getattr(objective, "weights", None)

    def train_step(state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, Metrics]:
        def everywhere(tree):
            return tree if axis_name is None else jax.lax.psum(tree, axis_name)

        keys = row_keys(state.key, state.step, batch["row_ids"])
        params = partition.gather_vectors(state.params)
        scales = None
        if weights_of is not None:
            scales = {name: 1 / _or_one(weight) for name, weight in everywhere(weights_of(batch, keys)).items()}

        def loss_sum(params, rows, row_keys):
            terms, metrics = objective(model, params, rows, row_keys)
            if scales is None:
                total, weight = terms
            else:
                total, weight = sum(pair[0] * scales[name] for name, pair in terms.items()), jnp.float32(0)
                metrics = metrics | {f"{name}_loss": pair for name, pair in terms.items()}
            return total, metrics | {"loss": (total, weight)}

        def gradient_of(rows, row_keys):
            (_, metrics), gradient = jax.value_and_grad(loss_sum, has_aux=True)(params, rows, row_keys)
            gradient = jax.tree.map(lambda g: g.astype(jnp.float32), gradient)
            return partition.constrain(gradient), metrics

        def add_gradient(total, part):
            return jax.tree.map(jnp.add, total, gradient_of(*part)), None

        if micro_batches == 1:
            gradient, metrics = gradient_of(batch, keys)
        else:
            parts = _split(micro_batches, (batch, keys))
            first = jax.tree.map(lambda x: x[0], parts)
            _, metric_shapes = jax.eval_shape(loss_sum, params, *first)
            zeros = partition.constrain(jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), state.params))
            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metric_shapes)
            (gradient, metrics), _ = jax.lax.scan(add_gradient, (zeros, nothing), parts)
        gradient, metrics = everywhere((gradient, metrics))
        total, weight = metrics["loss"]
        if scales is None:
            share = 1 / _or_one(weight)  # a quotient an element would be a pass of its own
            gradient = jax.tree.map(lambda g: g * share, gradient)
        else:
            metrics["loss"] = (total, jnp.float32(1))
        norm = optax.tree.norm(gradient)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        new = TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state, state.key)
        finite = jnp.isfinite(total) & jnp.isfinite(norm)
        metrics |= {
            "grad_norm": norm,
            "learning_rate": learning_rate(opt_state),
            "tokens": everywhere(_real_tokens(batch)),
            "finite": finite,
        }
        return jax.tree.map(lambda after, before: jnp.where(finite, after, before), new, state), metrics

    return train_step


def make_eval_step(model: Any, objective: Callable[..., Any], seed: int = 0) -> Callable[..., dict[str, Any]]:
    """Builds eval_step(params, batch, *, axis_name=None) -> pairs: the objective's, without dropout.

    Random masks are drawn from (seed, row_ids), so that every evaluation of the same rows draws the same.
    """

    def eval_step(params: Any, batch: Any, *, axis_name: str | None = None) -> dict[str, Any]:
        key = jax.random.key_data(jax.random.key(seed))
        params = partition.gather_vectors(params)
        terms, metrics = objective(model, params, batch, row_keys(key, jnp.int32(-1), batch["row_ids"]), train=False)
        if isinstance(terms, dict):
            metrics = metrics | {f"{name}_loss": pair for name, pair in terms.items()}
        else:
            metrics = metrics | {"loss": terms}
        return metrics if axis_name is None else jax.lax.psum(metrics, axis_name)

    return eval_step


def _or_one(weight):
    weight = jnp.asarray(weight, jnp.float32)
    return jnp.where(weight > 0, weight, 1.0)


def _real_tokens(batch):
    if "segment_ids" in batch:
        return jnp.sum(batch["segment_ids"] > 0, dtype=jnp.int32)
    return jnp.int32(batch["row_ids"].shape[0])


def _split(count, tree):
    mesh = partition.auto_mesh()
    ways = 1 if mesh is None else partition.ways_of(partition.row_axes(mesh), mesh.shape)

    def split(x):
        if x.shape[0] % count:
            raise InputError(f"{count} micro-batches do not divide the {x.shape[0]} rows that a device holds")
        if x.shape[0] // count % ways:
            raise InputError(
                f"{count} micro-batches of {x.shape[0] // count} rows cannot be split over {ways} devices; make "
                f"batch_size a multiple of {count * ways}, or accumulate smaller"
            )
        # Rows j, j + count, ... make micro-batch j: every device of a mesh keeps a part of each.
        return x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, tree)
