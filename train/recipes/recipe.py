"""What a recipe is."""

from dataclasses import dataclass, field
from typing import Any

from train.config import TrainConfig

# Small networks on a few million tokens: many small updates learn faster than few large ones.
SMALL = TrainConfig(
    warmup_steps=150,
    batch_size=8,
    seq_len=64,
    learning_rate=2e-3,
    weight_decay=0.05,
    beta2=0.98,
    log_every=20,
    checkpoint_every=500,
    keep_last=1,
    keep_best=0,
)
NO_DROPOUT = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}
COMMANDS = (
    "python -m train prepare encyclopedia shakespeare --out data/demo && "
    "python -m train pretrain runs/{0} --recipe demo-{0} --data data/demo"
)


@dataclass(frozen=True)
class Recipe:
    """A pre-training run.

    Attributes:
        name: how it is asked for.
        preset: the model, of zoo.list_models().
        model: fields of ModelConfig to change; vocabulary and head follow from the data and the objective.
        train: the run; `data` is filled in.
        command: how to run it, from text to checkpoint.
        cost: time, and on what.
        expected: the number that shows that it went well.
    """

    name: str
    preset: str
    train: TrainConfig
    command: str
    cost: str
    expected: str
    model: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = (f"{self.name}: {self.preset}, {self.train.objective}", self.command, self.cost, self.expected)
        return "\n  ".join(lines)
