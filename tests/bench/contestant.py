"""A contestant of a bench: one process, in the environment that suits it, whose last line is its result as JSON."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class Failed(Exception):
    """A contestant ended with an error; the text is the end of what it said."""


def result_of(words: list[str]) -> dict[str, Any]:
    """Runs a command line from the repository's root, and reads its last line."""
    done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.decode()[-2000:])
    return json.loads(done.stdout.decode().splitlines()[-1])
