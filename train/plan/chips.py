"""Accelerators as their makers publish them: peaks, memory, links. The one table for plans and for MFU.

Sources, by the letters in the table (G was read in November 2026; the links of S, and most GPUs of N, through pages
that quote them):
    G  Google Cloud TPU documentation, the page of each version (docs.cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e,
       tpu7x): peaks, HBM, torus, chips a host, network a chip
    S  "How to Scale Your Model" (Austin et al. 2025, jax-ml.github.io/scaling-book), chapter 2: bytes/s of a link in
       one direction (of v4 to v6e a tenth below what G gives a chip, over its links and both directions), and which
       ends of a torus are joined
    N  NVIDIA's data sheets of T4, V100, L4, L40S, A100, H100, H200 and HGX B200: dense peaks (half of those printed
       "with sparsity"), memory; links: NVLink or PCIe, half of what is printed for both directions; networks: one port
       a GPU, as in the maker's reference machines (V100: four for eight); T4, L4 and L40S are in no such machine, and
       10, 25 and 200 Gbit/s are assumed
"""

from dataclasses import dataclass

from zoo.errors import InputError, nearest

_GB = 2**30  # makers write GB for what devices report in GiB


@dataclass(frozen=True)
class Chip:
    """One accelerator as its maker publishes it.

    Attributes:
        name: short name, as in "v5e:16x16".
        device_kinds: what jax calls its devices.
        bf16_flops: dense peak, FLOP/s a chip (float16 where it has no bfloat16).
        int8_ops: dense peak, operations/s a chip (8-bit floats where those are what it has); None where none is given.
        hbm_bytes: memory a chip.
        hbm_bandwidth: bytes/s a chip.
        link_bandwidth: bytes/s in one direction of a link to a neighbour; on a switch, of all links of a chip together.
        torus: dimensions of the torus, a chip having two links in each; 0 where chips hang on a switch.
        ring: a dimension of the torus is closed to a ring where this divides its size.
        dcn_bandwidth: bytes/s a chip in one direction out of its slice (or, on a switch, out of its host).
        chips_a_host: chips on one host.
        devices_a_chip: jax devices a chip; 2 where each half is a device of its own.
        source: letters of the sources above.
    """

    name: str
    device_kinds: tuple[str, ...]
    bf16_flops: float
    int8_ops: float | None
    hbm_bytes: float
    hbm_bandwidth: float
    link_bandwidth: float
    torus: int
    ring: int
    dcn_bandwidth: float
    chips_a_host: int
    devices_a_chip: int
    source: str


# name, device kinds, bf16, int8, HBM bytes, HBM bytes/s, link, torus, ring, network, chips a host, devices a chip
_ROWS = (
    ("v3", ("TPU v3",), 123e12, None, 32 * _GB, 900e9, 100e9, 2, 32, 3.125e9, 4, 2, "GS"),
    ("v4", ("TPU v4",), 275e12, 275e12, 32 * _GB, 1200e9, 45e9, 3, 4, 6.25e9, 4, 1, "GS"),
    ("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 393e12, 16 * _GB, 819e9, 45e9, 2, 16, 3.125e9, 8, 1, "GS"),
    ("v5p", ("TPU v5", "TPU v5p"), 459e12, 459e12, 95 * _GB, 2765e9, 90e9, 3, 4, 6.25e9, 4, 1, "GS"),
    ("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, 1836e12, 32 * _GB, 1638e9, 90e9, 2, 16, 12.5e9, 8, 1, "GS"),
    ("tpu7x", ("TPU7x",), 2307e12, 4614e12, 192 * _GB, 7380e9, 90e9, 3, 4, 12.5e9, 4, 2, "GS"),
    ("t4", ("Tesla T4",), 65e12, 130e12, 16 * _GB, 320e9, 16e9, 0, 0, 1.25e9, 1, 1, "N"),
    ("v100", ("Tesla V100-SXM2-16GB",), 125e12, None, 16 * _GB, 900e9, 150e9, 0, 0, 6.25e9, 8, 1, "N"),
    ("l4", ("NVIDIA L4",), 121e12, 242e12, 24 * _GB, 300e9, 32e9, 0, 0, 3.125e9, 8, 1, "N"),
    ("l40s", ("NVIDIA L40S",), 362e12, 733e12, 48 * _GB, 864e9, 32e9, 0, 0, 25e9, 8, 1, "N"),
    ("a100-pcie", ("NVIDIA A100-PCIE-40GB",), 312e12, 624e12, 40 * _GB, 1555e9, 32e9, 0, 0, 25e9, 8, 1, "N"),
    ("a100-40gb", ("NVIDIA A100-SXM4-40GB",), 312e12, 624e12, 40 * _GB, 1555e9, 300e9, 0, 0, 25e9, 8, 1, "N"),
    ("a100", ("NVIDIA A100-SXM4-80GB",), 312e12, 624e12, 80 * _GB, 2039e9, 300e9, 0, 0, 25e9, 8, 1, "N"),
    ("h100-pcie", ("NVIDIA H100 PCIe",), 756e12, 1513e12, 80 * _GB, 2000e9, 64e9, 0, 0, 50e9, 8, 1, "N"),
    ("h100", ("NVIDIA H100 80GB HBM3",), 989e12, 1979e12, 80 * _GB, 3350e9, 450e9, 0, 0, 50e9, 8, 1, "N"),
    ("h200", ("NVIDIA H200",), 989e12, 1979e12, 141 * _GB, 4800e9, 450e9, 0, 0, 50e9, 8, 1, "N"),
    ("b200", ("NVIDIA B200",), 2250e12, 4500e12, 180 * _GB, 8000e9, 900e9, 0, 0, 50e9, 8, 1, "N"),
)
CHIPS = {row[0]: Chip(*row) for row in _ROWS}


def find_chip(name: str) -> Chip:
    """The chip of that name.

    Raises:
        InputError: none; the nearest is named.
    """
    if name not in CHIPS:
        raise InputError(f'chip "{name}" is unknown{nearest(name, CHIPS)}')
    return CHIPS[name]


def chip_of(device_kind: str) -> Chip | None:
    """The chip whose devices jax calls so, or None."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.device_kinds), None)
