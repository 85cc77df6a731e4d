"""Whether this machine has TPU chips, and what the TPU's library is told where it has none."""

import glob
import importlib.util
import os

# libtpu asks a metadata server and these variables which machine it is on, and complains on stderr when nobody answers.
# It is installed without a TPU for `python -m train plan`, which compiles for pods that are elsewhere.
ANSWERS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


def has_library() -> bool:
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def has_chips() -> bool:
    """Whether the machine has TPU chips."""
    return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


def answer_for_none() -> None:
    """Where libtpu is installed and no chip is here: answers its questions in the environment, before jax starts."""
    if has_library() and not has_chips():
        for name, value in ANSWERS.items():
            os.environ.setdefault(name, value)
