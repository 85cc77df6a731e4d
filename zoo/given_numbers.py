"""Numbers as people give them: whole ones, ids, any; what is none is refused in one line."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from zoo.errors import InputError


def whole_number(name: str, value: Any) -> int:
    """`value` as an int. Raises InputError for 2.5, "2" or True."""
    try:
        if type(value) is bool:
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r:.40}; it must be a whole number") from None


def whole_ids(ids: Iterable[Any]) -> list[int]:
    """`ids` as ints.

    Raises:
        InputError: no list, or something in it is no whole number.
    """
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__iter__") or getattr(ids, "ndim", 1) != 1:
        raise InputError(f"ids are a {type(ids).__name__}; give a list of whole numbers")
    found = []
    for i in ids.tolist() if hasattr(ids, "tolist") else ids:
        try:
            found.append(operator.index(i))
        except TypeError:
            raise InputError(f"id {i!r:.40} is no whole number") from None
    return found


def whole_numbers(name: str, values: Any) -> list[int]:
    """Ids as ints. Raises InputError where they are no list, or one is no whole number."""
    try:
        return whole_ids(values)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def number(name: str, value: Any) -> float:
    """`value` as a float. Raises InputError for "0.5", None or True."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r:.40}; it must be a number") from None
