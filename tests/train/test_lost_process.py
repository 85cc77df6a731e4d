"""The watch of one of several processes: what counts as moving, here and elsewhere, and where a wait ends."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from tests.train.processes import environment, free_port
from train import distributed, lost_process
from train.lost_process import NEWS, Watch, worked


class Store:
    """In place of the coordinator's."""

    def __init__(self):
        self.kept = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite
        self.kept[key] = value

    def key_value_try_get(self, key):
        return self.kept[key]


def until(holds):
    """Waits for it, for 20 s on a machine that is busy."""
    last = time.monotonic() + 20
    while not holds() and time.monotonic() < last:
        time.sleep(0.01)
    assert holds()


@pytest.fixture
def said(monkeypatch):
    """What a process of two would say at its end; it does nothing unless a test says so."""
    said = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(lost_process, "end", lambda line, code: said.append((line, code)))
    monkeypatch.setattr(lost_process, "own_work", lambda: (0.0, 0))
    return said


def test_work_counts_where_no_step_is_finished(monkeypatch):
    """A compile or a restore of an hour is no stall; a wait in which this process does nothing is one."""
    said, work = [], [(0.0, 0)]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(lost_process, "end", lambda line, code: said.append(line))

    def working():
        seconds, moved = work[-1]
        work.append((seconds + 1.0, moved) if len(work) < 8 else (seconds, moved + 2**21 if len(work) < 16 else moved))
        return work[-1]

    monkeypatch.setattr(lost_process, "own_work", working)
    with lost_process.Watch(0.05) as watch, watch.working("a restore"):
        while len(work) < 16:
            watch._over.wait(0.01)
            assert not said
        while not said:
            watch._over.wait(0.01)
    assert "nothing was finished for 0.05 s after step 0 (a restore); look for a process that waits" in said[0]
    monkeypatch.undo()
    (before, read), _ = lost_process.own_work(), Path("/proc/self/io").read_bytes()
    assert before > 0 and lost_process.own_work()[1] > read > 0


def test_where_nothing_moves_the_watch_ends_the_process(said):
    with Watch(0.3) as watch:
        watch.beat(7)
        until(lambda: said)
    assert said[0][1] == 75 and "nothing was finished for 0.3 s after step 7" in said[0][0]


def test_work_of_another_process_counts_and_where_it_ends_all_end(said, monkeypatch):
    """One that waits for the first to pack rows was ended, and so was each restart."""
    store = Store()
    monkeypatch.setattr(lost_process, "coordinator", lambda: store)
    with Watch(0.8) as watch, watch.working("opening what is trained"):
        for tick in range(25):
            store.key_value_set(NEWS, f"1 {tick}", allow_overwrite=True)
            time.sleep(0.08)
        assert not said  # after 2 s
        began = time.monotonic()
        until(lambda: said)
        assert 0.4 < time.monotonic() - began < 2 * 0.8
    assert said[0][1] == 75 and "nothing was finished for 0.8 s" in said[0][0]
    assert not any(thread.is_alive() for thread in watch._threads)


def test_what_moves_here_is_told_and_what_moved_elsewhere_is_not_passed_on(said, monkeypatch):
    store, work = Store(), [0.0]
    monkeypatch.setattr(lost_process, "coordinator", lambda: store)
    monkeypatch.setattr(lost_process, "own_work", lambda: (work[0], 0))

    def told(before=""):
        until(lambda: store.kept.get(NEWS, "") != before)
        return store.kept[NEWS]

    def computes(times=3):
        for _ in range(times):
            work[0] += 1.0
            time.sleep(0.1)

    with Watch(0.2) as watch:
        first = told()
        computes()
        assert store.kept[NEWS] == first and first.startswith("0 ")  # in the steps processor time is none
        watch.beat(1)
        beaten = told(first)
        with watch.working("a compile"):
            entered = told(beaten)
            time.sleep(0.2)
            assert store.kept[NEWS] == entered
            computes()
            assert told(entered).startswith("0 ")
            time.sleep(0.2)
            store.kept[NEWS] = "1 5"  # from here on this one does nothing
            time.sleep(0.3)
            assert store.kept[NEWS] == "1 5" and watch._news > watch._last


class Lost(Store):
    def key_value_set(self, key, value, allow_overwrite=False):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect")


class Silent(Store):
    def key_value_set(self, key, value, allow_overwrite=False):
        threading.Event().wait(60)


@pytest.mark.parametrize("store", [Lost, Silent])
def test_a_lost_coordinator_neither_ends_nor_holds_up_the_watch(said, monkeypatch, store):
    monkeypatch.setattr(lost_process, "coordinator", store)
    with Watch(0.2) as watch, watch.working("a checkpoint"):
        until(lambda: said)
        watch._threads.clear()  # the end would wait 2 s for the silent one
    assert said[0][1] == 75


def test_a_little_work_is_work_and_turning_in_an_exchange_is_none(monkeypatch):
    assert worked((5.0, 0), (5.6, 0), 10.0) and not worked((5.0, 0), (5.3, 0), 10.0)
    assert worked((5.0, 0), (5.0, 2**21), 10.0) and not worked((5.0, 0), (5.0, 2**19), 10.0)
    looked = []

    def callback(*_):
        looked.append([worked((5.0, 0), (9.0, 0), 10.0), worked((5.0, 0), (9.0, 2**21), 10.0)])
        raise LookupError

    monkeypatch.setattr(jax, "make_array_from_callback", callback)
    with pytest.raises(LookupError):
        distributed._gathered(np.zeros(1, np.int32))
    with pytest.raises(LookupError):  # jax's, as Orbax calls them
        exec(compile("callback()", multihost_utils.__file__, "exec"), {"callback": callback})
    assert looked == [[False, True], [False, True]]
    assert worked((5.0, 0), (9.0, 0), 10.0)


PROGRAM = """
import sys, time
from pathlib import Path
from train.distributed import Job, first_then_others, gather
from train.lost_process import Watch, joined
number, seconds = int(sys.argv[2]), 2.0
with joined(Job(sys.argv[1], 2, number, 'options', join_within=60)):
    gather('')
    with Watch(seconds) as watch, watch.working('opening what is trained'):
        def pack():
            until = time.monotonic() + 3 * seconds * (1 - number)
            while time.monotonic() < until:
                begun = time.process_time()
                while time.process_time() - begun < 0.02:
                    pass
                time.sleep(0.08)
        first_then_others(pack)
        Path(sys.argv[3]).touch()
        if number:
            gather('one that never comes')
        time.sleep(60)
"""


def test_two_real_processes_wait_for_one_at_work_and_end_where_none_is(tmp_path):
    env, coordinator = environment(1) | {"JAX_PLATFORMS": "cpu"}, f"127.0.0.1:{free_port()}"
    packed = [tmp_path / "0", tmp_path / "1"]
    words = [[sys.executable, "-c", PROGRAM, coordinator, path.name, str(path)] for path in packed]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(w, env=env, text=True, **pipes) for w in words]
    try:
        said = [process.communicate(timeout=60)[1] for process in running]
        ended = time.time()
    finally:
        for process in running:
            process.kill()
    assert all(path.exists() for path in packed), said
    assert ended - max(path.stat().st_mtime for path in packed) < 1.75 * 2 + 3  # where process 0 ends, it lingers
    assert 75 in [process.returncode for process in running]
    assert "nothing was finished for 2 s after step 0 (opening what is trained)" in "".join(said)
