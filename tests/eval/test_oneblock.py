"""The `oneblock` command: it passes on to the three command lines, and names a local file that hides a package."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eval import cli
from zoo.command_line import captured_help, load, reader, summary

ROOT = Path(__file__).resolve().parents[2]


def test_it_lists_the_three_command_lines(capsys):
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: oneblock SUBCOMMAND [options]"
    names = [line.split()[0] for line in lines if line.startswith(("  zoo ", "  train ", "  eval "))]
    assert names == ["zoo", "train", "eval"]


def test_an_unknown_package_is_one_line(capsys):
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err == 'error: unknown subcommand "trian" for "oneblock"; did you mean "train"?\n'


def test_words_are_passed_on(monkeypatch):
    seen = []
    monkeypatch.setattr(cli, "evaluate", lambda words: seen.append(words) or 5)
    assert cli.main(["eval", "finetune", "--task", "r8"]) == 5
    assert cli.main(["help", "eval"]) == 5
    assert seen == [["finetune", "--task", "r8"], ["--help"]]


@pytest.mark.parametrize("package", ["zoo", "train", "eval"])
def test_every_subcommand_exists_and_explains_itself(package):
    """Its docstring begins with a sentence, and tyro can read its parameters."""
    for name, subcommand in importlib.import_module(f"{package}.cli").SUBCOMMANDS.items():
        target, _, description = reader(load(subcommand))
        assert summary(subcommand).endswith("."), name
        assert "--help" in captured_help(target, description), name


@pytest.mark.parametrize("package, hidden", [("train", "zoo"), ("eval", "zoo"), ("eval", "train")])
def test_a_local_file_that_hides_a_package_is_named(tmp_path, package, hidden):
    file = tmp_path / f"{hidden}.py"
    file.write_text("raise SystemExit('the local file ran')\n")
    done = subprocess.run(
        [sys.executable, "-m", package, "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    line = f'error: {file.resolve()} hides the package "{hidden}": rename it, or run from another folder\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
