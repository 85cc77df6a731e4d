"""GLUE's averages, and published development-set figures to print beside ours.

    table = GlueTable.of({"cola": {"matthews": 0.56}, "mnli": {"matched": {"accuracy": 0.84}, "mismatched": {...}}})
    print(table.text())

A task with two metrics counts as their mean. WNLI is left out of every average, as is usual: its development set holds
sentences of the training set with the label turned, so that a model which learns scores below chance (question 12 of
gluebenchmark.com/faq). AX has no development set. Two averages are in use, and both are given: MNLI once, as the mean
of matched and mismatched, over 8 numbers, and MNLI twice, over 9.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from eval.metrics import spoken_name
from eval.sources.glue import GLUE
from zoo.errors import InputError, nearest

# Which metrics make a task's score: those of GLUE's leaderboard.
SCORED: dict[str, tuple[str, ...]] = {
    "cola": ("matthews",),
    "sst-2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "sts-b": ("pearson", "spearman"),
    "qqp": ("f1", "accuracy"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
MNLI_SETS = ("matched", "mismatched")
LEFT_OUT = ("wnli",)


@dataclass(frozen=True)
class Published:
    """One row of development-set figures from the literature, in percent.

    Attributes:
        model: as its publishers name it.
        figures: task -> its figure or figures, in the order of `SCORED` (for MNLI: matched, mismatched).
        source: where they were read.
        note: which metrics single figures are, and how they were got.
    """

    model: str
    figures: Mapping[str, tuple[float, ...]]
    source: str
    note: str


PUBLISHED: tuple[Published, ...] = (
    Published(
        "bert-base-cased",
        {
            "cola": (56.53,),
            "sst-2": (92.32,),
            "mrpc": (88.85, 84.07),
            "sts-b": (88.64, 88.48),
            "qqp": (87.49, 90.71),
            "mnli": (83.91, 84.10),
            "qnli": (90.66,),
            "rte": (65.70,),
            "wnli": (56.34,),
        },
        "transformers, examples/pytorch/text-classification/README.md",
        "one seed; rate 2e-5, batch 32, 3 epochs (5 on MRPC and WNLI), length 128",
    ),
    Published(
        "bert-base-uncased",
        {
            "cola": (56.3,),
            "sst-2": (92.7,),
            "mrpc": (88.6,),
            "sts-b": (89.0,),
            "qqp": (89.6,),
            "mnli": (84.7,),
            "qnli": (91.8,),
            "rte": (69.3,),
            "wnli": (53.5,),
        },
        "transformers, examples/research_projects/distillation/README.md (Sanh et al. 2019, arXiv 1910.01108)",
        "one figure a task; the source does not say which of two metrics, nor which MNLI set",
    ),
    Published(
        "BERT-large",
        {
            "cola": (60.6,),
            "sst-2": (93.2,),
            "mrpc": (88.0,),
            "sts-b": (90.0,),
            "qqp": (91.3,),
            "mnli": (86.6,),
            "qnli": (92.3,),
            "rte": (70.4,),
        },
        "zihangdai/xlnet, README.md (Yang et al. 2019, arXiv 1906.08237)",
        "single task, single model; one figure a task, and the source does not say which of two metrics",
    ),
)


@dataclass(frozen=True)
class GlueTable:
    """Development-set scores of one model on some tasks of GLUE, in percent.

    Attributes:
        figures: task -> its figures, in the order of `SCORED` (for MNLI: matched, mismatched).
    """

    figures: Mapping[str, tuple[float, ...]]

    @classmethod
    def of(cls, scores: Mapping[str, Mapping[str, float] | Mapping[str, Mapping[str, float]]]) -> "GlueTable":
        """From scores between 0 and 1.

        Args:
            scores: task -> metric -> value; for MNLI "matched" and "mismatched" -> metric -> value.

        Raises:
            InputError: a task that is none of GLUE's, a metric that its score needs and that is not there.
        """
        figures = {}
        for task, found in scores.items():
            if task not in SCORED:
                raise InputError(f'GLUE has no task "{task}"{nearest(task, SCORED)}')
            if task == "mnli":
                parts = [_value(f"mnli, {name}", _value("mnli", found, name), "accuracy") for name in MNLI_SETS]
            else:
                parts = [_value(task, found, name) for name in SCORED[task]]
            figures[task] = tuple(100 * float(part) for part in parts)
        return cls(figures)

    def score(self, task: str) -> float:
        """A task's one number: the mean of its figures."""
        return sum(self.figures[task]) / len(self.figures[task])

    def missing(self) -> tuple[str, ...]:
        """The tasks that an average needs and that are not there."""
        return tuple(task for task in SCORED if task not in (*self.figures, *LEFT_OUT))

    def average(self, *, mnli_twice: bool = False) -> float:
        """The mean over all tasks but WNLI.

        Args:
            mnli_twice: matched and mismatched as two tasks (9 numbers) and not as one (8).

        Raises:
            InputError: tasks are missing: an average over fewer is another number.
        """
        if self.missing():
            raise InputError(f"no GLUE average without {', '.join(self.missing())}")
        numbers = [self.score(task) for task in SCORED if task not in (*LEFT_OUT, "mnli")]
        numbers += self.figures["mnli"] if mnli_twice else [self.score("mnli")]
        return sum(numbers) / len(numbers)

    def text(self, model: str = "this model") -> str:
        """A table in Markdown: a task a row, ours and the published figures, and the averages."""
        rows = [["task", "metric", model, *(row.model for row in PUBLISHED)], ["---"] * (3 + len(PUBLISHED))]
        for task in GLUE:
            names = [spoken_name(name) for name in SCORED[task.name]]
            metric = "accuracy m/mm" if task.name == "mnli" else "/".join(names)
            columns = [self.figures, *(row.figures for row in PUBLISHED)]
            rows.append([task.name, metric, *(_shown(figures.get(task.name)) for figures in columns)])
        tables = [self, *(GlueTable(row.figures) for row in PUBLISHED)]
        for label, twice in (("MNLI once", False), ("MNLI twice", True)):
            means = [f"{t.average(mnli_twice=twice):.1f}" if t._whole(twice) else "-" for t in tables]
            rows.append(["average", f"{label}, no WNLI", *means])
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        notes = [f"- {row.model}: {row.source}; {row.note}." for row in PUBLISHED]
        return "\n".join([*lines, "", "Development sets, in percent. Published figures:", "", *notes]) + "\n"

    def _whole(self, twice: bool) -> bool:
        return not self.missing() and not (twice and len(self.figures["mnli"]) < 2)


def _value(where: str, found: Mapping, name: str):
    if name not in found:
        raise InputError(f'{where}: no "{name}" among its scores{nearest(name, found)}')
    return found[name]


def _shown(figures: tuple[float, ...] | None) -> str:
    return "-" if figures is None else "/".join(f"{round(value, 2):g}" for value in figures)
