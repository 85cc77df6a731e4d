"""`make demo`: text in, report out. Fetch, make a vocabulary and shards, pre-train, fine-tune, report.

    runs/demo/text/<digest>/     vocabulary and token shards of the unlabelled text
    runs/demo/bert, gpt, llama   run folders of pre-training
    runs/demo/cells/             fine-tuned cells, pre-trained and from random start
    runs/demo/report.html        and report.json, report.md, plots/
    runs/demo/demo.json          settings, and how long each stage took

Every stage is resumed or reused when it is run again: each is written whole or not at all, and known by its settings.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from eval import made_up, report, tasks, transfer
from eval.demo_config import PLANNED_MINUTES, SIZES, DemoConfig, OwnNetwork
from eval.experiment import report_files
from eval.experiment.live import Live
from eval.experiment.plots import LossCurve
from eval.experiment.trial import Trial, digest, examples_digest, limited
from eval.tasks import Splits
from train import logs, loop
from train.cli import keep_compiled
from train.config import RunConfig
from train.data import shards, sources
from train.progress import clock
from train.vocabulary import train_vocabulary
from zoo.atomic_file import write_atomically
from zoo.checkpoints import run_folder
from zoo.errors import InputError
from zoo.output_folder import require_folder
from zoo.packages import CHECKPOINTS
from zoo.tokenizer import Tokenizer, load_tokenizer

SMALL_NOTE = "Size small: tiny networks on made-up text, to try the road. Its numbers mean nothing."


def demo(
    out: Path = Path("runs/demo"),
    size: Literal["full", "small"] = "full",
    only: tuple[str, ...] = (),
    minutes: float = PLANNED_MINUTES,
) -> None:
    """Pre-train small BERT, GPT and LLaMA-style models, fine-tune them and a real checkpoint, report what that bought.

    Run again, it goes on where it stopped and reuses what is finished.

    Args:
        out: where everything goes; the report is out/report.html.
        size: "full" fetches real text and a real checkpoint; "small" tries the road on made-up text, offline, in about
            a minute, and its numbers mean nothing.
        only: networks to run, among bert, gpt, llama and minilm; by default all.
        minutes: about how long it may take on two CPU cores: the steps of pre-training are scaled to it.

    Examples:
        python -m eval demo
        python -m eval demo --only bert --minutes 5 --out runs/try
    """
    keep_compiled()
    config = SIZES[size].only(only).scaled(minutes)
    if size == "small":
        run(config, out, load_task=made_up.load, notes=(SMALL_NOTE,))
    else:
        run(config, out)


def run(
    config: DemoConfig,
    out: str | Path,
    *,
    load_task: Callable[[str], Splits] = tasks.load,
    devices: Sequence[jax.Device] | None = None,
    say: Callable[[str], None] | None = None,
    notes: Sequence[str] = (),
) -> report.Report:
    """Runs all stages, or what is left of them.

    Args:
        config: all sizes.
        out: the folder.
        load_task: gives the splits of a task by name.
        devices: for fine-tuning; None takes all.
        say: prints a line; None for standard output.
        notes: what must be known before any number is read: printed first and last, and put into the report.

    Raises:
        InputError: no network, no disk space, a fault in the data: one line; what is finished stays.
    """
    if not config.own and config.real is None:
        raise InputError("the demonstration has no network to show")
    require_folder(out)
    out, live = Path(out), Live(say)
    stages = Stages(out, config, live)
    for note in notes:
        live.line(note)

    # ---- Data ------------------------------------------------------------------------------------------------------
    with stages("fetch", "Texts, tasks and checkpoint"):
        names = dict.fromkeys(
            [*(config.text_tasks if config.own else ()), *([config.own_task] if config.own else [])]
            + ([config.real.task] if config.real else [])
        )
        if config.real and config.real.source in CHECKPOINTS:
            sources.fetch(config.real.source)
        for name in config.also_fetch:
            sources.fetch(name)
        whole = {name: load_task(name) for name in names}
        for splits in whole.values():
            live.line(splits.describe())
    limits = {"test": config.test_limit, "validation": config.validation_limit}
    used = {name: limited(whole[name], **limits) for name in names}
    if config.real:
        used[config.real.task] = limited(whole[config.real.task], config.real.test_limit, config.validation_limit)

    # ---- Vocabulary, shards, pre-training --------------------------------------------------------------------------
    trials, curves = [], []
    if config.own:
        with stages("text", "Vocabulary and token shards"):
            texts = [whole[name] for name in config.text_tasks]
            data, tokenizer, stages.reused = prepare(config, texts, out / "text", live)
    for network in config.own:
        with stages(f"pretrain {network.name}", f"Pre-training {network.name}: {_objective(network)}"):
            folder = out / network.name
            settings = config.run_config(network, tokenizer.vocab_size, str(data))
            stages.reused = not pretrain(settings, folder, live)
        curves.append(loss_curve(network, folder))
        trials.append(_trial(config, network.name, str(folder), used[config.own_task], network))

    # ---- Fine-tuning -----------------------------------------------------------------------------------------------
    if config.real:
        trials.insert(0, _trial(config, config.real.name, config.real.source, used[config.real.task], config.real))
    with stages("fine-tune", "Fine-tuning, pre-trained against random start"):
        outcome = transfer.run(trials, out, devices=devices, live=live)
        stages.reused = live.ran == 0

    # ---- Report ----------------------------------------------------------------------------------------------------
    with stages("report", "Report"):
        tested = [used[name] for name in dict.fromkeys(trial.splits.task.name for trial in trials)]
        made = report.build(
            outcome.cells,
            [report.facts(splits) for splits in tested],
            title="What pre-training bought",
            protocol=_protocol(config, tested, whole, trials, outcome, stages),
            pretraining=curves,
            notes=notes,
        )
        report_files.write(made, out)
    live.line("")
    live.line("; ".join(stages.told()))
    for note in made.notes:
        live.line(note)
    live.line(f"\nReport: {out / 'report.html'}")
    for line in made.headline:
        live.line(line)
    return made


class Stages:
    """Headings on the screen, and seconds in demo.json: a stage that was reused keeps the time of its making."""

    def __init__(self, out: Path, config: DemoConfig, live: Live):
        self.path, self.live = out / "demo.json", live
        self.config = dataclasses.asdict(config)
        self.seconds: dict[str, float] = {}
        try:
            self.seconds = dict(json.loads(self.path.read_text("utf-8"))["seconds"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            pass
        self._names: list[str] = []

    @contextlib.contextmanager
    def __call__(self, name: str, title: str) -> Iterator["Stages"]:
        """One stage; `reused` is set inside where all of it was there."""
        self._names.append(name)
        self.live.line(f"\n== {title}")
        self.reused, began = False, time.perf_counter()
        yield self
        if not (self.reused and name in self.seconds):
            self.seconds[name] = time.perf_counter() - began
        plain = {"config": self.config, "seconds": self.seconds}
        write_atomically(self.path, json.dumps(plain, indent=1, allow_nan=False) + "\n")

    def told(self) -> list[str]:
        """ "bert 2:31" for each stage of this run."""
        return [f"{name} {clock(self.seconds[name])}" for name in self._names if name in self.seconds]


def prepare(config: DemoConfig, unlabelled: Sequence[Splits], folder: Path, live: Live) -> tuple[Path, Tokenizer, bool]:
    """The vocabulary and the shards of the tasks' training texts (without labels) and of further corpora.

    Returns:
        The shard folder, named by a digest of the text and the settings; its tokenizer; whether both were there.
    """
    extra = sources.corpus(*config.extra_text) if config.extra_text else ()
    made_from = [examples_digest(splits.train) for splits in unlabelled] + [config.extra_text]
    name = digest(json.dumps([made_from, config.vocab_size, config.vocab_chunks], allow_nan=False))
    place = folder / name
    if (place / shards.MANIFEST).exists():
        tokenizer = load_tokenizer(place)
        shards.open_shards(place, tokenizer)
        live.line(f"reusing {place}")
        return place, tokenizer, True

    def documents():
        for splits in unlabelled:
            yield from tasks.texts(splits)
        yield from extra

    if (place / "tokenizer").is_dir():
        tokenizer = load_tokenizer(place)
    else:
        tokenizer = train_vocabulary(documents(), config.vocab_size, max_chunks=config.vocab_chunks)
        tokenizer.save(place / "tokenizer")
    licences = "; ".join(dict.fromkeys(splits.task.licence for splits in unlabelled))
    made = shards.write_shards(
        documents(),
        tokenizer,
        place,
        source=", ".join(s.task.name for s in unlabelled),
        licence=licences,
        overwrite=True,
    )
    count = sum(record["tokens"] for record in made.manifest["splits"].values())
    live.line(f"{count:,} tokens in {tokenizer.vocab_size:,} pieces: {place}")
    return place, tokenizer, False


def pretrain(config: RunConfig, folder: Path, live: Live) -> bool:
    """Trains in a run folder: from the start, on from its last checkpoint, or not at all where it is done.

    A folder of other settings is taken away first.

    Returns:
        Whether it trained.
    """
    if (folder / "config.json").exists():
        changes = RunConfig.load(folder).changes(config)
        if changes:
            live.line(f"{folder} was made with other settings ({'; '.join(changes)}): training anew")
            _take_away(folder)
        elif _finished(folder, config.train.steps):
            live.line(f"reusing {folder}")
            return False
    result = loop.run(config, folder)
    if result.valid:
        live.line(f"{folder}: validation loss {result.valid['loss']:.3f} after {result.step:,} steps")
    return True


def loss_curve(network: OwnNetwork, folder: Path) -> LossCurve:
    """The training losses that a run folder logged."""
    lines = [line for line in logs.read(folder / "metrics.jsonl") if line.get("split") == "train"]
    steps, losses = (tuple(line[name] for line in lines) for name in ("step", "loss"))
    return LossCurve(network.name, _objective(network), steps, losses)


def _objective(network: OwnNetwork) -> str:
    if network.train.objective == "masked_lm":
        return f"masked LM, {network.train.mask_rate:.0%} hidden"
    return "next token"


def _trial(config: DemoConfig, name: str, source: str, splits: Splits, network: Any) -> Trial:
    return Trial(name, source, splits, network.finetune, config.labels, config.seeds, network.rates)


def _finished(folder: Path, steps: int) -> bool:
    try:
        return run_folder.last_step(folder) >= steps
    except (InputError, OSError):
        return False


def _take_away(folder: Path) -> None:
    """Renames a folder and then removes it, so that a kill in between leaves no half of it behind under its name."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    os.replace(folder, old / folder.name)
    shutil.rmtree(old, ignore_errors=True)


def _protocol(
    config: DemoConfig,
    tested: Sequence[Splits],
    whole: dict[str, Splits],
    trials: Sequence[Trial],
    outcome: transfer.Outcome,
    stages: Stages,
) -> dict[str, str]:
    said = {}
    for splits in tested:
        full, kept = len(whole[splits.task.name].test), len(splits.test)
        if kept < full:
            said[f"test set of {splits.task.name}"] = (
                f"{kept:,} of {full:,} examples, those with the smallest hashes of their text; the same in every cell"
            )
    for network in config.own:
        train = network.train
        text = ", ".join(config.text_tasks + config.extra_text)
        said[f"pre-training of {network.name}"] = (
            f"{_objective(network)}, {train.steps:,} steps of {train.batch_size} rows of {train.seq_len} tokens, "
            f"learning rate {train.learning_rate:g}, on the training texts of {text}, without their labels"
        )
    if config.real:
        package = CHECKPOINTS.get(config.real.source)
        said[f"pre-training of {config.real.name}"] = f"published: {package.source}" if package else config.real.source
    return said | transfer.protocol(trials, outcome) | {"time": "; ".join(stages.told())}
