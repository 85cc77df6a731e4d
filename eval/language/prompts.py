"""Prompts for classification: a template, words for labels, and k labelled examples in front of a question.

    template = make_template(task)                             # "Text: {text}\\nLabel: {label}\\n\\n"
    template.prompt(shots, example)                            # intro, k examples with labels, one without
    template.answer(0)                                         # the word of label 0
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.examples import Example
from eval.task import Task
from eval.tasks import subset
from zoo.errors import InputError, nearest

FIELDS = ("text", "text_b", "label")
SINGLE = "Text: {text}\nLabel: {label}\n\n"
PAIR = "First text: {text}\nSecond text: {text_b}\nLabel: {label}\n\n"


@dataclass(frozen=True)
class Template:
    """How an example is written.

    Attributes:
        body: with {text}, {text_b} where there is one, and {label} once: a question ends where {label} stands.
        words: the word of each label.
        intro: what a prompt begins with.
    """

    body: str
    words: tuple[str, ...]
    intro: str = ""

    def question(self, *texts: str) -> str:
        """The body up to the label, with these texts in it."""
        return self._filled(self.body.partition("{label}")[0], texts)

    def answer(self, label: int) -> str:
        return self.words[label]

    def shot(self, example: Example) -> str:
        """The whole body, label included."""
        after = self.body.partition("{label}")[2]
        return self.question(*example.texts) + self.words[example.label] + self._filled(after, example.texts)

    def prompt(self, shots: Sequence[Example], *texts: str) -> str:
        """Intro, examples, question."""
        return self.intro + "".join(map(self.shot, shots)) + self.question(*texts)

    @staticmethod
    def _filled(part: str, texts: Sequence[str]) -> str:
        # One pass, so that a text that holds "{text_b}" stays what it is; a line break in it would end its example.
        lines = {f"{{{name}}}": " ".join(text.split()) for name, text in zip(FIELDS, texts, strict=False)}
        return re.sub(r"\{text(_b)?\}", lambda match: lines.get(match[0], ""), part)


def make_template(
    task: Task, body: str | None = None, words: Mapping[str, str] | None = None, intro: str | None = None
) -> Template:
    """The template of a task.

    Args:
        task: of classes; its label names, "_" and "-" read as spaces, are the words.
        body: see Template; None for one that names its parts "Text" and "Label".
        words: label name -> word, for the labels that get another.
        intro: None for a line that names the choices; "" for none.

    Raises:
        InputError: a task of another kind, a field that there is not, no or two {label}, two labels of one word.
    """
    if task.kind != "classification":
        raise InputError(f"task {task.name} is of kind {task.kind}; prompts choose among classes")
    pair = len(task.text_fields) > 1
    body = (PAIR if pair else SINGLE) if body is None else body
    for field in re.findall(r"\{(\w*)\}", body):
        if field not in FIELDS or (field == "text_b" and not pair):
            raise InputError(f'the template names {{{field}}}{nearest(field, FIELDS if pair else ("text", "label"))}')
    if body.count("{label}") != 1 or "{text}" not in body.partition("{label}")[0]:
        raise InputError("the template needs {text} and after it {label}, once")
    given = dict(words or {})
    for name in given:
        task.label_index(name)
    chosen = tuple(given.get(name, re.sub(r"[_-]+", " ", name)).strip() for name in task.labels)
    for number, word in enumerate(chosen):
        if not word:
            raise InputError(f'label "{task.labels[number]}" has no word')
        if word in chosen[:number]:
            raise InputError(f'two labels are written "{word}": give each its own word')
    if intro is None:
        listed = ", ".join(chosen[:-1]) + f" or {chosen[-1]}"
        intro = f"Label each text: {listed}.\n\n"
    return Template(body, chosen, intro)


def draw_shots(train: Sequence[Example], shots: int, seed: int, order: int = 0) -> tuple[Example, ...]:
    """`shots` labelled examples, stratified by class (eval.tasks.subset); `order` numbers their permutations."""
    if not shots:
        return ()
    chosen = list(subset(train, shots, seed))
    random.Random(f"{seed} {order}").shuffle(chosen)
    return tuple(chosen)
