"""`python -m train`."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = ("python -m train prepare --help", "python -m train pretrain --help")


def refuse_shadow(package: str) -> None:
    """Exits with one line if `package` would be imported from elsewhere than beside this one: a local zoo.py, say."""
    home = Path(__file__).resolve().parents[1]
    spec = importlib.util.find_spec(package)
    found = Path(spec.origin).resolve() if spec and spec.origin else None
    if found is not None and found != home / package / "__init__.py":
        print(f'error: {found} hides the package "{package}": rename it, or run from another folder', file=sys.stderr)
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """From plain text to a pre-trained model: vocabulary, shards, pre-training."""
    refuse_shadow("zoo")
    from train.cli import SUBCOMMANDS
    from zoo.command_line import run

    return run("train", SUBCOMMANDS, argv, about=main.__doc__, examples=EXAMPLES)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while this was being imported
        sys.exit(130)
