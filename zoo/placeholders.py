"""What lies in the place of a file that was never fetched: a Git LFS pointer, or a web page saved under its name."""

import re
from pathlib import Path

LFS = b"version https://git-lfs.github.com/spec/"
PAGE = re.compile(rb"\s*(<!doctype html|<html|<head|<\?xml[^>]*>\s*<!doctype html)", re.IGNORECASE)
LOOKED_AT = 512  # bytes; a pointer has less than 200


def placeholder(head: bytes) -> str | None:
    """What the first bytes of a file show it to be, and what to do; None where they are no placeholder's."""
    head = head[:LOOKED_AT].removeprefix(b"\xef\xbb\xbf")
    if head.startswith(LFS):
        size = re.search(rb"^size (\d+)\s*$", head, re.MULTILINE)
        said = f" ({int(size[1][:18]):,} bytes)" if size else ""
        return f"is a Git LFS pointer and not the file itself{said}; run in its folder: git lfs pull"
    if PAGE.match(head):
        return "is a web page (HTML) and not the file itself; download the file again, by its own address"
    return None


def placeholder_at(path: Path) -> str | None:
    """`placeholder` of a file; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return placeholder(file.read(LOOKED_AT))
    except OSError:
        return None
