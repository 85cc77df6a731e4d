"""The command lines' shared machinery: subcommands as plain functions, read by tyro, with errors of one line.

A subcommand is a function with typed parameters, or with one frozen dataclass as its only parameter. Its docstring is
the help: the first line is the summary, `Args:` describes the options, and an `Examples:` section is printed below.
Keyword parameters are options (`--learning-rate`); those before a `/` in the signature are positional. Required ones
may be written either way, as in a Python call: `import A B`, `import A --out B`, `import --path A --out B`.

Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may pass (the same command may succeed later), 130
interrupted, 143 terminated, else what the function returns.
An exception that is not known to be the input's fault keeps its traceback; ONEBLOCK_TRACEBACK=1 keeps every one.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from zoo.command_errors import describe, exit_code, fault, flatten, in_options
from zoo.command_help import shown, stand_in, unwrapped
from zoo.errors import InputError, nearest
from zoo.tpu_machine import answer_for_none

Subcommand = Callable[..., Any] | str
INTERRUPTED, TERMINATED = 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where the program stands, so that it cleans up as on Ctrl-C."""


@contextlib.contextmanager
def orderly_stop() -> Iterator[None]:
    """SIGTERM raises Terminated; a second one ends the program at once. Handlers that others set are left alone."""

    def stop(number, frame):
        del frame
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run(
    prog: str,
    subcommands: Mapping[str, Subcommand],
    argv: Sequence[str] | None = None,
    *,
    about: str = "",
    examples: Sequence[str] = (),
) -> int:
    """Reads a command line, calls the subcommand it names, and turns bad input into one line on stderr.

    Args:
        prog: "zoo", "train" or "eval".
        subcommands: name -> function, or "module:function", which is imported when it is called.
        argv: the words after the program's name; None takes sys.argv.
        about: what the program is for; its first paragraph stands in the overview.
        examples: whole commands for the overview.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    function = None
    answer_for_none()
    try:
        if words[:1] == ["help"] and "help" not in subcommands:
            words = words[1:] + ["--help"]
        if not words or words[0] in ("-h", "--help"):
            print(overview(prog, subcommands, about, examples))
            return 0
        name = choose(prog, words[0], subcommands)
        function = load(subcommands[name])
        with orderly_stop():
            result = parse(function, f"{prog} {name}", words[1:])()
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        line = describe(error)
        if line is None or os.environ.get("ONEBLOCK_TRACEBACK"):
            raise
        print(f"error: {in_options(line, parameter_names(function) if function else ())}", file=sys.stderr)
        return exit_code(error)


def choose(prog: str, word: str, choices: Mapping[str, Any]) -> str:
    """The subcommand that `word` names, `_` read as `-`. Raises InputError with the nearest one."""
    if word.startswith("-"):
        raise InputError(f'unknown option {word} for "{prog}"; a subcommand comes first{nearest("", choices)}')
    name = word if word in choices else word.replace("_", "-")
    if name not in choices:
        raise InputError(f'unknown subcommand "{word}" for "{prog}"{nearest(word, choices)}')
    return name


def load(subcommand: Subcommand) -> Callable[..., Any]:
    """The function itself; "module:function" is imported."""
    if not isinstance(subcommand, str):
        return subcommand
    module, _, name = subcommand.partition(":")
    return getattr(importlib.import_module(module), name)


def launcher(prog: str) -> str:
    """How a person starts `prog`: "python -m train", or "oneblock train" where that is what they typed."""
    if prog == "oneblock":
        return prog
    return f"oneblock {prog}" if Path(sys.argv[0]).stem == "oneblock" else f"python -m {prog}"


def overview(prog: str, subcommands: Mapping[str, Subcommand], about: str, examples: Sequence[str]) -> str:
    """The text of `python -m train --help`: each subcommand with the first line of its docstring."""
    width = min(shutil.get_terminal_size().columns, 120)
    wrap = functools.partial(textwrap.fill, width=width, break_on_hyphens=False)
    column = max(map(len, subcommands), default=0) + 4
    parts = [f"usage: {launcher(prog)} SUBCOMMAND [options]"]
    if about.strip():
        parts.append(wrap(" ".join(inspect.cleandoc(about).split("\n\n")[0].split())))
    lines = [
        wrap(summary(value), initial_indent=f"  {name}".ljust(column), subsequent_indent=" " * column)
        for name, value in subcommands.items()
    ]
    parts.append("\n".join(["subcommands:", *lines]))
    if examples:
        started = [f"  {text.replace(f'python -m {prog}', launcher(prog))}" for text in examples]
        parts.append("\n".join(["examples:", *started]))
    parts.append(f'"{launcher(prog)} SUBCOMMAND --help" shows the options of one.')
    return "\n\n".join(parts)


def summary(subcommand: Subcommand) -> str:
    """The first line of a subcommand's docstring. One given as "module:function" is read from source, not imported."""
    if not isinstance(subcommand, str):
        doc = inspect.getdoc(subcommand)
    else:
        import ast

        module, _, name = subcommand.partition(":")
        top, *inner = module.split(".")
        place = Path(importlib.util.find_spec(top).origin)
        if inner:  # found by name, so that a package within is not imported
            place = place.parent.joinpath(*inner)
            place = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        tree = ast.parse(place.read_text(encoding="utf-8"))
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        doc = ast.get_docstring(found[0]) if found else inspect.getdoc(load(subcommand))
    return (doc or "").strip().split("\n")[0]


def parse(function: Callable[..., Any], command: str, words: Sequence[str]) -> Callable[[], Any]:
    """Reads a subcommand's words into a call that is ready to be made.

    Args:
        function: the subcommand.
        command: how messages name it: "train pretrain".
        words: what follows it.

    Returns:
        The call. `--help` prints and gives a call that does nothing.

    Raises:
        InputError: an unknown option, a missing or a bad value.
    """
    import tyro

    target, call, description = reader(function)
    prog, help_text = launcher(command), functools.partial(captured_help, target, description)
    if {"-h", "--help"} & set(words):
        print(help_of(function, prog), end="")
        return lambda: 0
    words = spell_flags(function, spell_out(target, words))
    places = [f"--{name.replace('_', '-')}" for name in placed(target)]

    def refuse(event):
        line = fault(event, command, prog, words, help_text, places)
        if line is not None:
            raise InputError(line)

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), parse_error_hook(refuse):
            values = tyro.cli(target, prog=prog, args=words, description=description)
    except SystemExit:
        raise InputError(f'{flatten(errors.getvalue())}; see "{prog} --help"') from None
    print(errors.getvalue(), end="", file=sys.stderr)
    return functools.partial(call, values)


def spell_out(target: Callable[..., Any], words: Sequence[str]) -> list[str]:
    """Puts option names before leading words that are values of required parameters which also have a name."""
    parameters = inspect.signature(target).parameters.values()
    unnamed = sum(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters)
    leading = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    required = placed(target)
    named = words[unnamed:leading][: len(required)]
    options = [f"--{name.replace('_', '-')}" for name in required[: len(named)]]
    spelled = [part for pair in zip(options, named, strict=True) for part in pair]
    return [*words[:unnamed], *spelled, *words[unnamed + len(named) :]]


def spell_flags(function: Callable[..., Any], words: Sequence[str]) -> list[str]:
    """Options of yes or no in the one spelling that tyro takes of each.

    All may be written `--overwrite`, `--no-overwrite`, `--overwrite True`, `--overwrite=False`. Where there is nothing
    between yes and no, tyro wants no value; where there is (bool | None: as the config has it), it wants one.
    """
    target = reader(function)[0]
    kinds = {p.name: p for p in shown(target if inspect.isclass(target) else function)}
    spelled, at = [], 0
    while at < len(words):
        word, at = words[at], at + 1
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        name, off = (name[3:], True) if name.startswith("no_") and name not in kinds else (name, False)
        hint = unwrapped(kinds[name].annotation)[0] if name in kinds and option.startswith("--") else None
        if hint not in (bool, bool | None):
            spelled.append(word)
            continue
        if not equals and at < len(words) and words[at] in ("True", "False"):
            equals, value, at = "=", words[at], at + 1
        if equals and (off or value not in ("True", "False")):
            spelled += [option, value]
        elif hint is bool:
            default, wanted = kinds[name].default, (value == "True") if equals else not off
            spelled += [] if wanted == default else [f"--{'' if wanted else 'no-'}{name.replace('_', '-')}"]
        else:
            spelled += [f"--{name.replace('_', '-')}", value or str(not off)]
    return spelled


def placed(target: Callable[..., Any]) -> list[str]:
    """Required parameters that may be written without their name."""
    parameters = inspect.signature(target).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """All that a subcommand takes, by its name in Python."""
    target = reader(function)[0]
    return tuple(parameter.name for parameter in shown(target if inspect.isclass(target) else function))


def reader(function: Callable[..., Any]) -> tuple[Any, Callable[[Any], Any], str]:
    """What tyro reads for a function, how the function is called with what was read, and the text of its help."""
    import docstring_parser
    import tyro

    description = paragraphs(docstring_parser.parse(inspect.getdoc(function) or "").description or "")
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    if len(parameters) == 1:
        (only,) = parameters
        if dataclasses.is_dataclass(hints.get(only.name)):
            return hints[only.name], function, description

    def named(parameter):
        hint = hints.get(parameter.name, parameter.annotation)
        if parameter.kind is parameter.POSITIONAL_ONLY and typing.get_origin(hint) is not typing.Literal:
            hint = Annotated[hint, tyro.conf.arg(metavar=parameter.name.upper())]
        return parameter.replace(annotation=hint)

    def collect(*args, **kwargs):
        return args, kwargs

    collect.__doc__ = function.__doc__
    collect.__signature__ = inspect.Signature([named(parameter) for parameter in parameters])
    collect.__annotations__ = {p.name: p.annotation for p in collect.__signature__.parameters.values()}
    return collect, lambda values: function(*values[0], **values[1]), description


def paragraphs(text: str) -> str:
    """The description wrapped, all but its first line indented: tyro joins lines that begin with a letter."""
    wrap = functools.partial(textwrap.fill, width=min(shutil.get_terminal_size().columns, 100), break_on_hyphens=False)
    first, *more = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    indented = [wrap(paragraph, initial_indent="  ", subsequent_indent="  ") for paragraph in more]
    return "\n".join([wrap(first, subsequent_indent="  "), *indented])


def parse_error_hook(refuse: Callable[[Any], None]) -> contextlib.AbstractContextManager:
    """tyro's structured parse errors where this tyro has them; without them `flatten` reads what it prints."""
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        return contextlib.nullcontext()
    return on_parse_error(refuse)


def help_of(function: Callable[..., Any], prog: str) -> str:
    """The help of a subcommand, its examples last."""
    target, _, description = reader(function)
    typed = target if inspect.isclass(target) else function
    lines = captured_help(stand_in(typed), description, prog).splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n" + examples_of(function)


def captured_help(target: Any, description: str, prog: str | None = None) -> str:
    """tyro's help text, printed nowhere."""
    import tyro

    out = io.StringIO()
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        out.isatty = lambda: True  # so that it is coloured
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        tyro.cli(target, prog=prog, args=["--help"], description=description)
    return out.getvalue()


def examples_of(function: Callable[..., Any]) -> str:
    """The `Examples:` section of a docstring as it is written, "" where there is none."""
    match = re.search(r"(?ms)^Examples?:\n((?:[ \t]+\S.*?(?:\n|\Z)|\n)+)", inspect.getdoc(function) or "")
    return f"\nexamples:\n{textwrap.indent(textwrap.dedent(match[1]).rstrip(), '  ')}\n" if match else ""
