"""What every config of the zoo checks where it is made, in one line that names the field."""

import dataclasses
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


def check_types(config: Any) -> None:
    """Closed choices, flags and numbers are what their annotations say; whole numbers are checked with their ranges."""
    hints = typing.get_type_hints(type(config))
    for f in dataclasses.fields(config):
        hint, value = hints[f.name], getattr(config, f.name)
        where, kinds = f"{type(config).__name__}: {f.name}", typing.get_args(hint) or (hint,)
        if typing.get_origin(hint) is Literal:
            if value not in kinds:
                raise InputError(f'{where} is "{value}"{nearest(value, kinds)}')
        elif hint is bool:
            require(isinstance(value, bool), f"{where} is {value!r}; it must be true or false")
        elif float in kinds and not (value is None and type(None) in kinds):
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
