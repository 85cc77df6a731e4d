"""The command lines' machinery: exact lines on stderr, exit codes, help."""

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from zoo import command_errors
from zoo.command_line import captured_help, overview, run, summary
from zoo.errors import InputError

calls = []


def pretrain(
    folder: Path,
    /,
    *,
    steps: int,
    learning_rate: float = 1e-3,
    family: Literal["bert", "gpt", "llama"] = "bert",
    widths: tuple[int, ...] = (),
    resume: bool = False,
    seed: int | None = None,
):
    """Pre-train a model on prepared text.

    It may be killed and started again.

    Args:
        folder: where the run lies.
        steps: how many updates.
        learning_rate: its peak.
        family: which preset family.
        widths: one a layer.
        resume: go on where the run stopped.
        seed: None for the config's.

    Examples:
        python -m train pretrain runs/a --steps 100
        python -m train pretrain runs/a --steps 200 --resume
    """
    calls.append((folder, steps, learning_rate, family, widths, resume, seed))


@dataclass(frozen=True)
class Optimizer:
    rate: float = 0.1


@dataclass(frozen=True)
class Config:
    """What to run.

    Attributes:
        batch_size: rows a step.
        optimizer: how to step.
    """

    batch_size: int = 8
    optimizer: Optimizer = Optimizer()

    def __post_init__(self):
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}; it must be at least 1")


def tune(config: Config) -> int:
    """Tune by a config."""
    calls.append(config)
    return 7


def export(run: str, out_folder: Path, overwrite: bool = False):
    """Export a run."""
    calls.append((run, out_folder, overwrite))


def fail(kind: str, /):
    """Raise something."""
    raise {
        "input": InputError("no such preset 'gpt9'\nin the list"),
        "interrupt": KeyboardInterrupt(),
        "space": OSError(errno.ENOSPC, "No space left on device", "/data/x"),
        "permission": PermissionError(errno.EACCES, "Permission denied", "/data/x"),
        "missing": FileNotFoundError(errno.ENOENT, "No such file", str(Path(__file__).parent / "test_comand_line.py")),
        "folder": IsADirectoryError(errno.EISDIR, "Is a directory", "/data"),
        "package": ModuleNotFoundError("No module named 'tensorboardX'", name="tensorboardX"),
        "extra": ImportError("plots need matplotlib: pip install matplotlib"),
        "bug": ValueError("shapes differ"),
        "inner": ModuleNotFoundError("No module named 'zoo.blok'", name="zoo.blok"),
    }[kind]


SUBCOMMANDS = {"pretrain": pretrain, "tune": tune, "export": export, "fail": fail, "lazy": "zoo.command_line:summary"}


def train(capsys, *words: str):
    """(exit code, stdout, stderr) of a command line."""
    calls.clear()
    code = run("train", SUBCOMMANDS, words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "words, line",
    [
        (["pretrian"], 'unknown subcommand "pretrian" for "train"; did you mean "pretrain"?'),
        (["zzz"], 'unknown subcommand "zzz" for "train"; one of pretrain, tune, export, fail, lazy'),
        (
            ["--steps", "3"],
            'unknown option --steps for "train"; a subcommand comes first; one of pretrain, tune, export, fail, lazy',
        ),
        (
            ["pretrain", "r", "--steps", "3", "--lerning-rate", "1"],
            'unknown option --lerning-rate for "train pretrain"; did you mean "--learning-rate"?',
        ),
        (
            ["pretrain", "r", "--lerning_rate=1"],  # and --steps is missing: the unknown word explains more
            'unknown option --lerning_rate for "train pretrain"; did you mean "--learning-rate"?',
        ),
        (
            ["pretrain", "r", "--steps", "3", "--qqq"],
            'unknown option --qqq for "train pretrain"; see "python -m train pretrain --help"',
        ),
        (
            ["pretrain", "r", "--steps", "3", "resume"],
            'unexpected word resume for "train pretrain"; did you mean "--resume"?',
        ),
        (["pretrain", "r"], 'missing --steps for "train pretrain"; see "python -m train pretrain --help"'),
        (["pretrain", "--steps", "3"], 'missing FOLDER for "train pretrain"; see "python -m train pretrain --help"'),
        (["pretrain", "r", "--steps"], '--steps of "train pretrain" needs a value: INT'),
        (["pretrain", "r", "--steps", "--resume"], '--steps of "train pretrain" needs a value: INT'),
        (["pretrain", "r", "--steps", "ten"], '--steps of "train pretrain" takes a whole number, not "ten"'),
        (
            ["pretrain", "r", "--steps", "3", "--learning-rate=fast"],
            '--learning-rate of "train pretrain" takes a number, not "fast"',
        ),
        (
            ["pretrain", "r", "--steps", "3", "--family", "brt"],
            '--family of "train pretrain" cannot be "brt"; did you mean "bert"?',
        ),
        (
            ["pretrain", "r", "--steps", "3", "--family", "x"],
            '--family of "train pretrain" cannot be "x"; one of bert, gpt, llama',
        ),
        (
            ["pretrain", "r", "--steps", "3", "--widths", "1", "b"],
            '--widths of "train pretrain" takes [INT [INT ...]], not "1 b"',
        ),
        (
            ["pretrain", "r", "--steps", "3", "--seed", "x"],
            '--seed of "train pretrain" takes None or a whole number, not "x"',
        ),
        (
            ["tune", "--optimizer.rat", "1"],
            'unknown option --optimizer.rat for "train tune"; did you mean "--optimizer.rate"?',
        ),
        (["tune", "--batch-size", "0"], "--batch-size is 0; it must be at least 1"),
        (["export", "a"], 'missing OUT_FOLDER for "train export"; see "python -m train export --help"'),
        (["export", "a", "b", "c"], 'unexpected word c for "train export"; see "python -m train export --help"'),
        (["fail", "input"], "no such preset 'gpt9' in the list"),
        (["fail", "space"], "no space left on the disk for /data/x: free some and run it again"),
        (["fail", "permission"], "permission denied: /data/x"),
        (["fail", "folder"], "/data is a folder, and a file was expected"),
        (["fail", "package"], 'the Python package "tensorboardX" is not installed'),
        (["fail", "extra"], "plots need matplotlib: pip install matplotlib"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_code_2(capsys, words, line):
    assert train(capsys, *words) == (2, "", f"error: {line}\n")
    assert calls == []


def test_a_missing_file_names_its_neighbour(capsys):
    here = Path(__file__).parent
    line = f'no such file or folder: {here / "test_comand_line.py"}; did you mean "{here / "test_command_line.py"}"?'
    assert train(capsys, "fail", "missing") == (2, "", f"error: {line}\n")


def test_interruption_is_one_line_and_code_130(capsys):
    assert train(capsys, "fail", "interrupt") == (130, "", "interrupted\n")


@pytest.mark.parametrize("kind, error", [("bug", ValueError), ("inner", ModuleNotFoundError)])
def test_faults_of_the_program_keep_their_traceback(kind, error):
    with pytest.raises(error):
        run("train", SUBCOMMANDS, ["fail", kind])


def test_traceback_on_request(monkeypatch):
    monkeypatch.setenv("ONEBLOCK_TRACEBACK", "1")
    with pytest.raises(InputError):
        run("train", SUBCOMMANDS, ["fail", "input"])


def test_values_arrive_typed(capsys):
    words = "pretrain runs/a --steps 3 --learning_rate -1e-3 --family gpt --widths 1 2 --resume".split()
    assert train(capsys, *words) == (0, "", "")
    assert calls == [(Path("runs/a"), 3, -1e-3, "gpt", (1, 2), True, None)]


@pytest.mark.parametrize(
    "words",
    [
        "export a b --overwrite",
        "export a --out-folder b --overwrite",
        "export --overwrite --run a --out_folder=b",
        "export --overwrite --out-folder b --run a",
    ],
)
def test_required_parameters_may_be_named_or_not(capsys, words):
    assert train(capsys, *words.split()) == (0, "", "")
    assert calls == [("a", Path("b"), True)]


def test_a_single_config_has_no_prefix_and_its_code_is_returned(capsys):
    assert train(capsys, "tune", "--batch-size", "4", "--optimizer.rate=0.5") == (7, "", "")
    assert calls == [Config(batch_size=4, optimizer=Optimizer(rate=0.5))]


def test_overview_lists_each_summary(capsys):
    code, out, err = train(capsys, "--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "usage: python -m train SUBCOMMAND [options]"
    assert "  pretrain  Pre-train a model on prepared text." in lines
    assert "  tune      Tune by a config." in lines
    assert any(line.startswith("  lazy      The first line of a subcommand's docstring.") for line in lines)
    assert train(capsys) == (0, out, "") and train(capsys, "help") == (0, out, "")
    text = overview("train", SUBCOMMANDS, "About it.\n\nMore.", ["python -m train tune"])
    assert "About it.\n" in text and "More." not in text and "examples:\n  python -m train tune" in text


def test_help_of_a_subcommand_teaches(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, err = train(capsys, "pretrain", "--help")
    assert (code, err, calls) == (0, "", [])
    assert out.splitlines()[0] == "usage: python -m train pretrain [-h] [OPTIONS] FOLDER"
    assert out.splitlines()[2:4] == ["Pre-train a model on prepared text.", "  It may be killed and started again."]
    for text in ("where the run lies.", "--learning-rate FLOAT", "its peak. (default: 0.001)", "{bert,gpt,llama}"):
        assert text in out
    assert out.endswith(
        "examples:\n"
        "  python -m train pretrain runs/a --steps 100\n"
        "  python -m train pretrain runs/a --steps 200 --resume\n"
    )
    assert "\x1b" not in out
    assert train(capsys, "help", "pretrain") == (0, out, "")
    assert "rows a step." in train(capsys, "tune", "--help")[1]


@pytest.mark.parametrize(
    "line, said",
    [
        ("TrainConfig: steps is 0; it must be 1 or more", "--steps is 0; it must be 1 or more"),
        ("accumulate 3 does not divide batch_size 8", "--accumulate 3 does not divide --batch-size 8"),
        ("epochs and steps are both 0", "--epochs and steps are both 0"),
        ("lower learning_rate, or look", "lower --learning-rate, or look"),
        ("is not empty; overwrite (overwrite=True, --overwrite)", "is not empty; overwrite (--overwrite)"),
        ("ModelConfig: positions is 3", "ModelConfig: positions is 3"),  # no option of this command
        ('no column "batch_size" in a/batch_size/steps', 'no column "batch_size" in a/batch_size/steps'),
        ("train.batch_size was 3, now 4", "train.batch_size was 3, now 4"),
        ("steps of learning", "steps of learning"),
    ],
)
def test_lines_of_the_library_are_told_in_options(line, said):
    names = {"steps", "batch_size", "accumulate", "epochs", "learning_rate", "overwrite"}
    assert command_errors.in_options(line, names) == said


def sweep(
    folder: Path,
    out: Path,
    *,
    cap: float | None = 1.0,
    limit: int | None = None,
    names: tuple[str, ...] = (),
    label: str = "",
    kind: Literal["a", "b"] | None = None,
    keep: bool = True,
    force: bool = False,
    config: Annotated[Config, tyro.conf.arg(name="")] = Config(batch_size=3),  # noqa: B008
):
    """Sweep.

    Args:
        folder: where runs
            lie.
        out: where to.
        cap: None for none.
    """


def test_help_shows_positions_and_kinds_as_a_newcomer_reads_them(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "110")
    assert run("train", {"sweep": sweep}, ["sweep", "--help"]) == 0
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert rows[0] == "usage: python -m train sweep [-h] [OPTIONS] FOLDER OUT"
    place = rows.index("positional arguments")
    assert rows[place + 2 : place + 4] == ["FOLDER where runs lie. (required)", "OUT where to. (required)"]
    options = " ".join(rows[rows.index("options") :])
    for text in (
        "--cap FLOAT|None None for none. (default: 1.0)",
        "--limit INT --names STR ... --label STR --kind {a,b} --keep, --no-keep (default: True) --force",
        "--batch-size INT rows a step. (default: 3)",
        "--optimizer.rate FLOAT (default: 0.1)",
    ):
        assert text in options
    assert "{None}" not in out and "(default: )" not in out and "--no-force" not in out and "--folder" not in out


@pytest.mark.parametrize("program", ["zoo", "train", "eval"])
def test_no_help_of_the_project_speaks_python(program, capsys, monkeypatch):
    from eval.cli import SUBCOMMANDS as eval_commands
    from train.cli import SUBCOMMANDS as train_commands
    from zoo.cli import SUBCOMMANDS as zoo_commands

    monkeypatch.setenv("NO_COLOR", "1")
    commands = {"zoo": zoo_commands, "train": train_commands, "eval": eval_commands}[program]
    for name in commands:
        assert run(program, commands, [name, "--help"]) == 0
        out = capsys.readouterr().out
        for odd in ("{None}", "(default: )", "(default: '')", "(default: None)", "0 turns it off"):
            assert odd not in out, f"{program} {name}: {odd}"
        assert all(line == line.rstrip() for line in out.splitlines())


def test_summary_of_a_lazy_subcommand_is_read_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "lazy_module.py").write_text('raise SystemExit("imported")\ndef go():\n    """Go on.\n\n    More."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert summary("lazy_module:go") == "Go on."


def test_without_tyros_hook_the_box_becomes_one_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro._errors", None)
    code, out, err = train(capsys, "pretrain", "r", "--steps")
    assert (code, out) == (2, "")
    assert err == (
        "error: Missing value for argument '--steps'. Expected 1 values.; see \"python -m train pretrain --help\"\n"
    )


def test_option_names_reads_long_names_only(capsys):
    def many(*, first_one: int = 0, second: bool = False):
        """See --third.

        Args:
            second: like --fourth, but not it.
        """

    names = command_errors.option_names(captured_help(many, "See --third."))
    assert names == ["--first-one", "--help", "--no-second", "--second"]


def test_in_a_process_a_closed_pipe_and_a_local_package_are_quiet(tmp_path):
    (tmp_path / "tensorboardX.py").write_text("")
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from zoo.command_line import run\n"
        "def show():\n"
        "    for _ in range(100000): print('a line')\n"
        "def log():\n"
        "    from tensorboardX import SummaryWriter\n"
        "sys.exit(run('zoo', {'show': show, 'log': log}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    start = dict(cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "program.py", "show"], **start) as process:
        assert process.stdout.readline() == "a line\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    done = subprocess.run([sys.executable, "program.py", "log"], check=False, **start)
    hidden = (tmp_path / "tensorboardX.py").resolve()
    line = f'error: {hidden} hides the package "tensorboardX": rename it, or run from another folder\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
