"""Conversations as text: a checkpoint's own Jinja template, rendered where it can neither reach out nor run away.

A template comes from a stranger. It is bounded in size; it runs in Jinja's immutable sandbox, without loaders, with
the filters that published templates use; and what it may take is bounded: lines, seconds, characters.
"""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from zoo.errors import InputError

MAX_TEMPLATE = 256 * 1024
MAX_TEXT = 16 * 1024**2
MAX_LINES = 2_000_000
MAX_SECONDS = 10.0
FILTERS = """abs batch capitalize count d default dictsort first float groupby int items join last length list lower map
    max min reject rejectattr replace reverse round safe select selectattr slice sort string sum title trim truncate
    unique upper""".split()
# Methods of strings that make much of little.
REFUSED_METHODS = ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill")
FILE_NAME = "<chat template>"


class TooMuch(Exception):
    """A template takes more lines, seconds or characters than it may."""


class _TemplateFault(Exception):
    """What a template raises itself, by raise_exception."""


def render(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """The text of a conversation.

    Args:
        template: Jinja source.
        messages: dicts with "role" and "content", as the template expects them.
        **variables: more names: add_generation_prompt, bos_token, tools ...

    Raises:
        InputError: the template is too large, not Jinja, refuses these messages, or takes too much.
    """
    import jinja2

    if len(template) > MAX_TEMPLATE:
        raise InputError(f"the chat template has {len(template)} characters; at most {MAX_TEMPLATE} are rendered")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f'message {number} is {message!r:.60}; give a dict with "role" and "content"')
    try:
        environment = _environment()
        code = environment.compile(environment.from_string_tree(template), filename=FILE_NAME)
        compiled = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        return _counted(compiled, {"messages": list(messages), **variables})
    except _TemplateFault as error:
        raise InputError(f"the chat template refuses these messages: {_one_line(error)}") from None
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"the chat template is not Jinja at line {error.lineno}: {_one_line(error)}") from None
    except (TooMuch, MemoryError, RecursionError, OverflowError) as error:
        said = _one_line(error) or type(error).__name__
        raise InputError(f"the chat template takes more than it may: {said}") from None
    except Exception as error:  # a stranger's program may fail in any way
        raise InputError(f"the chat template fails: {type(error).__name__}: {_one_line(error)}") from None


def check_messages(messages: Any) -> None:
    """Raises InputError where messages are no list of dicts."""
    good = 'give a list of dicts with "role" and "content"'
    if not isinstance(messages, list | tuple):
        raise InputError(f"messages are a {type(messages).__name__}; {good}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError(f"message {number} is {message!r:.60}; {good}")


def _counted(compiled: Any, variables: dict[str, Any]) -> str:
    """Renders while counting the lines that run in the template."""
    left, until = MAX_LINES, time.monotonic() + MAX_SECONDS

    def watch(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != FILE_NAME:
            return None
        left -= 1
        if left < 0 or time.monotonic() > until:
            raise TooMuch(f"more than {MAX_LINES} lines or {MAX_SECONDS:.0f} seconds")
        return watch

    before = sys.gettrace()
    parts, size = [], 0
    try:
        sys.settrace(watch)
        for part in compiled.generate(variables):
            parts.append(part)
            size += len(part)
            if size > MAX_TEXT:
                raise TooMuch(f"more than {MAX_TEXT} characters")
    finally:
        sys.settrace(before)
    return "".join(parts)


def _environment() -> Any:
    import jinja2.sandbox
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    class Concatenation(NodeTransformer):
        """`~` as a filter, so that its length is bounded too."""

        def visit_Concat(self, node):
            node = self.generic_visit(node)
            joined = nodes.List(node.nodes, lineno=node.lineno)
            return nodes.Filter(joined, "_concatenate", [], [], None, None, lineno=node.lineno)

    class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def from_string_tree(self, source):
            return Concatenation().visit(self.parse(source))

        def call_binop(self, context, operator, left, right):
            if isinstance(left, str) and operator == "%":
                raise TooMuch("text % values is not rendered")
            if operator == "**":
                raise TooMuch("powers are not rendered")
            sized = [side for side in (left, right) if isinstance(side, str | list | tuple)]
            if operator == "*" and sized:
                times = right if sized[0] is left else left
                _bound(len(sized[0]) * max(1, times if isinstance(times, int) else 1))
            if operator == "+" and len(sized) == 2:
                _bound(len(left) + len(right))
            return super().call_binop(context, operator, left, right)

        def call(self, context, function, *args, **kwargs):
            owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
            if isinstance(owner, str):
                if name in REFUSED_METHODS:
                    raise TooMuch(f"the method {name} of texts is not rendered")
                if name == "replace" and len(args) > 1:
                    _bound(len(owner) + len(str(args[1])) * (owner.count(str(args[0]))))
                if name == "join" and args:
                    args = (list(args[0]), *args[1:])
                    _bound(sum(len(str(part)) + len(owner) for part in args[0]))
            return super().call(context, function, *args, **kwargs)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=["jinja2.ext.loopcontrols"], cache_size=0
    )
    environment.filters = {name: environment.filters[name] for name in FILTERS}
    environment.filters |= {
        "_concatenate": _concatenate,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "tojson": _to_json,
    }
    environment.globals = {
        "range": jinja2.sandbox.safe_range,
        "dict": dict,
        "namespace": environment.globals["namespace"],
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(str(form)[:80]),
    }
    return environment


def _raise(message: Any) -> None:
    raise _TemplateFault(str(message))


def _bound(size: int) -> None:
    if size > MAX_TEXT:
        raise TooMuch(f"more than {MAX_TEXT} characters or items")


def _concatenate(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _bound(sum(map(len, texts)))
    return "".join(texts)


def _join(values: Any, between: str = "", attribute: Any = None) -> str:
    values = list(values)
    if attribute is not None:
        values = [value.get(attribute, "") if isinstance(value, Mapping) else "" for value in values]
    texts = [str(value) for value in values]
    _bound(sum(len(text) + len(str(between)) for text in texts))
    return str(between).join(texts)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _bound(len(text) + len(new) * text.count(old))
    return text.replace(old, new, -1 if count is None else count)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    by = width if isinstance(width, str) else " " * min(int(width), 1000)
    _bound(len(str(text)) + len(by) * (str(text).count("\n") + 1))
    lines = str(text).splitlines() or [""]
    start = [by + lines[0] if first else lines[0]]
    return "\n".join(start + [by + line if line or blank else line for line in lines[1:]])


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators=None, sort_keys=False
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else min(int(indent), 16),
        separators=separators,
        sort_keys=sort_keys,
    )


def _one_line(error: BaseException) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()[:300]
