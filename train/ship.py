"""`python -m train ship`: a finished run as a folder to pass on: weights in half precision, tokenizer, card, numbers.

    README.md         the model card, written from metrics.json (train.model_card)
    metrics.json      what was trained, on what, for how long, and what it scored
    config.json  model.safetensors  tokenizer.model     see zoo.checkpoints.plain_folder
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from etils import epath

import zoo
from train import model_card
from train.config import RunConfig
from train.data.shards import open_shards
from train.logs import read
from train.loop import evaluate
from train.mesh import make_driver
from train.objectives import fit_model, make_objective
from train.opening import open_splits
from train.recipes import RECIPES
from train.recipes.recipe import Recipe
from train.step import make_eval_step
from zoo.checkpoints import plain_folder
from zoo.checkpoints.run_folder import last_step
from zoo.checkpoints.whole_folder import require_apart, whole_folder
from zoo.errors import InputError
from zoo.summary import count_parameters

BASELINES = ("baseline", "tf-idf")  # how reports call the arm without a network; the second in older ones


def ship(
    run: Path,
    out: Path,
    /,
    transfer: tuple[Path, ...] = (),
    note: tuple[str, ...] = (),
    dtype: Literal["float16", "bfloat16", "float32"] = "float16",
    overwrite: bool = False,
) -> None:
    """Make a folder to pass on of a finished run: weights in half precision, tokenizer, model card, metrics.

    The loss on the held-out text is measured before and after the rounding, so the data of the run must be there.

    Args:
        run: the run folder.
        out: the folder to make; its name becomes the model's.
        transfer: report.json of `python -m eval transfer` with this run in it (and of `--checkpoints OUT`): what it
            bought, for the card.
        note: sentences for the card: on what machine, and in what company, it was trained.
        dtype: number type of the weights in the file.
        overwrite: replace a folder that this command made.

    Examples:
        python -m train ship runs/bert-tiny shipped/bert-tiny --transfer runs/transfer/report.json
    """
    require_apart(str(run), out)
    config = RunConfig.load(run)
    model, params = zoo.load(run)
    tokenizer = zoo.load_tokenizer(run)
    last = _last_line(run, config.train.steps)
    facts = about(config, out.name, last, tokenizer.fingerprint) | {
        "number_type": dtype,
        "valid": losses(config, model, params, tokenizer, ("float32", dtype)),
        "transfer": [row for path in transfer for row in transfer_rows(path, (run.name, out.name))],
        "notes": list(note),
    }
    with whole_folder(out.absolute(), overwrite) as work:
        plain_folder.save(model, params, work, tokenizer, dtype)
        (work / "metrics.json").write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        (work / "README.md").write_text(model_card.card(facts), encoding="utf-8")
    size = sum(path.stat().st_size for path in out.iterdir())
    said = ", ".join(f"{name} {values['loss']:.4f}" for name, values in facts["valid"].items())
    print(f"{out}: {facts['parameters']:,} parameters, {size / 1e6:.1f} MB; validation loss {said}")


def about(config: RunConfig, name: str, last: dict[str, Any], fingerprint: str) -> dict[str, Any]:
    """What a run is, in plain types: sizes, objective, text, recipe."""
    model, train = config.model, config.train
    manifest = open_shards(train.data).manifest
    recipe = recipe_of(config)
    return {
        "name": f"oneblock/{name}",
        "family": model.family,
        "parameters": sum(count_parameters(model).values()),
        "layers": model.num_layers,
        "width": model.embed_dim,
        "heads": model.num_heads,
        "pieces": model.vocab_size,
        "positions": model.positions,
        "max_positions": model.max_positions,
        "objective": train.objective,
        "mask_rate": train.mask_rate if train.objective == "masked_lm" else None,
        "steps": train.steps,
        "tokens_a_step": train.batch_size * train.seq_len,
        "row": train.seq_len,
        "tokens_seen": last["tokens"],
        "seconds": round(last["seconds"]),
        "text": {part: manifest["splits"][part]["tokens"] for part in ("train", "valid")},
        "text_sha256": manifest["splits"]["train"]["tokens_sha256"],
        "sources": [list(pair) for pair in recipe.texts] if recipe else [[manifest["source"], manifest["licence"]]],
        "recipe": recipe.name if recipe else "",
        "command": recipe.command if recipe else "",
        "tokenizer": fingerprint,
    }


def recipe_of(config: RunConfig) -> Recipe | None:
    """The recipe that a run followed in all that matters for its numbers; None where it is none of ours."""
    for recipe in RECIPES.values():
        fitted = fit_model(zoo.create(recipe.preset).config, recipe.train, config.model.vocab_size)
        if not RunConfig(zoo.create(fitted, **recipe.model).config, recipe.train).changes(config):
            return recipe
    return None


def losses(
    config: RunConfig, model: zoo.Model, params: Any, tokenizer: zoo.Tokenizer, dtypes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """number type -> loss and accuracy on the valid split with the weights rounded to it, computed in float32."""
    train = config.train
    _, valid = open_splits(config, open_shards(train.data), tokenizer)
    if not len(valid):
        raise InputError(f"{train.data} holds no validation text to measure on")
    driver = make_driver("jit", "")
    objective = make_objective(train, model, tokenizer, driver.row_shards)
    step = driver.compile_eval(make_eval_step(model, objective, train.seed))
    found = {}
    for name in dict.fromkeys(dtypes):
        weights = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, "float32"), plain_folder.rounded(params, name))
        values = evaluate(step, weights, driver, valid)
        found[name] = {key: round(value, 5) for key, value in values.items()}
    return found


def transfer_rows(path: Path, networks: Sequence[str]) -> list[dict[str, Any]]:
    """What a report of `python -m eval transfer` says of a network against its random start, a row a task and budget.

    Args:
        path: report.json.
        networks: names that the network may have in it.

    Raises:
        InputError: no such report, or the network is not in it.
    """
    try:
        report = json.loads(path.read_text("utf-8"))
        scores = {(r["task"], r["network"], r["arm"], r["labels"]): r for r in report["results"] if _whole(r)}
        sizes = {task["name"]: sum(task["counts"]["test"].values()) for task in report["tasks"]}
        rows = []
        for found in report["comparisons"]:
            if found["network"] not in networks or found["against"] != "random" or not _whole(found):
                continue
            key, labels, metric = (found["task"], found["network"]), found["labels"], found["metric"]
            arms = {arm: scores[*key, arm, labels]["metrics"][metric]["mean"] for arm in ("pretrained", "random")}
            plain = next((r for r in report["results"] if r["arm"] in BASELINES and _same(r, found)), None)
            interval = found["difference"]["interval"]
            rows.append(
                {"task": key[0], "labels": labels, "metric": metric, "seeds": interval["n"]}
                | {"test_texts": sizes[key[0]]}
                | {arm: round(mean, 4) for arm, mean in arms.items()}
                | {name: round(interval[name], 4) for name in ("mean", "low", "high")}
                | {"tfidf": round(plain["metrics"][metric]["mean"], 4) if plain else None}
                | {"protocol": report["protocol"].get(f"{key[1]} on {key[0]}", "")}
            )
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; --transfer takes the report.json of python -m eval transfer") from None
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: is no report.json of python -m eval transfer ({error!r})") from None
    if not rows:
        raise InputError(f"{path}: speaks of none of {', '.join(networks)} against random start")
    return rows


def _whole(row: dict[str, Any]) -> bool:
    """Whether all parameters were trained, the one way that a random start has."""
    return row.get("way", "full") == "full"


def _same(result: dict[str, Any], comparison: dict[str, Any]) -> bool:
    return all(result[name] == comparison[name] for name in ("task", "labels"))


def _last_line(run: Path, steps: int) -> dict[str, Any]:
    done = last_step(epath.Path(run))
    lines = [line for line in read(run / "metrics.jsonl") if line["split"] == "train"]
    if done < steps or not lines:
        raise InputError(f"{run} is not finished: step {done:,} of {steps:,}")
    return lines[-1] | {"seconds": run_seconds([line["seconds"] for line in lines])}


def run_seconds(clocks: Sequence[float]) -> float:
    """How long a run took, from the clock of each logged line, which starts anew each time that the run goes on."""
    ends = [now for now, after in zip(clocks, [*clocks[1:], 0.0], strict=True) if after < now]
    return sum(ends)
