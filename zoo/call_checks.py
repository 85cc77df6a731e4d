"""What a call of a model refuses in one line: arrays of other shapes, kinds or values than it can mean."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import late_padding
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.forward import Inputs
from zoo.positions import count_real_tokens, restarted
from zoo.probe import check_wants

MASKS = ("padding_mask", "prefix_mask")
ZEROS_AND_ONES = "must be bool or whole numbers, 1 on real tokens and 0 on others"


def as_array(name: str, value: Any) -> Any:
    """`value` for the computation: None and jax arrays as they are, others checked before they are narrowed to 32 bits.

    Raises:
        InputError: ragged lists, what is no number, a whole number beyond 32 bits.
    """
    if value is None or isinstance(value, jax.Array):
        return value
    verb = "are" if name.endswith("s") else "is"
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        return jnp.asarray(value)
    if isinstance(value, str | bytes | dict):
        raise InputError(f"{name} {verb} a {type(value).__name__}; give an array of numbers")
    try:
        found = np.asarray(value)
    except (ValueError, TypeError):
        raise InputError(
            f"{name} {verb} ragged: rows differ in length; pad them and give a padding_mask"
        ) from None
    if found.dtype == object and all(isinstance(number, int) for number in found.flat):
        limits = np.iinfo(np.int32)
    elif not (found.dtype == bool or jnp.issubdtype(found.dtype, jnp.number)):
        raise InputError(f"{name} {verb} a {type(value).__name__} of what is no number; give an array of numbers")
    elif jnp.issubdtype(found.dtype, jnp.integer):
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(found.dtype))
    else:
        return jnp.asarray(found)
    beyond = (found < limits.min) | (found > limits.max)
    if beyond.any():
        place = tuple(int(i) for i in np.argwhere(beyond)[0])
        raise InputError(f"{name} holds {found[place]} at {place}, beyond the 32 bits that are computed with")
    return jnp.asarray(found)


def require_key(name: str, key: Any) -> None:
    """Raises InputError where `key` is no jax random key (or array of them), new style or old."""
    kind = getattr(key, "dtype", None)
    old = kind is not None and kind == np.uint32 and key.ndim >= 1 and key.shape[-1] >= 2
    if kind is None or not (old or jnp.issubdtype(kind, jax.dtypes.prng_key)):
        raise InputError(f"{name}: {key!r:.40} is no random key; give one, such as jax.random.key(0)")


def check_shapes(config: ModelConfig, given: Inputs) -> None:
    inputs = given.inputs
    if inputs is None:
        raise InputError(
            "inputs are None; give "
            + ("images [B, Y, X, C]" if config.image_size else "tokens [B, T] or embeddings [B, T, D]")
        )
    if config.image_size:
        _check_images(config, given)
        return
    if inputs.ndim == 2 and not jnp.issubdtype(inputs.dtype, jnp.integer):
        raise InputError(f"inputs [B, T] must be integer tokens, not {inputs.dtype}")
    if inputs.ndim not in (2, 3):
        raise InputError(f"inputs have shape {inputs.shape}; give tokens [B, T] or embeddings [B, T, D]")
    if inputs.ndim == 3 and inputs.shape[2] != config.embed_width:
        name = "embed_dim" if config.embed_rank is None else "embed_rank"
        raise InputError(f"inputs have {inputs.shape[2]} features; the model's {name} is {config.embed_width}")
    batch, length = inputs.shape[:2]
    if length == 0:
        raise InputError("inputs have no tokens: T is 0")
    for name in ("padding_mask", "segment_ids", "positions", "token_types", "prefix_mask"):
        value = getattr(given, name)
        if value is not None and value.shape != (batch, length):
            raise InputError(f"{name} has shape {value.shape}; inputs need ({batch}, {length})")
    for name in ("segment_ids", "positions", "token_types", "logits_at"):
        value = getattr(given, name)
        if value is not None and not jnp.issubdtype(value.dtype, jnp.integer):
            raise InputError(f"{name} must be integers, not {value.dtype}")
    for name in MASKS:
        value = getattr(given, name)
        if value is None or value.dtype == bool or jnp.issubdtype(value.dtype, jnp.integer):
            continue
        # Floats whose values can be seen may pass; additive masks (0 on real tokens, -1e9 on padding) may not.
        if not _concrete(value) or not np.isin(np.asarray(value), (0, 1)).all() or not np.asarray(value).any():
            raise InputError(f"{name} {ZEROS_AND_ONES}, not {value.dtype}")
    if given.segments:
        if config.head != "classifier" or config.distillation_head or given.segment_ids is None or given.segments < 0:
            raise InputError(
                f"segments is {given.segments}: a classifier answers for so many texts of each row, which segment_ids "
                "number"
            )
    at = given.logits_at
    if at is not None and (at.ndim != 2 or at.shape[0] != batch):
        raise InputError(f"logits_at has shape {at.shape}; give [B, K] with B = {batch}")
    if at is not None and config.head not in ("lm", "masked_lm"):
        raise InputError(f'logits_at chooses among vocabulary logits; a model with head "{config.head}" has none')
    if given.positions is not None and config.positions == "relative":
        raise InputError("positions were given to a model of relative positions, which counts real tokens itself")
    check_wants(config, given.want)
    if given.token_types is not None and not config.token_types:
        raise InputError("token_types were given to a model without segment embeddings (token_types=0)")
    if given.prefix_mask is not None and config.visibility != "prefix":
        raise InputError(f'prefix_mask needs visibility "prefix"; this model has "{config.visibility}"')
    if config.positions == "learned" and given.positions is None and given.padding_mask is None:
        if given.segment_ids is None and length > config.max_positions:
            raise InputError(f"{length} tokens exceed the model's {config.max_positions} learned positions")
    if given.cache is not None:
        if config.visibility == "full":
            raise InputError('a cache was given to a model with visibility "full": run it on whole rows')
        if config.rotary_scaling is not None and config.rotary_scaling.by_length:
            for name in ("positions", "segment_ids"):
                if getattr(given, name) is not None:
                    kind = config.rotary_scaling.kind
                    raise InputError(f'{name} and a cache do not go together under "{kind}" rotary scaling')
        expected = len(config.layer_pattern) + config.num_tail if config.scan else config.num_layers
        if len(given.cache.keys) != expected:
            raise InputError("the cache is another model's: make it with this one's init_cache")
        if given.cache.valid.shape[0] != batch:
            raise InputError(f"the cache holds {given.cache.valid.shape[0]} rows; inputs have {batch}")
        if given.cache.ring and given.segment_ids is not None:
            raise InputError("a ring cache serves rows of one text; for segment_ids make it with ring=False")
        if length > given.cache.capacity:
            raise InputError(f"{length} tokens exceed the cache's {given.cache.capacity} slots")


def _check_images(config: ModelConfig, given: Inputs) -> None:
    side, inputs = config.image_size, given.inputs
    if inputs.shape[1:] != (side, side, config.channels):
        raise InputError(
            f"inputs have shape {inputs.shape}; this model reads images [B, {side}, {side}, {config.channels}] "
            "(height, width, channels); zoo.with_image_size changes the size"
        )
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise InputError(f"images must be floating point, normalised as the model was trained, not {inputs.dtype}")
    others = ("padding_mask", "segment_ids", "positions", "token_types", "prefix_mask", "cache", "logits_at")
    for name in others:
        if getattr(given, name) is not None:
            raise InputError(f"{name} belongs to models of tokens; this one reads images")
    check_wants(config, given.want)


def check_values(config: ModelConfig, given: Inputs) -> None:
    """What JAX would clamp in silence, where the values can be seen."""
    if config.image_size:
        return
    batch, length = given.inputs.shape[:2]
    if given.inputs.ndim == 2:
        _in_range("token id", given.inputs, config.vocab_size, "the vocabulary")
    for name in MASKS:
        value = getattr(given, name)
        if value is not None and _concrete(value):
            found = np.asarray(value)
            if (found > 1).any() or (found < 0).any():
                place = tuple(int(i) for i in np.argwhere((found > 1) | (found < 0))[0])
                raise InputError(f"{name} {ZEROS_AND_ONES}; it holds {found[place]} at {place}")
    if given.token_types is not None:
        _in_range("token type", given.token_types, config.token_types, "the segment table")
    if given.logits_at is not None:
        _in_range("logits_at", given.logits_at, length, "the row")
    if given.positions is not None and config.positions == "learned":
        _in_range("position", given.positions, config.max_positions, "the position table")
    if given.cache is not None and _concrete(given.cache.length):
        filled = int(np.max(np.asarray(given.cache.length)))
        by_length = config.rotary_scaling is not None and config.rotary_scaling.by_length
        if by_length and filled and given.padding_mask is not None and _concrete(given.padding_mask):
            with jax.ensure_compile_time_eval():
                late = bool(np.any(late_padding(given.cache, given.padding_mask)))
            if late:
                raise InputError(
                    f'padding after real tokens in a cache: under "{config.rotary_scaling.kind}" rotary scaling it '
                    "would change the length that what is cached was turned by"
                )
        if given.cache.ring and given.padding_mask is not None and _concrete(given.padding_mask):
            with jax.ensure_compile_time_eval():  # concrete arrays, in whatever trace this call stands
                late = bool(np.any(late_padding(given.cache, given.padding_mask)))
            if late:
                raise InputError(
                    "padding after real tokens in a ring cache; pad on the left, or make it with ring=False"
                )
        if filled + length > given.cache.capacity:
            raise InputError(
                f"the cache has {given.cache.capacity} slots and {filled} are filled: {length} more do not fit"
            )
    padding, segments = given.padding_mask, given.segment_ids
    if config.positions == "learned" and given.positions is None and length > config.max_positions:
        if all(_concrete(value) for value in (padding, segments)):
            longest = int(jnp.max(count_real_tokens(batch, length, padding, segments))) + 1
            if longest > config.max_positions:
                raise InputError(f"{longest} tokens exceed the model's {config.max_positions} learned positions")
    if given.positions is not None and segments is None and _concrete(given.positions) and _concrete(padding):
        if np.any(restarted(given.positions, None if padding is None else padding != 0)):
            raise InputError(
                "positions restart within a row but no segment_ids are given: documents would attend across; "
                "give segment_ids"
            )


def _in_range(what: str, values: jax.Array, limit: int, where: str) -> None:
    if not _concrete(values) or values.size == 0:
        return
    found = np.asarray(values)
    bad = (found < 0) | (found >= limit)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"{what} {int(found[place])} at {place} is outside {where}: 0 to {limit - 1}")


def _concrete(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)
