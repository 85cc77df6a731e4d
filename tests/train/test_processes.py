"""Real processes on this machine: the numbers of one process, every row once, and an end in order when one is lost."""

import signal

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
STEPS = 9


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Shards, configs, a run of one process that others are compared with, and one that two processes go on with."""
    root = tmp_path_factory.mktemp("processes")
    write_shards(made_up.documents(), made_up.tokenizer(), root / "data", valid_fraction=0.1, progress=False)
    train = TrainConfig(
        data=str(root / "data"), steps=STEPS, batch_size=8, seq_len=24, learning_rate=1e-2, optimizer="sgd",
        log_every=2, checkpoint_every=4, eval_every=6, driver="mesh", keep_last=3,
    )  # fmt: skip
    for name, mesh in (("data", ""), ("tensor", "tensor=4")):
        RunConfig(MODEL, train.replace(mesh=mesh)).save(root / f"{name}.json")
    RunConfig(MODEL.replace(dropout=0.2), train).save(root / "other.json")
    loop.run(RunConfig(MODEL, train.replace(driver="jit")), root / "alone", quiet=True)
    loop.run(RunConfig(MODEL, train.replace(driver="jit")), root / "begun-alone", quiet=True, stop_at=4)
    return root


@pytest.fixture(scope="module")
def two(root):
    """Two processes of two devices go through the plan: one run is stopped, the last one kills process 1 at step 6."""
    runs = [
        {"config": "data", "folder": "two", "profile": "2:3"},
        {"config": "tensor", "folder": "begun-alone", "signal": [1, 6, "SIGTERM"]},
        {"config": "other", "folder": "two"},
        {"config": ["data", "other"], "folder": "never"},
        {"config": "data", "folder": "killed", "signal": [1, 6, "SIGKILL"], "after": 4},
    ]
    return start(_placed(runs, root), root / "of-two", 2, 2, "Open MPI")


@pytest.fixture(scope="module")
def four(root, two):
    """Four processes of one device go on where two stopped or were killed."""
    del two
    return start(_placed([{"config": "data", "folder": "killed"}], root), root / "of-four", 4, 1, "Slurm")


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
    assert [note["processes"] for note in two.notes[0]] == [2] * 4 and two.notes[0][0]["devices"] == 4
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
    assert {(4, "train"), (6, "train"), (6, "valid")} <= {(line["step"], line["split"]) for line in stopped}
    assert_close(stopped, [line for line in alone if line["step"] <= stopped[-1]["step"]], 1e-5)


def test_sigterm_to_one_stops_all_at_one_step_saved(root, two):
    first, second = (notes[1] for notes in two.notes)
    assert first["code"] == second["code"] == 143
    saved = max(int(p.name) for p in (root / "begun-alone" / "checkpoints").iterdir() if p.name.isdigit())
    assert 6 <= saved < STEPS
    assert state_of(root, "begun-alone")[1]["step"] == saved


def test_other_settings_are_told_by_all_with_one_line(two):
    lines = [notes[2]["line"] for notes in two.notes]
    assert lines[0] == lines[1] and "model.dropout was 0.1, now 0.2" in lines[0] and "\n" not in lines[0]


def test_processes_with_other_settings_than_the_first_are_told_which(root, two):
    lines = [notes[3]["line"] for notes in two.notes]
    assert lines[0] == lines[1] and not (root / "never").exists()
    assert lines[0].startswith("the processes differ: model.dropout is 0.2 on process 1 (")
    assert ", 0.1 on process 0 (" in lines[0] and lines[0].endswith("; make them alike")


def test_the_first_process_alone_logs_and_traces(root, two):
    assert sorted(p.name for p in (root / "two").iterdir()) == [
        ".lock", "checkpoints", "config.json", "loss.png", "metrics.jsonl", "profile", "tokenizer",
    ]  # fmt: skip
    found = list((root / "two" / "profile").rglob("*.xplane.pb"))
    assert len(found) == 1 and b"step_num" in found[0].read_bytes()


def test_a_killed_process_ends_the_job_in_bounded_time_with_one_line(two):
    assert two.codes[1] == -signal.SIGKILL
    assert two.codes[0] in (75, -signal.SIGABRT)
    said = [line for line in two.errors[0].splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "lost" in said[0] and "run the same command again" in said[0]
    assert "Check failure stack trace" not in two.errors[0] and "Traceback" not in two.errors[0]


def test_resumed_after_the_kill_by_four_processes_it_is_bit_equal(root, two, four):
    """The program over four devices is the same, however processes hold them; no row is lost and none fed twice."""
    assert four.codes == [0] * 4, four.errors
    assert numbers(root / "killed") == numbers(root / "two")
    ours, theirs = state_of(root, "killed")[0], state_of(root, "two")[0]
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    fed = [notes[0]["fed"] for notes in four.notes]
    assert sorted(map(int, fed[0])) == list(range(4, STEPS))
    for step in range(4, STEPS):
        rows = [row for one in fed for row in one[str(step)][1]]
        assert rows == [row for notes in two.notes for row in notes[0]["fed"][str(step)][1]]
