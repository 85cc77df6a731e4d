"""What a recipe is."""

from dataclasses import dataclass, field
from typing import Any

from train.config import TrainConfig


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
