"""Whole runs: bit-equal resume after SIGKILL, SIGTERM, a loss that is not finite, and what a run folder refuses."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests import made_up
from train import loop, plots
from train.checkpoint import Checkpoints
from train.config import RunConfig, TrainConfig
from train.data.shards import write_shards
from train.logs import MetricsLog, read
from train.mesh import make_driver
from train.opening import open_splits
from train.optimizer import make_optimizer
from train.run_folder import RunFolder
from train.state import initial_state
from zoo.errors import InputError

MODEL = zoo.ModelConfig(
    vocab_size=360,
    embed_dim=16,
    num_layers=1,
    num_heads=2,
    max_positions=24,
    visibility="full",
    head="masked_lm",
    dropout=0.1,
)
TIMES = ("seconds", "tokens_per_second", "steps_per_second", "mfu")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    write_shards(made_up.documents(), made_up.tokenizer(), folder, valid_fraction=0.1, progress=False)
    return folder


@pytest.fixture(scope="module")
def config(shards):
    train = TrainConfig(
        objective="masked_lm", data=str(shards), steps=12, batch_size=8, seq_len=24, mask_rate=0.3, log_every=4,
        checkpoint_every=5, eval_every=6, warmup_steps=2, keep_last=3,
    )  # fmt: skip
    return RunConfig(MODEL, train)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The uninterrupted run that others are compared with: (config, folder)."""
    folder = tmp_path_factory.mktemp("whole")
    loop.run(config, folder, quiet=True)
    return config, folder


def state_of(config, folder, step=None):
    driver = make_driver("jit")
    make = initial_state(zoo.create(config.model).init, make_optimizer(config.train), config.train.seed)
    checkpoints = Checkpoints(folder / "checkpoints", keep_last=9)
    state, meta = checkpoints.restore(driver.abstract(make), step)
    checkpoints.close()
    return jax.device_get(state), meta


def numbers(folder):
    """The logged lines without what a clock says."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in read(folder / "metrics.jsonl")]


CHILD = """
    import os, pathlib, signal, sys, time
    from train import ledger, loop
    from train.config import RunConfig

    folder, config, last = sys.argv[1], RunConfig.load(sys.argv[2]), int(sys.argv[3])
    take = ledger.Ledger.take

    def take_and_stop(self, step, metrics):
        out = take(self, step, metrics)
        if step == last:
            saved = pathlib.Path(folder, "checkpoints", "5", "commit_success.txt")  # written behind the steps' back
            while not saved.exists():
                time.sleep(0.02)
            os.kill(os.getpid(), getattr(signal, sys.argv[4]))
        return out

    ledger.Ledger.take = take_and_stop
    loop.run(config, folder, quiet=True)
"""


def stopped_child(config, tmp_path, step, kind):
    """Runs a child that gets a signal when it takes the numbers of `step`, its save of step 5 whole."""
    config.save(tmp_path / "given.json")
    words = [sys.executable, "-c", textwrap.dedent(CHILD), tmp_path / "run", tmp_path / "given.json", str(step), kind]
    root = str(Path(loop.__file__).resolve().parents[1])
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, timeout=300)
    return done


def test_killed_and_continued_equals_uninterrupted_bit_for_bit(whole, tmp_path):
    """N steps; against M steps, kill -9, and the rest: parameters, moments, keys, batches and logged numbers."""
    config, folder = whole
    child = stopped_child(config, tmp_path, 9, "SIGKILL")
    assert child.returncode == -signal.SIGKILL, child.stderr
    # The kill came after step 5 was saved and step 8 was logged: the line of step 8 is taken back and written again.
    assert [line["step"] for line in numbers(tmp_path / "run")] == [4, 6, 8]
    asked = []
    batch = loop.Batches.batch

    def spy(self, step):
        asked.append(step)
        return batch(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Batches, "batch", spy)
        result = loop.run(config, tmp_path / "run", quiet=True)
    assert result.step == 12 and sorted(set(asked)) == list(range(5, 12))
    assert numbers(tmp_path / "run") == numbers(folder)
    (ours, meta), (theirs, want) = state_of(config, tmp_path / "run"), state_of(config, folder)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert meta == want and meta["step"] == 12
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)


def test_sigterm_finishes_the_step_saves_and_exits_143(whole, tmp_path):
    config, folder = whole
    child = stopped_child(config, tmp_path, 7, "SIGTERM")
    assert child.returncode == 143, child.stderr
    saved = max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit())
    assert 7 <= saved <= 7 + loop.LAG + 1
    loop.run(config, tmp_path / "run", quiet=True)
    assert numbers(tmp_path / "run") == numbers(folder)
    jax.tree.map(np.testing.assert_array_equal, state_of(config, tmp_path / "run")[0], state_of(config, folder)[0])


def test_what_a_run_folder_holds(whole):
    config, folder = whole
    assert RunConfig.load(folder) == config
    lines = read(folder / "metrics.jsonl")
    assert [(line["step"], line["split"]) for line in lines] == [
        (4, "train"), (6, "valid"), (8, "train"), (12, "train"), (12, "valid"),
    ]  # fmt: skip
    assert {"loss", "accuracy", "grad_norm", "learning_rate", "tokens", *TIMES} <= set(lines[0])
    assert lines[-2]["learning_rate"] == pytest.approx(1e-4)  # the floor
    assert (folder / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert not [p for p in folder.iterdir() if p.name.endswith(".tmp")]
    tokenizer = zoo.load_tokenizer(folder)
    assert tokenizer.fingerprint == made_up.tokenizer().fingerprint
    model, params = zoo.load(str(folder))
    assert model.config == config.model
    state, meta = state_of(config, folder)
    jax.tree.map(np.testing.assert_array_equal, params, state.params)
    assert meta["tokenizer"] == tokenizer.fingerprint and RunConfig.from_dict(meta["config"]) == config


def test_a_finished_run_is_not_run_again(whole, monkeypatch):
    config, folder = whole
    before = (folder / "metrics.jsonl").read_text()
    monkeypatch.setattr(loop, "evaluate", lambda *_: pytest.fail("evaluated again"))
    result = loop.run(config, folder, quiet=True)
    assert result.step == 12 and result.valid["step"] == 12 and "loss" in result.train
    assert (folder / "metrics.jsonl").read_text() == before


def test_evaluation_counts_every_row_whatever_the_batch_size(whole):
    """Sums over rows, empty rows in the last batch counting nothing: one answer at batch sizes 1, 7 and 64."""
    from train.data.shards import open_shards
    from train.objectives import make_objective
    from train.step import make_eval_step

    config, folder = whole
    tokenizer, shards = made_up.tokenizer(), open_shards(config.train.data)
    config = RunConfig(MODEL.replace(visibility="causal", head="lm"), TrainConfig(data=config.train.data, seq_len=24))
    model = zoo.create(config.model)
    params = model.init(jax.random.key(0))
    results = []
    for driver, size in ((make_driver("jit"), 3), (make_driver("jit"), 64), (make_driver("mesh"), 16)):
        sized = RunConfig(config.model, config.train.replace(batch_size=size))
        _, valid = open_splits(sized, shards, tokenizer)
        assert len(valid) % size != 0
        step = driver.compile_eval(make_eval_step(model, make_objective(sized.train, model, tokenizer)))
        results.append(loop.evaluate(step, params, driver, valid))
    for other in results[1:]:
        assert other == pytest.approx(results[0], rel=1e-6)


@pytest.mark.parametrize("stop", [None, 1, 4])
def test_an_evaluation_beats_with_every_batch_and_ends_soon_after_a_signal(stop):
    """On a pod it may take longer than the time after which a job counts as stalled."""

    class Rows:
        batch_size = 1

        def all_rows(self):
            for number in range(9):
                served.append(number)
                yield {"row_ids": np.zeros(1, np.int32)}

    class Signals:
        received = 0

    class Driver:
        def put(self, batch, batch_size):
            return batch

    def step(params, batch):
        signals.received = 15 if len(served) == stop else signals.received
        return {"loss": (float(batch["row_ids"][0]), 1.0)}

    served, beats, signals = [], [], Signals()
    found = loop.evaluate(step, {}, Driver(), Rows(), loop.Vote(signals), lambda: beats.append(len(served)))
    if stop is None:
        assert found == {"loss": 4.0} and beats == [3, 4, 5, 6, 7, 8, 9, 9, 9]
    else:
        assert found is None and len(served) == stop + 1


def test_other_settings_on_an_old_folder_are_named(whole):
    config, folder = whole
    changed = RunConfig(config.model.replace(dropout=0.2), config.train.replace(learning_rate=2e-3, log_every=1))
    with pytest.raises(InputError) as caught:
        loop.run(changed, folder, quiet=True)
    line = str(caught.value)
    assert "model.dropout was 0.1, now 0.2; train.learning_rate was 0.001, now 0.002" in line
    assert "log_every" not in line and "\n" not in line


def test_other_data_on_an_old_folder_is_refused(whole, tmp_path):
    config, folder = whole
    write_shards(made_up.documents(150, 1), made_up.tokenizer(), tmp_path / "other", valid_fraction=0.1, progress=False)
    with pytest.raises(InputError, match="was trained on other data than"):
        loop.run(RunConfig(config.model, config.train.replace(data=str(tmp_path / "other"))), folder, quiet=True)


def test_a_second_process_is_kept_out(whole):
    config, folder = whole
    with RunFolder(folder, config), pytest.raises(InputError, match="another process is training in"):
        RunFolder(folder, config)


def test_a_process_that_is_not_the_first_writes_checkpoints_alone(config, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(loop, "is_first_process", lambda: False)
    result = loop.run(config, tmp_path / "run", stop_at=4)
    assert result.step == 4 and result.train == {}
    assert os.listdir(tmp_path / "run") == ["checkpoints"] and capfd.readouterr() == ("", "")
    # It stands beside the first one, whose lock and settings are there.
    with RunFolder(tmp_path / "run", config), RunFolder(tmp_path / "run", config, writes=False):
        other = RunConfig(config.model, config.train.replace(seed=1))
        with pytest.raises(InputError, match="train.seed was 0, now 1"):
            RunFolder(tmp_path / "run", other, writes=False)


def test_a_loss_that_is_not_finite_stops_and_names_step_rows_and_checkpoint(config, tmp_path, monkeypatch):
    from train import objectives

    masked_lm = objectives.masked_lm

    def poisoned(model, params, batch, keys, **options):
        """Infinite on a batch whose rows carry the mark -1."""
        (total, weight), metrics = masked_lm(model, params, batch, keys, **options)
        return (jnp.where(jnp.any(batch["tokens"][:, 0] == -1), jnp.inf, total), weight), metrics

    batch = loop.Batches.batch

    def marked(self, step):
        made = batch(self, step)
        if step == 7:
            made["tokens"] = made["tokens"].copy()
            made["tokens"][3, 0] = -1
        return made

    monkeypatch.setattr(objectives, "masked_lm", poisoned)
    monkeypatch.setattr(loop.Batches, "batch", marked)
    with pytest.raises(loop.Diverged) as caught:
        loop.run(config, tmp_path / "run", quiet=True)
    line = str(caught.value)
    assert line.startswith("step 8 is not finite: loss inf") and "\n" not in line
    assert f"the last good checkpoint is {tmp_path / 'run' / 'checkpoints' / '5'}" in line
    from train.data.shards import open_shards

    rows = open_splits(config, open_shards(config.train.data), made_up.tokenizer())[0].rows_at(7)
    assert ", ".join(map(str, rows.tolist())) in line and "of documents" in line
    saved = [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]
    assert saved == ["5"]
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state_of(config, tmp_path / "run")[0].params))
    assert [line["step"] for line in read(tmp_path / "run" / "metrics.jsonl")] == [4, 6]
    # As the first step after a restore it does not call good what it came from, which may be the cause.
    loop.run(config, tmp_path / "run", quiet=True, stop_at=7)
    saved = tmp_path / "run" / "checkpoints"
    asked, told = [], loop.diverged_line
    monkeypatch.setattr(loop, "diverged_line", lambda *given: asked.append(given) or told(*given))
    with pytest.raises(loop.Diverged, match="step 8 is not finite") as caught:
        loop.run(config, tmp_path / "run", quiet=True)
    line, doubt = str(caught.value), f"the parameters that it began from, {saved / '7'}, may be damaged; "
    assert doubt + f"the checkpoint before is {saved / '5'};" in line and "good" not in line and "\n" not in line
    alone = SimpleNamespace(folder=saved, steps=lambda: [7])
    assert doubt + "there is no checkpoint before;" in told(*asked[0][:3], alone, asked[0][4])


def test_stop_at_ends_early_and_the_run_goes_on(whole, tmp_path):
    config, folder = whole
    assert loop.run(config, tmp_path / "run", quiet=True, stop_at=3).step == 3
    assert read(tmp_path / "run" / "metrics.jsonl") == []
    loop.run(config, tmp_path / "run", quiet=True)
    assert numbers(tmp_path / "run") == numbers(folder)


def test_start_from_takes_the_backbone_and_keeps_a_fresh_head(whole, tmp_path):
    from train.start import parameters_of, start_from

    config, folder = whole
    model = zoo.create(config.model.replace(head="lm", dropout=0.0))
    state = make_driver("jit").init(initial_state(model.init, make_optimizer(config.train), 1))
    before = jax.device_get(state.params)
    started = start_from(state, parameters_of(str(folder), model))
    _, loaded = zoo.load(str(folder))
    for part in ("embed", "blocks", "final_norm"):
        jax.tree.map(np.testing.assert_array_equal, started.params[part], loaded[part])
    assert set(started.params) == set(before)
    wider = zoo.create(config.model.replace(mlp_dim=32))
    with pytest.raises(InputError, match=r"blocks/layer_0/mlp/down/kernel has shape \(64, 16\) there; the model needs"):
        parameters_of(str(folder), wider)


def test_a_start_that_is_not_there_leaves_no_run_folder(whole, tmp_path):
    config, _ = whole
    config = RunConfig(config.model, config.train.replace(start_from=str(tmp_path / "nowhere")))
    with pytest.raises(InputError, match="no folder"):
        loop.run(config, tmp_path / "run", quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_lines_that_are_not_utf8_are_passed_over(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'\xff\xfe\n{"step": 1}\n')
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_a_validation_loss_that_is_not_finite_is_null(tmp_path):
    """It was NaN, which is no JSON, and the plot of such a run has the other points."""
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step, split, loss in ((1, "train", 2.0), (1, "valid", float("inf")), (2, "valid", float("nan"))):
        log.write(step, split, {"loss": loss, "tokens": step})
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[1:] == [f'{{"step": {n}, "split": "valid", "loss": null, "tokens": {n}}}' for n in (1, 2)]
    assert plots.plot_loss(tmp_path) == tmp_path / "loss.png"


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path / "metrics.jsonl")

    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        def fileno(self):
            raise OSError(errno.ENOSPC, "No space left on device")

        flush = close = lambda self: None

    log._file.close()
    log._file = Full()
    with pytest.raises(
        InputError, match="no disk space left for .*metrics.jsonl; free some and run the same command again"
    ):
        log.write(1, "train", {"loss": 1.0})
    log.close()


def test_lines_after_the_checkpoint_and_half_lines_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "split": "train", "loss": 0.1 * step} for step in (2, 4, 6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 8, "sp')
    log = MetricsLog(path, step=4)
    log.write(6, "train", {"loss": 0.6000000000000001})
    log.close()
    assert read(path) == lines
