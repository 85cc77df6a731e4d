"""The largest steps, compiled whole for a pod by libtpu: minutes each, a process each."""

import json
import os
import subprocess
import sys

import pytest

from tests.train.published_runs import PUBLISHED, batch, fields, seconds
from train.plan.report import Plan
from zoo.tpu_machine import has_library

# The others' settings do not fit this step, which keeps the stream whole on each chip of the axis tensor (README.md).
COMPILED = ("v5e 16B", "v5e 32B", "v5e 64B", "v5p 128B")


def plan(command):
    """Runs it as a user would: the tests' own precision of products is not a pod's."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_DEFAULT_MATMUL_PRECISION"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended


@pytest.mark.skipif(not has_library(), reason="libtpu is not installed")
@pytest.mark.parametrize("model", ["llama-65b", "llama3-70b"])
def test_the_largest_models_compile_for_a_pod_with_everything_split(model, tmp_path):
    command = [sys.executable, "-m", "train", "plan", "--model", model, "--slice", "v5p:4x4x8", "--batch", "128"]
    command += ["--seq", "2048", "--json", str(tmp_path / "plan.json")]
    ended = plan(command)
    print(ended.stdout)
    found = Plan.from_dict(json.loads((tmp_path / "plan.json").read_text()))
    assert found.compiler == "tpu" and found.fits and found.faults == ()
    assert found.attention == "auto (splash)"
    assert found.widest[0] <= 1 / 100
    assert found.memory["parameters"] < 4 * found.parameters / 100
    assert found.memory["moments"] < 8 * found.parameters / 100
    assert found.memory["total"] < found.hbm


@pytest.mark.skipif(not has_library(), reason="libtpu is not installed")
@pytest.mark.parametrize("name", COMPILED)
def test_published_runs_compiled(name, tmp_path):
    """The step as it is here, gradients summed in float32, against what MaxText's took; README.md has the table."""
    slice, mesh, *_ = PUBLISHED[name]
    command = [sys.executable, "-m", "train", "plan", "--model", "llama-7b", "--slice", slice, "--mesh", mesh]
    command += ["--batch", str(batch(name)), "--seq", "2048", "--json", str(tmp_path / "plan.json"), "--model-set"]
    plan([*command, *(f"{key}={value}" for key, value in fields(name).items())])
    found = Plan.from_dict(json.loads((tmp_path / "plan.json").read_text()))
    best, worst = found.step
    print(f"{name}: published {seconds(name):.2f} s, compiled {best:.2f} to {worst:.2f} s")
    assert found.compiler == "tpu" and found.faults == ()
    assert best < seconds(name) < worst
