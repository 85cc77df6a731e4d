"""The largest steps, compiled whole for a pod by libtpu: minutes each, a process each."""

import json
import subprocess
import sys

import pytest

from tests.train.published_runs import PUBLISHED, batch, fields, seconds
from train.plan.report import Plan
from zoo.tpu_machine import has_library


@pytest.mark.skipif(not has_library(), reason="libtpu is not installed")
@pytest.mark.parametrize("model", ["llama-65b", "llama3-70b"])
def test_the_largest_models_compile_for_a_pod_with_everything_split(model, tmp_path):
    command = [sys.executable, "-m", "train", "plan", "--model", model, "--slice", "v5p:4x4x8", "--batch", "128"]
    command += ["--seq", "2048", "--json", str(tmp_path / "plan.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    print(ended.stdout)
    plan = Plan.from_dict(json.loads((tmp_path / "plan.json").read_text()))
    assert plan.compiler == "tpu" and plan.fits and plan.faults == ()
    assert plan.widest[0] <= 1 / 100
    assert plan.memory["parameters"] < 4 * plan.parameters / 100
    assert plan.memory["moments"] < 8 * plan.parameters / 100
    assert plan.memory["total"] < plan.hbm


@pytest.mark.skipif(not has_library(), reason="libtpu is not installed")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_runs_compiled(name, tmp_path):
    """The step as it is here, gradients summed in float32, against what MaxText's took; README.md has the table."""
    slice, mesh, *_ = PUBLISHED[name]
    command = [sys.executable, "-m", "train", "plan", "--model", "llama-7b", "--slice", slice, "--mesh", mesh]
    command += ["--batch", str(batch(name)), "--seq", "2048", "--json", str(tmp_path / "plan.json"), "--model-set"]
    ended = subprocess.run(
        [*command, *(f"{key}={value}" for key, value in fields(name).items())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    plan = Plan.from_dict(json.loads((tmp_path / "plan.json").read_text()))
    best, worst = plan.step
    print(f"{name}: published {seconds(name):.2f} s, compiled {best:.2f} to {worst:.2f} s")
    assert plan.compiler == "tpu" and plan.faults == ()
    assert best < seconds(name) < worst
