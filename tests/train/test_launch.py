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


def test_the_jobset_starts_again_what_was_lost_and_leaves_wrong_input_alone():
    """As Kubernetes and JobSet read it: the first rule that fits a pod decides, then the first that fits the job."""
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load(script("gke-jobset"))["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]

    def after(code: int) -> str:
        reason = "BackoffLimitExceeded"  # at the first failed pod: backoffLimit is 0
        for rule in job["podFailurePolicy"]["rules"]:
            on = rule["onExitCodes"]
            assert on["operator"] == "In" and on["containerName"] == container["name"] and 0 not in on["values"]
            if code in on["values"]:
                reason = {"FailJob": "PodFailurePolicy"}[rule["action"]]
                break
        rules = spec["failurePolicy"]["rules"]
        return next((rule["action"] for rule in rules if reason in rule["onJobFailureReasons"]), "RestartJobSet")

    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy asks it
    assert {after(code) for code in (1, 2)} == {"FailJobSet"}
    assert {after(code) for code in (75, 134, 137, 143)} == {"RestartJobSet"}
    assert 0 < spec["failurePolicy"]["maxRestarts"] <= 100
    assert {port["containerPort"] for port in container["ports"]} == {8471, 8482, 8080}


def test_launch_prints_a_script_as_it_lies_there(capsys):
    launch("slurm")
    assert capsys.readouterr().out == script("slurm")
