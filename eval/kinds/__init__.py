"""The kinds of tasks: a file each."""

from eval.kinds.choice import CHOICE
from eval.kinds.classification import CLASSIFICATION
from eval.kinds.kind import Evaluation, Kind
from eval.kinds.regression import REGRESSION
from eval.kinds.spans import SPANS
from eval.kinds.tagging import TAGGING
from zoo.errors import InputError, nearest

__all__ = ["CHOICE", "CLASSIFICATION", "KINDS", "REGRESSION", "SPANS", "TAGGING", "Evaluation", "Kind", "of"]

KINDS: dict[str, Kind] = {kind.name: kind for kind in (CLASSIFICATION, REGRESSION, TAGGING, SPANS, CHOICE)}


def of(task: object) -> Kind:
    """The kind of a task; InputError with the nearest one where there is no such kind."""
    name = getattr(task, "kind", CLASSIFICATION.name)
    if name not in KINDS:
        raise InputError(f'no kind of task "{name}"{nearest(name, KINDS)}')
    return KINDS[name]
