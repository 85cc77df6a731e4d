"""Fields of a JSON request, each read once with its range; what nobody reads is refused by name."""

import json
from collections.abc import Mapping
from typing import Any

from zoo.errors import nearest
from zoo.serve.limits import Refusal

# Entries of logit_bias, as OpenAI bounds them.
MAX_BIASES = 300
WORDS = {bool: "true or false", str: "a text", list: "a list", dict: "an object", type(None): "null"}


def parse(body: bytes) -> dict[str, Any]:
    """The object that a body holds.

    Raises:
        Refusal: 400 where it is not UTF-8, not JSON, nested beyond reason, or no object.
    """

    def no_number(word):
        raise ValueError(f"{word} is no JSON number")

    try:
        found = json.loads(body.decode("utf-8"), parse_constant=no_number)
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8 ({error.reason} at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise Refusal(400, "the body is JSON nested deeper than anything here asks for") from None
    except ValueError as error:  # numbers of thousands of digits
        raise Refusal(400, f"the body is not JSON that is read here: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise Refusal(400, f"the body is {named(found)}; it must be an object")
    return found


def named(value: Any) -> str:
    """A value's kind, in JSON's words."""
    return WORDS.get(type(value), "a number")


class Fields:
    """The fields of one object.

    Args:
        values: the object; null stands for a field left out.
        where: put before names in messages, such as "messages[0].".
    """

    def __init__(self, values: Mapping[str, Any], where: str = ""):
        self._values, self._where, self._seen = values, where, set()

    def get(self, name: str, default: Any = None) -> Any:
        """A value as it came."""
        self._seen.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def refuse(self, name: str, must: str) -> Refusal:
        """The refusal of a value."""
        shown = json.dumps(self._values.get(name), default=str)
        shown = shown if len(shown) <= 40 else named(self._values.get(name))
        return Refusal(400, f'"{self._where}{name}" is {shown}; it must be {must}', param=self._where + name)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not (good and (low <= value <= high)):
            raise self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, default: int | None, low: int, high: int | None = None) -> Any:
        value = self.get(name, default)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            bounds = f"{low} or more" if high is None else f"from {low} to {high}"
            raise self.refuse(name, f"a whole number, {bounds}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.get(name, default)
        if value not in choices:
            raise self.refuse(name, " or ".join(f'"{word}"' for word in choices))
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self.get(name, default)
        if value is not None and not isinstance(value, str):
            raise self.refuse(name, "a text")
        return value

    def inner(self, name: str) -> "Fields | None":
        """An object's fields."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return Fields(value, f"{self._where}{name}.")

    def biases(self, name: str, limit: int) -> dict[int, float]:
        """id -> number from -100 to 100."""
        value, found = self.get(name, {}), {}
        if not isinstance(value, dict):
            raise self.refuse(name, "an object of ids with their numbers")
        if len(value) > MAX_BIASES:
            message = f'"{name}" has {len(value)} ids; at most {MAX_BIASES} are taken'
            raise Refusal(400, message, param=self._where + name)
        for token, bias in value.items():
            number = isinstance(bias, int | float) and not isinstance(bias, bool) and -100 <= bias <= 100
            if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < limit and number):
                raise Refusal(
                    400,
                    f'"{name}" gives {json.dumps(bias, default=str):.20} to "{token:.20}"; ids go from 0 to '
                    f"{limit - 1}, numbers from -100 to 100",
                    param=name,
                )
            found[int(token)] = float(bias)
        return found

    def end(self, without: Mapping[str, tuple[Any, ...]] | None = None) -> None:
        """Refuses what was not read; `without`: known names that are not served, with values that change nothing."""
        without = without or {}
        for name, value in self._values.items():
            if name in self._seen or value is None:
                continue
            full = f"{self._where}{name}"[:80]
            if name in without:
                if any(type(value) is type(one) and value == one for one in without[name]):
                    continue
                idle = " or ".join(json.dumps(one) for one in without[name])
                but = f" (but {idle})" if idle else ""
                raise Refusal(400, f'"{full}" is not supported here{but}', param=full, code="unsupported_parameter")
            near = nearest(name, self._seen) if len(name) <= 40 else ""
            near = near if near.startswith("; did") else ""
            raise Refusal(400, f'there is no field "{full}"{near}', param=full, code="unknown_parameter")
