"""Names folded into ranges say every name and no other."""

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.checkpoints.name_ranges import ranges


def test_by_hand():
    assert ranges([f"layers.{n}.q" for n in (0, 1, 2, 5)]) == ["layers.0-2,5.q"]
    mixed = ["norm.weight", "layers.1.q", "layers.0.k", "layers.0.q"]
    assert ranges(mixed) == ["norm.weight", "layers.0-1.q", "layers.0.k"]
    both = [f"layers.{n}.experts.{e}.w1" for n in (0, 1) for e in range(4)]
    assert ranges(both) == ["layers.0-1.experts.0-3.w1"]
    assert ranges([*both[:4], both[5]]) == ["layers.0.experts.0-3.w1", "layers.1.experts.1.w1"]
    assert ranges(["h.10.w (2, 3), not (3, 2)", "h.9.w (2, 3), not (3, 2)"]) == ["h.9-10.w (2, 3), not (3, 2)"]
    assert ranges([]) == []


def unfolded(entry):
    """All names that an entry stands for."""
    pieces = re.split(r"(?<=\.)([0-9,-]+)(?=\.)", entry)
    choices = []
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            choices.append([piece])
            continue
        numbers = []
        for part in piece.split(","):
            low, _, high = part.partition("-")
            numbers += [str(n) for n in range(int(low), int(high or low) + 1)]
        choices.append(numbers)
    return ["".join(chosen) for chosen in itertools.product(*choices)]


names = st.builds("{}.{}.{}.{}.{}".format, st.sampled_from("ab"), st.integers(0, 4), st.sampled_from("xy"),
                  st.integers(0, 12), st.sampled_from("uv"))  # fmt: skip


@given(st.sets(names, max_size=40))
@settings(max_examples=100, deadline=None)
def test_every_name_and_no_other(given):
    said = [name for entry in ranges(sorted(given)) for name in unfolded(entry)]
    assert sorted(said) == sorted(given)
