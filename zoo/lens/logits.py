"""The logit lens: every layer's stream read out as if it were the last (nostalgebraist 2020, "interpreting GPT")."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from zoo.call_checks import as_array
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.forward import stream_shape
from zoo.lens.trace import run
from zoo.model import Model
from zoo.norms import Norm


def read_out(model: Model, params: dict[str, Any], stream: jax.Array) -> jax.Array:
    """Vocabulary logits, float32 [..., V], of streams [..., D]: the final norm where there is one, then the read-out.

    Raises:
        InputError: a model without vocabulary logits.
    """
    if model.config.head not in ("lm", "masked_lm"):
        raise InputError(f'the logit lens needs vocabulary logits; a model with head "{model.config.head}" has none')
    return _read_out(params, stream, model=model)


@functools.partial(jax.jit, static_argnames=("model",))
def _read_out(params, stream, *, model: Model):
    config = model.config
    if config.final_norm:
        stream = Norm(config).apply({"params": params["final_norm"]}, stream)
    if config.embed_projection == "tokens":
        stream = stream @ params["final_projection"]["kernel"].astype(stream.dtype)
    return model.unembed(params, stream)


def logit_lens(
    model: Model,
    params: dict[str, Any],
    inputs: jax.Array,
    at: Any = None,
    interventions: Any = (),
    **call: Any,
) -> jax.Array:
    """Logits of the embedding and of the stream after each layer; the last are the model's own.

    In post-norm models (BERT) each stream has been normalised by its own layer, and no final norm is applied.

    Args:
        model, params, inputs: as for Model.apply.
        at: positions, a whole number, [K] or [B, K], negative ones from the end; None for all.
        interventions, **call: as for lens.run.

    Returns:
        float32 [L + 1, B, T, V], or [L + 1, B, K, V].

    Raises:
        InputError: a model without vocabulary logits, a position outside, what lens.run refuses.
    """
    if model.config.head not in ("lm", "masked_lm"):
        raise InputError(f'the logit lens needs vocabulary logits; a model with head "{model.config.head}" has none')
    trace = run(model, params, inputs, ("embed", "blocks.*.out"), interventions, **call | {"logits_at": False})
    streams = jnp.concatenate([trace.values["embed"][None], trace.values["blocks.*.out"]])
    if at is not None:
        streams = streams[:, jnp.arange(streams.shape[1])[:, None], places(model.config, at, inputs)]
    return read_out(model, params, streams)


def places(config: ModelConfig, at: Any, inputs: jax.Array) -> jax.Array:
    """Positions as int [B or 1, K] counted from the start.

    Raises:
        InputError: a position outside, or other than whole numbers.
    """
    batch, length = stream_shape(config, as_array("inputs", inputs))
    at = as_array("at", at)
    if not jnp.issubdtype(at.dtype, jnp.integer) or at.ndim > 2:
        raise InputError(f"at has shape {at.shape} of {at.dtype}; give whole numbers: one, [K] or [B, K]")
    if not isinstance(at, jax.core.Tracer):
        outside = at[(at < -length) | (at >= length)]
        if outside.size:
            raise InputError(f"at: position {int(outside[0])} is outside: this call has {length}, 0 to {length - 1}")
    at = jnp.atleast_2d(at) % length
    if at.shape[0] not in (1, batch):
        raise InputError(f"at has {at.shape[0]} rows; inputs have {batch}")
    return at
