"""Reading comprehension and multiple choice by name, from the files that their sites publish."""

import json

import pytest

from eval import tasks
from eval.sources.published_tasks import PUBLISHED_TASKS
from eval.tasks import from_file, load
from zoo.errors import InputError


def squad(version, articles):
    data = []
    for a in range(articles):
        context = f"The tower number {a} of the old town is {a + 20} metres high."
        answer = {"text": f"{a + 20} metres", "answer_start": context.index(f"{a + 20} metres")}
        asked = {"id": f"{version}-{articles}-{a}", "question": f"How high is tower {a}?", "answers": [answer]}
        asked |= {"is_impossible": False} if version == "v2.0" else {}
        data.append({"title": f"Tower {a}", "paragraphs": [{"context": context, "qas": [asked]}]})
    return json.dumps({"version": version, "data": data})


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
def test_squad_by_name(tmp_path, version):
    for part, articles in (("train", 30), ("dev", 3)):
        (tmp_path / f"{part}-{version}.json").write_text(squad(version, articles))
    splits = load(f"squad-{version}", tmp_path)
    assert [e.answers[0].text for e in splits.test] == ["20 metres", "21 metres", "22 metres"]
    assert splits.dropped["training texts that are in the test set"] == 3
    assert len(splits.train) + len(splits.validation) == 27 and splits.task.kind == "spans"


def test_choices_by_name(tmp_path):
    (tmp_path / "swag").mkdir()
    head = "sent1,sent2,ending0,ending1,ending2,ending3,label"
    rows = [f"Someone sits {i}.,He,a{i} b{i},c{i} d{i},e{i} f{i},g{i} h{i},{i % 4}" for i in range(40)]
    (tmp_path / "swag/train.csv").write_text("\n".join([head, *rows]))
    (tmp_path / "swag/val.csv").write_text("\n".join([head, "Somebody reads.,She,stands,runs,sings,eats,2", rows[0]]))
    splits = load("swag", tmp_path)
    assert [e.label for e in splits.test] == [2, 0] and len(splits.train) + len(splits.validation) == 39
    assert splits.describe().startswith("swag: ") and "2 val" in splits.describe()
    assert splits.counts()["test"] == {"examples": 2}
    own = from_file(tmp_path / "swag/train.csv", kind="choice")
    assert own.task.kind == "choice" and len(own.train) + len(own.validation) + len(own.test) == 40
    with pytest.raises(InputError, match="layout of its own"):
        from_file(tmp_path / "swag/train.csv", text="sent1", kind="choice")
    with pytest.raises(InputError, match="SWAG publishes"):
        load("swag")


def test_all_are_described():
    for task in PUBLISHED_TASKS:
        assert tasks.get(task.name) is task and task.benchmark and task.sizes and not task.hidden
