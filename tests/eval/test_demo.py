"""The demonstration at its small size: every stage made once, reused, resumed after a kill, made anew when changed."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import zoo
from eval import demo, made_up
from eval.demo_config import FULL, SMALL, RealNetwork
from eval.experiment import workbench
from eval.experiment.live import Live
from train import loop
from train.vocabulary import train_vocabulary
from zoo import InputError
from zoo.checkpoints import run_folder

ROOT = Path(__file__).resolve().parents[2]
NOTE = demo.SMALL_NOTE
GPT = dataclasses.replace(SMALL.only(("gpt",)), labels=(16,))


def files(folder):
    """Every file below a folder, hidden ones too, with its time of writing."""
    return {p.relative_to(folder).as_posix(): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def shown(one, tmp_path_factory):
    """A demonstration of one network that has run through: its folder, lines and report."""
    folder, lines = tmp_path_factory.mktemp("demo"), []
    made = demo.run(GPT, folder, load_task=made_up.load, devices=one, say=lines.append, notes=(NOTE,))
    return folder, lines, made


def test_it_ends_with_the_report_and_the_three_lines_that_matter(shown):
    folder, lines, made = shown
    assert lines[-4:] == [f"\nReport: {folder / 'report.html'}", *made.headline]
    assert [lines[0], *lines[-6:-4]] == [NOTE, NOTE, made.notes[1]] and made.notes[1].startswith("Only two seeds: ")
    headings = [line.strip("\n= ") for line in lines if line.startswith("\n==")]
    assert headings == [
        "Texts, tasks and checkpoint",
        "Vocabulary and token shards",
        "Pre-training gpt: next token",
        "Fine-tuning, pre-trained against random start",
        "Report",
    ]
    for name in ("report.html", "report.json", "report.md", "demo.json", "gpt/config.json", "gpt/loss.png"):
        assert (folder / name).stat().st_size > 0
    assert len(list((folder / "cells").glob("*.json"))) == 2 * 2 + 2


def test_the_report_says_what_was_done(shown):
    folder, _, made = shown
    assert made.protocol["test set of made-up-topics"].startswith("60 of 120 examples, those with the smallest hashes")
    assert made.protocol["pre-training of gpt"] == (
        "next token, 24 steps of 8 rows of 32 tokens, learning rate 0.002, on the training texts of made-up-topics, "
        "without their labels"
    )
    assert "learning rate 0.003 for both arms" in made.protocol["gpt on made-up-topics"]
    assert made.protocol["time"].startswith("fetch ") and "pretrain gpt" in made.protocol["time"]
    (curve,) = made.pretraining
    assert curve.steps == (4, 8, 12, 16, 20, 24) and curve.losses[0] > curve.losses[-1]
    assert set(json.loads((folder / "demo.json").read_text())["seconds"]) == {
        "fetch", "text", "pretrain gpt", "fine-tune", "report",
    }  # fmt: skip


def test_the_networks_see_training_texts_alone(shown):
    folder, _, _ = shown
    manifest = json.loads(next((folder / "text").glob("*/manifest.json")).read_text())
    splits = made_up.load("made-up-topics")
    tokenizer = zoo.load_tokenizer(folder / "gpt")
    count = sum(len(tokenizer.encode(example.text_a)) for example in splits.train)
    assert sum(record["tokens"] for record in manifest["splits"].values()) == count


def test_run_again_it_reuses_everything(shown, one, monkeypatch):
    folder, _, made = shown
    for module, name in ((loop, "run"), (workbench, "adapt"), (demo, "train_vocabulary")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a finished stage was run again"))
    before, lines = files(folder), []
    again = demo.run(GPT, folder, load_task=made_up.load, devices=one, say=lines.append)
    assert again.headline == made.headline and again.results == made.results
    assert f"reusing {folder / 'gpt'}" in lines
    unchanged = {name for name in before if name.startswith(("text/", "gpt/", "cells/"))}
    assert {name: before[name] for name in unchanged} == {n: t for n, t in files(folder).items() if n in unchanged}


def test_other_settings_make_that_stage_anew(shown, one, tmp_path, monkeypatch):
    folder = tmp_path / "demo"
    shutil.copytree(shown[0], folder)
    (network,) = GPT.own
    longer = dataclasses.replace(network, train=network.train.replace(steps=26))
    config, lines, ran = dataclasses.replace(GPT, own=(longer,)), [], []
    # Its data lies elsewhere now, so the copy must be told where.
    settings = json.loads((folder / "gpt" / "config.json").read_text())
    settings["train"]["data"] = settings["train"]["data"].replace(str(shown[0]), str(folder))
    (folder / "gpt" / "config.json").write_text(json.dumps(settings))
    real = workbench.adapt
    monkeypatch.setattr(workbench, "adapt", lambda *a, **k: ran.append(1) or real(*a, **k))
    demo.run(config, folder, load_task=made_up.load, devices=one, say=lines.append)
    assert any("other settings (train.steps was 24, now 26): training anew" in line for line in lines)
    assert len(ran) == 2  # the pre-trained arm; the random start is the same
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


def test_a_killed_demonstration_goes_on(one, tmp_path):
    """SIGKILL once the first cell is written: nothing half-written is left, and the cell is reused."""
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "eval", "demo", "--size", "small", "--only", "gpt", "--out", str(out)]
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, **quiet)
    try:
        deadline = time.monotonic() + 300
        while not list(out.glob("cells/[!.]*.json")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    kept = sorted(out.glob("cells/[!.]*.json"))  # a write that was broken off begins with a dot
    assert kept and not (out / "report.html").exists()
    lines = []
    demo.run(SMALL.only(("gpt",)), out, load_task=made_up.load, devices=one, say=lines.append)
    assert f"reusing {out / 'gpt'}" in lines
    assert sum(line.endswith("(finished before)") for line in lines) == len(kept)
    assert (out / "report.html").exists()


def test_a_published_checkpoint_takes_part(bert, one, tmp_path):
    """A folder stands in for the package; its tokenizer is another than that of the own networks."""
    splits = made_up.splits(train=60, validation=10, test=30)
    tokenizer = train_vocabulary([example.text_a for example in splits.train], bert[0].config.vocab_size)
    (tmp_path / "published").mkdir()
    run_folder.save(*bert, tmp_path / "published", tokenizer)
    finetune = SMALL.own[0].finetune.replace(epochs=1, max_length=16)
    real = RealNetwork("published", str(tmp_path / "published"), "made-up-topics", finetune)
    config = dataclasses.replace(SMALL, own=(), real=real, labels=(16,), seeds=(0,))
    made = demo.run(config, tmp_path / "out", load_task=lambda name: splits, devices=one, say=lambda line: None)
    assert made.networks == ("published",) and len(made.cells) == 3


@pytest.mark.parametrize("content", ["", "[" * 100_000, '{"seconds": 3}', "[]"])
def test_a_damaged_record_of_times_is_begun_anew(content, tmp_path):
    (tmp_path / "demo.json").write_text(content)
    stages = demo.Stages(tmp_path, GPT, Live(str))
    assert stages.seconds == {}
    with stages("bert", "BERT"):
        pass
    assert set(json.loads((tmp_path / "demo.json").read_text())["seconds"]) == {"bert"}


def test_only_and_minutes_choose_sizes():
    assert [network.name for network in FULL.only(("llama", "minilm")).own] == ["llama"]
    assert FULL.only(("minilm",)).own == () and FULL.only(("bert",)).real is None
    with pytest.raises(InputError, match='no network "brt"; did you mean "bert"'):
        FULL.only(("brt",))
    half = FULL.scaled(7.5)
    assert [n.train.steps for n in half.own] == [round(n.train.steps / 2) for n in FULL.own]
    assert half.real.finetune.steps == round(FULL.real.finetune.steps / 2)
    double = FULL.scaled(30)
    assert [n.train.steps for n in double.own] == [2 * n.train.steps for n in FULL.own]
    assert double.real == FULL.real and FULL.scaled(15.0) is FULL
    with pytest.raises(InputError, match="minutes is 0"):
        FULL.scaled(0)


def test_every_full_network_can_be_built_and_pretrained_on_its_rows():
    """The sizes hang together: learned positions reach as far as pre-training and fine-tuning read."""
    for network in FULL.own:
        made = FULL.run_config(network, FULL.vocab_size, "somewhere")
        positions = made.model.max_positions
        assert network.train.seq_len <= positions and network.finetune.max_length <= positions
        if made.model.positions == "learned":
            assert network.finetune.max_length <= network.train.seq_len
        assert made.model.visibility == ("full" if network.train.objective == "masked_lm" else "causal")
        assert made.train.warmup_steps < made.train.steps
