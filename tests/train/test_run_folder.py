"""The folder of a run: locks that a file system lacks or keeps too long, and settings that may still be changed."""

import errno
import fcntl
import json
import os

import pytest

import zoo
from train import run_folder
from train.config import RunConfig, TrainConfig
from train.run_folder import RunFolder
from zoo.errors import InputError

MODEL = zoo.ModelConfig(vocab_size=16, embed_dim=16, num_layers=1, num_heads=2)
CONFIG = RunConfig(MODEL, TrainConfig(data="x", batch_size=12))


def refusing(monkeypatch, *numbers):
    """flock fails with these numbers, one after another, and then works."""
    left, real = list(numbers), fcntl.flock

    def flock(file, how):
        if left:
            number = left.pop(0)
            raise OSError(number, os.strerror(number))
        return real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    return left


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_no_other_process(tmp_path, monkeypatch, capfd, number):
    refusing(monkeypatch, number)
    with RunFolder(tmp_path / "run", CONFIG) as place:
        assert place.mark and (tmp_path / "run" / ".lock").read_text() == place.mark
    line = f"{tmp_path / 'run'} lies where no file can be locked ({os.strerror(number)}): let one run alone use it\n"
    assert capfd.readouterr().err == line


def test_a_restart_waits_for_the_lock_of_a_host_that_is_gone(tmp_path, monkeypatch, capfd):
    """NFS gives it up after its lease. A folder that no run has begun in, and a process alone, are refused at once."""
    slept = []
    monkeypatch.setattr(run_folder.time, "sleep", slept.append)
    RunFolder(tmp_path / "run", CONFIG).close()
    refusing(monkeypatch, errno.EWOULDBLOCK)
    with pytest.raises(InputError, match="another process is training in"):
        RunFolder(tmp_path / "run", CONFIG, waits=True)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\n')
    refusing(monkeypatch, errno.EAGAIN)
    with pytest.raises(InputError, match="another process is training in"):
        RunFolder(tmp_path / "run", CONFIG)
    assert not slept and not capfd.readouterr().err
    left = refusing(monkeypatch, errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
    RunFolder(tmp_path / "run", CONFIG, waits=True).close()
    assert not left and slept == [1.0] * 3
    assert capfd.readouterr().err.count("is still locked, maybe by a process that is gone: waiting up to 120 s") == 1
    monkeypatch.setattr(run_folder, "LEASE", -1.0)
    refusing(monkeypatch, errno.EAGAIN)
    with pytest.raises(InputError, match="another process is training in"):
        RunFolder(tmp_path / "run", CONFIG, waits=True)


def test_until_a_step_is_saved_or_logged_the_settings_may_be_changed(tmp_path):
    """A first command that failed before its first step must not hold the folder to its settings."""
    folder = tmp_path / "run"
    RunFolder(folder, CONFIG).close()
    (folder / "metrics.jsonl").write_text("")
    (folder / "checkpoints" / "4.orbax-checkpoint-tmp").mkdir(parents=True)
    changed = RunConfig(MODEL, CONFIG.train.replace(batch_size=16))
    with RunFolder(folder, changed), RunFolder(folder, changed, writes=False):
        assert RunConfig.load(folder) == changed
    step = folder / "checkpoints" / "4"
    step.mkdir()
    (step / "commit_success.txt").write_text("")
    for writes in (True, False):
        with pytest.raises(InputError, match="train.batch_size was 16, now 12; undo them, or take another folder"):
            RunFolder(folder, CONFIG, writes=writes)
    (folder / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\n')
    step.rename(tmp_path / "4")
    with pytest.raises(InputError, match="train.batch_size was 16, now 12"):
        RunFolder(folder, CONFIG)


def test_where_config_json_is_gone_the_newest_checkpoint_says_what_the_settings_were(tmp_path):
    """Any seed and batch size were taken: rows came twice or never."""
    folder = tmp_path / "run"
    for step, batch_size in ((2, 10), (4, 12)):
        about = {"format": "oneblock-run-1", "data": "d", "step": step, "ledger": {"tokens": 0, "sums": {}}}
        about["config"] = RunConfig(MODEL, CONFIG.train.replace(batch_size=batch_size)).to_dict()
        (folder / "checkpoints" / str(step) / "meta").mkdir(parents=True)
        (folder / "checkpoints" / str(step) / "commit_success.txt").write_text("")
        (folder / "checkpoints" / str(step) / "meta" / "metadata").write_text(json.dumps(about))
    changed = RunConfig(MODEL, CONFIG.train.replace(batch_size=16, seed=1))
    for writes in (True, False):
        with pytest.raises(InputError, match="with other settings: train.batch_size was 12, now 16; train.seed was"):
            RunFolder(folder, changed, writes=writes)
        assert not (folder / "config.json").exists()
    RunFolder(folder, CONFIG).close()
    assert RunConfig.load(folder) == CONFIG
    of_a_list = {"train": {}, "model": {"vocab_size": []}}
    for config, line in (({}, "4/meta/metadata: a run's config needs"), (of_a_list, "checkpoints/4.*vocab_size")):
        (folder / "config.json").unlink(missing_ok=True)
        (folder / "checkpoints" / "4" / "meta" / "metadata").write_text(json.dumps(about | {"config": config}))
        with pytest.raises(InputError, match=line):
            RunFolder(folder, CONFIG)
    (folder / "checkpoints" / "4" / "meta" / "metadata").unlink()
    with pytest.raises(InputError, match="4: its files are damaged .* elsewhere, and the run goes on from step 2"):
        RunFolder(folder, CONFIG)


def test_a_full_disk_is_named_with_the_folder(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(run_folder.os, "fsync", full)
        with pytest.raises(InputError, match=f"no space left on the disk for {tmp_path / 'run'}; free some and run"):
            RunFolder(tmp_path / "run", CONFIG)
    RunFolder(tmp_path / "run", CONFIG).close()
