"""Exit codes under the launch scripts, with stand-ins for srun, scontrol and gcloud: what is tried again, what is not.

Codes of ours: 0 done; 2 wrong input, 1 an error of the program, for both of which another try would end the same way;
75 and 134 a process was lost, 143 SIGTERM: the run goes on from its checkpoint.
"""

import os
import re
import subprocess
import sys
import time

import pytest

from train.launch.printing import script

# As its manual says: the highest code of all tasks, a signal as 128 and its number; with --kill-on-bad-exit the first
# that fails ends the others. SIGTERM goes to the tasks themselves, not to what they have started (proctrack/cgroup).
SRUN = r"""
import os, signal, subprocess, sys, time
words = sys.argv[1:]
options = dict(word.lstrip("-").split("=", 1) for word in iter(lambda: words.pop(0) if words[0][0] == "-" else "", ""))
with open(os.environ["TOLD"], "a") as file:
    print(f"srun {options}", file=file)
tasks = [subprocess.Popen(words, env=os.environ | {"SLURM_PROCID": str(n)}) for n in range(3)]
signal.signal(signal.SIGTERM, lambda *_: [task.send_signal(signal.SIGTERM) for task in tasks])
kill = options.get("kill-on-bad-exit") == "1"
while any(task.poll() is None for task in tasks):
    if kill and any(task.poll() for task in tasks):
        [task.kill() for task in tasks]
    time.sleep(0.02)
sys.exit(max(task.returncode if task.returncode >= 0 else 128 - task.returncode for task in tasks))
"""
GCLOUD = r"""
import os, subprocess, sys
words = sys.argv[1:]
with open(os.environ["TOLD"], "a") as file:
    print("gcloud", *words[:5], file=file)
if "ssh" in words:
    command = words[words.index("--command") + 1]
    workers = range(3) if "--worker=all" in words else [0]
    homes = [os.path.join(os.environ["WORKERS"], str(number)) for number in workers]
    run = [subprocess.Popen(["bash", "-c", command], env=os.environ | {"HOME": home}) for home in homes]
    sys.exit(max(one.wait() for one in run))
"""
# A process of the run: it ends with the code that CODES has for it and this try, one that lost another a little later.
# SIGTERM is answered by a save, which takes its time; a second one ends it without.
PYTHON = r"""
import os, signal, sys, time
number = int(os.environ.get("SLURM_PROCID") or os.path.basename(os.environ["HOME"]))
told = os.environ["TOLD"]
with open(told, "a") as file:
    print(f"process {number}", *sys.argv[1:4], file=file)
tries = open(told).read().count(f"process {number} -m train pretrain")
codes = os.environ["CODES"].split(";")[number].split(",")
code = int(codes[min(tries, len(codes)) - 1])
def saved(*_):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(99))
    time.sleep(0.5)
    os._exit(143)
signal.signal(signal.SIGTERM, saved)
if code == 143:
    print(os.getpid(), file=open(f"{told}.ready{number}", "w"), flush=True)
    time.sleep(20)
time.sleep(0.3 if code in (75, 134) else 0)
sys.exit(code)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder whose bin/ stands before all on the PATH; what is called is told in `told`."""
    ours = {"srun": SRUN, "gcloud": GCLOUD, "python": PYTHON}
    programs = {name: f"#!{sys.executable} -SE{text}" for name, text in ours.items()} | {"sleep": "#!/bin/sh\n"}
    programs["pkill"] = '#!/bin/sh\necho "pkill $*" >> "$TOLD"; kill -TERM $(cat "$TOLD".ready*)\n'
    for name in ("scontrol", "sudo", "mountpoint", "curl"):
        programs[name] = f'#!/bin/sh\necho "{name} $*" >> "$TOLD"\n'
    homes = [f"{number}/{part}" for number in range(3) for part in ("env/bin", ".local/bin")]
    for folder in ("bin", "checkout/.venv/bin", "shared/oneblock", *homes):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "activate").touch()
        (tmp_path / folder / "uv").write_text('#!/bin/sh\necho "uv $*" >> "$TOLD"\n')
        (tmp_path / folder / "uv").chmod(0o755)
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("WORKERS", str(tmp_path))
    (tmp_path / "told").touch()
    return tmp_path


def sbatch(place, codes, restarts=None, term=False):
    """The code of the batch script, what it said, and what was called."""
    text = re.sub(r"(?m)^CHECKOUT=\S*", f"CHECKOUT={place / 'checkout'}", script("slurm"))
    (place / "job.sbatch").write_text(text)
    env = os.environ | {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "12", "CODES": codes}
    env |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts is not None else {}
    with open(place / "said", "w") as said:
        run = subprocess.Popen(["bash", str(place / "job.sbatch")], env=env, stderr=said)
        if term:
            until = time.monotonic() + 20
            while len(list(place.glob("told.ready*"))) < 3 and time.monotonic() < until:
                time.sleep(0.05)
            children = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()
            subprocess.run(["kill", "-TERM", children[-1]], check=True)
        code = run.wait(60)
    return code, (place / "said").read_text(), (place / "told").read_text()


REQUEUED = "scontrol requeue 7"


@pytest.mark.parametrize("code", [1, 2])
@pytest.mark.parametrize("others", ["134", "75", "same"])
def test_slurm_leaves_wrong_input_alone(place, code, others):
    """Also where one process alone ends with it, and the others are lost after that."""
    others = str(code) if others == "same" else others
    ended, said, told = sbatch(place, f"{others};{code};{others}")
    assert ended == code and REQUEUED not in told
    assert others == str(code) or f"code {code}" in said


@pytest.mark.parametrize("codes", ["134;137;134", "75;75;134", "0;75;0"])
def test_slurm_puts_a_run_that_lost_a_process_back(place, codes):
    ended, _, told = sbatch(place, codes)
    assert ended == 0 and told.count(REQUEUED) == 1


def test_slurm_saves_when_the_time_is_up_and_goes_on(place):
    """Each process gets one SIGTERM, finishes, and ends with 143."""
    ended, said, told = sbatch(place, "143;143;143", term=True)
    assert ended == 0 and told.count(REQUEUED) == 1, said


def test_slurm_ends_when_done_and_after_so_many_turns(place):
    ended, _, told = sbatch(place, "0;0;0")
    assert ended == 0 and REQUEUED not in told
    turns = int(re.search(r"(?m)^TURNS=(\d+)", script("slurm"))[1])
    ended, _, told = sbatch(place, "134;75;134", restarts=turns - 2)
    assert ended == 0 and told.count(REQUEUED) == 1
    ended, said, told = sbatch(place, "134;75;134", restarts=turns - 1)
    assert ended == 134 and told.count(REQUEUED) == 1 and f"{turns} turns" in said


def test_slurm_gives_each_task_its_cores_and_ends_none_by_force(place):
    """srun reads no --cpus-per-task of the job since Slurm 22.05; a site may have KillOnBadExit set."""
    told = sbatch(place, "0;0;0")[2]
    assert "'cpus-per-task': '12'" in told and "'kill-on-bad-exit': '0'" in told


def pod(place, word, codes="0;0;0", wait=True):
    """What pod.sh WORD said, and what was called once no worker has a run at work."""
    text = re.sub(r"(?m)^SHARED=\S*", f"SHARED={place / 'shared'}", script("tpu-pod"))
    text = re.sub(r"(?m)^TRIES=\S*", "TRIES=4", text)
    (place / "pod.sh").write_text(text)
    words, before = ["bash", str(place / "pod.sh"), word], tried(called(place))
    done = subprocess.run(words, env=os.environ | {"CODES": codes}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    until = time.monotonic() + 20
    while word == "train" and not all(map(int.__lt__, before, tried(called(place)))) and time.monotonic() < until:
        time.sleep(0.05)
    for number in range(3 if wait else 0):
        subprocess.run(["flock", "-w", "30", str(place / str(number) / "oneblock.lock"), "true"], check=True)
    return done.stdout, called(place)


def called(place):
    return (place / "told").read_text()


def tried(told):
    return [told.count(f"process {number} -m train pretrain") for number in range(3)]


def ends(place):
    """What the logs of the workers say last."""
    return [path.read_text().splitlines()[-1] for path in sorted((place / "shared" / "runs").glob("*.log"))]


@pytest.mark.parametrize("code", [1, 2])
def test_a_pod_leaves_wrong_input_alone(place, code):
    """One worker ends with it, the others lose it: none tries again."""
    said, told = pod(place, "train", f"134;{code};134")
    assert tried(told) == [1, 1, 1] and "bash" in said
    assert any(f"ended with code {code}" in line for line in ends(place))


@pytest.mark.parametrize("codes,tries", [("134,0;137,0;75,0", 2), ("134;134;75", 4)])
def test_a_pod_tries_again_where_a_worker_was_lost_but_not_for_ever(place, codes, tries):
    assert tried(pod(place, "train", codes)[1]) == [tries] * 3


def test_after_wrong_input_is_put_right_a_pod_trains_again(place):
    assert tried(pod(place, "train", "2;2;2")[1]) == [1, 1, 1]
    assert tried(pod(place, "train", "2,0;2,0;2,0")[1]) == [2, 2, 2]


def test_a_pod_goes_on_without_this_machine_is_started_once_and_stops_saved(place):
    pod(place, "train", "143;143;143", wait=False)
    until = time.monotonic() + 20
    while len(list(place.glob("told.ready*"))) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    again = subprocess.run(["bash", str(place / "pod.sh"), "train"], env=os.environ | {"CODES": "0;0;0"},
                           capture_output=True, text=True, timeout=60)  # fmt: skip
    assert again.stdout.count("is at work") == 3
    told = pod(place, "stop")[1]
    assert tried(told) == [1, 1, 1] and "pkill -TERM" in told
    assert len(ends(place)) and all("stopped by hand" in line for line in ends(place))


def test_a_pod_is_made_with_a_python_of_its_own_and_the_checkout_untouched(place):
    """The image's Python is 3.10; 64 workers that install one folder (-e) would write into it at once."""
    told = pod(place, "create", wait=False)[1]
    assert told.count("uv venv -q --python 3.12") == 3 and "nfs-common" in told
    assert told.count(f"-r {place}/shared/oneblock/pyproject.toml --extra tpu") == 3 and " -e" not in told
    assert [told.count(f"process {number} -m train doctor") for number in range(3)] == [1, 1, 1]
