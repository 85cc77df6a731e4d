"""`python -m train`: text to shards, shards to a pre-trained model."""

import dataclasses
import os
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import docstring_parser
import tyro

from train.config import RunConfig, TrainConfig
from train.recipes import RECIPES
from train.recipes import find as find_recipe
from zoo.config import ModelConfig
from zoo.errors import InputError, nearest
from zoo.output_folder import require_folder


def prepare(
    corpus: tuple[str, ...],
    /,
    *,
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(required)")] = None,
    vocab_size: int = 8192,
    kind: Literal["unigram", "bpe"] = "unigram",
    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "identity"] = "nmt_nfkc",
    tokenizer: str = "",
    valid_fraction: float = 0.01,
    min_valid: int = 1,
    text_field: str = "text",
    overwrite: bool = False,
) -> None:
    """Turn text into token shards: learn a vocabulary, encode, hold documents out for validation.

    Args:
        corpus: embedded corpora (encyclopedia, shakespeare), .txt or .jsonl files (also .gz), or folders of them.
        out: the shard folder to make.
        vocab_size: pieces of the vocabulary, special ones and bytes included.
        kind: how the vocabulary is learnt.
        normalization: of the text; nmt_nfkc_cf also folds case, identity keeps every character.
        tokenizer: use this one (a file, folder, run or shard folder) and learn none.
        valid_fraction: share of documents held out for validation.
        min_valid: hold out at least so many documents; 0 allows none.
        text_field: where the text of a .jsonl record is.
        overwrite: replace finished shards.

    Examples:
        python -m train prepare encyclopedia shakespeare --out data/demo
        python -m train prepare my-texts/ --out data/mine --vocab-size 16000
        python -m train prepare more.jsonl --out data/more --tokenizer data/mine
    """
    from train.data.shards import MANIFEST, check_held_out, require_no_checkpoint, write_shards
    from train.data.sources import corpus as find_corpus
    from train.run_folder import require_mounted
    from train.vocabulary import train_vocabulary
    from zoo.tokenizer import load_tokenizer

    text = find_corpus(*corpus, field=text_field)
    if out is None:
        raise InputError('missing --out for "train prepare": the shard folder to make, such as --out data/mine')
    require_mounted(out, "token shards")
    require_folder(out)
    require_no_checkpoint(out)
    if (out / MANIFEST).exists() and not overwrite:
        raise InputError(f"{out} holds finished shards; use them, or add --overwrite to make them anew")
    check_held_out(valid_fraction, min_valid)
    if vocab_size < 1 and not tokenizer:
        raise InputError(f"vocab_size is {vocab_size}; it must be 1 or more, such as 8192")
    print(f"text: {text.name}" + (f" ({text.licence})" if text.licence else ""))
    if tokenizer:
        found = load_tokenizer(tokenizer)
    else:
        print(f"learning a vocabulary of {vocab_size:,} pieces", flush=True)
        found = train_vocabulary(text, vocab_size, kind=kind, normalization=normalization)
    shards = write_shards(
        text,
        found,
        out,
        valid_fraction=valid_fraction,
        min_valid=min_valid,
        source=text.name,
        licence=text.licence,
        overwrite=overwrite,
    )
    for name in ("train", "valid"):
        split = shards.split(name)
        print(f"{name}: {len(split):,} document{'' if len(split) == 1 else 's'}, {len(split.tokens):,} tokens")
    print(f"next: python -m train pretrain runs/mine --recipe demo-bert --data {out}")


# TrainConfig's own fields as options, each optional: what is not given stays as the config, recipe or default has it.
_HINTS = typing.get_type_hints(TrainConfig)
_FIRST = ("data", "objective", "steps", "batch_size", "seq_len", "learning_rate")
_OTHERS = tuple(f.name for f in dataclasses.fields(TrainConfig) if f.name not in _FIRST)


_TEXTS = {param.arg_name: param.description for param in docstring_parser.parse(TrainConfig.__doc__ or "").params}


def _option(name: str) -> tuple[str, Any, Any]:
    text = " ".join(_TEXTS[name].split()).replace("0 or None for", "0 for")  # here None is: as the config has it
    hint, default = _HINTS[name], getattr(TrainConfig(), name)
    metavar = {int: "INT", float: "FLOAT", str: "STR", bool: "[True|False]"}.get(hint, "FLOAT")
    if typing.get_origin(hint) is Literal:
        metavar = "{" + ",".join(typing.get_args(hint)) + "}"
    if name == "decay":
        metavar, default = "STR [STR ...]", " ".join(default)
    if name == "objective":
        default = "by the model: masked_lm where it sees both ways, else next_token"
    shown = tyro.conf.arg(
        help=text, metavar=metavar, help_behavior_hint=f"(default: {default})" if default != "" else ""
    )
    return name, Annotated[hint | None, shown], field(default=None)


_Text = Annotated[str, tyro.conf.arg(help_behavior_hint="")]
_Recipe = Annotated[str, tyro.conf.arg(help=f"start from a recipe of train/recipes: {', '.join(RECIPES)}.")]


@dataclass(frozen=True)
class _Given:
    """Pre-train a model, or go on with a run.

    Attributes:
        run_folder: where the run lies; one that exists goes on from its last checkpoint.
        model: a preset (python -m zoo list) or a checkpoint or run folder whose config to take.
        model_set: fields of the model's config to change, such as num_layers=4 dropout=0.
        recipe: start from a recipe of train/recipes.
        config: start from a config.json, or a run folder's.
        show_config: print the resolved config and do nothing.
        quiet: show no progress.
        profile: trace these steps, such as 10:13, into RUN_FOLDER/profile for XProf.
        coordinator: several processes: host:port of process 0. Slurm, Open MPI, GKE and Cloud TPU tell it themselves.
        num_processes: how many there are, all told.
        process_id: which one this is, from 0.
        join_within: seconds in which all processes have to come.
        lost_after: seconds without a sign of life after which a process counts as lost, and all end.
        stalled_after: seconds in which nothing was finished and nothing moved, after which all end.
    """

    run_folder: Path
    model: _Text = ""
    model_set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=VALUE ...", help_behavior_hint="")] = ()
    recipe: _Recipe = ""
    config: _Text = ""
    show_config: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    profile: Annotated[str, tyro.conf.arg(metavar="FIRST:LAST", help_behavior_hint="")] = ""
    coordinator: Annotated[str, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")] = ""
    num_processes: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    process_id: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    join_within: int = 300
    lost_after: int = 60
    stalled_after: int = 1800


Pretrain = dataclasses.make_dataclass(
    "Pretrain", [_option(name) for name in (*_FIRST, *_OTHERS)], bases=(_Given,), frozen=True
)
Pretrain.__doc__ = _Given.__doc__


def pretrain(given: Pretrain) -> None:
    """Pre-train a model, or go on with a run.

    The run comes from --config, a --recipe or the defaults, with the options given here on top. A run folder that
    exists needs nothing more: its own config.json says how it goes on. Killed, a run loses what came after its last
    checkpoint.

    Examples:
        python -m train pretrain runs/bert --recipe demo-bert --data data/demo
        python -m train pretrain runs/gpt --model gpt2-tiny --data data/demo --objective next_token --steps 2000
        python -m train pretrain runs/gpt
        python -m train pretrain runs/wide --config runs/gpt --model-set embed_dim=256 --driver mesh --mesh fsdp=-1
        python -m train pretrain /shared/gpt --coordinator 10.0.0.2:8476 --num-processes 2 --process-id 0
    """
    if given.show_config:
        import json

        print(json.dumps(resolve(given).to_dict(), indent=2, allow_nan=False))
        return
    from train.distributed import find_job, together

    times = {name: getattr(given, name) for name in ("join_within", "lost_after", "stalled_after")}
    job = find_job(given.coordinator, given.num_processes, given.process_id, **times)
    from train.lost_process import joined

    with joined(job) as terminal:
        config = together(lambda: resolve(given))
        keep_compiled()
        from train.loop import is_first_process, run

        shown = {"quiet": given.quiet, "profile": given.profile, "terminal": terminal}
        result = run(config, given.run_folder, stalled_after=given.stalled_after, **shown)
        if not is_first_process():
            return
        for split, line in (("train", result.train), ("valid", result.valid)):
            if line:
                print(f"{split}: loss {line['loss']:.4f}, accuracy {line['accuracy']:.4f}")
        print(f"run folder: {result.folder} (step {result.step:,})")


def resolve(given: Pretrain) -> RunConfig:
    """The RunConfig that a command line asks for.

    Raises:
        InputError: neither a model nor a config to start from, no data, or a field that there is not.
    """
    from train.data.shards import open_shards
    from train.objectives import fit_model
    from train.run_folder import require_mounted, require_own

    sources = [name for name in ("config", "recipe", "model") if getattr(given, name)]
    if "config" in sources and "recipe" in sources:
        raise InputError("--config and --recipe are both given; a run starts from one of them")
    require_folder(given.run_folder)
    require_own(given.run_folder)
    own = given.run_folder / "config.json"
    base, train, preset, changes = None, TrainConfig(), given.model, {}
    if given.config or (not sources and own.exists()):
        base = RunConfig.load(given.config or own)
        train = base.train
    elif given.recipe:
        recipe = find_recipe(given.recipe)
        train, preset, changes = recipe.train, preset or recipe.preset, recipe.model if not given.model else {}
    elif not given.model:
        raise InputError(f"{given.run_folder} is no run yet: say --model, --recipe or --config")
    if given.model:
        _preset(given.model)  # a wrong name is said before data are asked for
    changes |= model_fields(given.model_set)
    options = {f.name: getattr(given, f.name) for f in dataclasses.fields(TrainConfig)}
    options = {name: value for name, value in options.items() if value is not None}
    for name in ("data", "watch"):
        if options.get(name):
            require_mounted(options[name], "token shards")
            options[name] = os.path.abspath(options[name])
    if given.model and not given.recipe and base is None:
        options.setdefault("objective", _usual_objective(preset))
    train = train.replace(**options)
    if not train.data:
        raise InputError("no data to train on: add --data FOLDER, as python -m train prepare makes it")
    if base is not None and not given.model:
        model = _created(base.model, changes)
    else:
        fitted = fit_model(_preset(preset), train, open_shards(train.data).vocab_size)
        model = _created(fitted, changes)
    return RunConfig(model, train)


def model_fields(words: tuple[str, ...]) -> dict[str, Any]:
    """Fields of ModelConfig from words such as "num_layers=4", "dropout=0", "positions=rotary"."""
    import json

    names = [f.name for f in dataclasses.fields(ModelConfig)]
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InputError(f'--model-set "{word}" is not of the form field=value, such as num_layers=4')
        name = name.replace("-", "_")
        if name not in names:
            raise InputError(f'ModelConfig has no field "{name}"{nearest(name, names)}')
        try:
            found[name] = json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
        except ValueError:
            found[name] = text
    return found


def keep_compiled() -> None:
    """Lets a second run find its programs compiled, in the cache folder, unless JAX was told otherwise."""
    import jax

    from zoo.packages import cache_folder

    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:  # the many small programs of a start add up
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def doctor(
    *,
    bench: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    run_folder: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None,
    coordinator: Annotated[str, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")] = "",
    num_processes: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None,
    process_id: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None,
    join_within: int = 300,
) -> None:
    """Say what this machine or job has and what is usually wrong, and train a tiny model to see that all works.

    Args:
        bench: also time a step of a LLaMA of a billion parameters (a tiny one on CPUs), and say what the plan says.
        run_folder: look whether all processes share this folder.
        coordinator: several processes: as for pretrain; start it in each of them.
        num_processes: how many there are.
        process_id: which one this is, from 0.
        join_within: seconds in which all processes have to come.

    Examples:
        python -m train doctor
        python -m train doctor --bench
        srun python -m train doctor --run-folder /shared/runs/mine
    """
    from train.distributed import find_job
    from train.lost_process import joined

    job = find_job(coordinator, num_processes, process_id, join_within=join_within)
    with joined(job):
        from train.doctor import examine
        from train.loop import is_first_process

        for line in examine(run_folder, bench):
            if is_first_process():
                print(line, flush=True)


def _preset(name: str) -> ModelConfig:
    from zoo.checkpoints import load_config
    from zoo.packages import is_name
    from zoo.registry import PRESETS

    if name in PRESETS:
        return PRESETS[name]
    if Path(name).is_dir() or is_name(name):
        return load_config(name)
    raise InputError(f'"{name}" is neither a model nor a folder{nearest(name, PRESETS)}')


def _created(config: ModelConfig, changes: dict[str, Any]) -> ModelConfig:
    import zoo

    return zoo.create(config, **changes).config if changes else config


def _usual_objective(preset: str) -> str:
    return "masked_lm" if _preset(preset).visibility == "full" else "next_token"


SUBCOMMANDS = {
    "prepare": prepare,
    "pretrain": pretrain,
    "plan": "train.plan.commands:plan",
    "plans": "train.plan.page:plans",
    "ship": "train.ship:ship",
    "launch": "train.launch.printing:launch",
    "doctor": doctor,
}
