"""Whether this machine has TPU chips, and what the TPU's library is told where it has none."""

import glob
import importlib.util
import os
from pathlib import Path

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

GIVEN, HANDED_THROUGH, ON_THE_BUS = "/dev/accel[0-9]*", "/dev/vfio/[0-9]*", "/sys/bus/pci/devices/*"
# PCI's numbers of TPUs v3 to 8, as jax 0.12 lists them.
CHIPS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c"}


def has_library() -> bool:
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def has_chips() -> bool:
    """Whether the machine has TPU chips, given to this process.

    What the kernel hands through (vfio) may also be a GPU or a network card: then the bus tells, as jax asks it.
    """
    return bool(glob.glob(GIVEN) or (glob.glob(HANDED_THROUGH) and any(map(_is_chip, glob.glob(ON_THE_BUS)))))


def _is_chip(folder: str) -> bool:
    """Whether a device on the PCI bus is a TPU: Google also makes network cards and disks."""
    try:
        vendor, device = ((Path(folder) / name).read_text("ascii").strip() for name in ("vendor", "device"))
    except (OSError, ValueError):
        return False
    return vendor == "0x1ae0" and device in CHIPS


def answer_for_none() -> None:
    """Where libtpu is installed and no chip is here: answers its questions in the environment, before jax starts."""
    if has_library() and not has_chips():
        for name, value in ANSWERS.items():
            os.environ.setdefault(name, value)
