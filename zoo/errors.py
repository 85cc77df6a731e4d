"""The one error type for input that a person can mend, and the nearest right name to offer them."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: its message is one line that says what is wrong, where, and the nearest right thing."""


def nearest(word: str, choices: Iterable[str], shown: int = 12) -> str:
    """The end of an error line: the closest of `choices` to `word`, or the choices themselves where none is close.

    Args:
        word: what was given.
        choices: what would have been right.
        shown: how many choices to list when none is close.

    Returns:
        `; did you mean "x"?` or `; one of a, b, c`.
    """
    names = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{close[0]}"?'
    listed = ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
    return f"; one of {listed}" if listed else ""
