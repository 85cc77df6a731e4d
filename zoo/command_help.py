"""The help of a subcommand: what tyro prints for a stand-in with the same parameters, told as a newcomer reads them.

Required parameters that have a place stand as positions, kinds of values in plain words (INT, not {None}|INT), and a
default is shown where there is one to see. Parsing does not use this: see zoo.command_line.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

KINDS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}
POSITION, OPTION = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY


def stand_in(target: Callable[..., Any]) -> Callable[..., None]:
    """A function for tyro to print the help of; it is never called.

    Args:
        target: a function or a dataclass. A parameter that is a dataclass and is named "" gives its fields.
    """

    def show(*args, **kwargs):
        """"""

    parameters = sorted(shown(target), key=lambda parameter: parameter.kind)
    show.__signature__ = inspect.Signature(parameters)
    show.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return show


def shown(target: Callable[..., Any], given: Any = None) -> Iterator[inspect.Parameter]:
    """The parameters of a function, or the fields of a dataclass (`given` an instance that has the defaults)."""
    import docstring_parser
    import tyro

    hints = typing.get_type_hints(target, include_extras=True)
    documented = docstring_parser.parse(inspect.getdoc(target) or "").params
    texts = {param.arg_name: " ".join((param.description or "").split()) for param in documented}
    for name, parameter in inspect.signature(target).parameters.items():
        hint, *extras = unwrapped(hints.get(name, str))
        default = parameter.default if given is None else getattr(given, name)
        default = default_of(target, name) if isinstance(default, type(dataclasses.field())) else default
        if dataclasses.is_dataclass(hint) and any(getattr(extra, "name", None) == "" for extra in extras):
            yield from shown(hint, default)
            continue
        required = default is parameter.empty
        placed = parameter.kind is POSITION or (required and parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        about = {"help": texts.get(name) or None, "help_behavior_hint": behaviour(default)}
        kind = kind_of(hint, default)
        if placed:
            kind = name.upper() + (" ..." if typing.get_origin(hint) is tuple else "")
            kind = f"[{kind}]" if not required else kind
        if kind is not None and not (typing.get_origin(hint) is typing.Literal and placed):
            about["metavar"] = kind
        if hint is bool and default is False:
            extras = [tyro.conf.FlagCreatePairsOff, *extras]
        yield inspect.Parameter(
            name,
            POSITION if placed else OPTION,
            default=default,
            annotation=Annotated[(hint, tyro.conf.arg(**about), *extras)],
        )


def unwrapped(hint: Any) -> tuple[Any, ...]:
    """A type and what is annotated to it."""
    return (hint.__origin__, *hint.__metadata__) if typing.get_origin(hint) is Annotated else (hint,)


def default_of(target: Any, name: str) -> Any:
    """The default of a dataclass's field, made by its factory."""
    (found,) = [f for f in dataclasses.fields(target) if f.name == name]
    return found.default_factory()


def kind_of(hint: Any, default: Any) -> str | None:
    """What stands for a value: INT, {a,b}, FLOAT|None; None for what tyro shows well by itself."""
    hint, parts = unwrapped(hint)[0], typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return "{" + ",".join(map(str, parts)) + "}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind_of(part, ...) for part in parts if part is not type(None)]
        also_none = ["None"] if type(None) in parts and default not in (None, ...) else []
        return None if None in kinds else "|".join(kinds + also_none)
    if typing.get_origin(hint) is tuple and parts[1:] == (...,):
        one = kind_of(parts[0], ...)
        return None if one is None else f"{one} ..."
    return KINDS.get(hint)


def behaviour(default: Any) -> str:
    """What stands in brackets behind a description: nothing where the default is nothing or off."""
    if default is inspect.Parameter.empty:
        return "(required)"
    if default is None or default is False or default == "" or default == ():
        return ""
    text = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"(default: {text})"
