"""The best parameters of a run by a metric on validation examples, and when to stop looking for better ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from eval.encode import Encoded
from eval.kinds import Kind
from eval.metrics import METRICS, RATING_METRICS, higher_is_better
from eval.predict import NotFiniteError, evaluate
from eval.ways.finetune_config import FinetuneConfig
from zoo.errors import InputError, nearest
from zoo.model import Model


@dataclass(frozen=True, eq=False)
class Best:
    """What was trained, as it stood after `step` updates, in epoch `epoch` (from 0)."""

    trained: Any
    step: int
    epoch: int


class Selection:
    """Evaluations of a run. With config.select "last" there are none, and the end is the best.

    Of equal scores the earlier counts, and an evaluation that is not finite never does. Attribute `evaluations`: a dict
    for each look, of step, epoch, loss, the metric; None for what is not finite.

    Args:
        config: select, metric, patience.
        kind: of the task; the first of its metrics is taken where config.metric is empty.
        validation: encoded examples, or None.
        label_names: of the task.
        devices: see eval.predict.

    Raises:
        InputError: "best" of no validation examples, or a metric that there is not.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        kind: Kind,
        validation: Encoded | None,
        label_names: Sequence[str] = (),
        devices: Sequence[jax.Device] | None = None,
    ):
        self.kind, self.validation, self.names, self.devices = kind, validation, tuple(label_names), devices
        self.active, self.patience = config.select == "best", config.patience
        self.metric = config.metric or kind.metrics[0]
        self.evaluations: list[dict[str, float | None]] = []
        self._best: Best | None = None
        self._diverged: NotFiniteError | None = None
        self._score, self._waited = -math.inf, 0
        if not self.active:
            return
        if validation is None:
            raise InputError('select "best" needs validation examples, and there are none; take select "last"')
        known = {"loss": 0, **dict.fromkeys(kind.metrics), **METRICS, **RATING_METRICS}
        if self.metric not in known:
            raise InputError(f'no metric "{self.metric}" to select by{nearest(self.metric, list(known))}')

    def seen(self, step: int) -> bool:
        """Whether there is nothing to look at after this update: no selection, or it was looked at already."""
        return not self.active or bool(self.evaluations) and self.evaluations[-1]["step"] == step

    def look(self, step: int, epoch: int, model: Model, params: Any, trained: Any) -> bool:
        """Evaluates; keeps a copy of `trained` where it is the best so far. True: patience is at its end."""
        by_loss = self.metric == "loss"
        try:
            found = evaluate(
                model,
                params,
                self.validation,
                () if by_loss else (self.metric,),
                kind=self.kind,
                label_names=self.names,
                devices=self.devices,
            )
            loss, value = float(found.loss), float(found.loss if by_loss else found.scores[self.metric])
        except NotFiniteError as error:
            loss, value, self._diverged = math.nan, math.nan, error
        told = {"loss": loss, self.metric: value}
        finite = {name: number if math.isfinite(number) else None for name, number in told.items()}
        self.evaluations.append({"step": step, "epoch": epoch, **finite})
        score = value if higher_is_better(self.metric) else -value
        if math.isfinite(score) and score > self._score:
            self._best = Best(jax.tree.map(jnp.copy, trained), step, epoch)
            self._score, self._waited = score, 0
            return False
        self._waited += 1
        return 0 < self.patience <= self._waited

    def best(self, trained: Any, step: int, epoch: int) -> Best:
        """The best, or these of the end where nothing is selected; NotFiniteError where no evaluation was finite."""
        if self.active and self._best is None:
            raise self._diverged or NotFiniteError("no evaluation on the validation examples is finite")
        return self._best or Best(trained, step, epoch)
