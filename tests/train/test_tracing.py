"""Traces of chosen steps: which steps they are, and what is refused."""

from contextlib import nullcontext

import jax
import pytest

from train.tracing import Trace, parse_steps
from zoo.errors import InputError


def test_steps_are_counted_with_both_ends():
    assert parse_steps("10:13", 100) == (10, 13)
    assert parse_steps("7", 7) == (7, 7)
    assert parse_steps("", 7) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ten", "is not of the form first:last, such as 10:13"),
        ("1:2:3", "is not of the form"),
        ("-1:2", "is not of the form"),
        ("0:2", "must count up from 1"),
        ("5:4", "must count up from 1"),
        ("10:13", "goes past the run's 12 steps; take steps up to 12"),
    ],
)
def test_other_steps_are_refused(text, line):
    with pytest.raises(InputError, match=line):
        parse_steps(text, 12)


def test_unasked_nothing_is_traced(tmp_path, monkeypatch):
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_: pytest.fail("traced"))
    trace = Trace(tmp_path / "profile", None)
    assert isinstance(trace.step(1), nullcontext) and not trace.after(1, None)
    trace.close()
    assert not (tmp_path / "profile").exists()
    assert isinstance(Trace(tmp_path, (2, 3)).step(1), nullcontext)


def test_a_trace_is_closed_after_its_last_step_or_where_the_run_ends(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: calls.append(folder))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    trace = Trace(tmp_path / "profile", (2, 3))
    for step in range(1, 6):
        with trace.step(step):
            pass
        assert trace.after(step, ()) == (step == 3)
    assert calls == [str(tmp_path / "profile"), "stop"]
    trace = Trace(tmp_path / "profile", (2, 9))
    with trace.step(2):
        pass
    trace.close()
    trace.close()
    assert calls == [str(tmp_path / "profile"), "stop"] * 2
