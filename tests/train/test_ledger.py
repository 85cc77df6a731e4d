"""The speed that a line shows is that of its steps, whenever their numbers are looked at."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from train import ledger

METRICS = {"finite": True, "grad_norm": 1.0, "learning_rate": 0.1, "tokens": 100, "loss": (2.0, 1.0)}


def speeds(monkeypatch, looks, *, every, total):
    """tokens/s of each line, for (step, time at which its numbers were looked at)."""
    clock, lines = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(ledger.time, "perf_counter", lambda: clock.now)
    log = SimpleNamespace(write=lambda step, split, values: lines.append((step, values["tokens_per_second"])))
    shown = SimpleNamespace(update=lambda *_: None)
    account = ledger.Ledger(log, shown, every=every, total=total, flops_per_token=1.0, devices=jax.devices()[:1])
    for step, clock.now in looks:
        assert account.take(step, {name: np.asarray(value) for name, value in METRICS.items() if name != "loss"} | {
            "loss": METRICS["loss"]
        })  # fmt: skip
    return lines


def test_a_short_last_window_is_timed_with_the_one_before(monkeypatch):
    """A step a second, looked at two steps late; the last two are looked at together."""
    looks = [(1, 1.0)] + [(step, step + 2.0) for step in range(2, 11)] + [(11, 12.0), (12, 12.0)]
    lines = speeds(monkeypatch, looks, every=5, total=12)
    assert [step for step, _ in lines] == [5, 10, 12]
    assert lines[1][1] == pytest.approx(100)
    assert lines[2][1] == pytest.approx(100 * 7 / 5)  # and not without end, as two steps in no time would be
    assert speeds(monkeypatch, [(1, 9.0), (2, 10.0), (3, 11.0)], every=0, total=3) == [(3, pytest.approx(100))]


def test_equal_windows_are_timed_alone(monkeypatch):
    """Four steps a second apart, then four that take two."""
    looks = [
        (1, 1.0),
        *((step, float(step)) for step in range(2, 6)),
        *((step, 5.0 + 2 * (step - 5)) for step in range(6, 10)),
    ]
    lines = speeds(monkeypatch, looks, every=3, total=9)
    assert lines == [(3, pytest.approx(100)), (6, pytest.approx(300 / 4)), (9, pytest.approx(50))]
