"""Many names in few words: tensors that differ in a layer's or an expert's number are one entry with a range.

layers.0.q, layers.1.q, layers.2.q, layers.5.q  ->  layers.0-2,5.q
"""

import re
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)|^[0-9]+(?=\.)")


def ranges(names: Iterable[str]) -> list[str]:
    """Every name, in the order of their first appearance, those that differ in numbers between dots folded together.

    Numbers fold from the last to the first, each where all else is the same, so that every name is said and no other.
    """
    entries = [tuple(_parts(name)) for name in names]
    for place in range(max((len(parts) for parts in entries), default=0) - 1, 0, -1):
        groups: dict[tuple[str, ...], list[str]] = {}
        for parts in entries:
            key = (*parts[:place], "", *parts[place + 1 :]) if place < len(parts) and place % 2 else parts
            groups.setdefault(key, []).append(parts[place] if key is not parts else "")
        entries = [
            (*key[:place], _folded(numbers), *key[place + 1 :]) if place < len(key) and place % 2 else key
            for key, numbers in groups.items()
        ]
    return ["".join(parts) for parts in entries]


def _parts(name: str) -> list[str]:
    """Words at even places and numbers at odd ones."""
    parts, start = [], 0
    for match in NUMBER.finditer(name):
        parts += [name[start : match.start()], match.group()]
        start = match.end()
    return [*parts, name[start:]]


def _folded(numbers: Sequence[str]) -> str:
    """0-2,5 of 0, 1, 2, 5; what is folded already or begins with 0 stays as it is."""
    plain = sorted({int(n) for n in numbers if n == "0" or (n.isdigit() and n[0] != "0")})
    rest = [n for n in dict.fromkeys(numbers) if not (n == "0" or (n.isdigit() and n[0] != "0"))]
    runs: list[list[int]] = []
    for number in plain:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join([str(a) if a == b else f"{a}-{b}" for a, b in runs] + rest)
