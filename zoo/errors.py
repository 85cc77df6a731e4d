"""The one error type for input that a person can mend, and the nearest right name to offer them."""

import difflib
from collections.abc import Iterable

LONGEST = 200  # characters of a word that are compared; no name is longer


class InputError(ValueError):
    """Bad input: its message is one line that says what is wrong, where, and the nearest right thing."""


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
