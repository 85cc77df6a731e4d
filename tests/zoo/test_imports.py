"""What is imported when: names at their first use, JAX where a command needs it, and Ctrl-C meanwhile."""

import importlib
import runpy
import subprocess
import sys
import types

import pytest

import zoo

WITHOUT_JAX = """
import sys
import zoo
from zoo.__main__ import main
for words in (["--help"], ["list", "--help"], ["list", "--family", "llama"], ["show", "gpt2"], ["explain", "gpt2"]):
    assert main(words) == 0
assert zoo.ModelConfig and zoo.list_models() and zoo.summarise
assert "jax" not in sys.modules and "zoo.checkpoints" not in sys.modules
assert zoo.create("gpt2").config.family == "gpt" and "jax" in sys.modules
"""


def test_every_name_of_the_package_is_there():
    for name in zoo.__all__:
        found = getattr(zoo, name)
        assert found is getattr(importlib.import_module(found.__module__), name) and name in dir(zoo)
    assert zoo.check.certify and zoo.masks
    for name in ("chekc", "_masks", "", "checkpoints.nothing"):
        with pytest.raises(AttributeError, match="module 'zoo' has no attribute"):
            getattr(zoo, name)


def test_help_and_lists_wait_for_no_jax():
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package, inner", [("zoo", "zoo.cli"), ("train", "train.cli"), ("eval", "zoo.command_line")])
def test_an_interrupt_during_imports_is_quiet(package, inner, monkeypatch, capsys):
    class Interrupted(types.ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, inner, Interrupted(inner))
    monkeypatch.setattr(sys, "argv", [package, "--help"])
    monkeypatch.delitem(sys.modules, f"{package}.__main__", raising=False)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(package, run_name="__main__")
    assert stopped.value.code == 130 and capsys.readouterr() == ("", "")


def test_an_interrupt_of_oneblock_is_quiet(monkeypatch):
    from eval import cli

    def interrupted(*packages):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "refuse_shadows", interrupted)
    assert cli.main(["zoo"]) == 130
