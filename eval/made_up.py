"""A made-up task that needs no network: texts about invented topics, for trying the whole road in seconds.

Each topic has words of its own, and a text mixes some of them with words that all topics share. Which words belong
together can be learnt from unlabelled text alone, so pre-training has something to give.
"""

import random

from eval.tasks import Example, Splits, Task
from zoo.errors import InputError, nearest

TOPICS = {
    "sea": "harbor tide sail anchor gull reef mast shore wave pilot net salt",
    "kitchen": "oven bread butter spoon kettle onion flour pepper broth plate sugar knife",
    "workshop": "hammer nail saw plank glue chisel hinge drill screw bench varnish clamp",
    "garden": "seed root tulip spade hedge compost apple bee orchard moss fern vine",
}
SHARED = (
    "the a one some every old new small good long and with near under before after saw took made kept found left "
    "brought asked today again often never slowly well"
).split()


def splits(
    train: int = 400, validation: int = 80, test: int = 120, *, topics: int = 4, signal: float = 0.35, seed: int = 0
) -> Splits:
    """A task of `topics` classes.

    Args:
        train, validation, test: examples of each split, classes in turn.
        topics: C, from 2 to 4.
        signal: the share of a text's words that tell its topic; a text has one at least.
        seed: of all texts.
    """
    names = tuple(TOPICS)[:topics]
    task = Task(
        name="made-up-topics",
        title="Made-up texts on made-up topics",
        labels=names,
        text_fields=("text",),
        label_field="topic",
        train_file="",
        licence="made here",
    )
    draw = random.Random(seed)

    def text(label: int) -> str:
        own = TOPICS[names[label]].split()
        words = [draw.choice(own if draw.random() < signal else SHARED) for _ in range(draw.randint(4, 20))]
        words[draw.randrange(len(words))] = draw.choice(own)
        return " ".join(words) + "."

    def examples(count: int) -> tuple[Example, ...]:
        return tuple(Example(text(i % topics), None, i % topics) for i in range(count))

    return Splits(task, examples(train), examples(validation), examples(test))


def load(name: str) -> Splits:
    """The made-up task, as eval.tasks.load gives the real ones."""
    if name != "made-up-topics":
        raise InputError(f'no made-up task "{name}"{nearest(name, ["made-up-topics"])}')
    return splits()
