"""What random settings of all families are drawn from; draws_decoders and draws_encoders hold the families.

Small numbers throughout; what is drawn is what can go wrong: how heads share keys, heads that are no part of the width,
biases, ties, windows within the text, rotary scalings around the trained length, layers that cut a pattern short.
"""

from typing import Any

from hypothesis import strategies as st

from tests.parity.reference import Case

ACTS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
FULL, SLIDING = "full_attention", "sliding_attention"
Draw = Any  # of st.composite


def whole(draw: Draw, low: int, high: int) -> int:
    return draw(st.integers(low, high))


def one(draw: Draw, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def flag(draw: Draw) -> bool:
    return draw(st.booleans())


def labels(draw: Draw) -> dict[str, Any]:
    return dict(id2label={index: f"label {index}" for index in range(whole(draw, 2, 4))})


def heads(draw: Draw, free: bool = False, multiple: bool = True) -> dict[str, Any]:
    """Query and key-value heads, their features and the width.

    `free` where head_dim is a setting of its own; `multiple` where the reference library even so refuses a width that
    is no multiple of the heads.
    """
    kv = whole(draw, 1, 3)
    count = kv * whole(draw, 1, 3)
    features = 2 * whole(draw, 2, 8)
    width = dict(hidden_size=count * features)
    if free and flag(draw):
        width = dict(hidden_size=count * whole(draw, 4, 16) if multiple else whole(draw, 16, 90), head_dim=features)
    return dict(num_attention_heads=count, num_key_value_heads=kv) | width


def kinds_of_layer(draw: Draw, count: int) -> list[str]:
    return draw(st.lists(st.sampled_from([FULL, SLIDING]), min_size=count, max_size=count))


def family(families: dict[str, st.SearchStrategy[Case]]):
    """Decorates a function of `draw` that gives a class and its settings: a strategy of Case under its name."""

    def register(function):
        @st.composite
        def drawn(draw):
            architecture, settings = function(draw)
            return Case(architecture, settings, {}, whole(draw, 0, 10**6))

        families[function.__name__] = drawn()
        return function

    return register
