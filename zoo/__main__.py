"""`python -m zoo`."""

import sys
from collections.abc import Sequence

from zoo.cli import SUBCOMMANDS
from zoo.command_line import run

EXAMPLES = ("python -m zoo list", "python -m zoo show gpt2", "python -m zoo generate --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Which models there are, what is in one, checkpoints in and out, generation."""
    return run("zoo", SUBCOMMANDS, argv, about=main.__doc__, examples=EXAMPLES)


if __name__ == "__main__":
    sys.exit(main())
