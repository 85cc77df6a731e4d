"""Rotary settings of config.json, there and back: rope_parameters (new), or rope_theta and rope_scaling (old)."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from zoo.checkpoints.settings import Settings, is_number
from zoo.errors import nearest
from zoo.layer_config import RotaryScaling

# What each rope_type must say and what it may say, beside its own name and rope_theta.
_MUST = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}
_TRAINED = "original_max_position_embeddings"
_MAY = {
    "llama3": (_TRAINED,),
    "yarn": (_TRAINED, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": (_TRAINED, "factor", "attention_factor"),
}


class Rotary(NamedTuple):
    """What a folder says of rotary positions: base, part of each head that is turned, scaling."""

    base: float
    partial: float
    scaling: RotaryScaling | None


def read_rotary(
    settings: Settings,
    max_positions: int,
    *,
    base: float = 10000.0,
    base_name: str = "rope_theta",
    partial: float | None = None,
    partial_name: str = "partial_rotary_factor",
    also: Mapping[str, str] | None = None,
    trained: int | None = None,
) -> Rotary:
    """The rotary settings of a family.

    Args:
        settings: of config.json.
        max_positions: its max_position_embeddings.
        base: where none is set.
        base_name, partial_name: what old folders of the family call the two at the top level.
        partial: where none is set; None for families that turn whole heads.
        also: older names of rope_types.
        trained: original_max_position_embeddings where none is set at the top level, before any in the scaling.

    Raises:
        InputError: a scaling that we do not compute, or a key of one that we do not know.
    """
    outer = {
        "rope_theta": settings.number(base_name, None),
        "partial_rotary_factor": settings.number(partial_name, None) if partial is not None else None,
        _TRAINED: settings.whole(_TRAINED, trained),
    }
    name, found = _given(settings)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in found and outer[key] is not None and found[key] != outer[key]:
            spelled = {"rope_theta": base_name}.get(key, partial_name)
            raise settings.fault(f"{spelled} is {outer[key]!r} but {name} has {found[key]!r}")
    for key, value in (("rope_theta", base), ("partial_rotary_factor", 1.0 if partial is None else partial)):
        value = found.get(key, value if outer[key] is None else outer[key])
        if not is_number(value) or value <= 0:
            raise settings.fault(f"{key} is {value!r}; it must be a number above 0")
        outer[key] = value
        found.pop(key, None)
    part = float(outer["partial_rotary_factor"])
    if part > 1 or (partial is None and part != 1):
        raise settings.fault(f"{name}: partial_rotary_factor {part} is not supported")
    if outer[_TRAINED] is not None and _kind(found) in (*_MAY, *(also or {})):
        found[_TRAINED] = outer[_TRAINED]
    return Rotary(float(outer["rope_theta"]), part, scaling_of(settings, name, found, max_positions, also))


def scaling_of(
    settings: Settings, name: str, found: dict[str, Any], max_positions: int, also: Mapping[str, str] | None = None
) -> RotaryScaling | None:
    """The scaling that an object of config.json describes, rope_theta taken out of it; `name` is for messages."""
    found = dict(found)
    kind = _kind(found)
    kind = (also or {}).get(kind, kind)
    found.pop("type", None)
    found.pop("rope_type", None)
    if kind not in _MUST:
        raise settings.fault(f'{name}: rope_type "{kind}" is not supported{nearest(str(kind), _MUST)}')
    must, may = _MUST[kind], _MAY.get(kind, ())
    strange = set(found) - {*must, *may}
    if strange:
        raise settings.fault(f'{name}: "{min(strange)}" means nothing to rope_type "{kind}"')
    if kind == "default":
        return None
    trained = found.get(_TRAINED, max_positions)
    if kind == "longrope" and is_number(trained) and trained > 0:
        found.setdefault("factor", max(max_positions / trained, 1.0))
    for key in (*must, *found):
        value = found.get(key)
        if key == "truncate":
            good, wanted = isinstance(value, bool), "true or false"
        elif key in ("short_factor", "long_factor"):
            good, wanted = isinstance(value, list) and bool(value) and all(map(is_number, value)), "a list of numbers"
        else:
            good, wanted = is_number(value), "a number"
        if not good:
            raise settings.fault(f"{name}: {key} is {value!r}; it must be {wanted}")
    if not is_number(trained) or trained != int(trained):
        raise settings.fault(f"{name}: {_TRAINED} is {trained!r}; it must be a whole number")
    names = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")
    values = {key: float(found[key]) for key in names if key in found}
    if kind == "yarn" and found.get("mscale") and found.get("mscale_all_dim") and "attention_factor" not in found:
        spread = 0.1 * math.log(max(values["factor"], 1.0))
        values["attention_factor"] = (spread * found["mscale"] + 1) / (spread * found["mscale_all_dim"] + 1)
    if kind == "longrope":
        values["short_factors"] = tuple(map(float, found["short_factor"]))
        values["long_factors"] = tuple(map(float, found["long_factor"]))
    if "truncate" in found:
        values["truncate"] = found["truncate"]
    if kind != "linear":
        values["original_max_positions"] = int(trained)
    return RotaryScaling(kind, **values)


def _given(settings: Settings) -> tuple[str, dict[str, Any]]:
    settings.ignore("rope_scaling", "rope_parameters")
    new, old = settings.values.get("rope_parameters"), settings.values.get("rope_scaling")
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, dict):
            raise settings.fault(f"{name} is {value!r}; it must be an object")
    if new and old and _kind(new) != _kind(old):
        raise settings.fault("rope_parameters and rope_scaling disagree; keep one of them")
    found = {key: value for key, value in (new or old or {}).items() if value is not None}
    return "rope_parameters" if new else "rope_scaling", found


def _kind(scaling: Mapping[str, Any]) -> Any:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return kind if isinstance(kind, str) else repr(kind)


def rotated_features(settings: Settings, partial: float, head_dim: int) -> int | None:
    """ModelConfig.rotary_dim for a part of each head, rounded down as the reference library does; None for all."""
    rotated = int(head_dim * partial)
    if rotated < 2 or rotated % 2:
        raise settings.fault(f"{partial} of a head of {head_dim} features is {rotated}; it must be even and above 0")
    return None if rotated == head_dim else rotated


def published_partial(rotary_dim: int | None, head_dim: int) -> float:
    """The part of a head that `rotated_features` takes back to rotary_dim."""
    part = 1.0 if rotary_dim is None else rotary_dim / head_dim
    return part if int(head_dim * part) == (rotary_dim or head_dim) else math.nextafter(part, 2.0)


def published_scaling(scaling: RotaryScaling | None, max_positions: int) -> dict[str, Any] | None:
    """rope_scaling, the spelling that every version of the reference library reads."""
    if scaling is None:
        return None
    kind = scaling.kind
    out: dict[str, Any] = {"rope_type": kind, "type": kind}
    if kind == "longrope":
        out |= {"short_factor": list(scaling.short_factors), "long_factor": list(scaling.long_factors)}
    if kind != "longrope" or scaling.factor != max(max_positions / scaling.original_max_positions, 1.0):
        out["factor"] = scaling.factor
    if kind == "llama3":
        out |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if kind == "yarn":
        out |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
    if scaling.attention_factor is not None:
        out["attention_factor"] = scaling.attention_factor
    if kind in _MAY:
        out[_TRAINED] = scaling.original_max_positions
    return out
