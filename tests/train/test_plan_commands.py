"""The command lines that a plan prints: read again, they plan the same job, and run it."""

import shlex
import signal
from types import SimpleNamespace

import jax
import pytest

from train.cli import Pretrain, pretrain, resolve
from train.config import RunConfig, TrainConfig
from train.data import shards
from train.plan import commands
from train.plan.command_lines import plan_command, run_command
from train.plan.compile import _compile
from train.plan.job import make_job
from train.plan.slices import parse_slice
from zoo.command_line import parse


class Taken(Exception):
    """In place of a compile."""


@pytest.fixture
def planned(monkeypatch):
    """The job and the compiler of a `train plan` command line."""

    def take(job, model, compiler, say):
        raise Taken(job, compiler)

    monkeypatch.setattr(commands, "plan_of", take)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)  # this process keeps its devices and its cache

    def read(line):
        start, *words = line.split("python -m train plan ")
        assert not start
        with pytest.raises(Taken) as caught:
            parse(commands.plan, "train plan", shlex.split(words[0]))()
        return caught.value.args

    return read


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """The config of a `train pretrain` command line, on shards of so many pieces."""

    def read(line, vocab_size):
        monkeypatch.setattr(shards, "open_shards", lambda _: SimpleNamespace(vocab_size=vocab_size))
        start, words = line.split("python -m train pretrain ")
        assert not start
        words = words.replace("RUN_FOLDER", str(tmp_path / "new")).replace("SHARDS", str(tmp_path))
        given = []

        def begun(words: Pretrain) -> None:
            given.append(words)

        begun.__doc__ = pretrain.__doc__
        parse(begun, "train pretrain", shlex.split(words))()
        return resolve(given[0])

    return read


def same(run, job):
    assert run.model == job.model
    for name in ("driver", "mesh", "batch_size", "seq_len", "accumulate", "objective"):
        assert getattr(run.train, name) == getattr(job.train, name), name


@pytest.mark.parametrize(
    "model,options,words",
    [
        ("llama-7b", {}, ""),
        ("llama-7b", {"changes": {"num_layers": 4, "scan": False, "rotary_base": 5e5}}, "num_layers=4"),
        ("bert-large", {"changes": {"dropout": 0.0, "remat": "none", "dtype": "float32"}}, "--dtype float32"),
        ("gpt2", {"mesh": "data=2,fsdp=2,tensor=2", "accumulate": 2, "batch": 32}, "--accumulate 2"),
        ("llama3-8b", {"seq": 9216, "changes": {"attention_kernel": "ring"}, "mesh": "sequence=8"}, "--attention ring"),
        ("gemma3-1b", {"changes": {"activation": "gelu", "gated": False}}, "gated=false"),
    ],
)
def test_a_plan_is_planned_again_and_run(planned, ran, model, options, words):
    job = make_job(model, parse_slice("v5e:2x4"), **{"batch": 16, "seq": 512} | options)
    line = plan_command(job, model)
    assert words in line and planned(line) == (job, "auto")
    assert planned(plan_command(job, model, "cpu")) == (job, "cpu")
    same(ran(run_command(job, model), job.model.vocab_size), job)


def test_of_a_run_folder_its_own_settings_hold(planned, ran, tmp_path):
    train = TrainConfig(driver="mesh", mesh="fsdp=-1", batch_size=16, seq_len=64, accumulate=2, learning_rate=3e-4)
    config = make_job("llama-tiny", parse_slice("v5e:2x4"), batch=8, changes={"dtype": "float32"}).model
    RunConfig(config, train).save(tmp_path / "config.json")
    for options in ({}, {"batch": 8, "accumulate": 1, "changes": {"remat": "dots", "num_layers": 3}}):
        job = make_job(str(tmp_path), parse_slice("v5e:2x4"), **options)
        assert planned(plan_command(job, str(tmp_path))) == (job, "auto")
        run = ran(run_command(job, str(tmp_path)), job.model.vocab_size)
        same(run, job)
        assert run.train.learning_rate == 3e-4


def test_a_model_made_in_python_has_no_name_to_run():
    job = make_job("llama-tiny", parse_slice("v5e:2x4"), batch=8)
    assert run_command(job, "mine") == "" and "--model mine --slice v5e:2x4" in plan_command(job, "mine")


def test_signals_end_a_compile_at_once():
    """Python's own handlers wait until the compiler is done, minutes later; they are back then."""
    seen = []

    def compiled():
        seen.extend(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT))
        return "a step"

    before = [signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)]
    own = signal.getsignal(signal.SIGTERM)
    try:
        assert _compile(SimpleNamespace(compile=compiled), None) == "a step"
        assert seen == [signal.SIG_DFL] * 2 and signal.getsignal(signal.SIGTERM) is own
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup: that stays
        _compile(SimpleNamespace(compile=compiled), None)
        assert seen[2:] == [signal.SIG_DFL, signal.SIG_IGN]
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
