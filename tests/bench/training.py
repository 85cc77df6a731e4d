"""Training steps: this project against other libraries, turn and turn about.

    make bench BENCH=training                               # all environments, three rounds
    python tests/bench/training.py --rows bert gpt2 --contestants ours theirs --steps 4
    python tests/bench/training.py --resume                 # go on with the newest run, whatever has changed since

One step is forward, backward, clipping by the global norm and AdamW, in full, on the same ids in the same order (eight
batches in turn, so that a model that learns shows it). Models have the same shapes and, to 1 %, the same number of
parameters. Each contestant is a process of its own. Contestants, all with float32 parameters:

    ours                        train.step as `pretrain` compiles it
    ours-mixed-bf16             products in bfloat16, all else in float32: pretrain --matmul bfloat16
    ours-bf16                   activations in bfloat16, too
    theirs, theirs-bf16         transformers on torch: eager; with autocast to bfloat16; fused AdamW, sdpa attention
    theirs-compiled, ...-bf16   the same with torch.compile
    keras, keras-bf16           keras-hub on jax, one jitted step; with the policy mixed_bfloat16
    x, x-compiled, ...-bf16     x-transformers on torch
    litgpt, litgpt-bf16         litgpt's model, compiled as its own pre-training has it; LLaMA rows alone

A line of runs/bench/training.jsonl holds, of one round of one contestant: `rate`, tokens a second over the median step
once all is compiled, and `spread`, over the slowest and the fastest; `step` and `cpu`, seconds of the median step by
the wall and of all threads; `first_step`, with compiling (torch finds what it compiled in earlier rounds on disk);
`peak`, the most memory the process held, compiling too; `losses`, means of the first and the last eight steps;
`parameters`; `flops`, model FLOPs a token (training_rows.Row.flops). What is kept there of the commit that is checked
out, where no file differs, is not run again unless --again is given.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import contestant as bench
from training_rows import BATCHES, CLIP, DECAY, RATE, ROWS, WARM, Contestant, Row, batches, measured

BENCH, TOLERANCE = "training", 0.2
CONTESTANTS = {
    "ours": Contestant("ours", fields={"matmul_dtype": "float32"}),
    "theirs": Contestant("theirs"),
    "theirs-compiled": Contestant("theirs", compiled=True),
    "keras": Contestant("keras"),
    "x": Contestant("x"),
    "x-compiled": Contestant("x", compiled=True),
    "litgpt": Contestant("litgpt", compiled=True, families=("llama",)),
    "ours-mixed-bf16": Contestant("ours", half=True, fields={"matmul_dtype": "bfloat16"}),
    "ours-bf16": Contestant("ours", half=True, fields={"dtype": "bfloat16"}),
    "theirs-bf16": Contestant("theirs", half=True),
    "theirs-compiled-bf16": Contestant("theirs", half=True, compiled=True),
    "keras-bf16": Contestant("keras", half=True),
    "x-bf16": Contestant("x", half=True),
    "x-compiled-bf16": Contestant("x", half=True, compiled=True),
    "litgpt-bf16": Contestant("litgpt", half=True, compiled=True, families=("llama",)),
}
# Of each library: the option that names its interpreter.
INTERPRETERS = {"ours": "ours", "theirs": "reference", "keras": "keras", "x": "x", "litgpt": "x"}
PRESETS = {"bert": "bert-base", "gpt": "gpt2", "llama": "llama-tiny"}


def run_ours(contestant: Contestant, row: Row, steps: int) -> dict[str, Any]:
    """Steps of this project's training."""
    import jax
    import numpy as np

    import zoo
    from train.config import TrainConfig
    from train.corruption import Vocabulary
    from train.mesh import make_driver
    from train.objectives import Objective, masked_lm, next_token
    from train.optimizer import make_optimizer
    from train.state import initial_state
    from train.step import make_train_step

    fields = {
        "vocab_size": row.vocabulary, "embed_dim": row.width, "num_layers": row.layers, "num_heads": row.heads,
        "num_kv_heads": row.heads, "mlp_dim": row.mlp, "max_positions": row.positions, "tie_embeddings": True,
        "dropout": row.dropout, "embed_dropout": row.dropout, "attention_dropout": row.dropout,
    }  # fmt: skip
    if row.share:
        fields |= {"head": "masked_lm", "pooler": False}
    model = zoo.create(PRESETS[row.family], **fields | contestant.fields)

    def masked(model, params, batch, keys, train=True):
        vocabulary = Vocabulary(row.vocabulary, 4, tuple(range(7)))
        return masked_lm(model, params, batch, keys, vocabulary=vocabulary, rate=row.share)

    config = TrainConfig(
        steps=1000, batch_size=row.rows, learning_rate=RATE, schedule="constant", weight_decay=DECAY, clip_norm=CLIP
    )
    optimizer, driver = make_optimizer(config), make_driver("jit")
    state = driver.init(initial_state(model.init, optimizer, 0))
    update = driver.compile(make_train_step(model, Objective(masked if row.share else next_token), optimizer, config))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))

    def step(batch):
        nonlocal state
        state, metrics = update(state, driver.put(batch))
        loss, weight = jax.device_get(metrics["loss"])
        return loss / weight

    def arrays_of(numbered):
        number, ids = numbered
        rows = (number * row.rows + np.arange(row.rows)).astype(np.int32)
        return {"tokens": ids, "segment_ids": np.ones_like(ids), "row_ids": rows}

    given = map(arrays_of, enumerate(batches(row, steps + WARM)))
    found = measured(step, given, row, parameters, {"device": jax.default_backend()})
    if jax.default_backend() != "cpu":
        found["device_peak"] = jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]
    return found


def unlike(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A line for each contestant whose loss did not fall as the others' did; one line where too few steps tell nothing.

    A fall is the mean loss of the first eight steps less that of the last eight, which are the same eight batches, by
    the median of rounds. It may differ by TOLERANCE of the median contestant's. Starts, masks and dropout are drawn by
    each library in its own way, and details of the models differ: falls of five libraries in tiny models lay within 9 %
    of their median, float32 and bfloat16 of one within 0.1 %. Another rate, an optimizer left out or a starting scale
    twice as small (which one library's preset had: 40 %) change it by more; weight decay, in so few steps, does not.
    """
    falls, short = {}, False
    for name, runs in found.items():
        if runs:
            falls[name] = statistics.median(run["losses"][0] - run["losses"][1] for run in runs)
            short |= any(run["steps"] + WARM < 2 * BATCHES for run in runs)
    if not falls:
        return []
    if short:
        return [f"too few steps to tell whether losses fall alike: --steps {2 * BATCHES - WARM} or more"]
    usual = statistics.median(falls.values())
    return [
        f"{name}: the loss fell by {fall:.3f}, and by {usual:.3f} in the median contestant: not alike"
        for name, fall in falls.items()
        if not abs(fall - usual) <= TOLERANCE * abs(usual)
    ]


def records(path: Path) -> list[dict[str, Any]]:
    """Lines of a file of records that are such; [] if there is no file."""
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
            if line["bench"] == BENCH and isinstance(line["values"]["steps"], int):
                found.append(line)
        except (ValueError, LookupError, TypeError):
            continue
    return found


def newest(
    lines: Iterable[dict[str, Any]], machine: dict[str, Any], commit: str | None, steps: int
) -> tuple[str | None, dict[tuple[str, str, int], dict[str, Any]]]:
    """The newest run of `machine` and what it holds: {(row, contestant, round): values}.

    Args:
        lines: of records().
        machine: of contestant.machine(); other machines' are left out.
        commit: the runs of this commit alone; None takes those of any.
        steps: lines of as many steps alone.
    """
    lines = [line for line in lines if line.get("machine") == machine and line["values"]["steps"] == steps]
    if commit is not None:
        lines = [line for line in lines if line.get("commit") == commit]
    run = max((line["run"] for line in lines if line.get("run")), default=None)
    same = [line for line in lines if line.get("run") == run]
    return run, {(line["row"], line["contestant"], line["round"]): line["values"] for line in same} if run else {}


def line_of(values: dict[str, Any]) -> str:
    """One round of one contestant in words."""
    return (
        f"{values['rate']:,.0f} tokens/s, {values['cpu']:.2f} s of CPU a step, {values['peak'] / 2**30:.2f} GiB, "
        f"first step {values['first_step']:.1f} s, losses {values['losses'][0]:.3f} {values['losses'][1]:.3f}"
    )


def table(row: str, rounds: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Medians of {contestant: {round: values}}; ratios are to the first contestant, of rounds that both ran."""
    found = {name: list(runs.values()) for name, runs in rounds.items() if runs}
    base = next(iter(found), None)
    lines = [f"{row}: tokens/s (least to most), times {base}; CPU s a step; peak; first step; losses first and last"]
    for name, runs in found.items():
        rates = [run["rate"] for run in runs]
        both = rounds[name].keys() & rounds[base].keys()
        ratios = [rounds[name][number]["rate"] / rounds[base][number]["rate"] for number in both]
        ratio = statistics.median(ratios) if both else math.nan
        cpu, first = (statistics.median(run[key] for run in runs) for key in ("cpu", "first_step"))
        peak = statistics.median(run["peak"] for run in runs) / 2**30
        losses = [statistics.median(values) for values in zip(*(run["losses"] for run in runs), strict=True)]
        lines.append(
            f"  {name:22} {statistics.median(rates):9,.0f} ({min(rates):,.0f} to {max(rates):,.0f})   {ratio:5.2f}   "
            f"{cpu:7.2f}   {peak:5.2f} GiB   {first:6.1f} s   {losses[0]:.3f} {losses[1]:.3f}"
        )
    return "\n".join([*lines, *(f"  {line}" for line in unlike(found))])


def compare(given: argparse.Namespace) -> int:
    """Runs all contestants in turn, row by row, and keeps what they measured; 1 if one failed."""
    commit, path, failures = bench.commit(), bench.KEPT / f"{BENCH}.jsonl", 0
    run, kept = None, {}
    if given.resume or not (given.again or commit is None or commit.endswith("+")):
        run, kept = newest(records(path), bench.machine(), None if given.resume else commit, given.steps)
    if run is not None:
        bench.RUN = run  # what comes now belongs to it
    for row in given.rows:
        able = [name for name in given.contestants if ROWS[row].family in CONTESTANTS[name].families]
        found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in able}
        for number in range(1, given.rounds + 1):
            for name in able:
                values, note = kept.get((row, name, number)), " (kept)"
                if values is None:
                    setting, note = CONTESTANTS[name], ""
                    python = getattr(given, INTERPRETERS[setting.library])
                    words = [python, __file__, "--run", name, "--rows", row, "--steps", str(given.steps)]
                    try:
                        values = bench.result_of(words)
                    except bench.Failed as error:
                        failures += 1
                        print(f"error: round {number}, {row}, {name}: {error}", file=sys.stderr, flush=True)
                        continue
                    bench.record(BENCH, row, name, number, values, precision=setting.precision)
                found[name][number] = values
                print(f"round {number}, {row}, {name}{note}: {line_of(values)}", flush=True)
        print(f"\n{table(row, found)}\n", flush=True)
    return int(failures > 0)


def missing(given: argparse.Namespace) -> str | None:
    """One line if an interpreter that is needed is not there."""
    for name in given.contestants:
        option = INTERPRETERS[CONTESTANTS[name].library]
        python = getattr(given, option)
        if not (bench.ROOT / python).exists():
            return (
                f'{python} is not there, for {name}: "make bench BENCH={BENCH}" makes it, or name one with --{option}'
            )
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="one contestant, in this process")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--ours", default=sys.executable, help="interpreter of this project")
    parser.add_argument("--reference", default=".venv-bench/bin/python", help="interpreter of transformers")
    parser.add_argument("--keras", default=".venv-bench-keras/bin/python", help="interpreter of keras-hub")
    parser.add_argument("--x", default=".venv-bench-x/bin/python", help="interpreter of x-transformers and litgpt")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="run what is kept of this commit, too")
    parser.add_argument("--resume", action="store_true", help="take what the newest run kept, of any commit")
    given = parser.parse_args()
    if given.run:
        from training_peers import RUNS

        setting = CONTESTANTS[given.run]
        run = {**RUNS, "ours": run_ours}[setting.library]
        print(json.dumps(run(setting, ROWS[given.rows[0]], given.steps)))
        return
    fault = missing(given)
    sys.exit(f"error: {fault}" if fault else compare(given))


if __name__ == "__main__":
    main()
