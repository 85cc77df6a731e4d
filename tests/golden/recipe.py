"""Weights by seed: the same tensors on every machine, from names and shapes alone.

NumPy freezes RandomState's streams for good, so golden files hold numbers that a model gave and no weights.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from zoo.checkpoints.safetensors_out import write_file

HERE = Path(__file__).resolve().parent


def seeded_tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32, wide enough that attention is far from uniform and that a swapped or transposed weight is felt.

    Norm scales spread around 1, biases around 0; embeddings have deviation 1; matrices 1.2 / sqrt(shorter side).
    """
    draw = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).standard_normal(shape)
    if len(shape) == 1:
        return ((1.0 if name.endswith("weight") else 0.0) + 0.2 * draw).astype(np.float32)
    if "embed" in name or name.endswith(("wte.weight", "wpe.weight")):
        return draw.astype(np.float32)
    return (1.2 / np.sqrt(min(shape)) * draw).astype(np.float32)


def write_folder(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]], seed: int) -> Path:
    """A Hugging Face folder with seeded weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: seeded_tensor(name, tuple(shape), seed) for name, shape in shapes.items()}
    write_file(folder / "model.safetensors", tensors)
    return folder


def batch(seed: int, vocab_size: int, rows: int, length: int, shortest: int, left: bool) -> dict[str, np.ndarray]:
    """Padded rows: tokens, padding_mask, positions that count real tokens from 0, and token_types of two halves.

    Padding holds ordinary token ids, so that a mask rebuilt from ids would be caught.
    """
    draw = np.random.RandomState(seed)
    lengths = np.linspace(length, shortest, rows).astype(int)
    at = np.arange(length)
    mask = (at[None, :] >= length - lengths[:, None]) if left else (at[None, :] < lengths[:, None])
    return {
        "tokens": draw.randint(0, vocab_size, (rows, length)).astype(np.int32),
        "padding_mask": mask.astype(np.int32),
        "positions": np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype(np.int32),
        "token_types": (np.cumsum(mask, axis=1) > lengths[:, None] // 2).astype(np.int32),
    }


def images(seed: int, rows: int, side: int, channels: int) -> np.ndarray:
    """Noise in place of normalised images: float32 [rows, side, side, channels]."""
    return np.random.RandomState(seed).standard_normal((rows, side, side, channels)).astype(np.float32)


def error(ours: Any, reference: Any, where: np.ndarray | None = None) -> float:
    """Largest difference, as a part of the largest reference number (or of 1 where that is larger).

    Args:
        ours, reference: arrays of one shape.
        where: [B, T] bool, the tokens that count; None for all.
    """
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    assert ours.shape == reference.shape, (ours.shape, reference.shape)
    if where is not None:
        ours, reference = ours[where], reference[where]
    assert np.isfinite(ours).all() and np.isfinite(reference).all()
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))
