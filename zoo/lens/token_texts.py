"""Ids as texts that a picture can show: spaces and control characters visible, characters of several pieces whole."""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from zoo.generation.prompts import HALF, TextStream, continuation

SHOWN = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}  # open box, return, tab


def passage_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """What each id of a passage stands for in it.

    Pieces that are bytes of one character all show that character, with their number: "\u672c (1/3)".

    Args:
        tokenizer: of the zoo, or None: then the ids are shown.
        ids: of the whole passage, special ones included.
    """
    if tokenizer is None:
        return tuple(str(i) for i in ids)
    special, texts, waiting = set(tokenizer.special_ids), [], []
    stream = TextStream(tokenizer, [])

    def settle(text: str) -> None:
        if not text or HALF in text:  # the passage ends inside a character
            text = _bytes_of("".join(map(tokenizer.piece, waiting)))
        whole, count = visible(text), len(waiting)
        texts.extend([whole] if count == 1 else (f"{whole} ({n}/{count})" for n in range(1, count + 1)))
        waiting.clear()

    for i in ids:
        if i in special:
            if waiting:
                settle(stream.end())
            texts.append(visible(tokenizer.piece(i)))
            continue
        waiting.append(i)
        text = stream.add([i])
        if text:
            settle(text)
    if waiting:
        settle(stream.end())
    return tuple(texts)


def piece_texts(tokenizer: Any, ids: Iterable[int]) -> dict[int, str]:
    """What each id would add to a text: {id: text}. Bytes that are no whole character are written \\xe6.

    Args:
        tokenizer: of the zoo, or None: then the ids are shown.
        ids: of the vocabulary, in any order.
    """
    wanted = sorted({int(i) for i in ids})
    if tokenizer is None:
        return {i: str(i) for i in wanted}
    before = tokenizer.encode("a")[-1:]
    special, texts = set(tokenizer.special_ids), {}
    for i in wanted:
        if i >= tokenizer.vocab_size:
            texts[i] = f"id {i}"  # rows of the table that no piece has
            continue
        text = "" if i in special else continuation(tokenizer, before, [i])
        if HALF in text:
            text = _bytes_of(tokenizer.piece(i))
        texts[i] = visible(text or tokenizer.piece(i))
    return texts


def visible(text: str) -> str:
    """`text` with every character to be seen: spaces as an open box, controls and marks of direction as escapes."""
    return "".join(_seen(character) for character in text)


def short(text: str, most: int = 14) -> str:
    """At most so many characters, the last an ellipsis where some are left out."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def _seen(character: str) -> str:
    if character in SHOWN:
        return SHOWN[character]
    if unicodedata.category(character)[0] in "CZ":
        return character.encode("unicode_escape").decode("ascii")
    return character


def _bytes_of(piece: str) -> str:
    """A byte-level piece with its whole characters as they are and other bytes as \\xe6; other pieces as they are."""
    table = _byte_letters()
    if not all(letter in table for letter in piece):
        return piece
    return bytes(table[letter] for letter in piece).decode("utf-8", errors="backslashreplace")


@cache
def _byte_letters() -> dict[str, int]:
    """The letter of each byte in byte-level vocabularies (Radford et al. 2019): itself where it prints, else one from
    U+0100 on, in the bytes' order."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + n): byte for n, byte in enumerate(others)}
