"""One face for every way of adapting a checkpoint to a task: gradient descent on all or a part of it, or closed form.

tuned = adapt(model, params, tokenizer, splits.train, FinetuneConfig(way="lora"), 2, validation=splits.validation)
predict(tuned.model, tuned.params, tokenizer, texts)      # an ordinary model, whatever the way
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from eval import probe
from eval.encode import Encoded
from eval.finetune import Finetuned, finetune, with_task_head
from eval.kinds import CLASSIFICATION, Kind
from eval.metrics import spoken_name
from eval.tasks import Example
from eval.ways import freeze
from eval.ways.class_weights import check_labels, weighed
from eval.ways.finetune_config import FinetuneConfig
from zoo.errors import InputError
from zoo.model import Model
from zoo.tokenizer import Tokenizer

# Entries of a history that are no metrics.
FIELDS = ("step", "epoch", "loss", "learning_rate")


def adapt(
    model: Model,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    train: Sequence[Example] | Encoded,
    config: FinetuneConfig,
    num_labels: int,
    *,
    kind: Kind = CLASSIFICATION,
    validation: Sequence[Example] | Encoded | None = None,
    label_names: Sequence[str] = (),
    devices: Sequence[jax.Device] | None = None,
    watch: Callable[[Mapping[str, float]], None] | None = None,
) -> Finetuned:
    """Adapts a checkpoint as config.way says.

    Args:
        model, params: the backbone; its own head, if any, is left behind. `params` stays as it is.
        tokenizer: the checkpoint's own.
        train: labelled examples, or the same encoded already with this model and config.max_length.
        config: the way, and its settings.
        num_labels: C.
        kind: of the task.
        validation: examples (or the same encoded) that config.select "best" goes by; not looked at otherwise.
        label_names: kept in the model's config.
        devices: rows are spread over them, with equal results; None takes all.
        watch: called about once a second while training by steps.

    Returns:
        Finetuned: an ordinary model and its whole parameters, and how they came about.

    Raises:
        InputError: what the way, the labels or the texts do not allow; NotFiniteError: a loss that is not finite.
    """
    if config.way != "probe":
        return finetune(
            model,
            params,
            tokenizer,
            train,
            config,
            num_labels,
            kind=kind,
            validation=validation,
            label_names=label_names,
            devices=devices,
            watch=watch,
        )
    if config.select == "best":
        raise InputError('select "best" chooses among the steps of a training; way "probe" has none')
    started = time.perf_counter()
    encoded = train if isinstance(train, Encoded) else kind.encode(train, tokenizer, model.config, config.max_length)
    check_labels(encoded, num_labels, kind)
    encoded = weighed(encoded, config, num_labels, kind)
    model, params = with_task_head(model, params, config, num_labels, label_names, kind)
    params, facts = probe.fit(model, params, encoded, kind, devices=devices)
    return Finetuned(
        model,
        params,
        (),
        time.perf_counter() - started,
        encoded.truncated,
        trainable=freeze.count(params["classifier"]),
        total=freeze.count(params),
        facts=facts,
    )


def told(tuned: Finetuned) -> list[str]:
    """What a training was like, in lines: how much was trained, ten epochs of it at most, which one was kept."""
    share = 100 * tuned.trainable / max(tuned.total, 1)
    lines = [f"trained {tuned.trainable:,} of {tuned.total:,} parameters ({share:.3g}%)"]
    for entry in _some(tuned.history):
        rest = [f"{spoken_name(name)} {entry[name]:.4f}" for name in entry if name not in FIELDS]
        lines.append(
            f"epoch {entry['epoch'] + 1}: " + ", ".join([f"loss {entry['loss']:.4f}", *rest]) + " while training"
        )
    if tuned.evaluations:
        best = next(entry for entry in tuned.evaluations if entry["step"] == tuned.chosen_step)
        scores = ", ".join(f"{spoken_name(k)} {v:.4f}" for k, v in best.items() if k not in FIELDS[:2])
        last = f"of {len(tuned.evaluations)} evaluations; training ended at step {tuned.history[-1]['step']:,}"
        lines.append(
            f"kept epoch {tuned.chosen + 1}, step {tuned.chosen_step:,}: {scores} on validation, the best {last}"
        )
    if tuned.facts:
        lines.append("; ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in tuned.facts.items()))
    return lines


def _some(history: tuple[dict[str, float], ...], most: int = 10) -> list[dict[str, float]]:
    """At most `most` epochs, evenly spread, the last among them."""
    places = sorted({round(i) for i in np.linspace(0, len(history) - 1, min(most, len(history)))})
    return [history[i] for i in places]
