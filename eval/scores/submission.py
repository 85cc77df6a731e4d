"""Submission files: predictions for the test sets whose labels GLUE and SuperGLUE keep to themselves.

    python -m eval submit runs/cola --folder glue_data --out submission
    for hidden in hidden_sets(task, "glue_data"):
        write(task, hidden, outputs_of(hidden.examples), "submission")

| file | rows |
|---|---|
| CoLA.tsv, SST-2.tsv, MRPC.tsv, QQP.tsv, WNLI.tsv | index TAB 0 or 1 |
| MNLI-m.tsv, MNLI-mm.tsv, AX.tsv, QNLI.tsv, RTE.tsv | index TAB entailment, neutral, contradiction or not_entailment |
| STS-B.tsv | index TAB a number from 0 to 5 |
| BoolQ.jsonl, WiC.jsonl | {"idx": 0, "label": "true"} |

Every test example has its row, in the order and with the number that the test file gives it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval import tasks
from eval.examples import Example
from eval.sources import strict_json
from eval.sources.rows import read_hidden
from eval.task import Task
from zoo.atomic_file import write_atomically
from zoo.errors import InputError
from zoo.output_folder import require_folder


@dataclass(frozen=True)
class Hidden:
    """A test set without labels.

    Attributes:
        name: of its submission file, without the ending.
        indices: E numbers, as the test file has them.
        examples: E examples, each with the label -1.
    """

    name: str
    indices: tuple[str, ...]
    examples: tuple[Example, ...]


def hidden_sets(task: str | Task, folder: str | Path) -> tuple[Hidden, ...]:
    """The test sets without labels of a task, each whole.

    Args:
        task: one of GLUE's or SuperGLUE's, by name or itself.
        folder: where its files lie.

    Raises:
        InputError: a task without such a set; a file that is missing or faulty. Of MNLI, the diagnostic set AX is
            passed over where its file is missing.
    """
    task = tasks.get(task) if isinstance(task, str) else task
    if not task.hidden:
        able = [name for name, other in tasks.TASKS.items() if other.hidden]
        raise InputError(f"task {task.name} has no test set without labels; those that have: {', '.join(able)}")
    found = []
    for name, file in task.hidden:
        path = tasks.locate(folder, file)
        if name == "AX" and not path.exists():
            continue
        found.append(Hidden(name, *read_hidden(task, path)))
    return tuple(found)


def spelled(task: Task, outputs: Any, label_names: Sequence[str] = ()) -> list[str]:
    """A model's outputs as the benchmark wants them written.

    Args:
        task: of kind classification or regression.
        outputs: [E, C] logits, or [E] ratings.
        label_names: the order of the C logits, where it is another than the task's: labels go by name.

    Returns:
        E strings: labels as GLUE spells them; ratings in the task's range, with three decimals.

    Raises:
        InputError: outputs of another shape, that are not finite, or under other label names.
    """
    found = np.asarray(outputs, np.float64)
    if not np.isfinite(found).all():
        raise InputError(f"{task.name}: outputs that are not finite; there is nothing to submit")
    if task.kind == "regression":
        if found.ndim != 1:
            raise InputError(f"{task.name}: outputs have shape {found.shape}; one number an example is needed, (E,)")
        low, high = task.label_range or (-np.inf, np.inf)
        return [f"{value:.3f}" for value in np.clip(found, low, high)]
    if found.ndim != 2 or found.shape[1] != task.num_labels:
        raise InputError(f"{task.name}: outputs have shape {found.shape}; (E, {task.num_labels}) is needed")
    order = tuple(label_names) or task.labels
    if sorted(order) != sorted(task.labels):
        raise InputError(f"{task.name}: labels are {', '.join(task.labels)}, and the model's {', '.join(order)}")
    values = dict(zip(task.labels, task.spellings, strict=True))
    return [values[order[i]] for i in found.argmax(axis=1)]


def write(task: Task, hidden: Hidden, outputs: Any, folder: str | Path, label_names: Sequence[str] = ()) -> Path:
    """Writes one submission file.

    Args:
        task, hidden: what was predicted.
        outputs, label_names: see `spelled`; a row for each of hidden.examples, in their order.
        folder: where the file goes.

    Returns:
        Its path.

    Raises:
        InputError: more or fewer outputs than examples; what `spelled` refuses.
    """
    if len(outputs) != len(hidden.examples):
        raise InputError(f"{hidden.name}: {len(outputs):,} outputs for {len(hidden.examples):,} test examples")
    rows = zip(hidden.indices, spelled(task, outputs, label_names), strict=True)
    if task.benchmark == "SuperGLUE":
        path = Path(folder) / f"{hidden.name}.jsonl"
        lines = [json.dumps({"idx": int(index), "label": value}, allow_nan=False) for index, value in rows]
    else:
        path = Path(folder) / f"{hidden.name}.tsv"
        lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in rows)]
    write_atomically(path, "\n".join(lines) + "\n")
    return path


def submit(
    run: str,
    /,
    folder: Path | None = None,
    task: str = "",
    out: Path = Path("submission"),
    batch_size: int = 64,
    max_length: int = 0,
) -> None:
    """Predict the hidden test sets of GLUE or SuperGLUE with a fine-tuned run and write the files to upload.

    Args:
        run: the folder that finetune --out made.
        folder: where the benchmark's folders are (glue_data, with CoLA/test.tsv and so on).
        task: cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, boolq or wic; by default the one of the run.
        out: where the files go.
        batch_size: texts at a time.
        max_length: tokens a text; by default those of the run.

    Examples:
        python -m eval submit runs/cola --folder glue_data --out submission
    """
    from eval import kinds
    from eval.experiment.workbench import load_network
    from eval.predict import predict
    from train.cli import keep_compiled

    keep_compiled()
    if folder is None:
        raise InputError("which files? Say --folder FOLDER, such as glue_data")
    settings = _settings(run)
    if not (task or settings.get("task")):
        raise InputError(f"{run} does not say what it was fine-tuned on; name it: --task cola")
    chosen = tasks.get(task or settings["task"])
    require_folder(out)
    sets = hidden_sets(chosen, folder)
    model, params, tokenizer = load_network(run)
    kind = kinds.of(chosen)
    length = max_length or settings.get("config", {}).get("max_length") or 128
    for hidden in sets:
        outputs = predict(
            model, params, tokenizer, hidden.examples, batch_size=batch_size, max_length=length, kind=kind
        )
        names = model.config.label_names if chosen.kind == "classification" else ()
        print(f"{write(chosen, hidden, outputs, out, names)}: {len(hidden.examples):,} predictions")


def _settings(run: str) -> dict[str, Any]:
    """The settings of a run that finetune made; {} of a checkpoint from elsewhere."""
    try:
        found = strict_json.read_object(Path(run) / "config.json").get("finetune")
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}
