"""TrainConfig: all that decides a training run beside the model; RunConfig: both, as a run folder keeps them."""

import dataclasses
import json
import math
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zoo.atomic_file import write_atomically
from zoo.config import ModelConfig
from zoo.config_checks import refuse_unknown
from zoo.errors import InputError, nearest

# Fields that may differ when a run folder is continued: they change no drawn number. (What `data` holds is checked by
# its own hash, wherever it lies.)
FREE_FIELDS = (
    "data", "watch", "driver", "mesh", "log_every", "eval_every", "checkpoint_every", "keep_last", "keep_best",
    "keep_every", "tensorboard",
)  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        objective: "next_token" for causal models, "masked_lm" for bidirectional ones.
        data: folder of token shards, as `python -m train prepare` makes it.
        watch: folder of shards of other text, of the same tokenizer, whose validation loss is logged beside from before
            the first update on: general text, say, while a domain is learnt.
        start_from: checkpoint, run folder or embedded checkpoint whose parameters the run begins with; empty: fresh
            ones.
        steps: updates of the parameters, T.
        batch_size: rows an update, over all devices and micro-batches.
        seq_len: positions the model sees in a row (next-token rows carry one id more, the last label).
        accumulate: micro-batches an update; it divides batch_size.
        seed: of initial parameters, order of rows, masks and dropout.
        mask_rate: masked_lm: share of ordinary tokens chosen (0.15 in BERT).
        whole_words: masked_lm: choose all pieces of a word or none.
        next_sentence: masked_lm on pairs of sentences, with BERT's second loss; the model needs that head.
        label_smoothing: e: the target is (1 - e) one-hot + e / V.
        z_loss: c: adds c log(Z)^2 a token, which keeps logits from drifting.
        loss_chunk_bytes: most bytes of float32 logits alive at a time; 0 chooses by the kind of device.
        matmul: dtype in which activations meet weights, forward and backward, with sums in float32
            (zoo.mixed_product); empty or float32: as the model's dtype; auto: bfloat16 where that is faster here,
            measured as the run begins.
        optimizer: "adamw" (Loshchilov and Hutter 2019, arXiv:1711.05101) or plain "sgd".
        learning_rate: the peak of the schedule.
        schedule: how the rate falls after the warm-up; formulas in train/schedule.py.
        warmup_steps: updates until the peak.
        decay_steps: warmup_stable_decay: updates from the peak to the end.
        final_fraction: share of the peak at which the last update is.
        weight_decay: decoupled, on the leaves that `decay` matches.
        decay: patterns on parameter paths (fnmatch) that decay: every kernel, so no embedding, norm, bias or relative
            table.
        beta1: Adam's decay of the first moment.
        beta2: Adam's decay of the second moment.
        eps: Adam's, added to the root of the second moment.
        clip_norm: greatest global norm of the gradient; 0 or None for no clipping.
        driver: "jit": one device; "mesh": jit over a mesh (recommended); "pmap": data parallel in JAX's older way.
        mesh: axes of the mesh, such as data=8 or fsdp=4,tensor=2 (-1: what is left); empty: all devices on fsdp.
        log_every: updates a logged line; 0 for one at the end.
        eval_every: updates between evaluations on the valid split; 0 for one at the end.
        checkpoint_every: updates between checkpoints; 0 for one at the end.
        keep_last: how many of the newest checkpoints are kept.
        keep_best: how many of those with the lowest validation loss are kept beside them.
        keep_every: every k-th step's checkpoint is kept, too; 0 for none.
        tensorboard: also write TensorBoard files.
    """

    objective: Literal["next_token", "masked_lm"] = "next_token"
    data: str = ""
    watch: str = ""
    start_from: str = ""
    steps: int = 1000
    batch_size: int = 32
    seq_len: int = 64
    accumulate: int = 1
    seed: int = 0
    mask_rate: float = 0.15
    whole_words: bool = False
    next_sentence: bool = False
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    loss_chunk_bytes: int = 0
    matmul: Literal["", "float32", "bfloat16", "auto"] = ""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "linear", "constant", "warmup_stable_decay"] = "cosine"
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.1
    weight_decay: float = 0.1
    decay: tuple[str, ...] = ("*kernel",)
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip_norm: float | None = 1.0
    driver: Literal["jit", "mesh", "pmap"] = "jit"
    mesh: str = ""
    log_every: int = 10
    eval_every: int = 0
    checkpoint_every: int = 500
    keep_last: int = 2
    keep_best: int = 1
    keep_every: int = 0
    tensorboard: bool = False

    def __post_init__(self):
        _check_types(self)
        object.__setattr__(self, "decay", tuple(self.decay))
        for name in ("steps", "batch_size", "seq_len", "accumulate", "keep_last"):
            _require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; it must be 1 or more")
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type in (int, float):
                _require(value >= 0, f"{f.name} is {value}; it must be 0 or more")
        for name in ("learning_rate", "eps"):
            _require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("mask_rate", "label_smoothing", "beta1", "beta2"):
            _require(getattr(self, name) < 1, f"{name} is {getattr(self, name)}; it must be below 1")
        _require(self.mask_rate > 0, f"mask_rate is {self.mask_rate}; it must be above 0")
        _require(self.final_fraction <= 1, f"final_fraction is {self.final_fraction}; it must be at most 1")
        _require(not self.clip_norm or self.clip_norm > 0, f"clip_norm is {self.clip_norm}; it must be 0 or more")
        object.__setattr__(self, "clip_norm", self.clip_norm or None)
        _require(
            self.batch_size % self.accumulate == 0,
            f"accumulate {self.accumulate} does not divide batch_size {self.batch_size}",
        )
        for name in ("next_sentence", "whole_words"):
            _require(
                self.objective == "masked_lm" or not getattr(self, name),
                f'{name} is a part of the objective "masked_lm", not of "{self.objective}"',
            )

    @property
    def row_length(self) -> int:
        """Ids a row of data carries: seq_len, and one more where labels are the inputs shifted by one."""
        return self.seq_len + (self.objective == "next_token")

    def replace(self, **changes: Any) -> "TrainConfig":
        """A copy with `changes`, validated; an unknown name raises InputError with the nearest field."""
        refuse_unknown(changes, type(self))
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain types alone, ready for JSON."""
        return dataclasses.asdict(self) | {"decay": list(self.decay)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "TrainConfig":
        """The inverse of `to_dict`; unknown keys raise InputError."""
        refuse_unknown(plain, cls)
        return cls(**plain)


@dataclass(frozen=True)
class RunConfig:
    """A model and how it is trained: what `config.json` of a run folder holds.

    Attributes:
        model: the network.
        train: the run.
    """

    model: ModelConfig
    train: TrainConfig

    def to_dict(self) -> dict[str, Any]:
        """{"model": ..., "train": ...} in plain types."""
        return {"model": self.model.to_dict(), "train": self.train.to_dict()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "RunConfig":
        """The inverse of `to_dict`; unknown keys raise InputError."""
        refuse_unknown(plain, cls)
        for name in ("model", "train"):
            if not isinstance(plain.get(name), dict):
                raise InputError(f'a run\'s config needs the table "{name}"; it has {", ".join(plain) or "nothing"}')
        return cls(ModelConfig.from_dict(plain["model"]), TrainConfig.from_dict(plain["train"]))

    @classmethod
    def load(cls, path: str | Path) -> "RunConfig":
        """Reads a config.json, or the one in a run folder.

        Raises:
            InputError: no such file, or not JSON, or an unknown field.
        """
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"no config at {path}; give a config.json or a run folder that holds one")
        try:
            plain = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}") from None
        if not isinstance(plain, dict):
            raise InputError(f'{path} does not hold a table of "model" and "train"')
        return cls.from_dict(plain)

    def save(self, path: str | Path) -> None:
        """Writes JSON to `path`, whole or not at all."""
        write_atomically(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def changes(self, other: "RunConfig") -> list[str]:
        """Fields that differ and matter for the numbers, as "train.seed was 0, now 1" (`self` is the old one)."""
        lines = []
        for part in ("model", "train"):
            old, new = getattr(self, part).to_dict(), getattr(other, part).to_dict()
            free = FREE_FIELDS if part == "train" else ()
            lines += [f"{part}.{k} was {old[k]!r}, now {new[k]!r}" for k in old if k not in free and old[k] != new[k]]
        return lines


def _check_types(config: TrainConfig) -> None:
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
            _require(value in choices, f'{name} is "{value}"{nearest(value, choices)}')
        elif hint is bool:
            _require(isinstance(value, bool), f"{name} is {value!r}; it must be true or false")
        elif hint is int:
            _require(
                isinstance(value, int) and not isinstance(value, bool),
                f"{name} is {value!r}; it must be a whole number",
            )
        elif hint is str:
            _require(isinstance(value, str), f"{name} is {value!r}; it must be a text")
        elif name == "decay":
            texts = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
            _require(texts, f"decay is {value!r}; it must be a list of patterns")
        else:
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            _require(number or (value is None and hint is not float), f"{name} is {value!r}; it must be a number")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(f"TrainConfig: {message}")
