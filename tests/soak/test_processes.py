"""By hand: a run of two processes that is killed twenty times, at random moments, and comes out as if never killed."""

import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests import made_up
from tests.train.processes import environment, free_port
from tests.train.test_processes import MODEL, numbers, state_of
from train.config import RunConfig, TrainConfig
from train.data.shards import write_shards

KILLS, STEPS = int(os.environ.get("ONEBLOCK_SOAK_KILLS", "20")), 260


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("soak")
    write_shards(made_up.documents(), made_up.tokenizer(), root / "data", valid_fraction=0.1, progress=False)
    train = TrainConfig(
        data=str(root / "data"), steps=STEPS, batch_size=8, seq_len=24, learning_rate=1e-3, log_every=3,
        checkpoint_every=6, eval_every=50, driver="mesh", keep_last=2,
    )  # fmt: skip
    RunConfig(MODEL, train).save(root / "data.json")
    return root


def started(root, folder):
    """Two processes of the real command line."""
    port, running = free_port(), []
    for number in range(2):
        words = [sys.executable, "-m", "train", "pretrain", root / folder, "--config", root / "data.json"]
        words += ["--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id", str(number)]
        words += ["--lost-after", "6", "--join-within", "120"]
        with open(root / f"error.{number}", "w") as error:
            running.append(subprocess.Popen(words, env=environment(2), stdout=subprocess.DEVNULL, stderr=error))
    return running


def test_twenty_kills_at_random_moments_leave_no_trace(root, seed):
    whole = started(root, "whole")
    assert [process.wait(1200) for process in whole] == [0, 0]
    draw, kills, longest = random.Random(seed), 0, 0.0
    while True:
        running = started(root, "killed")
        begun = max((line["step"] for line in numbers(root / "killed")), default=0)
        lines, moment = begun + draw.randrange(3, 12), draw.random() * 0.5
        while kills < KILLS and all(process.poll() is None for process in running):
            if max((line["step"] for line in numbers(root / "killed")), default=0) >= lines:
                break
            time.sleep(0.05)
        if kills == KILLS:
            assert [process.wait(1200) for process in running] == [0, 0]
            break
        time.sleep(moment)
        victim = draw.randrange(2)
        assert running[victim].poll() is None, (root / f"error.{victim}").read_text()
        running[victim].send_signal(signal.SIGKILL)
        killed, other = time.monotonic(), running[1 - victim]
        code = other.wait(120)
        longest = max(longest, time.monotonic() - killed)
        kills += 1
        time.sleep(0.5)
        said = (root / f"error.{1 - victim}").read_text()
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        print(f"kill {kills}: process {victim} at step {lines} or later; the other ended with {code}: {errors}")
        assert code in (75, -signal.SIGABRT) and len(errors) == 1 and "Traceback" not in said, said
    print(f"{kills} kills; the other process ended {longest:.1f} s after one at most")
    assert numbers(root / "killed") == numbers(root / "whole")
    ours, theirs = state_of(root, "killed")[0], state_of(root, "whole")[0]
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
