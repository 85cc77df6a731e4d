"""Folders of LoRA runs: the adapters and the head alone, and which checkpoint they belong to.

folder/adapter.safetensors    lora/blocks/.../lora_a, lora_b; the head's kernel and bias
folder/config.json            {"model": ..., "adapter": {"base", "fingerprint", "rank", "alpha", "head"}, ...}
folder/tokenizer/             read by zoo.load_tokenizer

model, params = load("folder")            # the base is loaded, its weights compared, the adapters merged
python -m eval merge folder runs/merged   # the same as an ordinary run folder
"""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

import zoo
from eval.experiment.trial import fingerprint
from eval.finetune import Finetuned, random_start
from eval.scores.predictions import PREDICTION_FILES
from eval.sources import strict_json
from eval.ways import lora
from eval.ways.finetune_config import FinetuneConfig
from zoo.checkpoints import run_folder
from zoo.checkpoints.placing import flatten, nest
from zoo.checkpoints.safetensors_file import open_file
from zoo.checkpoints.safetensors_out import write_file
from zoo.checkpoints.whole_folder import require_apart, require_free, whole_folder
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.model import Model

TENSORS = "adapter.safetensors"
FIELDS = {"base": str, "fingerprint": str, "rank": int, "alpha": float, "head": str, "random_start": bool, "seed": int}


def save(
    tuned: Finetuned,
    folder: Path,
    tokenizer: Any,
    config: FinetuneConfig,
    base: str,
    start: dict[str, Any],
    *,
    random_start: bool = False,
) -> None:
    """Fills an empty local `folder`.

    Args:
        tuned: of way "lora".
        folder: made already; eval.commands makes it whole or not at all.
        tokenizer: the base's.
        config: of the run.
        base: what zoo.load reads the base by; a path is kept absolute.
        start: the parameters that the run began with.
        random_start: these are not the base's, but what config.seed draws for its network.
    """
    assert tuned.adapter is not None
    head = tuned.model.config.head
    tensors = flatten({lora.NAME: tuned.adapter, head: tuned.params[head]})
    write_file(folder / TENSORS, {name: np.asarray(leaf) for name, leaf in tensors.items()})
    place = Path(base).expanduser()
    about = {"base": str(place.absolute()) if place.exists() else base, "fingerprint": fingerprint(start)}
    about |= {"rank": config.lora_rank, "alpha": float(config.lora_alpha), "head": head}
    about |= {"random_start": random_start, "seed": config.seed}
    settings = {"model": tuned.model.config.to_dict(), "adapter": about}
    (folder / "config.json").write_text(json.dumps(settings, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    tokenizer.save(folder / "tokenizer")


def is_folder(folder: str | Path) -> bool:
    """Whether `folder` holds adapters."""
    return (Path(folder) / TENSORS).is_file()


def load(folder: str | Path, base: str | None = None) -> tuple[Model, dict[str, Any]]:
    """The model of a LoRA run and its parameters, adapters merged.

    Args:
        folder: of `save`.
        base: where the base checkpoint is by now; None: where it was.

    Raises:
        InputError: no adapters there, a base that is gone or has other weights, tensors that do not fit.
    """
    folder = Path(folder)
    about, config = _read(folder)
    base = base or about["base"]
    loaded, start = zoo.load(base)
    if about["random_start"]:
        start = random_start(loaded, about["seed"])
    found = fingerprint(start)
    if found != about["fingerprint"]:
        raise InputError(
            f"{folder}: its adapters belong to {about['base']} with weights {about['fingerprint']}, and {base} has "
            f"{found}; name the right checkpoint (base=, --base)"
        )
    model = Model(config)
    tensors = nest({name: jax.numpy.asarray(t.read()) for name, t in open_file(folder / TENSORS).items()})
    adapters = tensors.pop(lora.NAME, {})
    shapes = model.init_shapes()
    whole = {name: tensors[name] if name in tensors else start.get(name, {}) for name in shapes}
    wanted, given = ({name: leaf.shape for name, leaf in flatten(tree).items()} for tree in (shapes, whole))
    if wanted != given:
        odd = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise InputError(f"{folder / TENSORS}: {', '.join(odd[:4])} do not fit the model of its config.json")
    return model, lora.merge(whole, adapters, about["alpha"] / about["rank"])


def merge(run: Path, out: Path, /, base: str = "") -> None:
    """Turn a LoRA run into an ordinary run folder: adapters are added to the kernels of their base.

    Its scores and predictions go along, with a note of the run and the base that they were measured on.

    Args:
        run: what `finetune --way lora --out` made.
        out: the run folder to make.
        base: where the base checkpoint is by now, if it has moved.

    Examples:
        python -m eval merge runs/mine-lora runs/mine-merged
    """
    require_apart(str(run), out)
    require_free(out.absolute(), overwrite=False)
    about, _ = _read(run)
    model, params = load(run, base or None)
    note = {"run": str(run.absolute()), "base": base or about["base"], "fingerprint": about["fingerprint"]}
    with whole_folder(out.absolute(), overwrite=False) as work:
        run_folder.save(model, params, work, zoo.load_tokenizer(run))
        for name in ("config.json", "metrics.json"):
            if (run / name).exists():
                content = strict_json.read_object(run / name) | {"merged": note}
                (work / name).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        for name in PREDICTION_FILES:
            if (run / name).exists():
                shutil.copyfile(run / name, work / name)
    print(f"merged {run} -> {out}")


def _read(folder: Path) -> tuple[dict[str, Any], ModelConfig]:
    where = folder / "config.json"
    if not is_folder(folder):
        raise InputError(f"{folder}: holds no {TENSORS}; name a folder that finetune --way lora --out made")
    try:
        settings = strict_json.read_object(where)
        about, plain = settings["adapter"], settings["model"]
        good = isinstance(plain, dict) and all(isinstance(about[name], kind) for name, kind in FIELDS.items())
        if not good or about["rank"] < 1:
            raise TypeError
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise InputError(f'{where}: tells no "model" and "adapter" as finetune --way lora writes them') from None
    try:
        return about, ModelConfig.from_dict(plain)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
