"""Model: the face of an architecture. Pure functions of parameters, hashable, holding no arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from zoo.cache import Cache, init_cache
from zoo.call_checks import as_array, check_shapes, check_values, require_key
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.forward import Inputs, Output, forward, initialise, read_out_module
from zoo.int8 import token_table
from zoo.parameter_checks import check_parameters
from zoo.patches import resize_positions
from zoo.probe import Edit


@dataclass(frozen=True)
class Model:
    """An architecture with its pure functions; `config` is all it knows."""

    config: ModelConfig

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Fresh float32 parameters: a plain nested dict, a pure function of the key.

        Under jax.eval_shape it costs nothing, at any size.
        """
        require_key("key", key)
        return initialise(key, config=self.config)

    def init_shapes(self) -> dict[str, Any]:
        """The parameters' shapes and dtypes (ShapeDtypeStructs), without computing anything."""
        return jax.eval_shape(lambda: self.init(jax.random.key(0)))

    def init_cache(self, batch: int, length: int, dtype: str | None = None, ring: bool = False) -> Cache:
        """An empty key-value cache for `batch` rows of up to `length` tokens; see zoo.cache.init_cache."""
        return init_cache(self.config, batch, length, dtype, ring)

    def unembed(self, params: dict[str, Any], hidden: jax.Array) -> jax.Array:
        """Vocabulary logits, float32 [..., V], of final streams [..., D]: what apply gives as `logits`.

        Of `params` only the token table and the read-out's own are needed.
        """
        if self.config.head not in ("lm", "masked_lm"):
            raise InputError(
                f'unembed: a model with head "{self.config.head}" has no vocabulary logits; use zoo.with_head'
            )
        head = read_out_module(self.config)
        check_parameters(self.config, params, ("embed/token/", f"{head.name}/"), "unembed: ")
        width, shape = self.config.hidden_width, getattr(hidden, "shape", None)
        if not shape or shape[-1] != width:
            raise InputError(f"unembed: hidden has shape {shape}; its last axis must be {width}")
        own = params.get(head.name, {})
        return type(head)(self.config).apply({"params": own}, hidden, token_table(params["embed"]["token"]))

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
        segments: int = 0,
        want: Sequence[str] | str = (),
        edits: Sequence[Edit] = (),
        dropout_key: jax.Array | None = None,
    ) -> Output:
        """Runs the model on a batch.

        Args:
            params: from init or zoo.load.
            inputs: tokens int [B, T], or embeddings float [B, T, D] in the token table's place; for models of images
                float [B, Y, X, C], of the config's size, normalised as the model was trained. These take none of the
                arrays below but want and dropout_key.
            padding_mask: bool or int [B, T], 1 on real tokens and 0 on padding, which is never attended to. None for
                all real.
            segment_ids: int [B, T]; tokens attend within their own segment alone (packed documents). Tokens of one id
                are one segment wherever they stand in the row.
            positions: int [B, T]; None counts real tokens from 0 within each row and segment.
            token_types: int [B, T] for segment embeddings (BERT's sentence A and B); None for 0.
            decoder_tokens: for encoder-decoder models, of which there are none yet.
            prefix_mask: [B, T], 1 on tokens that are visible even to earlier ones (visibility "prefix").
            cache: from init_cache or an earlier call's out.cache; the tokens continue it.
            logits_at: int [B, K]: vocabulary logits at these positions alone; False: none; None: at all.
            segments: S: a classifier answers for each of the texts 1 to S of `segment_ids`, logits [B, S, C], as it
                would for that text alone (one that is not there gives the answer to zeros); 0: once a row.
            want: more to return: "hidden_states", "attentions", and sites such as "blocks.*.mid" (zoo.probe), which
                come as `sites`.
            edits: changes at sites; zoo.lens.run makes them of its interventions.
            dropout_key: None in evaluation; a key, folded by row number, or an array of B keys, one a row.

        Returns:
            an Output.

        Raises:
            InputError: arrays or parameters that do not fit, a length beyond the positions, and, where values are
                concrete (outside jit), ids beyond the vocabulary, masks of other numbers, restarted positions without
                segment_ids, a cache overrun. Under jit those values cannot be seen: the rows concerned come out as
                NaN, never silently clamped (of masks, whatever is not 0 is real).
        """
        given = Inputs(
            inputs=as_array("inputs", inputs),
            padding_mask=as_array("padding_mask", padding_mask),
            segment_ids=as_array("segment_ids", segment_ids),
            positions=as_array("positions", positions),
            token_types=as_array("token_types", token_types),
            prefix_mask=as_array("prefix_mask", prefix_mask),
            cache=cache,
            logits_at=None if isinstance(logits_at, bool) else as_array("logits_at", logits_at),
            dropout_key=dropout_key,
            edits=tuple(edits),
            segments=segments,
            want_logits=logits_at is not False,
            want=(want,) if isinstance(want, str) else tuple(want),
        )
        if decoder_tokens is not None:
            raise InputError("decoder_tokens: this model has no decoder beside an encoder")
        if dropout_key is not None:
            require_key("dropout_key", dropout_key)
        check_shapes(self.config, given)
        check_values(self.config, given)
        check_parameters(self.config, params)
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
    require_key("key", key)
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
