"""Launch scripts: they are what their shells read, and the commands in them are commands of ours."""

import re
import shlex
import subprocess

import pytest

from train.cli import Pretrain, pretrain
from train.launch.printing import FILES, launch, script
from zoo.command_line import parse
from zoo.errors import InputError


def commands(text: str) -> list[list[str]]:
    """Words of every `python -m train pretrain`, its continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line for line in joined.splitlines() if not line.lstrip().startswith("#")]
    found = re.findall(r"python -m train pretrain (.*?)(?:\|\||$)", "\n".join(lines), re.MULTILINE)
    return [shlex.split(line) for line in found]


@pytest.mark.parametrize("where", FILES)
def test_the_commands_inside_are_ours(where):
    """Parsed by the command line itself, up to where a run would begin."""
    given = []

    def begun(words: Pretrain) -> None:
        given.append(words)

    begun.__doc__ = pretrain.__doc__
    (words,) = commands(script(where))
    parse(begun, "train pretrain", words)()
    assert given[0].model == "llama-7b" and given[0].driver == "mesh" and given[0].steps == 100_000
    with pytest.raises(InputError, match="did you mean"):
        parse(begun, "train pretrain", [*words, "--chekpoint-every", "3"])()


@pytest.mark.parametrize("where", ["tpu-pod", "slurm"])
def test_shells_read_them(where):
    done = subprocess.run(["bash", "-n"], input=script(where), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_sbatch_options_stand_before_the_first_command():
    """Slurm reads no option after it."""
    lines = script("slurm").splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < first
    assert lines[0] == "#!/usr/bin/env bash"


def test_the_jobset_is_yaml_of_one_host_a_pod():
    yaml = pytest.importorskip("yaml")
    made = yaml.safe_load(script("gke-jobset"))
    assert made["kind"] == "JobSet" and made["apiVersion"].startswith("jobset.x-k8s.io/")
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
    rows, columns = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    assert job["parallelism"] == job["completions"] == int(rows) * int(columns) // chips
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


def test_launch_prints_a_script_as_it_lies_there(capsys):
    launch("slurm")
    assert capsys.readouterr().out == script("slurm")
