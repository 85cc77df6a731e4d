"""What a class counts in the loss, and whether labels can be learnt from at all."""

from dataclasses import replace

import numpy as np

from eval.encode import Encoded
from eval.kinds import Kind
from eval.ways.finetune_config import FinetuneConfig
from zoo.errors import InputError


def weighed(encoded: Encoded, config: FinetuneConfig, num_labels: int, kind: Kind) -> Encoded:
    """The same examples with label_weights, where config.class_weights asks for them.

    "balanced" gives class c the weight E / (C E_c), of E examples of C classes, E_c of them of class c: every class
    counts the same in all, and an example 1 on average.

    Raises:
        InputError: a task without classes, or another number of weights than of classes.
    """
    if not config.class_weights:
        return encoded
    if kind.name != "classification":
        raise InputError(f"class_weights are for tasks of classes, and this one is of {kind.name}")
    weights = np.array(config.class_weight_list)
    if config.class_weights == "balanced":
        counts = np.bincount(encoded.labels, minlength=num_labels)
        weights = len(encoded) / (num_labels * np.maximum(counts, 1))
    if len(weights) != num_labels:
        raise InputError(f"class_weights has {len(weights)} numbers; this task has {num_labels} classes")
    found = weights[encoded.labels].astype(np.float32)
    if not found.any():
        raise InputError("class_weights are 0 for every class that the training examples have")
    return replace(encoded, label_weights=found)


def check_labels(encoded: Encoded, num_labels: int, kind: Kind) -> None:
    """Raises InputError for labels beyond the classes or tags, and for examples of one class only."""
    if kind.name == "tagging":
        highest = max((int(labels.max(initial=-1)) for labels in encoded.labels), default=-1)
        if highest >= num_labels:
            raise InputError(f"there is tag {highest}; {num_labels} tags are 0 to {num_labels - 1}")
        if highest < 0:
            raise InputError(f"{len(encoded)} sentences without a tag to learn")
    if kind.name != "classification":
        return
    present = sorted(set(encoded.labels.tolist()))
    if present[0] < 0 or present[-1] >= num_labels:
        raise InputError(f"labels are {present[0]} to {present[-1]}; {num_labels} classes are 0 to {num_labels - 1}")
    if len(present) < 2:
        count = f"{len(encoded):,} labelled example{'s' if len(encoded) > 1 else ''}"
        raise InputError(f"{count} of one class only; two classes are needed to learn from, so two labels or more")
