"""Encoding much text by remembering the ids of its words.

Most words of a text were met before. Where a tokenizer cuts a text into words first and encodes each of them alone, the
ids of a text are those of its words, end to end, and a known word needs no second look. `word_cut` knows for which
settings of the tokenizers library this holds, and where it lets a text be cut:

    BERT's WordPiece    at spaces, tabs and newlines, and on both sides of ASCII punctuation
    byte-level BPE      before the last space of a blank, after a line's end: "and| so|\n| on"; after ASCII letters

The ids of words are kept as bytes and joined, so that no Python number is made of an id; the library sees new words.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

# Words to remember, and characters of the longest: a text without spaces is one word, and comes once.
MOST, LONGEST = 1 << 19, 48
# New words that go to the library as one text, where they may: a text of its own for each takes four times as long.
TOGETHER = 256
# Patterns of Split that cut at white space as GPT-2's does: each alternative takes white space before other characters
# or alone, and looks ahead of white space only.
SPLITS = frozenset(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    )
)
# Python's \s has all that Unicode calls white space and more, so none is taken for a character beside the space.
# A blank of several characters gives its last to the next word where that is a space and a letter follows; else both
# words beside it stay with it, as digits are taken out of some texts first, and tabs are joined to words by others.
SPACED = re.compile(r"(?: ?\S+|\s+(?= [A-Za-z])|\s+\S*)(?:(?! \S)(?:\n(?=\S)|\s+(?= [A-Za-z])|\s+\S*))*")
LETTERS = re.compile(r"( ?[A-Za-z]+)([\x00-@\[-`{-\x7f].*)", re.DOTALL)
PUNCTUATED = re.compile(r"[!-/:-@\[-`{-~]|[^!-/:-@\[-`{-~]+")


@dataclass(frozen=True)
class Cut:
    """How a text is cut: into words, quickly, and a new word again, as finely as may be.

    Attributes:
        words: text -> words, whose ids end to end are those of the text.
        parts: word -> parts of it, of which the same holds.
        between: what may be put between words, to be encoded together, and stays one id of its own.
        joins: which words that may be done with.
    """

    words: Callable[[str], list[str]]
    parts: Callable[[str], list[str]]
    between: str
    joins: re.Pattern


def word_cut(definition: dict[str, Any]) -> Cut | None:
    """Where texts may be cut, by a tokenizer.json; None where words are not encoded alone, or it is not known."""
    if any(not token.get("special") for token in definition.get("added_tokens") or ()):
        return None  # such a piece may hold spaces
    model, normalizer, first = (definition.get(part) or {} for part in ("model", "normalizer", "pre_tokenizer"))
    if (model.get("type"), normalizer.get("type"), first.get("type")) == (
        "WordPiece", "BertNormalizer", "BertPreTokenizer",
    ):  # fmt: skip
        return Cut(_blank_split, PUNCTUATED.findall, ",", re.compile(r"[^,]+"))
    if model.get("type") != "BPE" or normalizer or model.get("dropout"):
        return None
    steps = first.get("pretokenizers", [first])
    *before, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space") is not False:
        return None
    splits = [step for step in before if step.get("type") != "Digits"]
    known = all(
        step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
        and (step.get("pattern") or {}).get("Regex") in SPLITS
        for step in splits
    )  # fmt: skip
    if not known or (last.get("use_regex") is False and not splits):
        return None
    # Punctuation takes a newline after it along in some patterns, and digits are taken out before others see the rest.
    return Cut(SPACED.findall, _letters_first, "\n", re.compile(r" ?[A-Za-z](?:\S*[A-Za-z])?"))


def _blank_split(text: str) -> list[str]:
    # Other white space may be a control character to BERT, which takes it out and joins what is beside it.
    return text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ")


def _letters_first(word: str) -> list[str]:
    # What follows letters is matched anew, whatever they were.
    found = LETTERS.fullmatch(word)
    return [word] if found is None else [found[1], found[2]]


class WordEncoder:
    """Texts to ids, word by word.

    Args:
        cut: from `word_cut`.
        encode: texts -> ids of each, what the tokenizer does.
    """

    def __init__(self, cut: Cut, encode: Callable[[list[str]], Iterable[Sequence[int]]]):
        self._cut, self._encode = cut, encode
        self._known: dict[str, bytes] = {}

    def __call__(self, texts: Iterable[str]) -> list[np.ndarray]:
        """[length] int32 of each text."""
        known = self._known
        if len(known) > MOST:
            known.clear()
        texts = [self._cut.words(text) for text in texts]
        learnt = self._learn(set(chain.from_iterable(texts)).difference(known))
        found = [np.frombuffer(b"".join(map(known.__getitem__, words)), np.int32) for words in texts]
        for word in learnt:
            if len(word) > LONGEST:
                del known[word]
        return found

    def _learn(self, words: set[str]) -> set[str]:
        """Adds these words and their parts to the known ones; returns what is new."""
        cut = self._cut.parts
        parts = {word: cut(word) for word in words}
        alone = set(chain.from_iterable(parts.values())).difference(self._known)
        self._known.update(self._encoded(list(alone)))
        ids_of = self._known.__getitem__
        self._known.update([(word, b"".join(map(ids_of, own))) for word, own in parts.items()])
        return words | alone

    def _encoded(self, words: list[str]) -> Iterator[tuple[str, bytes]]:
        """(word, its ids) of each, some of them read out of texts that were made of several."""
        joins = self._cut.joins.fullmatch
        joined = [word for word in words if joins(word)]
        groups = [joined[begin : begin + TOGETHER] for begin in range(0, len(joined), TOGETHER)]
        texts = [self._cut.between.join(group) for group in groups]
        single = [word for word in words if not joins(word)]
        between, *found = (np.array(ids, np.int32) for ids in self._encode([self._cut.between, *texts]))
        for group, ids in zip(groups, found, strict=True):
            ends = [*np.flatnonzero(ids == between[0]).tolist(), len(ids)]
            if len(between) != 1 or len(ends) != len(group):  # a word that holds what stands between, or it is no id
                single += group
                continue
            begins, data = [0, *(end + 1 for end in ends)], ids.tobytes()
            yield from ((word, data[4 * a : 4 * b]) for word, a, b in zip(group, begins, ends, strict=False))
        if single:
            ids_of = zip(single, self._encode(single), strict=True)
            yield from ((word, array("i", ids).tobytes()) for word, ids in ids_of)
