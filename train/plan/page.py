"""The page of plans: well-known models on well-known slices, each compiled once and kept, then a table and a plot."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.plan.job import Job, make_job
from train.plan.report import SUMS, Plan, bytes_text, count_text, hours_text, seconds_text, span
from train.plan.search import candidates, shortlist
from train.plan.slices import parse_slice
from zoo.atomic_file import replacing, write_atomically
from zoo.errors import InputError

SLICES = ("v5e:16x16", "v5p:4x4x8", "v6e:16x16")
# (rows a step, tokens a row): two million tokens a step, in rows as the model was published with.
MODELS = {
    "llama-7b": (1024, 2048),
    "llama-13b": (1024, 2048),
    "llama-33b": (1024, 2048),
    "llama-65b": (1024, 2048),
    "bert-large": (4096, 512),
}
TOKENS = {"llama-7b": 1e12, "llama-13b": 1e12, "llama-33b": 1.4e12, "llama-65b": 1.4e12, "bert-large": 137e9}


def plans(
    *,
    out: Path = Path("docs"),
    models: tuple[str, ...] = (),
    slices: tuple[str, ...] = (),
    anew: bool = False,
    draw_only: bool = False,
) -> None:
    """Write the page of plans: LLaMA and BERT-large on three kinds of TPU, as a table and a plot.

    Each plan takes minutes; a finished one is kept as JSON beside the page, so that a run that was stopped goes on
    where it stood. Those of steps that summed gradients otherwise come last, again. Mesh, remat and micro-batches are
    the fastest that fit by formula; the compiler has the last word.

    Args:
        out: where plans.md, plans.png and the folder plans/ are written.
        models: these alone.
        slices: these alone.
        anew: compile also what is there.
        draw_only: compile nothing; table and plot of what is there.

    Examples:
        python -m train plans --out docs
        python -m train plans --out docs --models llama-7b --slices v5e:16x16 v5p:4x4x8
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    folder = out / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    for name in models:
        if name not in MODELS:
            from zoo.errors import nearest

            raise InputError(f'the page has no model "{name}"{nearest(name, MODELS)}')
    wanted = [(model, str(parse_slice(slice))) for model in models or MODELS for slice in slices or SLICES]
    paths = {(model, slice): folder / f"{model}-{slice.replace(':', '-')}.json" for model, slice in wanted}
    for model, slice in sorted([] if draw_only else wanted, key=lambda pair: paths[pair].exists()):
        path = paths[model, slice]
        if path.exists() and not anew and load(path).sums == SUMS:
            continue
        print(f"{wanted.index((model, slice)) + 1} of {len(wanted)}: {model} on {slice}", flush=True)
        compile_one(model, slice, path, lambda line: print(f"  {line}", flush=True))
    found = read(folder)
    if not found:
        raise InputError(f"{folder} holds no plan yet")
    write_atomically(out / "plans.md", markdown(found))
    draw(found, out / "plans.png")
    print(f"{out / 'plans.md'}: {len(found)} plans")


def compile_one(model: str, slice: str, path: Path, say: Callable[[str], None]) -> None:
    """Plans one model on one slice in a process of its own, and keeps the plan at `path`; says why where none fits."""
    batch, seq = MODELS[model]
    job = make_job(model, parse_slice(slice), batch=batch, seq=seq)
    ranked = candidates(job)
    if not ranked:
        return say("no mesh, remat and micro-batches let it fit by formula")
    for candidate in shortlist(ranked):
        say(str(candidate))
        command = [sys.executable, "-m", "train", *words(candidate.job, model), "--json", str(path)]
        command += ["--tokens", f"{TOKENS[model]:g}", "--quiet"]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if ended.returncode == 0:
            return None
        say((ended.stderr.strip().splitlines() or [f"ended with {ended.returncode}"])[-1])
    return None


def words(job: Job, model: str) -> list[str]:
    """The subcommand and options that plan `job`."""
    from train.plan.command_lines import plan_command

    return shlex.split(plan_command(job, model))[3:]


def read(folder: Path) -> list[Plan]:
    """The plans kept, in the page's order."""
    plans = [load(path) for path in sorted(folder.glob("*.json"))]
    order = {name: place for place, name in enumerate((*MODELS, *SLICES))}
    return sorted(plans, key=lambda plan: (order.get(plan.model, 99), order.get(plan.slice, 99), plan.slice))


def load(path: Path) -> Plan:
    """A plan that was kept."""
    return Plan.from_dict(json.loads(path.read_text("utf-8")))


def markdown(found: Sequence[Plan]) -> str:
    """The page as Markdown."""
    heads = ("model", "slice", "chips", "batch", "mesh", "remat", "micro-batches", "memory a chip", "step", "MFU",
             "tokens/s", "cost of a run")  # fmt: skip
    lines = [
        "# Plans",
        "",
        "Written by `python -m train plans --out docs`: each row is a whole training step, compiled ahead of time for",
        "the slice by libtpu, no TPU at hand; mesh, remat and micro-batches are the fastest that fit by formula. Times",
        "are predicted from the compiled step and the chips' published peaks; what they rest on stands below. The last",
        "column is the cost of the tokens that the model was published with.",
        "",
        "![memory and MFU of the plans](plans.png)",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
    ]
    for plan in found:
        memory = f"{bytes_text(plan.memory['total'])} of {bytes_text(plan.hbm)}"
        tokens = TOKENS.get(plan.model, 1e12)
        cells = (
            plan.model + ("" if plan.sums == SUMS else "*"),
            plan.slice,
            str(plan.chips),
            f"{plan.batch} x {plan.seq}",
            plan.mesh,
            plan.remat,
            str(plan.accumulate),
            memory if plan.fits else f"**{memory}**",
            span(plan.step, seconds_text),
            span(plan.mfu[::-1], lambda x: f"{100 * x:.0f} %"),
            span(plan.tokens_per_second[::-1], lambda x: f"{x:,.0f}"),
            f"{count_text(tokens)} tokens: {span(plan.chip_hours(tokens), hours_text)} chip-hours",
        )
        lines.append("| " + " | ".join(cells) + " |")
    if any(plan.sums != SUMS for plan in found):
        lines += ["", f"*: of a step that summed gradients over chips in bfloat16; now it is {SUMS}, which sends more."]
        lines += ["Their FLOPs count blocks of causal scores that splash attention skips, too."]
    lines += ["", "Each again, with all its numbers:", "", "```"]
    lines += [plan.command for plan in found]
    lines += ["```", "", "What the times rest on:", ""]
    seen = dict.fromkeys(re.sub("; [^;]* takes longest$", "", line) for plan in found for line in plan.assumptions)
    lines += [f"- {line}" for line in seen]
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Plan], path: Path) -> None:
    """Two panels, a bar a plan: memory by part as a share of the chip's, and the range of MFU."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 0.34 * len(found) + 1.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    rows = range(len(found))
    starts = [0.0] * len(found)
    parts = {"parameters": "#2f5d8a", "moments": "#8fa8c8", "temporaries": "#d9a441", "rest": "#b8b8b8"}
    for part, colour in parts.items():
        shares = [_share(plan, part) for plan in found]
        left.barh(rows, shares, left=starts, color=colour, label=part)
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    left.axvline(1, color="#c0392b", linewidth=1)
    left.set(xlabel="memory of a chip in use", yticks=list(rows))
    left.set_yticklabels([f"{plan.model} on {plan.slice}" for plan in found])
    left.invert_yaxis()
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=len(parts), fontsize=8)
    lows, highs = [plan.mfu[1] for plan in found], [plan.mfu[0] for plan in found]
    right.barh(rows, [high - low for low, high in zip(lows, highs, strict=True)], left=lows, color="#2e7d4f")
    right.set(xlabel="predicted MFU, from worst to best", xlim=(0, 1))
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
    with replacing(path) as hidden:
        figure.savefig(hidden, format="png")


def _share(plan: Plan, part: str) -> float:
    if part != "rest":
        return plan.memory[part] / plan.hbm
    known: Any = sum(plan.memory[name] for name in ("parameters", "moments", "temporaries"))
    return (plan.memory["total"] - known) / plan.hbm
