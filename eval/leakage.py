"""Leaks: texts of the test set among the training texts, and labels that stand in the text.

Splits without a published test set keep equal and nearly equal texts on one side (`eval.splits`), so that none is left
to find. With a published one, equal texts are taken out of the training set and near ones are counted here.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from eval.examples import Example
from eval.splits import COMMON, SHINGLE, SIMILARITY, normalise
from eval.task import Task
from zoo.errors import InputError

# Characters of all texts up to which near copies are looked for: some seconds.
NEAR_LIMIT = 30_000_000
# Shares of rows whose text is the label, or begins or ends with it.
SAME, AT_THE_END = 0.5, 0.9
# Odd numbers that mix the numbers of three words into one.
MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def near_copies(train: Sequence[str], test: Sequence[str]) -> int | None:
    """How many test texts a training text nearly repeats: half or more of their 3-word runs are the same.

    The measure is that of `eval.splits.group_keys` (Jaccard index of the sets of 3-word shingles); runs that more than
    200 test texts share are passed over.

    Args:
        train, test: texts after `eval.splits.normalise`.

    Returns:
        The number, equal texts among them; None where all texts together have more than 30 million characters.
    """
    if sum(map(len, train)) + sum(map(len, test)) > NEAR_LIMIT:
        return None
    ids: dict[str, int] = defaultdict(itertools.count(1).__next__)
    held = [_runs(text, ids) for text in test]
    sizes = np.array([len(runs) for runs in held])
    flat, owners = np.concatenate(held), np.repeat(np.arange(len(held)), sizes)
    order = np.argsort(flat, kind="stable")
    runs_held, start, count = np.unique(flat[order], return_index=True, return_counts=True)
    owners = owners[order]
    found = np.zeros(len(held), bool)
    for text in train:
        runs = _runs(text, ids)
        place = np.searchsorted(runs_held, runs).clip(max=len(runs_held) - 1)
        hits = place[(runs_held[place] == runs) & (count[place] <= COMMON)]
        if len(hits):
            sharing = np.concatenate([owners[start[h] : start[h] + count[h]] for h in hits])
            numbers, shared = np.unique(sharing, return_counts=True)
            found[numbers[shared >= SIMILARITY * (len(runs) + sizes[numbers] - shared)]] = True
    return int(found.sum())


def label_in_text(task: Task, examples: Sequence[Example]) -> str:
    """A warning where texts give their own label away, "" where they do not.

    Args:
        task: of kind "classification"; others are passed over.
        examples: labelled ones.

    Raises:
        InputError: half or more of the texts are their label and nothing else: the wrong column was taken as text.
    """
    if task.kind != "classification" or not examples:
        return ""
    names = [normalise(name) for name in task.spellings]
    same = ends = 0
    for example in examples:
        name, texts = names[example.label], [normalise(text) for text in example.texts]
        same += name in texts
        ends += any(text.startswith(f"{name} ") or text.endswith(f" {name}") or text == name for text in texts)
    columns = " or ".join(f'"{name}"' for name in task.text_fields)
    if same >= SAME * len(examples):
        raise InputError(
            f"{task.name}: {same:,} of {len(examples):,} texts in column {columns} are their own label; name another "
            "text column"
        )
    if ends >= AT_THE_END * len(examples):
        return f"{ends:,} of {len(examples):,} texts in column {columns} begin or end with their own label"
    return ""


def _runs(text: str, ids: dict[str, int]) -> np.ndarray:
    """The distinct 3-word runs of a text as uint64 numbers, or its words where it has fewer; `ids` numbers the words."""
    codes = np.array(list(map(ids.__getitem__, text.split())), np.uint64)
    width = min(SHINGLE, len(codes))
    parts = [codes[k : len(codes) - width + 1 + k] * MIX[k] for k in range(width)]
    return np.unique(np.sum(parts, axis=0, dtype=np.uint64))
