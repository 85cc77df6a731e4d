"""JSON that others wrote: what cannot be read is one line that names the place, never a traceback."""

import json
import math
import re
from pathlib import Path
from typing import Any

from zoo.errors import InputError

# How JSON writes half of a pair; whole pairs are well, so what is found is looked at.
HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, where: str) -> Any:
    """The value of a JSON text.

    Args:
        text: of a file, of a line, of a cell.
        where: what the error line begins with: a path, or path and line.

    Raises:
        InputError: no JSON (NaN and Infinity are none, nor is what overflows to them); nesting that is too deep to
            read; a lone surrogate, half of a character, which no tokenizer, hash or file takes.
    """
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_number)
        if HALF.search(text):
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise InputError(
            f"{where}: \\u{half:04x} is half of a character, without its other half; write the character itself"
        ) from None
    except RecursionError:
        raise InputError(f"{where}: brackets are nested too deeply to be read") from None
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {' '.join(str(error).split())}") from None
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:20]} is too large for a number")
    return found


def read_object(path: Path, wanted: str = "") -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: the file.
        wanted: what it should have been, for the line that says that there is none.

    Raises:
        InputError: no such file, one that cannot be read, what `parse` refuses, another value than an object.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file" + (f"; {wanted}" if wanted else "")) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8") from None
    found = parse(text, f"{path}")
    if not isinstance(found, dict):
        raise InputError(f"{path}: a JSON object is needed, not a {type(found).__name__}")
    return found
