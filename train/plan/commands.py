"""The subcommand `plan`."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from zoo.errors import InputError

Text = Annotated[str, tyro.conf.arg(help_behavior_hint="")]


def plan(
    *,
    model: str,
    slice: str,
    batch: int | None = None,
    seq: int | None = None,
    mesh: Text = "",
    remat: Text = "",
    accumulate: int | None = None,
    attention: Text = "",
    dtype: Text = "",
    model_set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=VALUE ...", help_behavior_hint="")] = (),
    tokens: Text = "",
    json: Path | None = None,
    compiler: Literal["auto", "tpu", "cpu"] = "auto",
    search: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Know a run on a pod without the pod: does it fit, how fast will it be, what will it cost.

    The very train step that would run is compiled ahead of time for the slice by the TPU's own compiler (libtpu: pip
    install "oneblock[plan]"), from shapes alone; where libtpu is absent, by XLA's CPU compiler over virtual devices,
    and the plan says so. FLOPs are counted in the step itself, bytes and collectives read from the compiled program;
    times follow from the chip's published peaks.

    Args:
        model: a preset (python -m zoo list), a config.json, or a run folder, whose own settings then hold.
        slice: chips, such as v5e:16x16, v5p:4x4x8, 2xv5e:16x16 (two slices), v5p-256 (a cloud's name).
        batch: rows a step; by default the run's, or one row a chip.
        seq: tokens a row; by default the run's, or the model's longest.
        mesh: axes, such as fsdp=64,tensor=4 (-1: what is left); by default the run's own, or fsdp over all chips.
        remat: what the backward pass recomputes; by default full for a preset.
        accumulate: micro-batches a step.
        attention: the attention kernel; by default the model's.
        dtype: of products; by default bfloat16 for a preset.
        model_set: further fields of the model's config, such as num_layers=4 scan=False.
        tokens: also the cost of a run on so many tokens, such as 1T, 300B or 2e11.
        json: also write the plan to this file.
        compiler: tpu for libtpu's, cpu for XLA's over virtual devices, auto for the first where it is installed.
        search: try meshes, remat and micro-batches by formula, compile the best three, give the fastest that fits.
        quiet: show no progress.

    Examples:
        python -m train plan --model llama-7b --slice v5e:16x16 --batch 256 --seq 2048 --tokens 1T
        python -m train plan --model llama-65b --slice v5p:4x4x8 --batch 512 --mesh fsdp=32,tensor=4
        python -m train plan --model llama-13b --slice v6e:16x16 --batch 1024 --search
    """
    import jax

    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and no chip of this machine is to be taken
    jax.config.update("jax_enable_compilation_cache", False)  # it cannot read back what is compiled for absent chips
    from train.cli import model_fields
    from train.plan.job import make_job
    from train.plan.report import render
    from train.plan.slices import ask_for_devices, parse_slice
    from zoo.output_folder import require_folder

    wanted = tokens_of(tokens)
    if json is not None:
        require_folder(json.parent)
    chips = parse_slice(slice)
    ask_for_devices(chips)  # should it come to the CPU's compiler
    fields = {"remat": remat, "attention_kernel": attention, "dtype": dtype}
    changes = {name: value for name, value in fields.items() if value} | model_fields(model_set)
    asked = {"batch": batch, "seq": seq, "mesh": mesh, "accumulate": accumulate}
    job = make_job(model, chips, **asked, changes=changes, reaching=search)
    with progress(quiet) as say:
        if search:
            from train.plan.search import search_plan

            found = search_plan(job, model, compiler, say, mesh=bool(mesh), remat=bool(remat), accumulate=accumulate)
        else:
            found = plan_of(job, model, compiler, say)
    if json is not None:
        write_plan(found, json, wanted)
    print(render(found, wanted))
    if not found.fits:
        from train.plan.fitting import advice

        raise InputError(f"{job.name} does not fit {job.slice}; {advice(job)}")


def plan_of(job: Any, model: str, compiler: Literal["auto", "tpu", "cpu"], say: Any) -> Any:
    """The Plan of one job, compiled.

    Raises:
        InputError: it cannot fit; what would make it fit is said.
    """
    from train.plan.compile import OutOfMemory, compile_step
    from train.plan.fitting import advice, refuse_hopeless
    from train.plan.report import make_plan

    refuse_hopeless(job)
    try:
        return make_plan(job, compile_step(job, compiler, say), model)
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; {advice(job)}", error.used) from None


def write_plan(plan: Any, path: Path, tokens: float | None = None) -> None:
    """Writes a plan as JSON, whole or not at all."""
    from train.logs import finite
    from zoo.atomic_file import write_atomically

    write_atomically(path, json.dumps(finite(plan.to_dict(tokens)), indent=2, allow_nan=False) + "\n")


def tokens_of(text: str) -> float | None:
    """A number of tokens from "1T", "300B", "50M", "2e11"; None for "".

    Raises:
        InputError: not a number above 0.
    """
    if not text:
        return None
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    unit = units.get(text[-1].upper())
    try:
        number = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e18:
        raise InputError(f'tokens is "{text}"; it must be a number such as 1T, 300B or 2e11')
    return number


def progress(quiet: bool = False) -> Any:
    """A context giving say(line): the line with seconds running beside it, on a terminal; else nothing is shown."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return nullcontext(lambda line: None)
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    class Running(Progress):
        def __enter__(self):
            super().__enter__()
            task = self.add_task("", total=None)
            return lambda line: self.update(task, description=line)

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Running(*columns, console=console, transient=True)
