"""What an experiment consists of: networks, tasks, ways, label budgets, seeds, and the cells that follow from them."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from eval import kinds
from eval.examples import key_of
from eval.experiment import baselines, rescore, span_control
from eval.experiment.cells import FULL, CellKey
from eval.finetune import FinetuneConfig
from eval.tasks import Splits
from zoo.errors import InputError
from zoo.partition import path_string

PRETRAINED, RANDOM, SHUFFLED, BASELINE = "pretrained", "random", "shuffled", "baseline"


@dataclass(frozen=True, eq=False)
class Trial:
    """One network on one task.

    Attributes:
        network: its name in the report.
        source: what zoo.load and zoo.load_tokenizer read: a folder, a run folder, or an embedded checkpoint's name.
        splits: the task; `limited` cuts its test and validation sets.
        config: of every fine-tuning; its seed and way are replaced by the cell's.
        labels: budgets, each from 2 to the size of the training split.
        seeds: of the draw of labelled examples, the head, the order and dropout.
        rates: learning rates to choose from, for each arm and way; none or one leaves nothing to choose.
        ways: of adapting the checkpoint, as FinetuneConfig.way spells them.
        scratch: also the same network from random start, all its parameters trained, whatever the ways.
        control: also the checkpoint trained on shuffled labels, each way, with the largest budget.
    """

    network: str
    source: str
    splits: Splits
    config: FinetuneConfig
    labels: tuple[int, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = ()
    ways: tuple[str, ...] = (FULL,)
    scratch: bool = True
    control: bool = False

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """(arm, way) of all that runs at every budget: the ways of the checkpoint, then the random start."""
        return (*((PRETRAINED, way) for way in self.ways), *(((RANDOM, FULL),) if self.scratch else ()))


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


def check(trials: Sequence[Trial], *, with_baseline: bool = False) -> None:
    """Raises InputError for trials that cannot be run, before the first cell is.

    No trial, a (task, network) named twice, two versions of one task, a budget that the task cannot give, a way named
    twice, a task without a baseline or whose labels cannot be shuffled, where these are asked for.
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
        if not trial.ways or len(set(trial.ways)) < len(trial.ways):
            raise InputError(f"ways are {', '.join(trial.ways) or 'none'}; give each once, one at least")
        for way in trial.ways:
            with_way(trial.config, way)
        if "probe" in trial.ways and task.kind not in ("classification", "regression"):
            raise InputError(
                f'task {task.name}: way "probe" is for classes and ratings, and this is {task.kind}; take "head", or '
                "run the task by itself"
            )
        for labels in trial.labels:
            if not 2 <= labels <= size:
                raise InputError(
                    f"{labels:,} labels from task {task.name}, which has {size:,} to train on: take 2 to {size:,}, "
                    'or "all"'
                )
        kinds.of(task)
        rescore.require(task)
        if with_baseline:
            baselines.name_of(task)
        if trial.control:
            shuffled(trial.splits.train[:2], 0)


def cell_keys(trial: Trial) -> list[CellKey]:
    """A trial's cells in the order in which they are run: pairs stay together, the control comes last."""
    name, network = trial.splits.task.name, trial.network
    keys = [
        CellKey(name, network, arm, labels, seed, way)
        for labels in trial.labels
        for seed in trial.seeds
        for arm, way in trial.rows
    ]
    if trial.control:
        most = max(trial.labels)
        keys += [CellKey(name, network, SHUFFLED, most, seed, way) for seed in trial.seeds for way in trial.ways]
    return keys


def tuning_keys(trial: Trial) -> list[CellKey]:
    """One key for each arm, way and rate where there is a rate to choose."""
    runs = len(trial.rates) if len(trial.rates) > 1 else 0
    name = trial.splits.task.name
    return [
        CellKey(name, trial.network, arm, max(trial.labels), trial.seeds[0], way)
        for arm, way in trial.rows
        for _ in range(0 if way == "probe" else runs)  # a closed form has no rate
    ]


def baseline_keys(trials: Sequence[Trial]) -> dict[CellKey, Splits]:
    """The baselines' cells, one for each task, budget and seed, and their splits."""
    return {
        CellKey(trial.splits.task.name, baselines.name_of(trial.splits.task), BASELINE, labels, seed): trial.splits
        for trial in trials
        for labels in trial.labels
        for seed in trial.seeds
    }


def shown_order(trials: Sequence[Trial], baselines: Sequence[CellKey]) -> list[CellKey]:
    """Cells in the order of a report: a network's ways, its random start, its control, the next network; baselines."""

    def place(trial: Trial, key: CellKey) -> tuple[int, int]:
        arms = (PRETRAINED, RANDOM, SHUFFLED)
        return arms.index(key.arm), trial.ways.index(key.way) if key.way in trial.ways else 0

    keys = [key for trial in trials for key in sorted(cell_keys(trial), key=lambda key, t=trial: place(t, key))]
    return keys + list(baselines)


def with_way(config: FinetuneConfig, way: str) -> FinetuneConfig:
    """The config with this way of adapting; InputError with the nearest one where there is no such way."""
    return config.replace(way=way)


def shuffled(examples: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """The same examples with their labels (the tags of all their words) dealt out anew: what cannot be learnt.

    Args:
        examples: with a label, with tags, or with answers (eval.experiment.span_control).
        seed: of the permutation.

    Raises:
        InputError: examples whose label cannot be separated from their text.
    """
    random = np.random.default_rng([seed, 0x5F])
    if all(hasattr(example, "tags") for example in examples):
        tags = [tag for example in examples for tag in example.tags]
        dealt = iter([tags[i] for i in random.permutation(len(tags))])
        return tuple(replace(example, tags=tuple(next(dealt) for _ in example.tags)) for example in examples)
    if all(hasattr(example, "options") for example in examples):  # of which there need not be equally many
        return tuple(replace(e, label=int(random.integers(len(e.options)))) for e in examples)
    if all(hasattr(example, "answers") for example in examples):
        return span_control.dealt(examples, random)
    if all(hasattr(example, "label") for example in examples):
        order = random.permutation(len(examples))
        return tuple(replace(e, label=examples[i].label) for e, i in zip(examples, order, strict=True))
    raise InputError(f"{type(examples[0]).__name__}s have no labels that can be shuffled; leave the control out")


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


def examples_digest(examples: Sequence[Any]) -> str:
    """16 hex digits for these examples in this order, whatever their kind."""
    names = [field.name for field in dataclasses.fields(examples[0])] if examples else []
    return digest("\0".join("\1".join(str(getattr(example, name)) for name in names) for example in examples))


def _fewest(examples: Sequence[Any], count: int) -> tuple[Any, ...]:
    if not count or count >= len(examples):
        return tuple(examples)
    keys = [hashlib.sha256(f"limit\0{key_of(e)}".encode()).digest() for e in examples]
    return tuple(examples[i] for i in sorted(sorted(range(len(keys)), key=keys.__getitem__)[:count]))
