"""`python -m eval`."""

import sys

if __name__ == "__main__":
    try:
        from eval.cli import evaluate

        sys.exit(evaluate())
    except KeyboardInterrupt:  # while this was being imported
        sys.exit(130)
