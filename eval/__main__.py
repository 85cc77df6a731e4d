"""`python -m eval`."""

import sys

from eval.cli import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
