"""One line for each way in which a command can go wrong: words that tyro refuses, exceptions that a person can mend."""

import contextlib
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from zoo.errors import InputError, TryAgain, nearest, passes

KINDS = {"INT": "a whole number", "FLOAT": "a number", "{True,False}": "True or False", "{None}": "None"}


def fault(
    event: Any,
    command: str,
    prog: str,
    words: Sequence[str],
    help_text: Callable[[], str],
    places: Collection[str] = (),
) -> str | None:
    """One line for a parse error of tyro; None for a kind that is not known here. `places`: options with a place."""
    kind = type(event).__name__
    unknown = getattr(event, "tokens", None) or getattr(event, "unrecognized_tokens", None) or []
    if unknown:
        return unknown_word(unknown, command, prog, option_names(help_text()))
    if kind == "MissingArgs":
        names = [argument_name(missing.arg) for missing in event.missing_arguments]
        names = ", ".join(name.strip("-").replace("-", "_").upper() if name in places else name for name in names)
        return f'missing {names} for "{command}"; see "{prog} --help"'
    if kind == "InvalidChoice":
        name = argument_name(event.argument)
        shown = str(event.argument.lowered.metavar)  # in the order of the code, which event.choices may not keep
        choices = shown.strip("{}").split(",") if shown.startswith("{") else map(str, event.choices)
        choices = [choice for choice in choices if choice != "None"]
        return f'{name} of "{command}" cannot be "{event.value}"{nearest(event.value, choices)}'
    if kind == "BadValue" and event.reason == "too_few_values":
        return f'{argument_name(event.argument)} of "{command}" needs a value: {event.argument.lowered.metavar}'
    if kind == "InstantiationFailure":
        if event.argument is None:
            return str(event.message)
        name = argument_name(event.argument)
        kinds = " or ".join(KINDS.get(part, part) for part in str(event.argument.lowered.metavar).split("|"))
        given = value_given(name, words) or "".join(re.findall(r"'(.*)'", str(event.message))[:1])
        return f'{name} of "{command}" takes {kinds}, not "{given}"'
    return None


def unknown_word(unknown: Sequence[str], command: str, prog: str, options: Sequence[str]) -> str:
    """The line for words that no option and no position takes: the first that looks like an option, else the first."""
    word = next((token for token in unknown if re.match(r"--?[A-Za-z]", token)), unknown[0]).partition("=")[0]
    close = difflib.get_close_matches(word.replace("_", "-"), options, n=1, cutoff=0.6)
    hint = f'did you mean "{close[0]}"?' if close else f'see "{prog} --help"'
    return f'{"unknown option" if word.startswith("-") else "unexpected word"} {word} for "{command}"; {hint}'


def argument_name(argument: Any) -> str:
    """`--learning-rate` for an option, its metavar for a positional."""
    flags = argument.lowered.name_or_flags
    return max(flags, key=len) if flags and flags[0].startswith("-") else str(argument.lowered.metavar)


def value_given(name: str, words: Sequence[str]) -> str:
    """What was written after option `name` on the command line, "" where nothing was."""
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == name:
            following = words[index + 1 :]
            end = next((i for i, w in enumerate(following) if re.match(r"--?[A-Za-z]", w)), len(following))
            return value if equals else " ".join(following[:end])
    return ""


def option_names(help_text: str) -> list[str]:
    """The options that a help text lists: words that begin with -- at the left of a line."""
    names = ["--help"]
    for line in help_text.splitlines():
        left = line.strip(" |│").split("  ")[0]
        if left.startswith("-"):
            names += re.findall(r"(?<![\w-])--[A-Za-z][\w.-]*", left)
    return sorted(set(names))


def in_options(line: str, options: Collection[str]) -> str:
    """A line of the library in the words of a command line: `TrainConfig: batch_size is 0` as `--batch-size is 0`.

    Args:
        line: an InputError's.
        options: names of the command's parameters, as Python writes them.
    """

    def spelt(match: re.Match) -> str:
        name = match["name"]
        return f"--{name.replace('_', '-')}" if name in options else match[0]

    line = re.sub(r"\b\w+=\w+, (?=--)", "", line)  # "(overwrite=True, --overwrite)"
    line = re.sub(r"^(?:\w+Config: )?(?P<name>[a-z]\w*)(?= is | \d| and )", spelt, line)
    return re.sub(r"(?<![\w./\\\"'-])(?P<name>[a-z]+(?:_[a-z]+)+)(?![\w./\\\"'(=-])", spelt, line)


def flatten(box: str) -> str:
    """A boxed error message as one line: what stands below its title, up to the next rule."""
    rows = [line.strip(" |│") for line in box.splitlines()[1:]]
    while rows and not re.search(r"\w", rows[0]):
        rows.pop(0)
    end = next((i for i, row in enumerate(rows) if not re.search(r"\w", row)), len(rows))
    return " ".join(" ".join(rows[:end]).split()) or "the command line was not understood"


def describe(error: Exception) -> str | None:
    """One line for an exception that the person can mend; None for one that is a fault of the program."""
    line = None
    if isinstance(error, InputError):
        line = str(error)
    elif isinstance(error, ImportError):
        line = describe_import(error)
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" for {error.filename}" if error.filename else ""
        line = f"no space left on the disk{place}: free some and run it again"
    elif isinstance(error, OSError) and error.filename:
        path = Path(os.fsdecode(error.filename))
        if isinstance(error, FileNotFoundError):
            line = f"no such file or folder: {path}{nearest_file(path)}"
        elif isinstance(error, PermissionError):
            line = f"permission denied: {path}"
        elif isinstance(error, IsADirectoryError):
            line = f"{path} is a folder, and a file was expected"
        elif isinstance(error, NotADirectoryError):
            line = f"{path} is a file, and a folder was expected"
    if line is None and isinstance(error, OSError) and passes(error):
        place = f"at {error.filename}" if error.filename else "of a disk or a network"
        line = f"no answer {place} ({error.strerror or error}): run the same command again once there is one"
    return None if line is None else " ".join(line.split())


def exit_code(error: BaseException) -> int:
    """Of a command that ends with this error, which `describe` has a line for: 2, or 75 where it may pass."""
    if isinstance(error, InputError):
        return error.exit_code
    return TryAgain.exit_code if passes(error) else InputError.exit_code


def describe_import(error: ImportError) -> str | None:
    """One line for a missing package, or for a local file that hides one; None for a fault inside this project."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "zoo", "train", "eval"):
        return str(error) if "pip install" in str(error) else None
    origin = getattr(sys.modules.get(package), "__file__", None)
    if origin:
        file = Path(origin).resolve()
        folder = file.parents[1] if file.stem == "__init__" else file.parent
        if folder in (Path.cwd(), Path(sys.path[0] or ".").resolve()):
            return f'{file} hides the package "{package}": rename it, or run from another folder'
    if "install" in str(error):
        return str(error)
    return f'the Python package "{package}" is not installed' if isinstance(error, ModuleNotFoundError) else None


def nearest_file(path: Path) -> str:
    """`; did you mean "corpus.txt"?` where a neighbour's name is close to that of a missing file."""
    with contextlib.suppress(OSError):
        close = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1, cutoff=0.6)
        return f'; did you mean "{path.parent / close[0]}"?' if close else ""
    return ""
