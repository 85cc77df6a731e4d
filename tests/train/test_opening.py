"""What cannot be trained is refused before anything is written, at the price of no second trace; where a run begins."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

import zoo
from tests import made_up
from train import loop, objectives, opening
from train.config import RunConfig, TrainConfig
from train.data import rows
from train.data.shards import write_shards
from train.logs import read
from train.mesh import make_driver
from train.optimizer import make_optimizer
from train.start import parameters_of, start_from
from train.state import initial_state
from zoo.errors import InputError

MODEL = zoo.ModelConfig(
    vocab_size=360, embed_dim=16, num_layers=1, num_heads=2, max_positions=24, visibility="full", head="masked_lm",
    dropout=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    write_shards(made_up.documents(), made_up.tokenizer(), folder, valid_fraction=0.1, progress=False)
    train = TrainConfig(
        objective="masked_lm", data=str(folder), steps=12, batch_size=8, seq_len=24, mask_rate=0.3, log_every=4,
        checkpoint_every=5, eval_every=6, warmup_steps=2, keep_last=3,
    )  # fmt: skip
    return RunConfig(MODEL, train)


MESH = {"driver": "mesh", "mesh": "fsdp=8"}


@pytest.mark.parametrize(
    ("model", "train", "line"),
    [
        ({}, MESH | {"batch_size": 12}, "12 rows a batch cannot be split over 8 devices; make batch_size a mul"),
        ({}, MESH | {"batch_size": 16, "accumulate": 4}, "4 micro-batches of 4 rows cannot be split over 8 devices"),
        ({}, {"driver": "pmap", "batch_size": 12}, "12 rows a batch cannot be split over 8 devices"),
        ({}, {"driver": "pmap", "batch_size": 16, "accumulate": 4}, "4 micro-batches do not divide the 2 rows"),
        ({"attention_kernel": "ring"}, MESH, "ring.* sequence"),
        ({"attention_kernel": "splash"}, MESH, 'attention kernel "splash" needs a TPU and none is here'),
        ({}, {"driver": "mesh", "mesh": "tensor=8"}, "tensor=8"),
    ],
)
def test_what_mesh_rows_micro_batches_or_kernel_refuse_leaves_no_folder(config, tmp_path, model, train, line):
    """It was written first, and the corrected command was then refused for other settings than the folder's."""
    wrong = RunConfig(config.model.replace(**model), config.train.replace(**train))
    with pytest.raises(InputError, match=line) as caught:
        loop.run(wrong, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists() and "\n" not in str(caught.value)


@pytest.mark.parametrize(("driver", "mesh"), [("jit", ""), ("mesh", "fsdp=8")])
def test_the_step_that_was_checked_is_not_traced_again(config, tmp_path, monkeypatch, driver, mesh):
    masked_lm, traces = objectives.masked_lm, []

    def counted(*args, **options):
        traces.append(options)
        return masked_lm(*args, **options)

    monkeypatch.setattr(objectives, "masked_lm", counted)
    train = config.train.replace(driver=driver, mesh=mesh)
    assert loop.run(RunConfig(config.model, train), tmp_path / "run", quiet=True, stop_at=2).step == 2
    assert len(traces) == 1


def test_a_run_goes_on_with_the_rows_that_it_was_packed_in(config, tmp_path, monkeypatch):
    """Another version may pack the same documents in another way: rows would come twice, or never."""
    loop.run(config, tmp_path / "run", quiet=True, stop_at=1)
    meta = json.loads((tmp_path / "run" / "checkpoints" / "1" / "meta" / "metadata").read_text())
    assert list(Path(config.train.data).glob(f"rows-bert-24-{meta['rows']}.npz")) and len(meta["valid"]) == 64
    monkeypatch.setattr(rows, "VERSION", rows.VERSION + 1)
    with pytest.raises(InputError, match="was trained on rows that were packed in another way") as caught:
        loop.run(config, tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    # A checkpoint of before says nothing of it, and is believed.
    for name in ("rows", "valid", "owed"):
        del meta[name]
    (tmp_path / "run" / "checkpoints" / "1" / "meta" / "metadata").write_text(json.dumps(meta))
    assert loop.run(config, tmp_path / "run", quiet=True, stop_at=2).step == 2


def test_the_first_process_packs_the_rows_and_the_others_find_them(config, monkeypatch):
    """Packing a trillion ids takes minutes and gigabytes: once for a folder, not once a process."""
    inside, calls, open_batches = [], [], opening.open_batches

    def in_turn(action):
        inside.append(1)
        return action()

    def noted(*given, **options):
        calls.append((options["split"], list(inside)))
        return open_batches(*given, **options)

    monkeypatch.setattr(opening, "first_then_others", in_turn)
    monkeypatch.setattr(opening, "open_batches", noted)
    opening.open_run(config)
    assert calls == [("train", [1]), ("valid", [1])]


def test_steps_to_trace_that_are_past_are_told(config, tmp_path, capfd):
    loop.run(config, tmp_path / "run", quiet=True, stop_at=4)
    loop.run(config, tmp_path / "run", profile="2:3", stop_at=5)
    assert "profile 2:3: the run goes on from step 4; nothing will be traced" in capfd.readouterr().err
    loop.run(config, tmp_path / "run", profile="5:6", stop_at=7)
    said = capfd.readouterr().err
    assert "profile 5:6: the run goes on from step 5; steps 6 to 6 alone will be traced" in said
    assert "steps 5:6 are traced in" in said
    with pytest.raises(InputError, match="goes past the run's 8 steps"):
        loop.run(config, tmp_path / "run", profile="9", stop_at=8)


def test_a_signal_breaks_off_an_evaluation_which_is_made_up_for(config, tmp_path, monkeypatch):
    """An evaluation of an hour would outlast what Slurm and GKE grant; the numbers are those of a run never stopped."""
    loop.run(config, tmp_path / "whole", quiet=True)
    all_rows, seen = loop.Batches.all_rows, []

    def interrupted(self):
        for batch in all_rows(self):
            seen.append(len(seen))
            if len(seen) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(loop.Batches, "all_rows", interrupted)
        with pytest.raises(SystemExit) as caught:
            loop.run(config, tmp_path / "run", quiet=True)
    assert caught.value.code == 143 and len(seen) == 1
    assert [(line["step"], line["split"]) for line in read(tmp_path / "run" / "metrics.jsonl")] == [(4, "train")]
    assert (tmp_path / "run" / "checkpoints" / "6").is_dir()
    loop.run(config, tmp_path / "run", quiet=True)

    def numbers(name):
        lines = read(tmp_path / name / "metrics.jsonl")
        return [(line["step"], line["split"], line["loss"], line["tokens"]) for line in lines]

    assert numbers("run") == numbers("whole")
    monkeypatch.setattr(loop, "evaluate", lambda *_: pytest.fail("evaluated again"))
    loop.run(config, tmp_path / "run", quiet=True)


def test_over_a_mesh_no_device_reads_the_whole_of_a_checkpoint(config, tmp_path, monkeypatch):
    """LLaMA-7B's 27 GB would not fit on one chip; it was read there first, and then spread."""
    model = zoo.create(config.model)
    loop.run(config, tmp_path / "run", quiet=True, stop_at=1)
    driver = make_driver("mesh", "fsdp=8")
    make = initial_state(model.init, make_optimizer(config.train), 1)
    state = driver.init(make)
    loaded = parameters_of(str(tmp_path / "run"), model, driver)
    big = loaded["embed"]["token"]["embedding"]
    assert len(big.addressable_shards) == 8 and all(part.data.size * 8 == big.size for part in big.addressable_shards)
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(np, "asarray", lambda *_, **__: asked.append(1))
        started = start_from(state, loaded)
    assert not asked
    jax.tree.map(lambda new, old: pytest.fail("elsewhere") if new.sharding != old.sharding else None, started, state)
    _, whole = zoo.load(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(started.params), jax.device_get(whole))


def test_where_hosts_see_a_folder_differently_the_first_ones_view_decides(config, tmp_path, monkeypatch):
    """Whether parameters are read for a start is a collective of all: no host may decide it by itself."""
    read_by = []
    train = config.train.replace(start_from=str(tmp_path / "nowhere"))
    monkeypatch.setattr(loop, "parameters_of", lambda *_: read_by.append(1))
    monkeypatch.setattr(loop, "open_run_folder", lambda *_, **__: pytest.fail("reached"))
    monkeypatch.setattr(loop, "from_first", lambda text: "begun")
    with pytest.raises(pytest.fail.Exception):
        loop.run(RunConfig(config.model, train), tmp_path / "run", quiet=True)
    assert not read_by
    monkeypatch.setattr(loop, "from_first", lambda text: "")
    with pytest.raises(pytest.fail.Exception):
        loop.run(RunConfig(config.model, train), tmp_path / "run", quiet=True)
    assert read_by == [1]


def test_the_step_compiles_ahead_and_once(config, monkeypatch):
    seen = []

    def listen(event, seconds, **_):
        del seconds
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    for train in ({}, {"driver": "mesh", "mesh": "fsdp=8"}):
        run = opening.open_run(RunConfig(config.model, config.train.replace(**train)))
        state, batch = run.driver.init(run.make), run.driver.put(run.batches.batch(0), 8)
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            opening.compile_ahead(run)()
            assert len(seen) == 1
            run.step(state, batch)
            assert len(seen) == 1
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
            seen.clear()


def test_what_compiling_ahead_meets_is_said_by_the_step(config):
    class Broken:
        def compile(self):
            raise RuntimeError("no such instruction")

    run = opening.open_run(config)
    opening.compile_ahead(dataclasses.replace(run, lowered=Broken()))()  # nothing is raised here
    several = dataclasses.replace(run, driver=make_driver("pmap"), lowered=None)
    opening.compile_ahead(several)()
