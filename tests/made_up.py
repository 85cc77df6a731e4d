"""Made-up text and a vocabulary learnt from it: the same in every run, and small enough to train in a blink."""

import functools
import random

from train.vocabulary import train_vocabulary
from zoo.tokenizer import Tokenizer

WORDS = (
    "river stone maple winter lantern harbor copper meadow thunder pebble garden silver orchard candle marble ribbon "
    "walks sings turns carries finds leaves opens counts follows gathers the a every some old quiet bright narrow"
).split()


def sentence(draw: random.Random) -> str:
    words = [draw.choice(WORDS) for _ in range(draw.randint(3, 14))]
    return " ".join(words).capitalize() + draw.choice(".!?")


@functools.cache
def documents(count: int = 200, seed: int = 0) -> tuple[str, ...]:
    """Texts of 1 to 12 sentences."""
    draw = random.Random(seed)
    return tuple(" ".join(sentence(draw) for _ in range(draw.randint(1, 12))) for _ in range(count))


@functools.cache
def tokenizer(vocab_size: int = 360, normalization: str = "nmt_nfkc") -> Tokenizer:
    """A SentencePiece vocabulary of `documents()`."""
    return train_vocabulary(documents(), vocab_size, normalization=normalization)
