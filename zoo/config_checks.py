"""What every config of the zoo checks where it is made, in one line that names the field."""

import dataclasses
import functools
import math
import typing
from typing import Any, Literal

from zoo.errors import InputError, nearest

MAX_LAYERS = 10_000
MAX_DIM = 1_000_000


def refuse_unknown(given: dict[str, Any], cls: type) -> None:
    """Raises InputError for the first key of `given` that is no field of the dataclass `cls`."""
    names = [f.name for f in dataclasses.fields(cls)]
    for key in given:
        if key not in names:
            raise InputError(f'{cls.__name__} has no field "{key}"{nearest(key, names)}')


hints_of = functools.cache(typing.get_type_hints)


def check_types(config: Any) -> None:
    """Closed choices, flags and numbers are what their annotations say; whole numbers are checked with their ranges."""
    hints = hints_of(type(config))
    for f in dataclasses.fields(config):
        hint, value = hints[f.name], getattr(config, f.name)
        where, kinds = f"{type(config).__name__}: {f.name}", typing.get_args(hint) or (hint,)
        if typing.get_origin(hint) is Literal:
            if value not in kinds:
                raise InputError(f'{where} is "{value}"{nearest(value, kinds)}')
        elif hint is bool:
            require(isinstance(value, bool), f"{where} is {value!r}; it must be true or false")
        elif float in kinds and typing.get_origin(hint) is not tuple and not (value is None and type(None) in kinds):
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            require(number, f"{where} is {value!r}; it must be a finite number")


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def require_positive(config: Any, name: str) -> None:
    value = getattr(config, name)
    require(value is None or value > 0, f"{name} is {value}; it must be above 0")


def require_int(name: str, value: Any, low: int, high: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and low <= value <= high, f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def nearest_divisor(whole: int, wanted: int) -> int:
    return min((d for d in range(1, whole + 1) if whole % d == 0), key=lambda d: (abs(d - wanted), d))


def check_heads(config: Any) -> None:
    """What the head of a ModelConfig needs of its other fields."""
    head = config.head
    if head in ("classifier", "token_classifier"):
        require(config.num_labels >= 1, f'head "{head}" needs num_labels of 1 or more, not {config.num_labels}')
        require(
            not config.label_names or len(config.label_names) == config.num_labels,
            f"label_names names {len(config.label_names)} labels but num_labels is {config.num_labels}",
        )
    if head in ("masked_lm", "replaced_token"):
        require(config.visibility == "full", f'head "{head}" needs visibility "full", not "{config.visibility}"')
    require(
        not config.image_size or head not in ("span", "token_classifier", "replaced_token"),
        f'head "{head}" answers for each token of a text; a model of images (image_size > 0) has none',
    )
    if head == "lm":
        require(
            config.embed_rank is None or config.embed_projection == "tokens",
            f'embed_rank {config.embed_rank}: head "lm" has no transform to that width; use head "masked_lm" or '
            '"none", or embed_projection "tokens"',
        )
    if config.visibility == "causal":  # no published model classifies by a first token that sees nothing but itself
        blind = "the first token, which sees itself alone in a causal model"
        require(
            config.head != "classifier" or config.pooling != "cls",
            f'pooling "cls" reads {blind}; use pooling "last" or "mean"',
        )
        require(not config.pooler, f"pooler reads {blind}; leave it out, or set visibility")
    if config.next_sentence:
        require(config.pooler, "next_sentence reads the pooled token: it needs pooler=True")
    hidden = config.classifier_hidden != "none"
    require(hidden or not config.classifier_norm, 'classifier_norm needs a hidden layer: classifier_hidden is "none"')


def check_ranks(config: Any) -> None:
    """embed_rank and what is projected to and from it."""
    if config.embed_rank is not None:
        require_int("embed_rank", config.embed_rank, 1, MAX_DIM)
    if config.embed_projection == "tokens":
        require(config.embed_rank is not None, 'embed_projection "tokens" needs embed_rank, the token table\'s width')
        require(not config.pooler, 'pooler reads a stream of width embed_dim, but embed_projection "tokens" narrows it')


def check_int8(config: Any) -> None:
    """Counts of float columns that the kernels have, and a model that int8 is there for."""
    if config.int8 is None:
        return
    require(hasattr(config.int8, "table"), f"int8 is {config.int8!r}; it is what zoo.quantize made, or None")
    require(not config.cross_attention and not config.image_size, "int8 is for models of texts without cross_attention")
    mixed = config.num_heads * config.head_dim
    most = {"attention": config.embed_dim, "out": mixed, "mlp": config.embed_dim, "down": config.mlp_dim}
    for name, width in most.items():
        counts = getattr(config.int8, name)
        one = config.scan or config.shared_layers
        fits = len(counts) == 1 or (len(counts) == config.num_layers and not one)
        many = "1, as one program runs all layers" if one else f"1 or {config.num_layers}"
        require(fits, f"int8.{name} has {len(counts)} numbers; it must have {many}")
        for count in counts:
            require_int(f"int8.{name}", count, 0, width)
    if config.int8.table is not None:
        require_int("int8.table", config.int8.table, 0, config.embed_width)
        require(config.head != "masked_lm", 'int8.table is set, but the read-out of head "masked_lm" stays float')


def check_images(config: Any) -> None:
    """What image_size and the tokens before the patches need of the other fields of a ModelConfig."""
    require_int("image_size", config.image_size, 0, MAX_DIM)
    require_int("registers", config.registers, 0, MAX_DIM)
    if not config.image_size:
        for name in ("class_token", "distillation_token", "registers", "mask_token", "distillation_head"):
            require(not getattr(config, name), f"{name} belongs to models of images: image_size is 0")
        return
    require_int("patch_size", config.patch_size, 1, config.image_size)
    require_int("channels", config.channels, 1, MAX_DIM)
    require(
        config.image_size % config.patch_size == 0,
        f"patch_size {config.patch_size} does not divide image_size {config.image_size}; nearest that does: "
        f"{nearest_divisor(config.image_size, config.patch_size)}",
    )
    wanted: dict[str, Any] = {"vocab_size": 0, "positions": "learned", "visibility": "full", "position_offset": 0}
    wanted |= {"token_types": 0, "embed_rank": None, "embed_norm": False, "embed_scale": None, "cross_attention": False}
    for name, value in wanted.items():
        found = getattr(config, name)
        require(found == value, f"{name} is {found!r}, but a model of images (image_size > 0) needs {value!r}")
    require(
        config.head not in ("lm", "masked_lm"),
        f'image_size {config.image_size}: a model of images has no vocabulary, so head cannot be "{config.head}"',
    )
    for name, value in (("pooler", config.pooler), ('pooling "cls_mean"', config.pooling == "cls_mean")):
        require(config.class_token or not value, f"{name} reads the first token: it needs class_token=True")
    if config.distillation_head:
        fits = config.distillation_token and config.head == "classifier" and config.pooling == "cls"
        require(fits, 'distillation_head needs distillation_token=True, head "classifier" and pooling "cls"')
