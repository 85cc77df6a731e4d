"""A learning rate that travels as data: in the optimizer's state, and not in the compiled program.

So one program serves runs of any length, warm-up and peak, such as the cells of an experiment.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from train.config import TrainConfig
from train.optimizer import make_optimizer


class Plan(NamedTuple):
    """The learning rate of a run, as float32 scalars: a part of the optimizer's state, not of the program."""

    peak: jax.Array
    warmup_steps: jax.Array
    total_steps: jax.Array
    final: jax.Array


class PlannedState(NamedTuple):
    """A plan beside the state of the optimizer that follows it."""

    plan: Plan
    inner: Any


def make_plan(peak: float, total_steps: int, warmup_fraction: float = 0.1, schedule: str = "linear") -> Plan:
    """The rate as data: up to `peak` in a share of the updates, then "linear" to 0 at the last one, or "constant"."""
    warmup = min(round(warmup_fraction * total_steps), total_steps - 1)
    return Plan(*(jnp.float32(value) for value in (peak, warmup, total_steps, 0.0 if schedule == "linear" else peak)))


def planned_rate(plan: Plan, count: jax.Array) -> jax.Array:
    """The rate of update `count` (from 0): train.schedule's "linear" (and "constant"), read from arrays.

    count < warmup      peak (count + 1) / warmup
    then                peak + (final - peak) (count - begin) / (total - 1 - begin),    begin = max(warmup - 1, 0)
    """
    count = jnp.asarray(count, jnp.float32)
    begin = jnp.maximum(plan.warmup_steps - 1, 0)
    progress = jnp.clip((count - begin) / jnp.maximum(plan.total_steps - 1 - begin, 1), 0.0, 1.0)
    before = jnp.minimum(plan.peak * (count + 1) / jnp.maximum(plan.warmup_steps, 1), plan.peak)
    return jnp.where(count < plan.warmup_steps, before, plan.peak + (plan.final - plan.peak) * progress)


def planned_optimizer(config: TrainConfig, *then: optax.GradientTransformation) -> optax.GradientTransformation:
    """train.optimizer's chain, following the plan that lies in its state, and what comes `then`."""

    def chain(plan):
        return optax.chain(make_optimizer(config, lambda count: planned_rate(plan, count)), *then)

    def init(params):
        plan = Plan(*(jnp.zeros((), jnp.float32),) * 4)
        return PlannedState(plan, chain(plan).init(params))

    def update(gradient, state, params=None):
        updates, inner = chain(state.plan).update(gradient, state.inner, params)
        return updates, PlannedState(state.plan, inner)

    return optax.GradientTransformation(init, update)
