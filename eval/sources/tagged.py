"""Tagged sentences: one word and its tag a line, a blank line between sentences (CoNLL's layout).

    words TAB tag        "Empire\tB-facility", "State\tI-facility", "=\tO"

Tags are BIO as a rule: B-x begins an entity of type x, I-x goes on with it, O is outside (see eval.scores.entities).
Which pieces of a word are scored is the task kind's concern; here a tag belongs to a word.
"""

from dataclasses import dataclass
from pathlib import Path

from eval.sources.readers import read_text
from eval.task import Task
from zoo.errors import InputError, nearest


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One sentence.

    Attributes:
        words: W words as the file holds them.
        tags: W indices into the task's tag names (`Task.labels`).
    """

    words: tuple[str, ...]
    tags: tuple[int, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The sentence, one space between its words."""
        return (" ".join(self.words),)


def read(task: Task, path: Path) -> tuple[list[TaggedExample], None, dict[str, int]]:
    """The sentences of a file.

    Args:
        task: whose `labels` are the tag names.
        path: the file. A word and its tag are the first and the last field of a line, with tabs (or, where there is
            none, blanks) between; "-DOCSTART-" lines are no words.

    Returns:
        (sentences, None, what was left out), as `eval.tasks` wants it.

    Raises:
        InputError: a line without a tag, an unknown tag, no sentence at all.
    """
    index = {name: i for i, name in enumerate(task.labels)}
    examples, words, tags = [], [], []
    lines = read_text(path, task.encoding).split("\n")
    for number, line in enumerate([*lines, ""], 1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            if words:
                examples.append(TaggedExample(tuple(words), tuple(tags)))
            words, tags = [], []
            continue
        word, tag = _word_and_tag(line, path, number)
        if tag not in index:
            raise InputError(f'{path}: line {number}: no tag "{tag}" in {task.name}{nearest(tag, task.labels)}')
        words.append(word)
        tags.append(index[tag])
    if not examples:
        raise InputError(f"{path}: no sentence with a word and a tag")
    return examples, None, {}


def tag_names(path: Path, encoding: str = "utf-8") -> tuple[str, ...]:
    """The tags of a file: "O" first, the others in alphabetical order of their types."""
    lines = enumerate(read_text(path, encoding).split("\n"), 1)
    tags = {_word_and_tag(line, path, n)[1] for n, line in lines if line.strip() and not line.startswith("-DOCSTART-")}
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag.partition("-")[2] or tag, tag)))


def _word_and_tag(line: str, path: Path, number: int) -> tuple[str, str]:
    fields = [part.strip() for part in (line.split("\t") if "\t" in line else line.split())]
    if len(fields) < 2 or not fields[0] or not fields[-1]:
        raise InputError(f"{path}: line {number}: a word and its tag are needed, with a tab between")
    return fields[0], fields[-1]
