"""Leaks: texts of the test set among the training texts, and labels that stand in the text.

Splits without a published test set keep equal and nearly equal texts on one side (`splits`), so that none is left
to find. With a published one, equal texts are taken out of the training set and near ones are counted here.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from eval.examples import Example
from eval.sources.splits import COMMON, SHINGLE, SIMILARITY, normalise
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

    The measure is that of `splits.group_keys` (Jaccard index of the sets of 3-word shingles). Texts that share
    only runs which more than 200 test texts hold are not compared.

    Args:
        train, test: texts after `eval.sources.splits.normalise`.

    Returns:
        The number, equal texts among them; None where all texts together have more than 30 million characters.
    """
    if sum(map(len, train)) + sum(map(len, test)) > NEAR_LIMIT:
        return None
    if not train or not test:
        return 0
    numbers: dict[str, int] = defaultdict(itertools.count(1).__next__)
    theirs, owners = _runs(test, numbers)
    theirs, owners = _distinct(theirs, owners)
    sizes = np.bincount(owners, minlength=len(test))
    held, start, count = np.unique(theirs, return_index=True, return_counts=True)
    ours, readers = _runs(train, numbers)
    place = np.searchsorted(held, ours).clip(max=len(held) - 1)
    hit = (held[place] == ours) & (count[place] <= COMMON)
    place, readers = place[hit], readers[hit]
    # Every (training text, test text) that shares a run, once for each time that it does.
    times = count[place]
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    pairs = np.repeat(readers, times) * len(test) + owners[np.repeat(start[place], times) + nth]
    pairs, shared = np.unique(pairs, return_counts=True)
    # What two texts share is never more of their union than of one of them: few pairs are left to look at closely.
    likely = pairs[shared >= SIMILARITY * sizes[pairs % len(test)]]
    found = {j for i, j in zip(*np.divmod(likely, len(test)), strict=True) if _similar(train[i], test[j])}
    return len(found)


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


def _runs(texts: Sequence[str], numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """The 3-word runs of all texts as uint64 numbers, in order, and which text each is of; `numbers` are the words'."""
    codes = [list(map(numbers.__getitem__, text.split())) for text in texts]
    lengths = np.array([max(len(code), SHINGLE) for code in codes])
    flat = np.zeros(lengths.sum(), np.uint64)
    ends = np.cumsum(lengths)
    for code, end, length in zip(codes, ends, lengths, strict=True):
        flat[end - length : end - length + len(code)] = code
    owners = np.repeat(np.arange(len(texts)), lengths)
    whole = np.arange(len(flat)) + SHINGLE <= ends[owners]
    runs = sum(np.roll(flat, -k) * MIX[k] for k in range(SHINGLE))
    return runs[whole], owners[whole]


def _distinct(runs: np.ndarray, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each run of each text once, in the order of the runs."""
    order = np.lexsort((owners, runs))
    runs, owners = runs[order], owners[order]
    first = np.append(True, (runs[1:] != runs[:-1]) | (owners[1:] != owners[:-1]))
    return runs[first], owners[first]


def _similar(one: str, other: str) -> bool:
    a, b = (
        {tuple(words[k : k + SHINGLE]) for k in range(max(1, len(words) - SHINGLE + 1))}
        for words in (one.split(), other.split())
    )
    return len(a & b) >= SIMILARITY * len(a | b)
