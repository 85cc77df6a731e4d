"""What the pictures show, as plain data that `zoo.lens.views` makes, `pictures` draws and `page` lays out.

Numbers are NumPy arrays, in nats where they are log-probabilities; tokens and pieces are texts to be shown.
"""

from dataclasses import dataclass

import numpy as np

CAVEAT = (
    "Attention weights are not an explanation: they say from where a head reads, not whether what it reads matters. "
    "Ablation asks that: beside each map stands what changes when the head's output is set to zero."
)


@dataclass(frozen=True)
class Target:
    """What a picture asks about: the probability of one piece at one position.

    Attributes:
        id: of the piece.
        at: position whose logits are read, from 0.
        text: of the piece.
        log_prob: its log-probability there, in nats.
    """

    id: int
    at: int
    text: str
    log_prob: float


@dataclass(frozen=True)
class LensTable:
    """The likeliest pieces at each layer and position.

    Attributes:
        tokens: T texts.
        layers: L + 1 names, from the embedding to the last layer.
        ids: int [L + 1, T, k], the likeliest first.
        probabilities: [L + 1, T, k].
        texts: of all ids.
    """

    tokens: tuple[str, ...]
    layers: tuple[str, ...]
    ids: np.ndarray
    probabilities: np.ndarray
    texts: dict[int, str]


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of every head, and what zeroing that head changes.

    Attributes:
        tokens: T texts.
        weights: [L, N, T, T]; rows are queries, columns are keys.
        effects: [L, N].
        effect: what `effects` are, in words.
    """

    tokens: tuple[str, ...]
    weights: np.ndarray
    effects: np.ndarray
    effect: str

    @property
    def strongest(self) -> tuple[int, int]:
        """(layer, head) whose zeroing changes most."""
        layer, head = np.unravel_index(np.argmax(np.abs(self.effects)), self.effects.shape)
        return int(layer), int(head)


@dataclass(frozen=True)
class Norms:
    """The length of the residual stream, by layer and position: values [L + 1, T]."""

    tokens: tuple[str, ...]
    layers: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True)
class Bars:
    """A logit as a sum of components: the largest ones, and the rest together.

    Attributes:
        names, values: from the largest by size; the last may be "n others".
        total: the logit, which all values add up to.
        what: the logit in words.
    """

    names: tuple[str, ...]
    values: np.ndarray
    total: float
    what: str


@dataclass(frozen=True)
class HeatMap:
    """How much of the difference between two prompts comes back when one place of the clean one is patched in.

    Attributes:
        columns: T texts of the clean prompt, "clean | corrupted" where the two differ.
        layers: L names.
        values: [L, T]; 0 is the corrupted prompt's metric, 1 the clean one's.
        clean, corrupted: the metric itself.
        what: the metric in words.
    """

    columns: tuple[str, ...]
    layers: tuple[str, ...]
    values: np.ndarray
    clean: float
    corrupted: float
    what: str


View = LensTable | AttentionMaps | Norms | Bars | HeatMap
