"""Cells of an experiment: paired, kept, resumed, re-run when changed; rates are chosen on validation alone."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from eval import report
from eval.experiment import report_files, workbench
from eval.experiment.cells import CellKey, read_all
from eval.experiment.folder_lock import only_here
from eval.experiment.live import Live
from eval.experiment.trial import Trial, check, examples_digest, fingerprint, limited, shuffled
from eval.finetune import FinetuneConfig, NotFiniteError
from eval.sources.tagged import TaggedExample
from eval.tasks import subset
from eval.transfer import protocol, run
from zoo import InputError
from zoo.checkpoints import run_folder

CONFIG = FinetuneConfig(learning_rate=3e-3, epochs=2, max_length=16)


@pytest.fixture
def trial(source, topics):
    return Trial("tiny", source, limited(topics, test=40, validation=20), CONFIG, labels=(16, 32), seeds=(0, 1))


def timeless(cell):
    """A cell without what a clock said."""
    cost = {name: value for name, value in cell.cost.items() if not name.endswith("_seconds")}
    return replace(cell, seconds=0, cost=cost)


@pytest.fixture
def live():
    """A Live that keeps its lines."""
    shown = []
    kept = Live(shown.append)
    kept.shown = shown
    return kept


@pytest.fixture(scope="module")
def finished(source, topics, tmp_path_factory):
    """An experiment that has run through: its folder, trial and outcome."""
    folder, lines = tmp_path_factory.mktemp("transfer"), []
    made = Trial("tiny", source, limited(topics, test=40, validation=20), CONFIG, labels=(16, 32), seeds=(0, 1))
    outcome = run([made], folder, devices=jax.devices()[:1], live=Live(lines.append))
    return folder, made, outcome, lines


def test_every_cell_of_the_grid_is_there_in_the_order_of_a_report(finished):
    folder, _, outcome, lines = finished
    expected = [
        CellKey("made-up-topics", "tiny", arm, labels, seed)
        for arm in ("pretrained", "random")
        for labels in (16, 32)
        for seed in (0, 1)
    ] + [CellKey("made-up-topics", "tf-idf", "baseline", labels, seed) for labels in (16, 32) for seed in (0, 1)]
    assert [cell.key for cell in outcome.cells] == expected
    assert sorted(cell.key.file_name for cell in read_all(folder / "cells")) == sorted(
        key.file_name for key in expected
    )
    assert all(len(cell.predictions) == 40 and set(cell.metrics) == {"accuracy", "macro_f1"} for cell in outcome.cells)
    assert len(lines) == 12
    assert lines[0].startswith(
        "cell 1 of 12: made-up-topics: tiny, pre-trained, 16 labels, seed 0, rate 0.003: accuracy 0."
    )
    assert lines[1].startswith(
        "cell 2 of 12: made-up-topics: tiny, random start, 16 labels, seed 0, rate 0.003: accuracy 0."
    )
    assert lines[8].startswith("cell 9 of 12: made-up-topics: TF-IDF, 16 labels, seed 0: accuracy ")


def test_finished_cells_are_reused(finished, one, live, monkeypatch):
    folder, trial, outcome, _ = finished
    monkeypatch.setattr(workbench, "adapt", lambda *_, **__: pytest.fail("a finished cell was run again"))
    again = run([trial], folder, devices=one, live=live)
    assert again.cells == outcome.cells and again.rates == outcome.rates
    assert len(live.shown) == 12 and all(line.endswith("(finished before)") for line in live.shown)


def test_an_experiment_that_was_cut_short_goes_on(finished, trial, one, live, tmp_path, monkeypatch):
    """Killed in its third cell, it keeps two; run again, it runs the rest and ends as if nothing had happened."""
    real, calls = workbench.adapt, []

    def dies(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(workbench, "adapt", dies)
    with pytest.raises(KeyboardInterrupt):
        run([trial], tmp_path, devices=one, live=live)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 2
    assert sorted(path.name for path in (tmp_path / "cells").iterdir() if path.suffix != ".json") == [".lock"]
    monkeypatch.setattr(workbench, "adapt", lambda *a, **k: calls.append(1) or real(*a, **k))
    outcome = run([trial], tmp_path, devices=one, live=live)
    assert len(calls) == 3 + 6
    assert list(map(timeless, outcome.cells)) == list(map(timeless, finished[2].cells))


def test_changed_settings_make_other_cells(finished, one, live, monkeypatch):
    folder, trial, _, _ = finished
    ran = []
    monkeypatch.setattr(workbench, "adapt", lambda *_, **__: ran.append(1) or (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        run([replace(trial, config=CONFIG.replace(epochs=3))], folder, devices=one, live=live)
    assert ran == [1]


def test_another_checkpoint_runs_the_pretrained_arm_anew_and_keeps_the_random_one(
    finished, bert, tokenizer, one, live, tmp_path, monkeypatch
):
    folder, trial, _, _ = finished
    shutil.copytree(folder / "cells", tmp_path / "cells")
    (tmp_path / "other").mkdir()
    run_folder.save(bert[0], jax.tree.map(lambda leaf: 1.01 * leaf, bert[1]), tmp_path / "other", tokenizer)
    real, ran = workbench.adapt, []
    monkeypatch.setattr(workbench, "adapt", lambda *a, **k: ran.append(1) or real(*a, **k))
    run([replace(trial, source=str(tmp_path / "other"), labels=(16,))], tmp_path, devices=one, live=live)
    assert len(ran) == 2
    assert [line.endswith("(finished before)") for line in live.shown] == [False, True, False, True, True, True]


def test_both_arms_have_the_same_labelled_examples(trial, one, live, tmp_path, monkeypatch):
    seen, real = [], workbench.adapt

    def watched(model, params, tokenizer, encoded, config, *rest, **named):
        seen.append((config.seed, encoded.labels.tolist(), [ids.tolist() for ids in encoded.ids]))
        return real(model, params, tokenizer, encoded, config.replace(epochs=0, steps=1), *rest, **named)

    monkeypatch.setattr(workbench, "adapt", watched)
    run([replace(trial, labels=(16,))], tmp_path, with_baseline=False, devices=one, live=live)
    assert [seed for seed, _, _ in seen] == [0, 0, 1, 1]
    assert seen[0] == seen[1] and seen[2] == seen[3] and seen[0] != seen[2]
    assert seen[0][1] == [example.label for example in subset(trial.splits.train, 16, 0)]


def test_the_rate_is_the_best_on_validation_for_each_arm(trial, one, live, tmp_path, monkeypatch):
    """Runs at 1e-3 are made to win pre-trained, runs at 1e-2 from random start, and one rate does not train at all."""
    best = {"pretrained": 1e-3, "random": 1e-2}
    targets = []

    def fake_tune(model, params, tokenizer, encoded, config, *_, **__):
        if config.learning_rate == 1.0:
            raise NotFiniteError("the loss is not finite at step 1 of 4")
        arm = "pretrained" if params is fake_tune.given else "random"
        return fake_tune.made(model=config.learning_rate, params=arm, history=())

    def fake_evaluate(rate, arm, encoded, *_, **__):
        targets.append(len(encoded))
        right = 15 if rate == best[arm] else 10
        scores = {"accuracy": right / 20, "macro_f1": 0.5}
        return fake_tune.made(scores=scores, predictions=np.zeros(len(encoded), np.int32))

    network = workbench.load_network(trial.source)
    fake_tune.made, fake_tune.given = SimpleNamespace, network[1]
    monkeypatch.setattr(workbench, "load_network", lambda source: network)
    monkeypatch.setattr(workbench, "adapt", fake_tune)
    monkeypatch.setattr(workbench, "evaluate", fake_evaluate)
    made = replace(trial, rates=(1e-4, 1e-3, 1e-2, 1.0))
    outcome = run([made], tmp_path, with_baseline=False, devices=one, live=live)
    place = ("made-up-topics", "tiny")
    assert outcome.rates == {(*place, "pretrained", "full"): 1e-3, (*place, "random", "full"): 1e-2}
    assert targets[:6] == [20] * 6 and targets[6:] == [40] * 8
    by_arm = {cell.key.arm: cell.config["finetune"]["learning_rate"] for cell in outcome.cells}
    assert by_arm == best
    said = protocol([made], outcome)["tiny on made-up-topics"]
    assert "learning rate 0.001 pre-trained and 0.01 from random start, each the best of 0.0001, 0.001, 0.01, 1" in said
    assert "on the validation split with 32 labels and seed 0" in said


def test_the_report_takes_the_cells(finished, tmp_path):
    _, trial, outcome, _ = finished
    made = report.build(
        outcome.cells,
        [report.facts(trial.splits)],
        title="Try",
        protocol=protocol([trial], outcome),
        machine={},
        versions={},
    )
    assert [(c.network, c.labels, c.against) for c in made.comparisons] == [
        ("tiny", 16, "random"), ("tiny", 32, "random"), ("tiny", 16, "baseline"), ("tiny", 32, "baseline"),
    ]  # fmt: skip
    report_files.write(made, tmp_path)
    plain = json.loads((tmp_path / "report.json").read_text())
    assert plain["title"] == "Try"
    assert "learning rate 0.003 for both arms; 2 epochs of AdamW" in (tmp_path / "report.html").read_text()


def test_limits_are_fixed_subsets_that_nest_and_keep_their_order(topics):
    with pytest.raises(InputError, match="test_limit is -1"):
        limited(topics, test=-1)
    few, more = limited(topics, test=10).test, limited(topics, test=30).test
    assert len(few) == 10 and set(few) <= set(more) <= set(topics.test)
    assert [e for e in topics.test if e in set(few)] == list(few)
    assert limited(topics) == topics and limited(topics, test=10_000).test == topics.test


def test_fingerprints_see_every_weight(bert, topics):
    params = bert[1]
    assert fingerprint(params) == fingerprint(jax.tree.map(lambda leaf: leaf + 0, params))
    bias = params["blocks"]["layer_0"]["mlp"]["up"]["bias"]
    params["blocks"]["layer_0"]["mlp"]["up"]["bias"] = bias.at[3].add(1e-7)
    changed = fingerprint(params)
    params["blocks"]["layer_0"]["mlp"]["up"]["bias"] = bias
    assert changed != fingerprint(params)
    assert examples_digest(topics.test) != examples_digest(topics.test[:-1])


def test_what_cannot_be_run_is_said_before_the_first_cell(trial, topics):
    for trials, line in (
        ([], "an experiment needs at least one network and one task"),
        ([trial, trial], 'network "tiny" stands twice on task made-up-topics'),
        (
            [replace(trial, labels=(16, 161))],
            "161 labels from task made-up-topics, which has 160 to train on: take 2 to 160",
        ),
        ([replace(trial, labels=(1,))], "1 labels from task made-up-topics"),
        ([replace(trial, ways=("full", "full"))], "ways are full, full; give each once"),
        ([replace(trial, ways=("lroa",))], 'way is "lroa"; did you mean "lora"'),
        ([replace(trial, seeds=())], "at least one label budget and one seed"),
        ([trial, replace(trial, network="b", splits=topics)], "task made-up-topics stands here in two versions"),
    ):
        with pytest.raises(InputError, match=line):
            check(trials)


def test_a_checkpoint_without_a_tokenizer_is_one_line(bert, tmp_path):
    run_folder.save(*bert, tmp_path)
    with pytest.raises(InputError, match="the checkpoint has no tokenizer to read texts with") as error:
        workbench.load_network(str(tmp_path))
    assert "\n" not in str(error.value)


def test_time_left_is_told_by_kind():
    live = Live(lambda text: None)
    live.expect(["slow", "slow", "quick", "quick"])
    assert live.seconds_left() == 0.0
    live._times = {"slow": [10.0, 14.0], "quick": [1.0]}
    assert live.seconds_left() == 2 * 12 + 2 * 1
    live._times = {"slow": [10.0]}
    assert live.seconds_left() == 4 * 10


def test_ways_and_the_control_are_cells_of_their_own(trial, one, live, tmp_path, monkeypatch):
    """The random start trains all its parameters whatever the ways; shuffled labels are those of the same texts."""
    seen = []
    real = workbench.adapt

    def watched(model, params, tokenizer, encoded, config, *rest, **named):
        seen.append((config.way, encoded.labels.tolist(), [ids.tolist() for ids in encoded.ids]))
        return real(model, params, tokenizer, encoded, config, *rest, **named)

    monkeypatch.setattr(workbench, "adapt", watched)
    made = replace(trial, labels=(16, 32), seeds=(0,), ways=("probe", "lora"), control=True)
    outcome = run([made], tmp_path, with_baseline=False, devices=one, live=live)
    place = ("made-up-topics", "tiny")
    assert [cell.key for cell in outcome.cells] == [
        *(CellKey(*place, "pretrained", labels, 0, "probe") for labels in (16, 32)),
        *(CellKey(*place, "pretrained", labels, 0, "lora") for labels in (16, 32)),
        *(CellKey(*place, "random", labels, 0) for labels in (16, 32)),
        *(CellKey(*place, "shuffled", 32, 0, way) for way in ("probe", "lora")),
    ]
    assert [way for way, _, _ in seen] == ["probe", "lora", "full"] * 2 + ["probe", "lora"]
    true, control = seen[3], seen[6]
    assert control[2] == true[2] and control[1] != true[1] and sorted(control[1]) == sorted(true[1])
    probe, lora = (cell for cell in outcome.cells if cell.key.labels == 32 and cell.key.arm == "pretrained")
    assert (probe.config["finetune"]["way"], lora.config["finetune"]["way"]) == ("probe", "lora")
    # The probe reads its 32 texts in one batch of 16 rows of 64, as prediction does on a CPU; an update's 16 texts go
    # into 3 rows of 80.
    assert probe.cost["training_tokens"] == 16 * 64 and lora.cost["training_tokens"] == 2 * 2 * 3 * 80
    assert lora.cost["training_seconds"] + lora.cost["prediction_seconds"] == pytest.approx(lora.seconds)
    said = protocol([made], outcome)["tiny on made-up-topics"]
    assert said.startswith("pre-trained: linear probe, LoRA (rank 8, alpha 16, query and value); random start: all ")
    assert "learning rate 0.003; the linear probe is a closed form, without rate or steps" in said
    assert said.endswith("parameters of the last update; seeds 0")
    again = run([made], tmp_path, with_baseline=False, devices=one, live=live)
    assert again.cells == outcome.cells and len(seen) == 8


def test_without_scratch_only_the_checkpoint_runs(trial, one, live, tmp_path):
    made = replace(trial, labels=(16,), seeds=(0,), scratch=False)
    outcome = run([made], tmp_path, with_baseline=False, devices=one, live=live)
    assert [cell.key.arm for cell in outcome.cells] == ["pretrained"]
    built = report.build(outcome.cells, [report.facts(trial.splits)], title="", protocol={}, machine={}, versions={})
    assert built.comparisons == () and "No network was compared" in built.headline[0]


def test_a_run_that_fails_ends_its_cell_and_not_the_experiment(trial, one, live, tmp_path, monkeypatch):
    """The random start of seed 1 is not finite: it is a cell with a failure, kept, and the rest is run."""
    real, calls = workbench.adapt, []

    def breaks(model, params, tokenizer, encoded, config, *rest, **named):
        calls.append(config.seed)
        if len(calls) == 4:
            raise NotFiniteError("the loss is not finite at step 2 of 2")
        return real(model, params, tokenizer, encoded, config, *rest, **named)

    monkeypatch.setattr(workbench, "adapt", breaks)
    made = replace(trial, labels=(16,))
    outcome = run([made], tmp_path, devices=one, live=live)
    assert [(cell.key.arm, cell.key.seed) for cell in outcome.cells if cell.failure] == [("random", 1)]
    assert any(line.startswith("cell 4 of 6") and "failed: the loss is not finite" in line for line in live.shown)
    built = report.build(outcome.cells, [report.facts(trial.splits)], title="", protocol={}, machine={}, versions={})
    assert len(built.failures) == 1 and built.comparisons[0].difference.interval.n == 1
    monkeypatch.setattr(workbench, "adapt", lambda *_, **__: pytest.fail("what was not finite was run again"))
    assert run([made], tmp_path, devices=one, live=live).cells == outcome.cells


def test_other_failures_are_tried_again(trial, one, live, tmp_path, monkeypatch):
    made = replace(trial, labels=(16,), seeds=(0,), scratch=False)
    real = workbench.adapt
    monkeypatch.setattr(workbench, "adapt", lambda *_, **__: (_ for _ in ()).throw(InputError("no room")))
    (cell,) = run([made], tmp_path, with_baseline=False, devices=one, live=live).cells
    assert cell.failure == "no room" and not list((tmp_path / "cells").glob("*.json"))
    monkeypatch.setattr(workbench, "adapt", real)
    (cell,) = run([made], tmp_path, with_baseline=False, devices=one, live=live).cells
    assert not cell.failure and len(list((tmp_path / "cells").glob("*.json"))) == 1


def test_no_rate_that_trains_fails_the_arm_alone(trial, one, live, tmp_path, monkeypatch):
    real = workbench.adapt

    def breaks(model, params, tokenizer, encoded, config, *rest, **named):
        if params is not given[1]:
            raise NotFiniteError("the loss is not finite at step 1 of 4")
        return real(model, params, tokenizer, encoded, config, *rest, **named)

    given = workbench.load_network(trial.source)
    monkeypatch.setattr(workbench, "load_network", lambda source: given)
    monkeypatch.setattr(workbench, "adapt", breaks)
    made = replace(trial, labels=(16,), seeds=(0,), rates=(1e-3, 3e-3))
    outcome = run([made], tmp_path, with_baseline=False, devices=one, live=live)
    fine, failed = outcome.cells
    assert not fine.failure and "no rate of (0.001, 0.003) trains" in failed.failure
    assert "none that trains from random start" in protocol([made], outcome)["tiny on made-up-topics"]


def test_the_best_epoch_is_chosen_by_the_tasks_metric_and_a_probe_has_none(trial, one, live, tmp_path):
    best = CONFIG.replace(select="best", patience=1)
    made = replace(trial, config=best, labels=(16,), seeds=(0,), ways=("full", "probe"), scratch=False)
    full, probe = run([made], tmp_path, with_baseline=False, devices=one, live=live).cells
    assert (full.config["finetune"]["select"], full.config["finetune"]["metric"]) == ("best", "accuracy")
    assert "validation" in full.config and "validation" not in probe.config
    assert probe.config["finetune"]["select"] == "last" and not probe.failure


def test_a_second_run_in_one_folder_is_refused(trial, one, live, tmp_path):
    with only_here(tmp_path / "cells"):
        with pytest.raises(InputError, match="another process is filling .*cells; wait for it"):
            run([trial], tmp_path, devices=one, live=live)
    assert not list(tmp_path.rglob("*.json"))


def test_shuffling_keeps_texts_and_counts_of_labels(topics):
    dealt = shuffled(topics.train, 3)
    assert [e.text_a for e in dealt] == [e.text_a for e in topics.train]
    assert sorted(e.label for e in dealt) == sorted(e.label for e in topics.train) and dealt != topics.train
    assert dealt == shuffled(topics.train, 3) != shuffled(topics.train, 4)
    tagged = [TaggedExample(("a", "b", "c"), (0, 1, 2)), TaggedExample(("d",), (3,))] * 5
    tags = shuffled(tagged, 0)
    assert [e.words for e in tags] == [e.words for e in tagged]
    assert sorted(t for e in tags for t in e.tags) == sorted(t for e in tagged for t in e.tags) and list(tags) != tagged
    with pytest.raises(InputError, match="strs have no labels that can be shuffled; leave the control out"):
        shuffled(["a"], 0)
