"""Model: the face of an architecture. Pure functions of parameters, hashable, holding no arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.cache import Cache, init_cache
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.forward import Inputs, Output, forward, initialise, read_out_module
from zoo.patches import resize_positions
from zoo.positions import count_real_tokens, restarted

WANTS = ("hidden_states", "attentions")


@dataclass(frozen=True)
class Model:
    """An architecture with its pure functions; `config` is all it knows."""

    config: ModelConfig

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Fresh float32 parameters: a plain nested dict, a pure function of the key.

        Under jax.eval_shape it costs nothing, at any size.
        """
        return initialise(key, config=self.config)

    def init_shapes(self) -> dict[str, Any]:
        """The parameters' shapes and dtypes (ShapeDtypeStructs), without computing anything."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def init_cache(self, batch: int, length: int, dtype: str | None = None) -> Cache:
        """An empty key-value cache for `batch` rows of up to `length` tokens; see zoo.cache.init_cache."""
        return init_cache(self.config, batch, length, dtype)

    def unembed(self, params: dict[str, Any], hidden: jax.Array) -> jax.Array:
        """Vocabulary logits, float32 [..., V], of final streams [..., D]: what apply gives as `logits`."""
        if self.config.head not in ("lm", "masked_lm"):
            raise InputError(
                f'unembed: a model with head "{self.config.head}" has no vocabulary logits; use zoo.with_head'
            )
        head = read_out_module(self.config)
        own = params.get(head.name, {})
        return type(head)(self.config).apply({"params": own}, hidden, params["embed"]["token"]["embedding"])

    def apply(
        self,
        params: dict[str, Any],
        inputs: jax.Array,
        *,
        padding_mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        token_types: jax.Array | None = None,
        decoder_tokens: jax.Array | None = None,
        prefix_mask: jax.Array | None = None,
        cache: Cache | None = None,
        logits_at: jax.Array | bool | None = None,
        want: Sequence[str] = (),
        dropout_key: jax.Array | None = None,
    ) -> Output:
        """Runs the model on a batch.

        Args:
            params: from init or zoo.load.
            inputs: tokens int [B, T], or embeddings float [B, T, D] in the token table's place; for models of images
                float [B, Y, X, C], of the config's size, normalised as the model was trained. These take none of the
                arrays below but want and dropout_key.
            padding_mask: [B, T], 1 on real tokens; hidden ones are never attended to. None for all real.
            segment_ids: int [B, T]; tokens attend within their own segment alone (packed documents). Tokens of one id
                are one segment wherever they stand in the row.
            positions: int [B, T]; None counts real tokens from 0 within each row and segment.
            token_types: int [B, T] for segment embeddings (BERT's sentence A and B); None for 0.
            decoder_tokens: for encoder-decoder models, of which there are none yet.
            prefix_mask: [B, T], 1 on tokens that are visible even to earlier ones (visibility "prefix").
            cache: from init_cache or an earlier call's out.cache; the tokens continue it.
            logits_at: int [B, K]: vocabulary logits at these positions alone; False: none; None: at all.
            want: more to return, among "hidden_states" and "attentions".
            dropout_key: None in evaluation; a key, folded by row number, or an array of B keys, one a row.

        Returns:
            an Output.

        Raises:
            InputError: shapes that do not fit, a length beyond the positions, and, where values are concrete (outside
                jit), ids beyond the vocabulary, restarted positions without segment_ids, a cache overrun. Under jit
                those values cannot be seen: the rows concerned come out as NaN, never silently clamped.
        """
        given = Inputs(
            inputs=_array(inputs),
            padding_mask=_array(padding_mask),
            segment_ids=_array(segment_ids),
            positions=_array(positions),
            token_types=_array(token_types),
            prefix_mask=_array(prefix_mask),
            cache=cache,
            logits_at=None if isinstance(logits_at, bool) else _array(logits_at),
            dropout_key=dropout_key,
            want_logits=logits_at is not False,
            want=tuple(want),
        )
        if decoder_tokens is not None:
            raise InputError("decoder_tokens: this model has no decoder beside an encoder")
        _check_shapes(self.config, given)
        _check_values(self.config, given)
        return forward(params, given, config=self.config)


def with_head(
    model: Model, params: dict[str, Any], *, key: jax.Array, **changes: Any
) -> tuple[Model, dict[str, Any]]:
    """The same backbone under another head: same arrays where both have them, fresh ones for what is new.

    Args:
        model, params: the old ones; parameters of its head that the new one lacks are left behind.
        key: for the fresh parameters.
        **changes: fields of ModelConfig, such as head="classifier", num_labels=4, pooling="mean".

    Raises:
        InputError: a change would alter the shape of the backbone.
    """
    changed = Model(model.config.replace(**changes))
    shapes = changed.init_shapes()
    fresh_names = [name for name in shapes if name not in params]
    for name in sorted({*shapes} ^ {*params}):
        if name not in HEAD_NAMES:
            raise InputError(f"with_head: the change adds or removes {name}, which belongs to the backbone")
    for name in shapes:
        if name in fresh_names:
            continue
        old = jax.tree.map(lambda leaf: tuple(leaf.shape), params[name])
        new = jax.tree.map(lambda leaf: tuple(leaf.shape), shapes[name])
        if old == new:
            continue
        if name not in HEAD_NAMES:
            raise InputError(f"with_head: the change alters parameters under {name}, which belong to the backbone")
        fresh_names.append(name)
    fresh = jax.jit(lambda k: {name: changed.init(k)[name] for name in fresh_names})(key) if fresh_names else {}
    return changed, {name: fresh[name] if name in fresh else params[name] for name in shapes}


def with_image_size(model: Model, params: dict[str, Any], image_size: int) -> tuple[Model, dict[str, Any]]:
    """The same model of images for another size: its position table resized by cubic convolution, all else as it was.

    What the reference library does at each call for images of another size than the table's (Dosovitskiy et al. 2020,
    3.2), done once; models with registers smooth as they shrink. Published DINOv2 tables are for 518 x 518 images.

    Raises:
        InputError: a model of tokens, or a size that is no multiple of the patch size.
    """
    config = model.config
    if not config.image_size:
        raise InputError("with_image_size: this model reads tokens")
    changed = Model(config.replace(image_size=image_size))
    sides = [c.image_size // c.patch_size for c in (config, changed.config)]
    if sides[0] == sides[1]:
        return changed, params
    table = resize_positions(params["embed"]["position"]["embedding"], *sides, smooth=config.registers > 0)
    return changed, {**params, "embed": {**params["embed"], "position": {"embedding": table}}}


HEAD_NAMES = (
    "lm_head",
    "masked_lm",
    "next_sentence",
    "classifier",
    "token_classifier",
    "distillation_classifier",
    "span",
    "replaced_token",
    "pooler",
)


def _array(value: Any) -> Any:
    return value if value is None or isinstance(value, jax.Array) else jnp.asarray(value)


def _check_shapes(config: ModelConfig, given: Inputs) -> None:
    inputs = given.inputs
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
    at = given.logits_at
    if at is not None and (at.ndim != 2 or at.shape[0] != batch):
        raise InputError(f"logits_at has shape {at.shape}; give [B, K] with B = {batch}")
    if at is not None and config.head not in ("lm", "masked_lm"):
        raise InputError(f'logits_at chooses among vocabulary logits; a model with head "{config.head}" has none')
    if given.positions is not None and config.positions == "relative":
        raise InputError("positions were given to a model of relative positions, which counts real tokens itself")
    for name in given.want:
        if name not in WANTS:
            raise InputError(f'want names "{name}"{nearest(name, WANTS)}')
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
    for name in given.want:
        if name not in WANTS:
            raise InputError(f'want names "{name}"{nearest(name, WANTS)}')


def _check_values(config: ModelConfig, given: Inputs) -> None:
    """What JAX would clamp in silence, where the values can be seen."""
    if config.image_size:
        return
    batch, length = given.inputs.shape[:2]
    if given.inputs.ndim == 2:
        _in_range("token id", given.inputs, config.vocab_size, "the vocabulary")
    if given.token_types is not None:
        _in_range("token type", given.token_types, config.token_types, "the segment table")
    if given.logits_at is not None:
        _in_range("logits_at", given.logits_at, length, "the row")
    if given.positions is not None and config.positions == "learned":
        _in_range("position", given.positions, config.max_positions, "the position table")
    if given.cache is not None and _concrete(given.cache.length):
        filled = int(given.cache.length)
        by_length = config.rotary_scaling is not None and config.rotary_scaling.by_length
        if by_length and filled and given.padding_mask is not None and _concrete(given.padding_mask):
            if not np.all(np.asarray(given.padding_mask)):
                raise InputError(
                    f'padding after the first call of a cache: under "{config.rotary_scaling.kind}" rotary scaling it '
                    "would change the length that what is cached was turned by"
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
