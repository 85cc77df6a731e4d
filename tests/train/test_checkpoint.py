"""Checkpoints: whole or absent whenever the process dies, kept by policy, read by any driver."""

import base64
import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import zoo
from train import checkpoint
from train.checkpoint import Checkpoints
from train.config import TrainConfig
from train.mesh import make_driver
from train.optimizer import make_optimizer
from train.peer_lost import PeerLost
from train.state import TrainState, initial_state
from zoo.checkpoints.orbax_quiet import quiet_restore
from zoo.errors import InputError, TryAgain

MODEL = zoo.create(zoo.ModelConfig(vocab_size=16, embed_dim=16, num_layers=1, num_heads=2))
OPTIMIZER = make_optimizer(TrainConfig())
MAKE = initial_state(MODEL.init, OPTIMIZER, 0)
FILES = {"tokenizer.model": bytes(range(256))}


def meta(step=0):
    """What the first version of a run wrote."""
    return {"config": {}, "data": "d", "step": step, "ledger": {"tokens": 9, "sums": {"loss": [0.1 + 0.2, 7.0]}}}


@pytest.fixture(scope="module")
def state():
    return make_driver("jit").init(MAKE)


def at(state, step):
    return state.replace(step=jnp.int32(step), params=jax.tree.map(lambda x: x + step, state.params))


def test_what_is_saved_comes_back_bit_for_bit_under_any_driver(state, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(at(state, 3), meta(3), FILES, 1.0)
    checkpoints.wait()
    want = jax.device_get(at(state, 3))
    for name, mesh in (("jit", ""), ("mesh", "fsdp=4,tensor=2"), ("pmap", "")):
        driver = make_driver(name, mesh)
        found, about = checkpoints.restore(driver.abstract(MAKE))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), want)
        assert jax.tree.structure(found) == jax.tree.structure(state)
        expected = driver.abstract(MAKE)
        jax.tree.map(lambda x, y: pytest.fail("elsewhere") if x.sharding != y.sharding else None, found, expected)
        assert about == {"format": "oneblock-run-1"} | meta(3) and about["ledger"]["sums"]["loss"][0] == 0.1 + 0.2
        # And the other way: what this driver holds is saved and read on one device.
        again = Checkpoints(tmp_path / name)
        again.save(found, meta(3), FILES)
        again.wait()
        back, _ = again.restore(make_driver("jit").abstract(MAKE))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(back), want)
        again.close()
    checkpoints.close()


def test_params_are_an_item_of_their_own_and_the_tokenizer_is_inside(state, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, meta(), FILES)
    checkpoints.close()
    assert {"params", "state", "meta", "tokenizer"} <= {p.name for p in (tmp_path / "0").iterdir()}
    text = json.loads((tmp_path / "0" / "tokenizer" / "metadata").read_text())
    assert {name: base64.b64decode(data) for name, data in text.items()} == FILES


def test_a_save_keeps_what_was_given_although_its_buffers_are_given_away(state, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    big = make_driver("jit").init(lambda: MAKE().replace(params={"kernel": jnp.ones((1000, 1000))}))
    bump = jax.jit(lambda s: s.replace(params=jax.tree.map(lambda x: x * 2, s.params)), donate_argnums=0)
    checkpoints.save(big, meta(), FILES)
    for _ in range(20):
        big = bump(big)
    checkpoints.wait()
    shape = make_driver("jit").abstract(lambda: MAKE().replace(params={"kernel": jnp.ones((1000, 1000))}))
    found, _ = checkpoints.restore(shape)
    np.testing.assert_array_equal(found.params["kernel"], np.ones((1000, 1000)))
    checkpoints.close()


def test_the_newest_the_best_and_every_kth_are_kept(state, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=1, keep_every=4)
    losses = {1: 3.0, 2: 0.5, 3: 2.0, 4: 1.0, 5: None, 6: 0.9, 7: 0.8}
    for step, loss in losses.items():
        checkpoints.save(at(state, step), {}, FILES, loss)
    checkpoints.wait()
    assert checkpoints.steps() == [2, 4, 6, 7]  # 2 is the best, 4 a fourth, 6 and 7 the newest
    checkpoints.close()
    # A second process sees the same and goes on by the same rules.
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=1, keep_every=4)
    checkpoints.save(at(state, 8), {}, FILES, 0.1)
    checkpoints.wait()
    assert checkpoints.steps() == [4, 7, 8]
    checkpoints.close()


def test_missing_and_foreign_checkpoints_are_one_line(state, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    abstract = make_driver("jit").abstract(MAKE)
    with pytest.raises(InputError, match="no complete checkpoint in"):
        checkpoints.restore(abstract)
    checkpoints.save(state, meta(), FILES)
    checkpoints.wait()
    wider = zoo.create(MODEL.config, mlp_dim=32)
    other = make_driver("jit").abstract(initial_state(wider.init, OPTIMIZER, 0))
    line = "does not hold the model of config.json: 3 wrong shape: .*mlp/down/kernel"
    with pytest.raises(InputError, match=line) as caught:
        checkpoints.restore(other)
    assert "\n" not in str(caught.value)
    checkpoints.close()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("RESOURCE_EXHAUSTED: Error writing local file: No space left on device [source locations='...']"),
    ],
    ids=["python", "tensorstore"],
)
def test_a_full_disk_is_one_line(state, tmp_path, monkeypatch, error):
    checkpoints = Checkpoints(tmp_path)

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._manager, "save", fail)
        with pytest.raises(InputError, match="no space left on the disk at .* for a checkpoint") as caught:
            checkpoints.save(state, meta(), FILES)
    assert "\n" not in str(caught.value)
    checkpoints.save(state, meta(), FILES)
    (tmp_path / "9.orbax-checkpoint-tmp" / "params").mkdir(parents=True)  # what the failed save left
    checkpoints.close()
    assert [entry.name for entry in tmp_path.iterdir()] == [str(int(state.step))]


# One process that is copied before jax starts, once for every place where a save touches the disk; each copy saves
# step 1 whole, and is killed with SIGKILL when its save of step 2 reaches that place.
KILLS = """
    import os, signal, sys
    from pathlib import Path
    import jax, jax.numpy as jnp, numpy as np
    from train.checkpoint import Checkpoints
    from train.state import TrainState
    import orbax.checkpoint, orbax.checkpoint.checkpoint_managers

    root, stride, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def meta(step):
        return {"config": {}, "data": "", "step": step, "ledger": {"tokens": 0, "sums": {}}}

    def state(step):
        params = {"kernel": jnp.full((8, 8), float(step))}
        return TrainState(jnp.int32(step), params, {}, jnp.zeros(2, jnp.uint32))

    def child(place):
        folder, seen = root / str(place), [0]
        checkpoints = Checkpoints(folder)
        checkpoints.save(state(1), meta(1), {"a": b"b"})
        checkpoints.wait()

        def hook(event, arguments):
            touches = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir")
            if touches and str(folder) in str(arguments[0]):
                if seen[0] == place:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen[0] += 1

        sys.addaudithook(hook)
        checkpoints.save(state(2), meta(2), {"a": b"b"})
        checkpoints.wait()
        os._exit(0)

    for place in range(0, last, stride):
        pid = os.fork()
        if pid == 0:
            child(place)
        _, status = os.waitpid(pid, 0)
        print(place, os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status), flush=True)
        if not os.WIFSIGNALED(status):
            break
"""


def test_killed_at_any_stage_of_a_save_the_last_whole_step_is_found_and_later_saves_happen(tmp_path):
    stride = 1 if os.environ.get("ONEBLOCK_SOAK") else 7
    root = str(Path(checkpoint.__file__).resolve().parents[1])
    words = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(KILLS), str(tmp_path), str(stride), "400"]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, timeout=400)
    outcomes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert outcomes and outcomes[-1][1] == 0, done.stderr[-2000:]  # the last place lies past the end of the save
    assert len(outcomes) > 3 and all(code == 9 for _, code in outcomes[:-1])
    params, key = {"kernel": jnp.zeros((8, 8))}, jnp.zeros(2, jnp.uint32)
    abstract = make_driver("jit").abstract(lambda: TrainState(jnp.int32(0), params, {}, key))
    left = 0
    for place, _ in outcomes:
        folder = tmp_path / str(place)
        left += any("tmp" in p.name for p in folder.iterdir())
        checkpoints = Checkpoints(folder)
        latest = checkpoints.latest()
        assert latest in (1, 2)
        found, _ = checkpoints.restore(abstract)
        assert int(found.step) == latest
        np.testing.assert_array_equal(found.params["kernel"], np.full((8, 8), float(latest)))
        later = found.replace(step=jnp.int32(3))
        checkpoints.save(later, meta(3), FILES)
        checkpoints.wait()
        assert checkpoints.latest() == 3 and int(checkpoints.restore(abstract)[0].step) == 3
        assert not [p for p in folder.iterdir() if "tmp" in p.name]
        checkpoints.close()
    assert left > 0  # some kills did leave half a checkpoint behind


def test_damaged_arrays_are_one_line_for_training_and_for_loading(state, tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(state, meta(), FILES)
    checkpoints.wait()
    (tmp_path / "config.json").write_text(json.dumps({"model": MODEL.config.to_dict()}))
    for path in (tmp_path / "checkpoints" / "0" / "params").glob("ocdbt.process_0/d/*"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(InputError, match="files are damaged or missing; move .*/0 elsewhere, and the run begins anew"):
        checkpoints.restore(make_driver("jit").abstract(MAKE))
    with pytest.raises(InputError, match="its files are damaged or missing"):
        zoo.load(tmp_path)
    checkpoints.close()


GLOO = "UNAVAILABLE: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:1"
STALE = os.strerror(errno.ESTALE)


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (OSError(errno.ESTALE, STALE), TryAgain, "cannot be read at present, and nothing says that its files are dam"),
        (ValueError(f"UNKNOWN: Error reading local file: {STALE}"), TryAgain, "keep them, see whether the disk or"),
        (ValueError("UNAVAILABLE: Error reading gs://a/b"), TryAgain, "cannot be read at present"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), InputError, "cannot be opened .* keep them"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), InputError, "no room in memory .*known"),
        (RuntimeError("INTERNAL: no idea"), InputError, "whether its files are damaged is not known: keep them until"),
    ],
)
def test_what_says_nothing_of_the_files_never_calls_them_damaged(state, tmp_path, monkeypatch, error, kind, line):
    """A share that does not answer, a device without room: whoever parted with the step would have lost a good one."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(state, meta(), FILES)
    checkpoints.wait()
    (tmp_path / "config.json").write_text(json.dumps({"model": MODEL.config.to_dict()}))

    def fail(*_, **__):
        raise error

    abstract = make_driver("jit").abstract(MAKE)
    for place in ("restore", "metadata"):  # of arrays, and of their shapes
        with monkeypatch.context() as patch:
            patch.setattr(orbax.checkpoint.StandardCheckpointHandler, place, fail)
            for read in (lambda: checkpoints.restore(abstract), lambda: zoo.load(tmp_path)):
                with pytest.raises(InputError, match=line) as caught:
                    read()
                said = str(caught.value)
                assert type(caught.value) is kind and kind.exit_code == (75 if kind is TryAgain else 2)
                assert "move" not in said and "delete" not in said and "\n" not in said
    assert int(checkpoints.restore(abstract)[0].step) == 0
    checkpoints.close()


def test_a_peer_lost_in_a_restore_is_no_damage(state, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, meta(), FILES)
    checkpoints.wait()

    def fail(*_, **__):
        raise ValueError(GLOO)

    abstract = make_driver("jit").abstract(MAKE)
    with monkeypatch.context() as patch:
        patch.setattr(orbax.checkpoint.StandardCheckpointHandler, "restore", fail)
        patch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(PeerLost, match="a process was lost .*closed by peer"):
            checkpoints.restore(abstract)
    checkpoints.close()


def test_a_save_that_is_too_slow_is_told_and_one_that_lost_its_peer_is_not_called_slow(state, tmp_path, monkeypatch):
    """Orbax raises TimeoutError for both; after a time-out the same command would only time out again."""
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints._manager._options.async_options.timeout_secs == checkpoint.SAVE_WITHIN > 1200
    reasons = {
        "DEADLINE_EXCEEDED: Barrier timed out.": (InputError, "was not written within 6 hours; the run goes on from"),
        "UNAVAILABLE: task 1 is gone; its heartbeat is missing": (PeerLost, "a process was lost"),
    }
    for reason, (kind, line) in reasons.items():

        def fail(reason=reason):
            raise TimeoutError("Timed out while waiting for the barrier.") from jax.errors.JaxRuntimeError(reason)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints._manager, "wait_until_finished", fail)
            patch.setattr(jax, "process_count", lambda: 2)
            with pytest.raises(kind, match=line):
                checkpoints.wait()
    checkpoints.close()


def test_a_share_that_shows_new_steps_late_is_waited_for(state, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.settle(None)
    checkpoints.save(at(state, 3), {}, FILES)
    checkpoints.wait()
    late = Checkpoints(tmp_path)
    seen = [None, None, 3]
    monkeypatch.setattr(late, "latest", lambda: seen.pop(0) if len(seen) > 1 else seen[0])
    late.settle(3)
    assert seen == [3]
    with pytest.raises(TryAgain, match="is that of step 3 here and 5 on process 0"):
        late.settle(5, seconds=0.0)
    late.close()
    checkpoints.close()


def test_reads_that_end_after_a_failed_restore_print_nothing(monkeypatch):
    """Other things that cannot be raised are told as before, and a restore that succeeds leaves no trace."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    before = sys.unraisablehook
    with quiet_restore():
        assert sys.unraisablehook is not before
    assert sys.unraisablehook is before
    with pytest.raises(OSError), quiet_restore():
        raise OSError
    for error in (RuntimeError("Event loop is closed"), RuntimeError("other"), ValueError("Event loop is closed")):
        sys.unraisablehook(SimpleNamespace(exc_value=error, object=None))
    assert told == ["other", "Event loop is closed"]


def test_a_damaged_metrics_file_is_one_line(state, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, meta(), FILES)
    checkpoints.close()
    (tmp_path / "0" / "metrics" / "metrics").write_text("{")
    with pytest.raises(InputError, match="/0: its files are damaged or missing; move .*/0 elsewhere, and the run"):
        Checkpoints(tmp_path)
