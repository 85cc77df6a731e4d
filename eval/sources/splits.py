"""Splits that do not leak: texts that say the same thing fall on one side, chosen by a hash and by nothing else.

A text's side depends on the text alone: not on its place in the file, the machine, or a random generator's version.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Hashable, Sequence

WORDS = re.compile(r"[^\W_]+")
SHINGLE = 3
SIMILARITY = 0.5
COMMON = 200


def normalise(text: str) -> str:
    """The words of a text in lower case, one space between; the text itself, stripped, where it holds no word."""
    return " ".join(WORDS.findall(text.lower())) or text.strip()


def fraction(key: str, salt: str) -> float:
    """A number in [0, 1) from a key: the first 8 bytes of SHA-256(salt, key)."""
    return int.from_bytes(hashlib.sha256(f"{salt}\0{key}".encode()).digest()[:8]) / 2**64


def group_keys(texts: Sequence[str], families: Sequence[Hashable] | None = None, *, near: bool = True) -> list[str]:
    """One key a text, the same for texts that belong together.

    Texts belong together when they are equal after `normalise`; when they are near duplicates, that is, when their sets
    of 3-word shingles overlap by half or more (Jaccard index; Broder 1997, "On the resemblance and containment of
    documents"); when they are of one family (sentences of one review); and by any chain of these.

    Args:
        texts: B texts.
        families: B family names, or None.
        near: whether to look for near duplicates. Shingles found in more than 200 texts are passed over.

    Returns:
        B keys: the smallest normalised text of each text's group.
    """
    names = [normalise(text) for text in texts]
    parent = list(range(len(names)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def join_all(keys: Sequence[Hashable]) -> None:
        first: dict[Hashable, int] = {}
        for i, key in enumerate(keys):
            parent[find(i)] = find(first.setdefault(key, i))

    join_all(names)
    if families is not None:
        join_all(families)
    if near:
        for i, j in _near_pairs(names):
            parent[find(i)] = find(j)
    smallest: dict[int, str] = {}
    for i, name in enumerate(names):
        root = find(i)
        smallest[root] = min(smallest.get(root, name), name)
    return [smallest[find(i)] for i in range(len(names))]


def _near_pairs(names: Sequence[str]):
    distinct = {name: i for i, name in enumerate(names)}
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    shingles: dict[int, set[tuple[str, ...]]] = {}
    for name, i in distinct.items():
        words = name.split()
        shingles[i] = {tuple(words[k : k + SHINGLE]) for k in range(max(1, len(words) - SHINGLE + 1))}
        for shingle in shingles[i]:
            holders[shingle].append(i)
    for i, own in shingles.items():
        shared: dict[int, int] = defaultdict(int)
        for shingle in own:
            others = holders[shingle]
            if len(others) <= COMMON:
                for j in others:
                    shared[j] += 1
        for j, count in shared.items():
            if j < i and count >= SIMILARITY * (len(own) + len(shingles[j]) - count):
                yield i, j
