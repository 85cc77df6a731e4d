"""TrainConfig: everything that decides a training run, beside the model; RunConfig: both, as a run folder keeps them."""

import dataclasses
import json
import os
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zoo.config import ModelConfig, refuse_unknown
from zoo.errors import InputError, nearest

# Fields that may differ when a run folder is continued: they change no drawn number. (What `data` holds is checked by
# its own hash, wherever it lies.)
FREE_FIELDS = (
    "log_every", "eval_every", "checkpoint_every", "keep_last", "keep_best", "keep_every", "tensorboard", "driver", "mesh",
    "data",
)  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        objective: "next_token" (causal models) or "masked_lm" (bidirectional ones).
        start_from: checkpoint, run folder or embedded checkpoint whose parameters the run begins with; empty for fresh ones.
        data: folder of token shards, as `python -m train prepare` writes it.
        steps: updates of the parameters, T.
        batch_size: rows an update, over all devices and micro-batches.
        seq_len: positions the model sees in a row (next-token rows carry one id more, the last label).
        accumulate: micro-batches an update; divides batch_size.
        seed: of initial parameters, order of rows, masks and dropout.
        mask_rate: masked_lm: share of ordinary tokens chosen (15 % in BERT).
        whole_words: masked_lm: choose all pieces of a word or none.
        next_sentence: masked_lm on sentence pairs with BERT's second loss; the model needs its head.
        label_smoothing: e: the target is (1 - e) one-hot + e / V.
        z_loss: c: adds c log(Z)^2 a token, which keeps logits from drifting.
        loss_chunk_bytes: most bytes of float32 logits alive at a time; 0 chooses by the kind of device.
        optimizer: "adamw" (Loshchilov and Hutter 2019, arXiv:1711.05101) or plain "sgd".
        learning_rate, schedule, warmup_steps, decay_steps, final_fraction: see train.schedule.
        weight_decay: decoupled; applied to the leaves that `decay` matches.
        decay: path patterns (fnmatch, '/'-joined paths) of decayed leaves: every kernel, and so no embedding, norm, bias or
            relative table.
        beta1, beta2, eps: Adam's.
        clip_norm: greatest global norm of the gradient; None for no clipping.
        driver: "jit" one device, "mesh" jit over a mesh (recommended), "pmap" data parallel in JAX's older way.
        mesh: axes of the mesh, such as "data=8" or "fsdp=4,tensor=2"; empty puts all devices on data.
        log_every, eval_every, checkpoint_every: in updates; 0 for never (the end of a run is always evaluated and saved).
        keep_last, keep_best, keep_every: checkpoints kept: the newest n, the n best by validation loss, every k-th step.
        tensorboard: also write TensorBoard files.
    """

    objective: Literal["next_token", "masked_lm"] = "next_token"
    data: str = ""
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
        _check_choices(self)
        object.__setattr__(self, "decay", tuple(self.decay))
        for name in ("steps", "batch_size", "seq_len", "accumulate", "keep_last"):
            _require(_whole(getattr(self, name), 1), f"{name} is {getattr(self, name)!r}; it must be 1 or more")
        for name in (
            "seed", "warmup_steps", "decay_steps", "log_every", "eval_every", "checkpoint_every", "keep_best", "keep_every", "loss_chunk_bytes",
        ):  # fmt: skip
            _require(_whole(getattr(self, name), 0), f"{name} is {getattr(self, name)!r}; it must be 0 or more")
        _require(
            self.batch_size % self.accumulate == 0,
            f"accumulate {self.accumulate} does not divide batch_size {self.batch_size}",
        )
        _require(0 < self.mask_rate < 1, f"mask_rate is {self.mask_rate}; it must be above 0 and below 1")
        for name in ("label_smoothing", "final_fraction", "beta1", "beta2"):
            top = 1.0 if name == "final_fraction" else 0.9999999
            _require(0 <= getattr(self, name) <= top, f"{name} is {getattr(self, name)}; it must be from 0 to below 1")
        for name in ("learning_rate", "eps"):
            _require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("z_loss", "weight_decay"):
            _require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be 0 or more")
        _require(self.clip_norm is None or self.clip_norm > 0, f"clip_norm is {self.clip_norm}; above 0, or None for none")
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
        write_atomically(Path(path), json.dumps(self.to_dict(), indent=2) + "\n")

    def changes(self, other: "RunConfig") -> list[str]:
        """Fields that differ and matter for the numbers, as "train.seed was 0, now 1" (`self` is the old one)."""
        lines = []
        for part in ("model", "train"):
            old, new = getattr(self, part).to_dict(), getattr(other, part).to_dict()
            free = FREE_FIELDS if part == "train" else ()
            lines += [f"{part}.{k} was {old[k]!r}, now {new[k]!r}" for k in old if k not in free and old[k] != new[k]]
        return lines


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` beside `path` and moves it there, so that a reader or a kill never meets half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_choices(config: TrainConfig) -> None:
    for name, hint in typing.get_type_hints(type(config)).items():
        if typing.get_origin(hint) is Literal and getattr(config, name) not in typing.get_args(hint):
            raise InputError(f'TrainConfig: {name} is "{getattr(config, name)}"{nearest(getattr(config, name), typing.get_args(hint))}')


def _whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(f"TrainConfig: {message}")
