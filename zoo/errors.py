"""The error for input that a person can mend, and the nearest right name to offer them."""

import difflib
import errno
import os
from collections.abc import Iterable, Iterator

LONGEST = 200  # characters of a word that are compared; no name is longer
# What a disk or a network says that does not answer now.
PASSING = tuple(
    getattr(errno, name)
    for name in (
        "EIO", "ESTALE", "ETIMEDOUT", "EREMOTEIO", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH",
        "ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "ENOTCONN",
    )
    if hasattr(errno, name)
)  # fmt: skip


class InputError(ValueError):
    """Bad input: its message is one line that says what is wrong, where, and the nearest right thing.

    Attributes:
        exit_code: of a command that ends with it.
    """

    exit_code = 2


class TryAgain(InputError):
    """What may pass by itself, such as a share that does not answer: the same command may succeed later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


def passes(error: BaseException) -> bool:
    """Whether an error, or one behind it, is that of a disk or a network that does not answer now."""
    return any(isinstance(one, TryAgain) or has_number(one, PASSING) for one in behind(error))


def has_number(error: BaseException, numbers: tuple[int, ...]) -> bool:
    """Whether an error is an OSError of these numbers, or says so: libraries below Python give texts alone."""
    if isinstance(error, OSError) and error.errno in numbers:
        return True
    return any(os.strerror(number) in str(error) for number in numbers)


def behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def nearest(word: str, choices: Iterable[str], shown: int = 12) -> str:
    """The end of an error line: the closest of `choices` to `word`, or the choices themselves where none is close.

    A name that differs in capitals alone is the closest.

    Args:
        word: what was given.
        choices: what would have been right.
        shown: how many choices to list when none is close.

    Returns:
        `; did you mean "x"?` or `; one of a, b, c`.
    """
    names = [str(choice) for choice in choices]
    folded = {name.casefold(): name for name in reversed(names)}
    given = str(word)[:LONGEST]
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if given.casefold() in folded:
        close = [folded[given.casefold()]]
    elif not close:
        close = [folded[name] for name in difflib.get_close_matches(given.casefold(), folded, n=1, cutoff=0.6)]
    if close:
        return f'; did you mean "{close[0]}"?'
    listed = ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
    return f"; one of {listed}" if listed else ""
