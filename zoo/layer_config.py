"""LayerConfig and RotaryScaling: the parts of a ModelConfig that have fields of their own."""

from dataclasses import dataclass
from typing import Literal

from zoo.config_checks import MAX_DIM, check_types, require, require_int


@dataclass(frozen=True)
class LayerConfig:
    """What may differ between the layers of one repeating pattern.

    Attributes:
        window: None for global attention. A causal query at t sees keys in (t - window, t]; a bidirectional one sees
            |t - s| <= window // 2 (Beltagy et al. 2020, Longformer, section 3.1).
        rotary_base: base of the rotary frequencies in this layer; None takes the model's.
    """

    window: int | None = None
    rotary_base: float | None = None


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary frequencies are stretched beyond the trained length.

    Attributes:
        kind: "linear" divides every frequency by `factor` (Chen et al. 2023, arXiv:2306.15595); "llama3" divides the
            low ones, keeps the high ones and blends between (Llama 3 technical report, arXiv:2407.21783).
        factor: the stretch.
        low_freq_factor, high_freq_factor: llama3 alone: wavelengths above original_max_positions / low_freq_factor are
            divided, those below original_max_positions / high_freq_factor are kept.
        original_max_positions: llama3 alone: the trained length, in tokens.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self):
        check_types(self)
        require(self.factor >= 1.0, f"rotary scaling: factor is {self.factor}; it must be at least 1")
        if self.kind == "llama3":
            require(
                0 < self.low_freq_factor < self.high_freq_factor,
                f"rotary scaling llama3: low_freq_factor {self.low_freq_factor} must be above 0 and below "
                f"high_freq_factor {self.high_freq_factor}",
            )
            require_int("rotary scaling llama3: original_max_positions", self.original_max_positions, 1, 100 * MAX_DIM)
