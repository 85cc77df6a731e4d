"""Real processes on this machine: the numbers of one process, every row once, and an end in order when one is lost."""

import os
import random
import signal
import time

import jax
import numpy as np
import pytest

import zoo
from tests import made_up
from tests.train.processes import start
from train import loop
from train.checkpoint import Checkpoints
from train.config import RunConfig, TrainConfig
from train.data.pipeline import open_batches
from train.data.shards import open_shards, write_shards
from train.logs import read
from train.mesh import make_driver
from train.optimizer import make_optimizer
from train.state import initial_state

MODEL = zoo.ModelConfig(vocab_size=360, embed_dim=16, num_layers=1, num_heads=4, max_positions=24, dropout=0.1)
TIMES = ("seconds", "tokens_per_second", "steps_per_second", "mfu")
STEPS, SAVES = 9, 4


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Shards, configs, a run of one process that others are compared with, and one that two processes go on with."""
    root = tmp_path_factory.mktemp("processes")
    write_shards(made_up.documents(), made_up.tokenizer(), root / "data", valid_fraction=0.1, progress=False)
    train = TrainConfig(
        data=str(root / "data"), steps=STEPS, batch_size=8, seq_len=24, learning_rate=1e-2, optimizer="sgd",
        log_every=2, checkpoint_every=SAVES, eval_every=6, driver="mesh", keep_last=3,
    )  # fmt: skip
    for name, mesh in (("data", ""), ("tensor", "tensor=4")):
        RunConfig(MODEL, train.replace(mesh=mesh)).save(root / f"{name}.json")
    RunConfig(MODEL.replace(dropout=0.2), train).save(root / "other.json")
    started = train.replace(start_from=str(root / "alone"))
    RunConfig(MODEL, started).save(root / "started.json")
    loop.run(RunConfig(MODEL, train.replace(driver="jit")), root / "alone", quiet=True)
    loop.run(RunConfig(MODEL, train.replace(driver="jit")), root / "begun-alone", quiet=True, stop_at=4)
    loop.run(RunConfig(MODEL, started.replace(driver="jit")), root / "started-alone", quiet=True)
    return root


@pytest.fixture(scope="module")
def step_of_death():
    """At which step process 1 is killed: another one each time, or that of ONEBLOCK_KILL_SEED."""
    draw = int(os.environ.get("ONEBLOCK_KILL_SEED", time.time_ns()))
    step = random.Random(draw).randint(1, STEPS)
    print(f"process 1 is killed at step {step} (ONEBLOCK_KILL_SEED={draw})")
    return step


def saved_before(step):
    """The last step that is saved before this one; 0 where none is."""
    return (step - 1) // SAVES * SAVES


@pytest.fixture(scope="module")
def two(root, step_of_death):
    """Two processes of two devices go through the plan: two runs are stopped, the last one kills process 1."""
    killed = {"config": "data", "folder": "killed", "signal": [1, step_of_death, "SIGKILL"]}
    runs = [
        {"config": "data", "folder": "two", "profile": "2:3"},
        {"config": "tensor", "folder": "begun-alone", "signal": [1, 6, "SIGTERM"]},
        {"config": "tensor", "folder": "begun-alone"},
        {"config": "data", "folder": "looked", "signal": [1, 6, "SIGTERM"], "moment": "evaluation"},
        {"config": "other", "folder": "two"},
        {"config": ["data", "other"], "folder": "never"},
        {"config": "started", "folder": "started", "programs": str(root / "data.json")},
        killed | ({"after": saved_before(step_of_death)} if step_of_death > SAVES else {}),
    ]
    return start(_placed(runs, root), root / "of-two", 2, 2, "Open MPI")


@pytest.fixture(scope="module")
def two_while_saving(root):
    """Process 1 is killed when its save of step 4 has begun."""
    run = {"config": "data", "folder": "half-saved", "signal": [1, SAVES, "SIGKILL"], "moment": "save"}
    return start(_placed([run], root), root / "while-saving", 2, 2, "Slurm")


@pytest.fixture(scope="module")
def two_while_opening(root, two):
    """The killed run is started again, and process 1 is killed before it has opened its data."""
    del two
    run = {"config": "data", "folder": "killed", "signal": [1, 0, "SIGKILL"], "moment": "opening"}
    return start(_placed([run], root), root / "while-opening", 2, 2, "Slurm")


@pytest.fixture(scope="module")
def four(root, two, two_while_saving, two_while_opening):
    """Four processes of one device go on where two stopped or were killed."""
    del two, two_while_saving, two_while_opening
    runs = [{"config": "data", "folder": folder} for folder in ("killed", "half-saved", "looked")]
    return start(_placed(runs, root), root / "of-four", 4, 1, "Slurm")


def _placed(runs, root):
    def configs(names):
        return [f"{root / name}.json" for name in (names if isinstance(names, list) else [names] * 4)]

    return [run | {"config": configs(run["config"]), "folder": str(root / run["folder"])} for run in runs]


def state_of(root, folder, driver=None, step=None):
    config = RunConfig.load(root / "data.json")
    make = initial_state(zoo.create(MODEL).init, make_optimizer(config.train), config.train.seed)
    checkpoints = Checkpoints(root / folder / "checkpoints", keep_last=9)
    state, meta = checkpoints.restore((driver or make_driver("jit")).abstract(make), step)
    checkpoints.close()
    return jax.device_get(state), meta


def numbers(folder):
    return [{k: v for k, v in line.items() if k not in TIMES} for line in read(folder / "metrics.jsonl")]


def assert_close(ours, theirs, tolerance=1e-6):
    assert [(line["step"], line["split"]) for line in ours] == [(line["step"], line["split"]) for line in theirs]
    for line, other in zip(ours, theirs, strict=True):
        line, other = ({k: v for k, v in given.items() if k != "split"} for given in (line, other))
        assert line == pytest.approx(other, rel=tolerance)


def test_two_processes_give_the_numbers_of_one(root, two):
    assert [note["processes"] for note in two.notes[0]] == [2] * 7 and two.notes[0][0]["devices"] == 4
    assert_close(numbers(root / "two"), numbers(root / "alone"))
    ours, theirs = state_of(root, "two")[0], state_of(root, "alone")[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


def test_each_row_is_fed_by_one_process_and_is_the_row_of_one_process(root, two):
    shards = open_shards(root / "data")
    common = {"style": "gpt", "row_length": 25, "batch_size": 8}
    alone = open_batches(shards, made_up.tokenizer(), **common)
    first, second = (notes[0] for notes in two.notes)
    for step in range(STEPS):
        (places, rows), (more_places, more_rows) = first["fed"][str(step)], second["fed"][str(step)]
        assert places + more_places == list(range(8))  # disjoint and complete
        assert rows + more_rows == alone.rows_at(step).tolist()
    valid = open_batches(shards, made_up.tokenizer(), split="valid", **common)
    real = sum(np.count_nonzero(segments) for note in (first, second) for _, segments in note["evaluated"])
    assert real == 2 * len(valid) and len(valid) % 8  # twice evaluated, the last part of a batch included


def test_processes_that_share_rows_feed_the_same_and_go_on_with_the_checkpoint_of_one(root, two):
    """The axis tensor goes over both: each holds every row. Steps 0 to 3 were taken by one process on one device."""
    first, second = (notes[1] for notes in two.notes)
    assert first["fed"] == second["fed"] and first["fed"]["4"][0] == list(range(8))
    assert min(map(int, first["fed"])) == 4
    stopped, alone = numbers(root / "begun-alone"), numbers(root / "alone")
    assert (6, "valid") in {(line["step"], line["split"]) for line in stopped}
    assert_close(stopped, alone, 1e-5)


def test_two_processes_start_from_a_checkpoint_of_which_each_reads_its_part(root, two):
    assert_close(numbers(root / "started"), numbers(root / "started-alone"))
    assert numbers(root / "started")[0]["loss"] != numbers(root / "two")[0]["loss"]


def test_sigterm_to_one_stops_all_at_one_step_saved(root, two):
    first, second = (notes[1] for notes in two.notes)
    assert first["code"] == second["code"] == 143
    assert first["saved"] == second["saved"] and 6 <= first["saved"][-1] < STEPS
    assert min(map(int, two.notes[0][2]["fed"])) == first["saved"][-1] and two.notes[0][2]["step"] == STEPS


def test_other_settings_are_told_by_all_with_one_line(two):
    lines = [notes[4]["line"] for notes in two.notes]
    assert lines[0] == lines[1] and "model.dropout was 0.1, now 0.2" in lines[0] and "\n" not in lines[0]


def test_processes_with_other_settings_than_the_first_are_told_which(root, two):
    lines = [notes[5]["line"] for notes in two.notes]
    assert lines[0] == lines[1] and not (root / "never").exists()
    assert lines[0].startswith("the processes differ: model.dropout is 0.2 on process 1 (")
    assert ", 0.1 on process 0 (" in lines[0] and lines[0].endswith("; make them alike")


def test_the_first_process_alone_logs_and_traces(root, two):
    assert sorted(p.name for p in (root / "two").iterdir()) == [
        ".lock", "checkpoints", "config.json", "loss.png", "metrics.jsonl", "profile", "tokenizer",
    ]  # fmt: skip
    found = list((root / "two" / "profile").rglob("*.xplane.pb"))
    assert len(found) == 1 and b"step_num" in found[0].read_bytes()


def test_sigterm_in_an_evaluation_breaks_it_off_on_all(root, two):
    """The one that it came to tells the other with the batches; what was not logged is made up for at the restart."""
    first, second = (notes[3] for notes in two.notes)
    assert first["code"] == second["code"] == 143
    whole = len(two.notes[0][0]["evaluated"]) // 2  # batches of one evaluation
    assert len(first["evaluated"]) == len(second["evaluated"]) <= min(whole, loop.LAG + 2)
    assert first["saved"][-1] == 6 and state_of(root, "looked", step=6)[1]["owed"] is True


@pytest.mark.parametrize("when", ["two", "two_while_saving", "two_while_opening"])
def test_a_killed_process_ends_the_job_in_bounded_time_with_one_line(request, when):
    ended = request.getfixturevalue(when)
    assert ended.codes[1] == -signal.SIGKILL
    assert ended.codes[0] in (75, -signal.SIGABRT)
    said = [line for line in ended.errors[0].splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "lost" in said[0] and "run the same command again" in said[0]
    assert "Check failure stack trace" not in ended.errors[0] and "Traceback" not in ended.errors[0]


@pytest.mark.parametrize("folder", ["killed", "half-saved", "looked"])
def test_resumed_by_four_processes_it_is_bit_equal(root, two, four, step_of_death, folder):
    """The program over four devices is the same, however processes hold them; no row is lost and none fed twice."""
    assert four.codes == [0] * 4, four.errors
    assert numbers(root / folder) == numbers(root / "two")
    ours, theirs = state_of(root, folder)[0], state_of(root, "two")[0]
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    number = ["killed", "half-saved", "looked"].index(folder)
    fed = [notes[number]["fed"] for notes in four.notes]
    begun = {"killed": saved_before(step_of_death), "half-saved": min(map(int, fed[0])), "looked": 6}[folder]
    assert begun in (0, SAVES, 2 * SAVES, 6)
    assert sorted(map(int, fed[0])) == list(range(begun, STEPS))
    for step in range(begun, STEPS):
        rows = [row for one in fed for row in one[str(step)][1]]
        assert rows == [row for notes in two.notes for row in notes[0]["fed"][str(step)][1]]
