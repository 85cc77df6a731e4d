"""Tagged sentences: one word and its tag a line, a blank line between sentences (CoNLL's layout).

    sentences = read(Path("ner.txt"))          # words and tag names
    examples = index(sentences, TASK.labels)   # words and tag numbers

Word-piece alignment is another matter: a tag belongs to a word, and which pieces of it are scored is the task kind's.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One sentence.

    Attributes:
        words: W words as the file holds them.
        tags: W indices into the task's tag names (`Task.labels`).
    """

    words: tuple[str, ...]
    tags: tuple[int, ...]


def tagged_text(words: Sequence[str]) -> str:
    """A sentence's words with one space between: what hashes, splits and overlap checks look at."""
    return " ".join(words)
