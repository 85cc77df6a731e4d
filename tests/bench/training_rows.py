"""The rows of the training bench, the same batches for all, and what each contestant measures of its steps.

Nothing but NumPy is imported, so that every contestant's environment can read this.
"""

import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BATCHES, WARM, RATE, DECAY, CLIP = 8, 2, 1e-4, 0.01, 1.0
MASK, PLAIN = 4, 150  # the masking token, and the first id that texts are drawn from


@dataclass(frozen=True)
class Row:
    """A model's shape, and a batch of it.

    Attributes:
        family: "bert" (post-norm, learned positions, two token types, masked-LM head), "gpt" (pre-norm, learned
            positions) or "llama" (RMSNorm, rotary, SwiGLU, no biases); read-outs are tied to the token table.
        vocabulary, width, layers, heads, mlp, positions: its sizes.
        rows, length: of a batch, in tokens that are predicted from.
        share: of the tokens that are chosen for masked LM; 0 for next-token prediction.
        dropout: of embeddings, attention weights and residual updates.
    """

    family: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    mlp: int
    positions: int
    rows: int
    length: int
    share: float = 0.0
    dropout: float = 0.0

    @property
    def tokens(self) -> int:
        """Of a batch."""
        return self.rows * self.length

    @property
    def layer_weights(self) -> int:
        """Weights that a token is multiplied by in one layer: 4 D^2 + 2 D F, or 3 D F where gated."""
        return 4 * self.width**2 + (3 if self.family == "llama" else 2) * self.width * self.mlp

    @property
    def parameters(self) -> int:
        """Of the whole model, biases and norms too."""
        D, table = self.width, self.vocabulary * self.width
        if self.family == "llama":
            return table + self.layers * (self.layer_weights + 2 * D) + D
        # Biases: 4 D of attention, D + F of the feed-forward; two norms of 2 D.
        total = table + self.positions * D + self.layers * (self.layer_weights + 9 * D + self.mlp)
        if self.family == "gpt":
            return total + 2 * D
        return total + 2 * D + 2 * D + (D * D + 3 * D) + self.vocabulary

    @property
    def flops(self) -> float:
        """Model FLOPs a token of one step: 6 N of the weights that it is multiplied by, and 12 L S D of attention.

        S is the keys that a token sees: T, or (T + 1) / 2 on average of a causal model. The read-out (with BERT's
        transform) counts for predicted positions alone.
        """
        read = self.vocabulary * self.width + (self.width**2 if self.family == "bert" else 0)
        weights = self.layers * self.layer_weights + (self.share or 1.0) * read
        keys = self.length if self.family == "bert" else (self.length + 1) / 2
        return 6 * weights + 12 * self.layers * keys * self.width


BERT = Row("bert", 30522, 768, 12, 12, 3072, 512, rows=16, length=128, share=0.15)
GPT2 = Row("gpt", 50257, 768, 12, 12, 3072, 1024, rows=4, length=256)
LLAMA = Row("llama", 32000, 768, 12, 12, 2048, 2048, rows=4, length=256)
TINY = {
    "vocabulary": 4096, "width": 128, "layers": 2, "heads": 2, "mlp": 512, "positions": 512, "rows": 16, "length": 64,
}  # fmt: skip
ROWS = {
    "bert": BERT,
    "bert-dropout": replace(BERT, dropout=0.1),
    "gpt2": GPT2,
    "llama": LLAMA,
    "llama-long": replace(LLAMA, rows=1, length=2048),
    "bert-tiny": replace(BERT, **TINY),
    "gpt-tiny": replace(GPT2, **TINY),
}


@dataclass(frozen=True)
class Contestant:
    """How one contestant trains.

    Attributes:
        library: "ours", "theirs" (transformers), "keras", "x" (x-transformers) or "litgpt".
        half: products in bfloat16 over float32 parameters; such are set against each other.
        compiled: by torch.compile.
        fields: of this project's ModelConfig.
        families: of rows that the library can build.
    """

    library: str
    half: bool = False
    compiled: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    families: tuple[str, ...] = ("bert", "gpt", "llama")

    @property
    def precision(self) -> str:
        """The class it is compared in."""
        return "bf16" if self.half else "float32"


class Masked(NamedTuple):
    """A corrupted batch: inputs [B, T]; of each row chosen positions, their labels, 1 where one counts, [B, K] each."""

    inputs: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def batches(row: Row, steps: int) -> Iterator[np.ndarray]:
    """Ids [B, T] (T + 1 for next-token prediction) of each step, eight batches in turn.

    They are of a sharply uneven distribution: there is something to learn, and early.
    """
    rng = np.random.default_rng(0)
    shape = (BATCHES, row.rows, row.length + (not row.share))
    drawn = PLAIN + ((row.vocabulary - PLAIN - 50) * rng.random(shape) ** 4).astype(np.int32)
    for number in range(steps):
        yield drawn[number % BATCHES]


def masked(row: Row, ids: np.ndarray, number: int) -> Masked:
    """BERT's corruption, anew at each step: of the chosen 80 % hidden, 10 % another token, 10 % kept.

    round(share B T) positions are chosen, spread evenly over rows: a fixed number, so that nobody compiles twice.
    """
    rng = np.random.default_rng([1, number])
    B, T = ids.shape
    total = round(row.share * B * T)
    slots = -(-total // B)
    positions = np.sort(np.argsort(rng.random((B, T)), axis=1)[:, :slots], axis=1).astype(np.int32)
    counts = total // B + (np.arange(B) < total % B)
    weights = (np.arange(slots) < counts[:, None]).astype(np.float32)
    labels = np.take_along_axis(ids, positions, axis=1)
    kind = rng.random((B, slots))
    another = rng.integers(7, row.vocabulary, (B, slots), dtype=ids.dtype)
    put = np.where(kind < 0.8, MASK, np.where(kind < 0.9, another, labels))
    inputs = ids.copy()
    np.put_along_axis(inputs, positions, np.where(weights > 0, put, labels), axis=1)
    return Masked(inputs, positions, labels, weights)


def masked_batches(row: Row, steps: int) -> Iterator[Masked]:
    """All steps' corrupted batches."""
    for number, ids in enumerate(batches(row, steps)):
        yield masked(row, ids, number)


def measured(
    step: Callable[[Any], float], given: Iterable[Any], row: Row, parameters: int, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Runs `step` on each of the batches, which are made between the times, and tells what it cost.

    Args:
        step: one whole step; returns its loss as a number, so it has ended.
        given: batches; the first WARM are not counted.
        row: what is trained.
        parameters: how many the contestant trains; must be the row's to 1 %.
        more: further values, kept as they are.

    Returns:
        See tests/bench/training.py.

    Raises:
        ValueError: another number of parameters.
    """
    if abs(parameters / row.parameters - 1) > 0.01:
        raise ValueError(f"{parameters:,} parameters are trained, and this row has {row.parameters:,}")
    walls, cpus, losses = [], [], []
    for batch in given:
        wall, cpu = time.perf_counter(), time.process_time()
        losses.append(float(step(batch)))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    usual = walls[WARM:]
    return {
        "rate": row.tokens / statistics.median(usual),
        "unit": "tokens",
        "spread": [row.tokens / max(usual), row.tokens / min(usual)],
        "step": statistics.median(usual),
        "cpu": statistics.median(cpus[WARM:]),
        "rate_cpu": row.tokens / statistics.median(cpus[WARM:]),
        "first_step": walls[0],
        "losses": [statistics.mean(losses[:BATCHES]), statistics.mean(losses[-BATCHES:])],
        "peak": peak_memory(),
        "parameters": parameters,
        "flops": row.flops,
        "steps": len(usual),
        **(more or {}),
    }


def peak_memory() -> int:
    """The most bytes that this process held: VmHWM where there is /proc, which begins anew with the program."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
