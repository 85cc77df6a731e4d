"""Reading comprehension and multiple choice from the files that their own sites publish.

    squad/train-v1.1.json, dev-v1.1.json            swag/train.csv, val.csv
    squad/train-v2.0.json, dev-v2.0.json            hellaswag/hellaswag_train.jsonl, hellaswag_val.jsonl
    ARC-Easy/ARC-Easy-Train.jsonl, ARC-Easy-Test.jsonl, and the same of ARC-Challenge

The folder of the files will do, or one that holds these folders. Where the test set is hidden, the development set is
the test set here; ARC's test set has its labels.
"""

from eval.task import Task


def _squad(name: str, version: str, sizes: tuple[int, int], metrics: tuple[str, ...], reference: str) -> Task:
    return Task(
        name=name,
        title=f"Questions on passages of Wikipedia, SQuAD {version}",
        labels=(),
        kind="spans",
        text_fields=("context", "question"),
        label_field="answers",
        train_file=f"squad/train-{version}.json",
        test_file=f"squad/dev-{version}.json",
        test_name="dev",
        reader="squad",
        metrics=metrics,
        main_metric="answer_f1",
        benchmark="SQuAD",
        licence="CC BY-SA 4.0",
        reference=reference,
        sizes=sizes,
    )


def _choice(
    name: str, title: str, files: tuple[str, str], test_name: str, sizes: tuple[int, int], **facts: str
) -> Task:
    return Task(
        name=name,
        title=title,
        labels=(),
        kind="choice",
        text_fields=("context", "options"),
        label_field="label",
        train_file=files[0],
        test_file=files[1],
        test_name=test_name,
        reader="choices",
        metrics=("accuracy",),
        sizes=sizes,
        **facts,
    )


def _arc(part: str, sizes: tuple[int, int]) -> Task:
    return _choice(
        f"arc-{part.lower()}",
        f"Science questions of school tests, ARC {part}",
        (f"ARC-{part}/ARC-{part}-Train.jsonl", f"ARC-{part}/ARC-{part}-Test.jsonl"),
        "test",
        sizes,
        benchmark="ARC",
        licence="CC BY-SA 4.0",
        reference="Clark et al. 2018, Think you have Solved Question Answering? arXiv 1803.05457",
    )


_EM = ("answer_f1", "exact_match")
_PARTS = ("has_answer_f1", "has_answer_exact", "no_answer_f1", "no_answer_exact")

PUBLISHED_TASKS: tuple[Task, ...] = (
    _squad("squad-v1.1", "v1.1", (87599, 10570), _EM, "Rajpurkar et al. 2016, SQuAD, EMNLP"),
    _squad(
        "squad-v2.0",
        "v2.0",
        (130319, 11873),
        (*_EM, *_PARTS),
        "Rajpurkar, Jia and Liang 2018, Know What You Don't Know, ACL",
    ),
    _choice(
        "swag",
        "What happens next in a film, SWAG",
        ("swag/train.csv", "swag/val.csv"),
        "val",
        (73546, 20006),
        benchmark="SWAG",
        licence="MIT",
        reference="Zellers et al. 2018, SWAG, EMNLP",
    ),
    _choice(
        "hellaswag",
        "How a text goes on, HellaSwag",
        ("hellaswag/hellaswag_train.jsonl", "hellaswag/hellaswag_val.jsonl"),
        "val",
        (39905, 10042),
        benchmark="HellaSwag",
        licence="MIT",
        reference="Zellers et al. 2019, HellaSwag, ACL",
    ),
    _arc("Easy", (2251, 2376)),
    _arc("Challenge", (1119, 1172)),
)
