"""What a report says of its tasks, of the machine and of the packages: facts, before any score."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.experiment import rescore
from eval.experiment.trial import examples_digest
from eval.tasks import Splits


@dataclass(frozen=True)
class TaskFacts:
    """What a report says of a task.

    Attributes:
        name, title, main_metric, labels, kind, licence, reference, source, benchmark: the task's own.
        counts: split -> label name -> number of examples (of words, for tags).
        gold: [E] test labels in the form of `rescore.kept`; None where the kind's predictions are not kept.
        dropped: why examples were left out -> how many.
        near: test texts that a training text nearly repeats; None where it was not looked for.
        warnings: what about the data may fool people.
        sizes: split -> number of examples; {} for the sums of `counts`.
        digests: split -> 16 hex digits of its examples in their order; the same task elsewhere has the same.
    """

    name: str
    title: str
    main_metric: str
    labels: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    gold: tuple[Any, ...] | None
    dropped: Mapping[str, int] = field(default_factory=dict)
    licence: str = ""
    reference: str = ""
    source: str = ""
    kind: str = "classification"
    benchmark: str = ""
    near: int | None = None
    warnings: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    def size(self, split: str) -> int:
        """Examples of a split."""
        return self.sizes.get(split) or sum(self.counts[split].values())

    @property
    def what(self) -> str:
        """`8 classes`, `ratings`, `21 tags`."""
        counted = {"classification": f"{len(self.labels)} classes", "tagging": f"{len(self.labels)} tags"}
        return counted.get(self.kind) or {"regression": "ratings"}.get(self.kind, self.kind)

    @property
    def overlap(self) -> str:
        """What is known of texts that stand on both sides."""
        if self.near is None:
            return ""
        if not self.near:
            return "no test text nearly repeats a training text"
        share = self.near / self.size("test")
        return f"{self.near:,} test texts ({share:.1%}) nearly repeat a training text, and are scored all the same"


def facts(splits: Splits) -> TaskFacts:
    """A task's part of a report."""
    task = splits.task
    parts = {name: getattr(splits, name) for name in ("train", "validation", "test")}
    return TaskFacts(
        name=task.name,
        title=task.title,
        main_metric=task.main_metric,
        labels=task.labels,
        counts=splits.counts(),
        gold=rescore.gold(task, splits.test),
        dropped=splits.dropped,
        licence=task.licence,
        reference=task.reference,
        source=task.source,
        kind=task.kind,
        benchmark=task.benchmark,
        near=splits.near,
        warnings=tuple(splits.warnings),
        sizes={name: len(examples) for name, examples in parts.items()},
        digests={name: examples_digest(examples) for name, examples in parts.items()},
    )


def machine_facts() -> dict[str, str]:
    """The processor and the system, without names of people or hosts."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": model or platform.machine(),
        "cores": str(cores),
        "system": f"{platform.system()} {platform.machine()}",
    }


def version_facts() -> dict[str, str]:
    """Python's version and those of the packages that decide numbers."""
    versions = {"python": platform.python_version()}
    for name in ("oneblock", "jax", "flax", "optax", "numpy", "scikit-learn"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
