"""What a tokenizer library must do for `zoo.tokenizer`; `zoo.tokenizer_files` has one such class a library."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np


class Pieces(Protocol):
    """One vocabulary in its library.

    Attributes:
        pieces: [V] the text of each id.
        roles: special id by role, for the roles in `ROLES` that the vocabulary has.
        special_ids: every control piece.
        starts_word: [V] bool.
        adds_bos: whether texts begin with BOS.
        definition: what decides ids, hashed into the fingerprint.
    """

    pieces: Sequence[str]
    roles: dict[str, int]
    special_ids: tuple[int, ...]
    starts_word: np.ndarray
    adds_bos: bool
    definition: bytes

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    def encoder(self) -> Callable[[Sequence[str]], list[np.ndarray]]: ...

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]: ...

    def encode_marked(self, text: str, marks: re.Pattern, hidden: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...
