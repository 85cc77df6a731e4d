"""`python -m zoo`."""

import sys
from collections.abc import Sequence

EXAMPLES = ("python -m zoo list", "python -m zoo show gpt2", "python -m zoo generate --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Which models there are, what is in one, checkpoints in and out, generation."""
    from zoo.cli import SUBCOMMANDS
    from zoo.command_line import run

    return run("zoo", SUBCOMMANDS, argv, about=main.__doc__, examples=EXAMPLES)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while this was being imported
        sys.exit(130)
