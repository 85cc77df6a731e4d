"""What an experiment consists of: networks on tasks, label budgets, seeds, and the cells that follow from them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from eval import metrics
from eval.cells import CellKey
from eval.finetune import FinetuneConfig
from eval.tasks import Example, Splits
from zoo.errors import InputError
from zoo.partition import path_string

NETWORK_ARMS = ("pretrained", "random")
BASELINE = "tf-idf"


@dataclass(frozen=True, eq=False)
class Trial:
    """One network on one task.

    Attributes:
        network: its name in the report.
        source: what zoo.load and zoo.load_tokenizer read: a folder, a run folder, or an embedded checkpoint's name.
        splits: the task; `limited` cuts its test and validation sets.
        config: of every fine-tuning; its seed is replaced by the cell's.
        labels: budgets, each from 2 to the size of the training split.
        seeds: of the draw of labelled examples, the head, the order and dropout.
        rates: learning rates to choose from, for each arm; none or one leaves nothing to choose.
    """

    network: str
    source: str
    splits: Splits
    config: FinetuneConfig
    labels: tuple[int, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = ()


def limited(splits: Splits, test: int = 0, validation: int = 0) -> Splits:
    """Fixed subsets of the test and validation sets, for machines that are slow.

    Args:
        splits: a task.
        test, validation: how many examples to keep, those with the smallest hashes of their text; 0 keeps all.
    """
    for name, value in (("test", test), ("validation", validation)):
        if value < 0:
            raise InputError(f"{name}_limit is {value}; it must be 0, for all, or more")
    return replace(splits, test=_fewest(splits.test, test), validation=_fewest(splits.validation, validation))


def check(trials: Sequence[Trial]) -> None:
    """Raises InputError for trials that cannot be run, before the first cell is.

    No trial, a (task, network) named twice, two versions of one task, a budget that the task cannot give.
    """
    if not trials:
        raise InputError("an experiment needs at least one network and one task")
    seen: set[tuple[str, str]] = set()
    versions: dict[str, str] = {}
    for trial in trials:
        task, size = trial.splits.task, len(trial.splits.train)
        if (task.name, trial.network) in seen:
            raise InputError(f'network "{trial.network}" stands twice on task {task.name}; give each its own name')
        seen.add((task.name, trial.network))
        version = digest(examples_digest(trial.splits.train) + examples_digest(trial.splits.test))
        if versions.setdefault(task.name, version) != version:
            raise InputError(f"task {task.name} stands here in two versions; give every network the same splits")
        if not trial.labels or not trial.seeds:
            raise InputError("an experiment needs at least one label budget and one seed")
        for labels in trial.labels:
            if not 2 <= labels <= size:
                raise InputError(
                    f"{labels:,} labels from task {task.name}, which has {size:,} to train on: take 2 to {size:,}"
                )
        metrics.metric(task.main_metric)


def cell_keys(trial: Trial) -> list[CellKey]:
    """A trial's cells in the order in which they are run: pairs stay together."""
    return [
        CellKey(trial.splits.task.name, trial.network, arm, labels, seed)
        for labels in trial.labels
        for seed in trial.seeds
        for arm in NETWORK_ARMS
    ]


def tuning_keys(trial: Trial) -> list[CellKey]:
    """One key for each arm and rate where there is a rate to choose."""
    runs = len(trial.rates) if len(trial.rates) > 1 else 0
    name = trial.splits.task.name
    return [
        CellKey(name, trial.network, arm, max(trial.labels), trial.seeds[0])
        for arm in NETWORK_ARMS
        for _ in range(runs)
    ]


def baseline_keys(trials: Sequence[Trial]) -> dict[CellKey, Splits]:
    """The baseline's cells, one for each task, budget and seed, and their splits."""
    return {
        CellKey(trial.splits.task.name, BASELINE, BASELINE, labels, seed): trial.splits
        for trial in trials
        for labels in trial.labels
        for seed in trial.seeds
    }


def shown_order(trials: Sequence[Trial], baselines: Sequence[CellKey]) -> list[CellKey]:
    """Cells in the order of a report: a network's pre-trained arm, its random start, the next network; the baseline."""
    keys = [key for trial in trials for key in sorted(cell_keys(trial), key=lambda key: NETWORK_ARMS.index(key.arm))]
    return keys + list(baselines)


def fingerprint(params: Any) -> str:
    """16 hex digits of the SHA-256 of all parameters, by path: another checkpoint is another experiment."""
    sha = hashlib.sha256()
    for path, leaf in sorted((path_string(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)):
        array = np.ascontiguousarray(leaf)
        sha.update(f"{path} {array.dtype} {array.shape}\0".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()[:16]


def digest(text: str) -> str:
    """16 hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def examples_digest(examples: Sequence[Example]) -> str:
    """16 hex digits for these examples in this order."""
    return digest("\0".join(f"{e.label}\1{e.text_a}\1{e.text_b or ''}" for e in examples))


def _fewest(examples: Sequence[Example], count: int) -> tuple[Example, ...]:
    if not count or count >= len(examples):
        return tuple(examples)
    keys = [hashlib.sha256(f"limit\0{e.text_a}\0{e.text_b or ''}".encode()).digest() for e in examples]
    return tuple(examples[i] for i in sorted(sorted(range(len(keys)), key=keys.__getitem__)[:count]))
