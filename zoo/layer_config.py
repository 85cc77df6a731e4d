"""LayerConfig and RotaryScaling: the parts of a ModelConfig that have fields of their own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zoo.config_checks import MAX_DIM, check_types, require, require_int


@dataclass(frozen=True)
class LayerConfig:
    """What may differ between the layers of one repeating pattern.

    Attributes:
        window: None for global attention. A causal query at t sees keys in (t - window, t]; a bidirectional one sees
            |t - s| <= window // 2 (Beltagy et al. 2020, Longformer, section 3.1).
        rotary_base: base of the rotary frequencies in this layer; None takes the model's.
        attention_norm: whether attention reads a normalised stream (pre and both alone). ModernBERT's first layer does
            not, since its embeddings are normalised already (Warner et al. 2024, arXiv:2412.13663, section 2.1).
        rotary: False turns nothing in this layer: no position but the causal order (Yang et al. 2025,
            arXiv:2501.18795; SmolLM3).
        rotary_scaled: False leaves this layer's frequencies unscaled (Gemma 3's local layers, arXiv:2503.19786).
    """

    window: int | None = None
    rotary_base: float | None = None
    attention_norm: bool = True
    rotary: bool = True
    rotary_scaled: bool = True


@dataclass(frozen=True)
class Int8:
    """Weights in int8 (zoo.int8): how many input columns of each kind of kernel stay float.

    Attributes:
        attention: of query, key and value: a number a layer, or one for all (a scan's must be alike); a bare one is one
            for all.
        out: of attention's out projection, likewise.
        mlp: of the FFN's up and gate.
        down: of its down.
        table: of the token table and of an untied read-out; None leaves both float.
    """

    attention: tuple[int, ...] = (0,)
    out: tuple[int, ...] = (0,)
    mlp: tuple[int, ...] = (0,)
    down: tuple[int, ...] = (0,)
    table: int | None = None

    def __post_init__(self):
        for kind in INT8_KINDS:
            given = getattr(self, kind)
            object.__setattr__(self, kind, tuple(given) if isinstance(given, tuple | list) else (given,))

    def layer(self, index: int) -> "Int8":
        """The same of one layer."""
        found = {kind: getattr(self, kind) for kind in INT8_KINDS}
        return replace(self, **{kind: counts[index % len(counts)] for kind, counts in found.items()})


INT8_KINDS = ("attention", "out", "mlp", "down")


def shortest_pattern(layers: Sequence[LayerConfig]) -> tuple[LayerConfig, ...]:
    """The shortest pattern that, repeated and cut off at the end, gives `layers`."""
    for length in range(1, len(layers)):
        if all(layers[i] == layers[i % length] for i in range(length, len(layers))):
            return tuple(layers[:length])
    return tuple(layers)


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary frequencies are stretched beyond the trained length.

    "dynamic" and "longrope" depend on the length. Without a cache it is, for each token, 1 + the highest position among
    the real tokens of its own segment: rows and segments are scaled each on their own. With a cache it is what a row
    can come to hold: the slots of the cache less the row's padding, known at the first call and kept. So every step of
    a cached run turns by the same frequencies, and equals one pass over a row that fills the cache; take a cache no
    longer than the text will be. Segments, given positions and, in a later call, padding after a row's first token are
    refused there.

    The reference library takes the highest position of the whole batch, and remembers it: cached keys were turned by
    one length and new queries turn by another. Its Phi-3 alone computes the cache anew where a text outgrows the
    trained length: before that it differs from ours, which knew, and from there on it is the same. Texts that stay
    below the trained length, and those that begin beyond it, are the same throughout.

    Attributes:
        kind: "linear" divides every frequency by `factor` (Chen et al. 2023, arXiv:2306.15595). "llama3" divides the
            low ones, keeps the high ones and blends between (Llama 3 technical report, arXiv:2407.21783). "yarn" does
            so by number of turns, and sharpens attention (Peng et al. 2023, arXiv:2309.00071, 3.2). "dynamic" raises
            the base with the length: base (factor n / P - factor + 1)^(R / (R - 2)) for n > P, P the trained length
            and R the rotated features (the NTK-aware interpolation of arXiv:2309.00071, A.2). "longrope" divides each
            frequency by its own number, out of one list up to the trained length and another beyond it (Ding et al.
            2024, arXiv:2402.13753).
        factor: the stretch; of longrope only attention_factor depends on it.
        low_freq_factor, high_freq_factor: llama3 alone: wavelengths above original_max_positions / low_freq_factor are
            divided, those below original_max_positions / high_freq_factor are kept.
        original_max_positions: of all but linear: the trained length, in tokens.
        beta_fast, beta_slow, truncate: yarn alone: frequencies that turn more than beta_fast times over the trained
            length are kept, those below beta_slow turns are divided; truncate rounds the two bounds outwards to whole
            frequencies.
        attention_factor: yarn and longrope: cos and sin are multiplied by it, so scores by its square. None for the
            papers' 0.1 ln(factor) + 1 and sqrt(1 + ln(factor) / ln(original_max_positions)).
        short_factors, long_factors: longrope alone: R / 2 divisors each.
    """

    kind: Literal["linear", "llama3", "dynamic", "yarn", "longrope"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self):
        check_types(self)
        where = f"rotary scaling {self.kind}:"
        require(self.factor >= 1.0, f"rotary scaling: factor is {self.factor}; it must be at least 1")
        if self.kind != "linear":
            require_int(f"{where} original_max_positions", self.original_max_positions, 1, 100 * MAX_DIM)
        if self.kind == "llama3":
            require(
                0 < self.low_freq_factor < self.high_freq_factor,
                f"rotary scaling llama3: low_freq_factor {self.low_freq_factor} must be above 0 and below "
                f"high_freq_factor {self.high_freq_factor}",
            )
        if self.kind == "yarn":
            require(
                0 < self.beta_slow < self.beta_fast,
                f"{where} beta_slow {self.beta_slow} must be above 0 and below beta_fast {self.beta_fast}",
            )
        if self.attention_factor is not None:
            require(self.kind in ("yarn", "longrope"), f"{where} attention_factor means nothing to it")
            require(
                math.isfinite(self.attention_factor) and self.attention_factor > 0,
                f"{where} attention_factor is {self.attention_factor}; it must be above 0",
            )
        for name in ("short_factors", "long_factors"):
            numbers = tuple(getattr(self, name))
            object.__setattr__(self, name, numbers)
            require(bool(numbers) == (self.kind == "longrope"), f"{where} {name} has {len(numbers)} numbers")
            sound = all(isinstance(n, int | float) and not isinstance(n, bool) and 0 < n < 1e30 for n in numbers)
            require(sound, f"{where} {name} must be numbers above 0")

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on how long the text is."""
        return self.kind in ("dynamic", "longrope")

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        if self.attention_factor is not None or self.kind not in ("yarn", "longrope"):
            return 1.0 if self.attention_factor is None else self.attention_factor
        if self.factor <= 1:
            return 1.0
        if self.kind == "yarn":
            return 0.1 * math.log(self.factor) + 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_positions))

    def check_dim(self, rotated: int) -> None:
        """Raises InputError unless `rotated` features can be scaled so."""
        if self.kind == "dynamic":
            require(rotated > 2, f"rotary scaling dynamic needs more than 2 rotated features, not {rotated}")
        if self.kind == "longrope":
            for name in ("short_factors", "long_factors"):
                count = len(getattr(self, name))
                wanted = rotated // 2
                require(count == wanted, f"rotary scaling longrope: {name} has {count} numbers for {wanted}")
            require(self.original_max_positions > 1, "rotary scaling longrope: original_max_positions must be above 1")
