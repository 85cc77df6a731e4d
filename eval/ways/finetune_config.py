"""FinetuneConfig: the one place of settings for adapting a checkpoint to a task, whatever the way."""

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import Any, Literal

from zoo.config_checks import refuse_unknown
from zoo.errors import InputError, nearest

WAYS = ("full", "head", "probe", "lora", "top")


@dataclass(frozen=True)
class FinetuneConfig:
    """How a checkpoint is adapted to a task.

    Attributes:
        way: what is trained: "full": all parameters; "head": a fresh head on the frozen backbone; "probe": the same
            head in closed form (ridge regression on pooled features); "lora": low-rank updates of frozen kernels, and
            the head; "top": the upper `top_layers` blocks and the head.
        learning_rate: the peak. A head or adapters alone want more than all parameters do: 1e-3, say.
        batch_size: examples an update.
        epochs: passes over the labelled examples; 0 with `steps`.
        steps: updates, in place of epochs; 0 leaves it to `epochs`.
        warmup_fraction: share of the updates in which the rate rises to its peak.
        schedule: after the warm-up, "linear" falls to 0 at the last update, "constant" stays.
        optimizer: "adamw", or plain "sgd" (without weight decay).
        weight_decay: on every kernel that is trained, decoupled.
        clip_norm: greatest global norm of the gradient; 0 or None for no clipping.
        dropout: of embeddings, attention, residual updates and the pooled row; None keeps the checkpoint's own.
        max_length: tokens a row, special pieces included; longer texts lose their end.
        pooling: what the head reads: "cls", "mean" or "last"; "auto" is the mean for models that see both ways, else
            the last token.
        packing: several short texts share a row where the kind of task allows it (eval.packing): the same losses and
            gradients with fewer padding tokens. Without it batches are of texts of like length.
        seed: of the head, the adapters, the order of examples and dropout.
        layer_decay: d: block l of L learns at rate d^(L + 1 - l), embeddings at d^(L + 1), the head at 1; 1 for one
            rate.
        top_layers: way "top": how many blocks, counted from the last, are trained.
        lora_rank: r, way "lora": columns of the low-rank factors.
        lora_alpha: way "lora": updates count alpha / r.
        lora_targets: way "lora": which kernels: names such as query, value, up; patterns on paths; "all" for every one
            of the blocks.
        class_weights: what a class counts in the loss: "balanced" (examples / (classes x examples of the class)), or a
            number for each class, with commas between; empty for 1.
        select: "best" keeps the parameters of the best evaluation on the validation examples, "last" those of the end.
        metric: what "best" goes by; empty for the task's own. "loss" is one.
        eval_every: updates between evaluations on the validation examples; 0 for one at the end of each epoch.
        patience: stop after so many evaluations in a row without a better one; 0 runs to the end.
    """

    way: Literal["full", "head", "probe", "lora", "top"] = "full"
    learning_rate: float = 1e-4
    batch_size: int = 16
    epochs: int = 10
    steps: int = 0
    warmup_fraction: float = 0.1
    schedule: Literal["linear", "constant"] = "linear"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    dropout: float | None = 0.1
    max_length: int = 128
    pooling: Literal["auto", "cls", "mean", "last"] = "auto"
    packing: bool = True
    seed: int = 0
    layer_decay: float = 1.0
    top_layers: int = 1
    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("query", "value")
    class_weights: str = ""
    select: Literal["last", "best"] = "last"
    metric: str = ""
    eval_every: int = 0
    patience: int = 0

    def __post_init__(self):
        for name, hint in typing.get_type_hints(type(self)).items():
            value, choices = getattr(self, name), typing.get_args(hint)
            if typing.get_origin(hint) is Literal and value not in choices:
                raise InputError(f'FinetuneConfig: {name} is "{value}"{nearest(value, choices)}')
            if hint is int and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InputError(f"FinetuneConfig: {name} is {value!r}; it must be a whole number from 0 on")
        for name in ("batch_size", "top_layers", "lora_rank"):
            _require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; it must be 1 or more")
        _require(self.epochs or self.steps, "epochs and steps are both 0; set one of them")
        for name in ("learning_rate", "lora_alpha"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, f"{name} is {value}; it must be above 0")
        warmup, decay = self.warmup_fraction, self.layer_decay
        _require(0 <= warmup < 1, f"warmup_fraction is {warmup}; it must be from 0 to below 1")
        _require(0 < decay <= 1, f"layer_decay is {decay}; it must be above 0 and at most 1, which is one rate for all")
        _require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}; it must be 0 or more")
        clip, dropout = self.clip_norm, self.dropout
        _require(not clip or clip > 0, f"clip_norm is {clip}; it must be 0 or more")
        object.__setattr__(self, "clip_norm", clip or None)
        _require(dropout is None or 0 <= dropout < 1, f"dropout is {dropout}; it must be from 0 to below 1, or None")
        targets = (self.lora_targets,) if isinstance(self.lora_targets, str) else tuple(self.lora_targets)
        object.__setattr__(self, "lora_targets", targets)
        _require(
            targets and all(isinstance(word, str) and word for word in targets),
            f"lora_targets is {self.lora_targets!r}; names such as query, value are wanted",
        )
        for name in ("patience", "eval_every", "metric"):
            _require(
                self.select == "best" or not getattr(self, name),
                f'{name} looks at validation examples: it needs select "best", and select is "last"',
            )
        self.class_weight_list  # noqa: B018  checked here

    @property
    def class_weight_list(self) -> tuple[float, ...]:
        """The numbers in class_weights; () where there are none."""
        if self.class_weights in ("", "balanced"):
            return ()
        try:
            found = tuple(float(word) for word in self.class_weights.split(","))
        except (ValueError, AttributeError):
            found = (-1.0,)
        good = all(math.isfinite(weight) and weight >= 0 for weight in found) and any(found)
        hint = "" if good else nearest(str(self.class_weights), ["balanced"])
        _require(
            good, f'class_weights is "{self.class_weights}"; "balanced" or numbers with commas between are wanted{hint}'
        )
        return found

    def replace(self, **changes: Any) -> "FinetuneConfig":
        """A copy with `changes`, validated; an unknown name raises InputError with the nearest field."""
        refuse_unknown(changes, type(self))
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain types alone, ready for JSON."""
        return dataclasses.asdict(self) | {"lora_targets": list(self.lora_targets)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "FinetuneConfig":
        """The inverse of `to_dict`; unknown keys raise InputError, and fields that are not there have their default."""
        refuse_unknown(plain, cls)
        return cls(**plain)

    def total_steps(self, examples: int) -> int:
        """Updates for so many labelled examples."""
        return self.steps or self.epochs * -(-examples // self.batch_size)


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise InputError(f"FinetuneConfig: {message}")
