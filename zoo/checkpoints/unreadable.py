"""Why files of a checkpoint could not be read, in one line: only what is known to be damaged is called damaged.

Orbax and its array store raise many kinds of error, and what they mean lies in their texts. A share that does not
answer or a device without room says nothing of the files, and nobody should be told to part with them.
"""

import errno
import json
import zlib
from typing import Any

from zoo.checkpoints.orbax_quiet import is_full
from zoo.errors import InputError, TryAgain, behind, has_number, passes

ELSEWHERE = "name another step's folder, or copy it anew"
REFUSED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE)
NO_ROOM = ("resource_exhausted", "out of memory", "bad_alloc")
BROKEN = (
    "data_loss", "not_found", "out_of_range", "checksum", "crc", "corrupt", "error pars", "error decod", "invalid_arg",
    "not found", "truncated", "mismatch", "failed_precondition: error", "decompress",
)  # fmt: skip


class Damaged(ValueError):
    """What was read of a file cannot be what was written there."""


KINDS = (
    Damaged, LookupError, FileNotFoundError, NotADirectoryError, UnicodeError, EOFError, zlib.error,
    json.JSONDecodeError,
)  # fmt: skip


def read_table(path: Any) -> dict[str, Any]:
    """A file's JSON table; what is no JSON, or no table, raises Damaged."""
    name = f"{path.parent.name}/{path.name}"
    try:
        found = json.loads(path.read_bytes().decode())
    except (RecursionError, ValueError) as error:
        raise Damaged(f"{name}: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"{name} holds {repr(found)[:40]}, and no table")
    return found


def unreadable(where: Any, error: BaseException, remedy: str = ELSEWHERE) -> InputError:
    """The error to raise where `error` kept a checkpoint's files from being read.

    Args:
        where: the folder.
        error: what was raised; those behind it count, too.
        remedy: what to do where the files are damaged, and only there.

    Returns:
        TryAgain where a disk or a network did not answer, else InputError.
    """
    errors = [one for one in behind(error) if not isinstance(one, StopIteration)] or [error]  # behind JSON's own
    said = " ".join(str(errors[-1]).split())[:200]
    if isinstance(errors[-1], LookupError) or not said:  # of which the text is the key alone
        said = f"{type(errors[-1]).__name__}: {said}"
    text = " ".join(str(one) for one in errors).lower()
    if passes(error) or any(word in text for word in ("unavailable:", "deadline_exceeded:")):
        return TryAgain(
            f"{where} cannot be read at present, and nothing says that its files are damaged: keep them, see whether "
            f"the disk or the share answers, and run the same command again ({said})"
        )
    if any(has_number(one, REFUSED) for one in errors) or "permission_denied" in text:
        return InputError(f"{where} cannot be opened ({said}); its files are not known to be damaged: keep them")
    if isinstance(error, MemoryError) or (any(word in text for word in NO_ROOM) and not is_full(error)):
        return InputError(
            f"there is no room in memory for {where}; its files are not known to be damaged: split it over more "
            f"devices, or see what else holds their memory ({said})"
        )
    if isinstance(error, KINDS) or any(word in text for word in BROKEN):
        return InputError(f"{where}: its files are damaged or missing; {remedy} ({said})")
    return InputError(
        f"{where} cannot be read; whether its files are damaged is not known: keep them until it is "
        f"({type(error).__name__}: {said})"
    )
